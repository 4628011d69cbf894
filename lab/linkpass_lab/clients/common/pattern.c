#include "pattern.h"

#include <string.h>

/* Odd 64-bit constants: the golden ratio, and the multipliers of the well-known murmur3 finaliser. */
#define GOLDEN 0x9E3779B97F4A7C15ULL
#define MUL_A 0xFF51AFD7ED558CCDULL
#define MUL_B 0xC4CEB9FE1A85EC53ULL

uint64_t mix64(uint64_t x) {
    x ^= x >> 33;
    x *= MUL_A;
    x ^= x >> 33;
    x *= MUL_B;
    x ^= x >> 33;
    return x;
}

uint64_t pattern_key(uint64_t seed, uint32_t qp, uint32_t direction) {
    return mix64(seed * GOLDEN + mix64(((uint64_t)direction << 32) + qp + 1));
}

static uint64_t message_base(uint64_t key, uint64_t seq) {
    return mix64(key + seq * GOLDEN);
}

/* One multiplication a word: the check runs under emulation too. */
static uint64_t body_word(uint64_t base, uint64_t index) {
    uint64_t x = (base + index * GOLDEN) * MUL_A;
    return x ^ (x >> 32);
}

static uint64_t word_at(uint64_t key, uint64_t base, uint64_t seq, uint64_t index) {
    return index == 0 ? seq ^ key : body_word(base, index);
}

uint64_t pattern_word(uint64_t key, uint64_t seq, uint64_t index) {
    return word_at(key, message_base(key, seq), seq, index);
}

void pattern_fill(uint64_t key, uint64_t seq, uint64_t offset, void *to, size_t len) {
    uint64_t base = message_base(key, seq);
    unsigned char *out = to;
    while (len > 0) {
        uint64_t word = word_at(key, base, seq, offset / 8);
        size_t skip = offset % 8;
        size_t take = 8 - skip < len ? 8 - skip : len;
        memcpy(out, (unsigned char *)&word + skip, take);
        out += take;
        offset += take;
        len -= take;
    }
}

size_t pattern_check(uint64_t key, uint64_t seq, uint64_t offset, const void *from, size_t len) {
    uint64_t base = message_base(key, seq);
    const unsigned char *in = from;
    size_t done = 0;
    while (done < len) {
        uint64_t word = word_at(key, base, seq, offset / 8);
        size_t skip = offset % 8;
        size_t take = 8 - skip < len - done ? 8 - skip : len - done;
        const unsigned char *want = (unsigned char *)&word + skip;
        if (memcmp(in + done, want, take) != 0) {
            while (in[done] == *want) {
                done++;
                want++;
            }
            return done;
        }
        done += take;
        offset += take;
    }
    return len;
}

bool pattern_owner(uint64_t key, const void *payload, size_t len, uint64_t *seq) {
    uint64_t words[2];
    if (len < sizeof(words))
        return false;
    memcpy(words, payload, sizeof(words));
    *seq = words[0] ^ key;
    return words[1] == pattern_word(key, *seq, 1);
}

void poison_fill(void *to, size_t len) {
    memset(to, POISON, len);
}

size_t poison_check(const void *from, size_t len) {
    const unsigned char *in = from;
    if (len == 0 || (in[0] == POISON && memcmp(in, in + 1, len - 1) == 0))
        return len;
    size_t at = 0;
    while (in[at] == POISON)
        at++;
    return at;
}

uint64_t checksum_bytes(uint64_t sum, const void *from, size_t len) {
    const unsigned char *in = from;
    size_t at = 0;
    for (; at + 8 <= len; at += 8) {
        uint64_t word;
        memcpy(&word, in + at, 8);
        sum = (sum ^ word) * MUL_A;
        sum ^= sum >> 32;
    }
    for (; at < len; at++)
        sum = (sum ^ in[at]) * MUL_B;
    return sum ^ len;
}
