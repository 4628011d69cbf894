#include "suites.h"

#include <string.h>

/* Two packets where a message can be executed in part, signaled and not. */
#define EVERY "W2s W2u I2s I2u S2s S2u R2s R2u A1s A1u"
#define FENCED EVERY " W2sf S2sf R2sf A1sf"
#define SIGNALED "W2s I2s S2s R2s A1s"
#define CORE "W2s W2u S2s R2u A1s S2sf"

const struct suite SUITES[] = {
    {"mutants", "one way", SIGNALED " S2sf", {3, 0}, "faults=1 eager=1", 7},
    {"mutants", "other way", SIGNALED " S2sf", {0, 3}, "faults=1 eager=1", 7},
    {"mutants", "both ways", "W2s S2s R2s A1s", {2, 2}, "faults=2 eager=1 repeats=1", 11},
    {"mutants", "both ways, untrusted", "W2s S2s R2s", {2, 1}, "faults=1 untrusted=3 eager=1", 0},
    {0},
};

static unsigned letters_of(const struct suite *suite, char words[32][8]) {
    unsigned count = 0;
    const char *at = suite->letters;
    while (*at != '\0') {
        unsigned length = (unsigned)strcspn(at, " ");
        memcpy(words[count], at, length);
        words[count++][length] = '\0';
        at += length + (at[length] == ' ');
    }
    return count;
}

/* Programs of up to `most` requests: 1 + n + n^2 + ... */
static uint64_t ways(unsigned letters, unsigned most) {
    uint64_t sum = 1;
    uint64_t power = 1;
    for (unsigned i = 0; i < most; i++) {
        power *= letters;
        sum += power;
    }
    return sum;
}

uint64_t suite_size(const struct suite *suite) {
    char words[32][8];
    unsigned letters = letters_of(suite, words);
    return ways(letters, suite->most[0]) * ways(letters, suite->most[1]) - 1;
}

static void put_side(uint64_t index, unsigned letters, char words[32][8], char *text) {
    uint64_t power = 1;
    unsigned count = 0;
    while (index >= power) { /* which length */
        index -= power;
        power *= letters;
        count++;
    }
    for (unsigned i = 0; i < count; i++) {
        strcat(text, words[index % letters]);
        strcat(text, " ");
        index /= letters;
    }
}

void suite_program(const struct suite *suite, uint64_t index, struct program *program) {
    char words[32][8];
    char text[128] = "";
    unsigned letters = letters_of(suite, words);
    uint64_t first = ways(letters, suite->most[0]);
    index += 1; /* not the empty one */
    put_side(index % first, letters, words, text);
    strcat(text, "/ ");
    put_side(index / first, letters, words, text);
    if (!program_parse(text, program)) {
        __builtin_trap();
    }
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * UINT64_C(0x2545f4914f6cdd1d) >> 32;
}

void suite_random(uint64_t seed, struct program *program, struct limits *limits) {
    static const struct suite any = {.letters = FENCED " W1s S1s S1u W3s R3s", .most = {REQS, REQS}};
    uint64_t state = (seed + 1) * UINT64_C(0xd1342543de82ef95) | 1;
    (void)draw(&state);
    suite_program(&any, draw(&state) * UINT64_C(65537) % suite_size(&any), program);
    memset(limits, 0, sizeof(*limits));
    limits->faults = (uint8_t)(draw(&state) % 3);
    limits->orders = (uint8_t)(draw(&state) % 3);
    limits->late_sends = (uint8_t)(draw(&state) % (REQS + 1));
    limits->late_recvs = (uint8_t)(draw(&state) % (REQS + 1));
    limits->late_spare = draw(&state) % 2;
    limits->eager = draw(&state) % 2;
    limits->atomics = draw(&state) % 4 != 0;
    limits->reorder = draw(&state) % 2;
    limits->attempts = draw(&state) % 4 == 0;
    limits->repeats = (uint8_t)(draw(&state) % 3);
    switch (draw(&state) %
            8) { /* at most one of the kinds that excuse an error, so that the others show none */
    case 0:
        limits->timeouts = 1;
        break;
    case 1:
        limits->destroys = 1;
        break;
    case 2:
        limits->app_errors = 1;
        break;
    case 3:
        limits->lies = 2;
        break;
    case 4:
        limits->drops = draw(&state) % 2 ? 255 : 2;
        break;
    case 5:
        limits->untrusted = (uint8_t)(1 + draw(&state) % 3);
        break;
    default:
        break;
    }
}
