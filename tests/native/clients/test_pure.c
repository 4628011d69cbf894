/* Patterns, statistics, plans, stripes: the parts without state. */
#include "check.h"
#include "common/pattern.h"
#include "common/stats.h"
#include "ncclflow/job.h"
#include "rcflow/workload.h"

static void pattern_written_in_parts_equals_whole(void) {
    unsigned char whole[100], parts[100];
    uint64_t key = pattern_key(5, 1, 0);
    pattern_fill(key, 77, 0, whole, 100);
    pattern_fill(key, 77, 0, parts, 3);
    pattern_fill(key, 77, 3, parts + 3, 18);
    pattern_fill(key, 77, 21, parts + 21, 79);
    CHECK(memcmp(whole, parts, 100) == 0);
    CHECK(pattern_check(key, 77, 0, whole, 100) == 100);
    CHECK(pattern_check(key, 77, 13, whole + 13, 50) == 50);
}

static void pattern_any_flipped_bit_is_found_at_its_byte(void) {
    unsigned char b[67];
    uint64_t key = pattern_key(9, 0, 1);
    pattern_fill(key, 1234, 5, b, sizeof(b));
    for (size_t bit = 0; bit < sizeof(b) * 8; bit++) {
        b[bit / 8] ^= (unsigned char)(1u << bit % 8);
        CHECK(pattern_check(key, 1234, 5, b, sizeof(b)) == bit / 8);
        b[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void pattern_of_other_message_qp_or_direction_differs(void) {
    unsigned char b[64];
    pattern_fill(pattern_key(1, 2, 0), 10, 0, b, sizeof(b));
    CHECK(pattern_check(pattern_key(1, 2, 0), 11, 0, b, sizeof(b)) < sizeof(b));
    CHECK(pattern_check(pattern_key(1, 3, 0), 10, 0, b, sizeof(b)) < sizeof(b));
    CHECK(pattern_check(pattern_key(1, 2, 1), 10, 0, b, sizeof(b)) < sizeof(b));
    CHECK(pattern_check(pattern_key(2, 2, 0), 10, 0, b, sizeof(b)) < sizeof(b));
}

static void pattern_owner_names_the_message(void) {
    unsigned char b[16];
    uint64_t key = pattern_key(1, 2, 0), seq = 0;
    pattern_fill(key, 4711, 0, b, sizeof(b));
    CHECK(pattern_owner(key, b, sizeof(b), &seq) && seq == 4711);
    CHECK(!pattern_owner(key, b, 15, &seq));
    b[12] ^= 1;
    CHECK(!pattern_owner(key, b, sizeof(b), &seq));
}

static void poison_check_finds_first_other_byte(void) {
    unsigned char b[50];
    poison_fill(b, sizeof(b));
    CHECK(poison_check(b, sizeof(b)) == 50 && poison_check(b, 0) == 0);
    for (size_t i = 0; i < sizeof(b); i++) {
        b[i] ^= 0x80;
        CHECK(poison_check(b, sizeof(b)) == i);
        b[i] ^= 0x80;
    }
}

static void checksum_depends_on_order_and_length(void) {
    CHECK(checksum_bytes(0, "abcdefghABCDEFGH", 16) != checksum_bytes(0, "ABCDEFGHabcdefgh", 16));
    CHECK(checksum_bytes(0, "\0\0\0", 2) != checksum_bytes(0, "\0\0\0", 3));
}

static void stats_keep_the_twenty_longest_gaps_in_order(void) {
    struct stats s = {0};
    stats_start(&s, 1000, 0);
    uint64_t now = 1000;
    /* 30 gaps of 7, 14, 21 ... taken mod 31: a permutation of 1..30 */
    for (uint64_t i = 1; i <= 30; i++)
        stats_completion(&s, now += i * 7 % 31);
    CHECK(s.gap_count == GAPS_KEPT && s.completions == 30);
    for (size_t i = 0; i < GAPS_KEPT; i++)
        CHECK(s.gaps[i].ns == 30 - i);
    stats_free(&s);
}

static void stats_gap_starts_at_the_completion_before_it(void) {
    struct stats s = {0};
    stats_start(&s, 100, 0);
    stats_completion(&s, 150);
    stats_completion(&s, 1150);
    stats_end(&s, 1200);
    CHECK(s.gaps[0].at_ns == 150 && s.gaps[0].ns == 1000);
    CHECK(s.gap_count == 3);
    stats_free(&s);
}

static void stats_bytes_fall_into_their_tenth_of_a_second(void) {
    struct stats s = {0};
    stats_start(&s, 5000, 0);
    stats_sent(&s, 5000 + 99999999, 10);
    stats_sent(&s, 5000 + 100000000, 20);
    stats_sent(&s, 5000 + 70000000000ull, 5);
    CHECK(s.tx.count == 701 && s.tx.bytes[0] == 10 && s.tx.bytes[1] == 20 && s.tx.bytes[700] == 5);
    CHECK(s.tx.bytes[2] == 0 && s.tx_bytes == 35 && s.rx.count == 0);
    stats_free(&s);
}

static void pieces_cover_every_byte_once(void) {
    struct piece p[SGES_MAX];
    for (uint64_t total = 0; total < 300; total++)
        for (uint64_t sges = 1; sges <= SGES_MAX; sges++) {
            size_t n = cut_pieces(total, sges, 3, total + sges, p);
            uint64_t at = 0;
            for (size_t i = 0; i < n; i++) {
                CHECK(p[i].offset == at && p[i].len > 0 && p[i].mr < 3);
                at += p[i].len;
            }
            CHECK(at == total && n <= sges);
        }
}

static void imm_names_its_request_across_the_24_bit_wrap(void) {
    CHECK(seq_from_imm(0xAB000005, 0x1000003) == 0x1000005);
    CHECK(seq_from_imm(0xABffffff, 0x1000003) == 0x0ffffff);
    CHECK(seq_from_imm(0xAB000001, 0x0fffffe) == 0x1000001);
}

static void chain_of_atomics_returns_each_value_once(void) {
    struct chain c;
    uint64_t key = 99;
    chain_start(&c, key);
    uint64_t sum = c.sum, token = c.token;
    struct request add = {.seq = 1, .op = OP_FETCH_ADD, .size = 8, .add = 5};
    struct request swap = {.seq = 2, .op = OP_CMP_SWP, .size = 8};
    struct request miss = {.seq = 3, .op = OP_CMP_SWP, .size = 8, .swap_fails = true};
    struct atomic_values v = chain_step(&c, key, &add);
    CHECK(v.original == sum && v.compare_add == 5 && c.sum == sum + 5);
    v = chain_step(&c, key, &swap);
    CHECK(v.original == token && v.compare_add == token && c.token == v.swap && v.swap != token);
    token = v.swap;
    v = chain_step(&c, key, &miss);
    CHECK(v.original == token && v.compare_add != token && c.token == token);
}

static void stripes_cover_a_message_in_multiples_of_128(void) {
    for (uint32_t size = 0; size < 3000; size += 7)
        for (uint64_t lanes = 1; lanes <= LANES_MAX; lanes++) {
            uint32_t at = 0;
            for (uint64_t l = 0; l < lanes; l++) {
                uint32_t from, len = stripe(size, lanes, l, &from);
                CHECK(len == 0 || (from == at && from % STRIPE_ALIGN == 0));
                at += len;
            }
            CHECK(at == size);
        }
}

static void group_plan_keeps_sizes_within_room_and_tags_apart(void) {
    struct job j = {
        .connections = 1, .lanes = 1, .max_requests = 4, .group = 8, .size_low = 3, .size_high = 90};
    uint64_t seen = 0, zero = 0;
    for (uint64_t k = 0; k < 500; k++) {
        struct group g = plan_group(&j, 42, k);
        CHECK(g.count >= 1 && g.count <= 8);
        seen |= 1u << g.count;
        for (uint32_t r = 0; r < g.count; r++) {
            CHECK(g.room[r] >= 3 && g.room[r] <= 90 && g.size[r] <= g.room[r]);
            zero += g.size[r] == 0;
            for (uint32_t q = 0; q < r; q++)
                CHECK(g.tag[q] != g.tag[r]);
        }
    }
    CHECK(seen == 0x1fe && zero > 20);
}

static void imm_of_group_is_size_or_bit_mask(void) {
    struct job j = {.lanes = 2, .group = 8, .adaptive_over = 100};
    struct group one = {.count = 1, .size = {99}}, big = {.count = 1, .size = {101}};
    struct group three = {.count = 3, .size = {5, 0, 7}};
    CHECK(group_imm(&one) == 99 && !group_splits(&j, &one) && group_imm_bytes(&j, &one, 0) == 99);
    CHECK(group_imm(&big) == 101 && group_splits(&j, &big) && group_imm_bytes(&j, &big, 0) == 0);
    CHECK(group_imm(&three) == 5 && group_splits(&j, &three) && group_imm_bytes(&j, &three, 1) == 12);
}

#define CASE(f)                                                                                              \
    { #f, f }
int main(int argc, char **argv) {
    static const struct test_case CASES[] = {
        CASE(pattern_written_in_parts_equals_whole),
        CASE(pattern_any_flipped_bit_is_found_at_its_byte),
        CASE(pattern_of_other_message_qp_or_direction_differs),
        CASE(pattern_owner_names_the_message),
        CASE(poison_check_finds_first_other_byte),
        CASE(checksum_depends_on_order_and_length),
        CASE(stats_keep_the_twenty_longest_gaps_in_order),
        CASE(stats_gap_starts_at_the_completion_before_it),
        CASE(stats_bytes_fall_into_their_tenth_of_a_second),
        CASE(pieces_cover_every_byte_once),
        CASE(imm_names_its_request_across_the_24_bit_wrap),
        CASE(chain_of_atomics_returns_each_value_once),
        CASE(stripes_cover_a_message_in_multiples_of_128),
        CASE(group_plan_keeps_sizes_within_room_and_tags_apart),
        CASE(imm_of_group_is_size_or_bit_mask),
    };
    return run_cases(CASES, sizeof(CASES) / sizeof(*CASES), argc, argv);
}
