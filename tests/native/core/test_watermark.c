/* Packet numbers and verdicts against values worked out by hand. */
#include "check.h"
#include "watermark.h"

struct list {
    struct lp_span spans[8];
};

static struct lp_span span_at(const void *requests, uint32_t at) {
    return ((const struct list *)requests)->spans[at];
}

static void packets_of_lengths_are_ceilings(void) {
    CHECK(lp_packets(LP_OP_WRITE, 0, 1024) == 1);
    CHECK(lp_packets(LP_OP_WRITE, 1, 1024) == 1);
    CHECK(lp_packets(LP_OP_WRITE, 1024, 1024) == 1);
    CHECK(lp_packets(LP_OP_SEND, 1025, 1024) == 2);
    CHECK(lp_packets(LP_OP_WRITE_IMM, 12288, 4096) == 3);
    CHECK(lp_packets(LP_OP_READ, 12289, 4096) == 4); /* response packets */
    CHECK(lp_packets(LP_OP_READ, 0, 4096) == 1);
    CHECK(lp_packets(LP_OP_ATOMIC, 8, 256) == 1);
    CHECK(lp_packets(LP_OP_LOCAL, 0, 256) == 0);
    CHECK(lp_packets(LP_OP_WRITE, UINT64_C(1) << 31, 256) == 8388608);
}

static void psn_arithmetic_wraps_at_24_bits(void) {
    CHECK(lp_psn_add(0xffffff, 1) == 0);
    CHECK(lp_psn_add(0xfff000, 0x1000) == 0);
    CHECK(lp_psn_add(5, LP_PSN_SPAN) == 5);
    CHECK(lp_psn_ahead(2, 0xfffffe) == 4);
    CHECK(lp_psn_ahead(7, 7) == 0);
    CHECK(lp_psn_ahead(6, 7) == 0xffffff);
}

/* 43 writes of 12 KiB at MTU 4096, first packet 0xfff000, as measured on rxe: 3 packets each. */
static void writes_settle_at_the_measured_wrap(void) {
    struct list list = {
        {{.first = 4095, .end = 4098, .op = LP_OP_WRITE}, {.first = 4098, .end = 4101, .op = LP_OP_WRITE}}};
    uint8_t verdicts[2];
    uint32_t bad;
    struct lp_settle_in in = {.requests = &list,
                              .span = span_at,
                              .count = 2,
                              .acked = 4095,
                              .posted = 4101,
                              .first_psn = 0xfff000,
                              .mark = {.psn = 0x000002, .flags = LP_MARK_PSN}};
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE); /* 0xfff000 + 4098 = 0x1000002: wraps to 2 */
    CHECK(verdicts[0] == LP_EXECUTED && verdicts[1] == LP_NOT_EXECUTED);
    in.mark.psn = 0x000003;
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE);
    CHECK(verdicts[0] == LP_EXECUTED && verdicts[1] == LP_PARTLY);
    in.mark.psn = 0x000001;
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE);
    CHECK(verdicts[0] == LP_PARTLY && verdicts[1] == LP_NOT_EXECUTED);
    in.mark.psn = 0xffffff; /* 4095: just what was acknowledged */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE);
    CHECK(verdicts[0] == LP_NOT_EXECUTED);
}

static void mark_out_of_range_settles_nothing(void) {
    struct list list = {{{.first = 0, .end = 2, .op = LP_OP_WRITE}}};
    uint8_t verdicts[1];
    uint32_t bad = 9;
    struct lp_settle_in in = {.requests = &list,
                              .span = span_at,
                              .count = 1,
                              .posted = 2,
                              .mark = {.psn = 3, .flags = LP_MARK_PSN}};
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_PSN_RANGE);
    CHECK(verdicts[0] == LP_UNKNOWN && bad == 0);
    in.mark.psn = 0xffffff; /* behind what is acknowledged */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_PSN_RANGE);
    in.mark.psn = 0x1000000; /* not 24 bits */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_PSN_RANGE);
    in.mark.psn = 1;
    in.posted = LP_PSN_SPAN; /* 2^24 open packets: ambiguous */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_PSN_RANGE);
    in.posted = 2;
    in.mark.flags = 0;
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_NO_MARK);
}

static void receives_that_contradict_settle_nothing(void) {
    struct list list = {{{.first = 0, .end = 1, .op = LP_OP_SEND}, {.first = 1, .end = 2, .op = LP_OP_SEND}}};
    uint8_t verdicts[2];
    uint32_t bad;
    struct lp_settle_in in = {.requests = &list,
                              .span = span_at,
                              .count = 2,
                              .posted = 2,
                              .taken = 5,
                              .mark = {.psn = 1, .consumed = 6, .flags = LP_MARK_PSN | LP_MARK_CONSUMED}};
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE);
    CHECK(verdicts[0] == LP_EXECUTED && verdicts[1] == LP_NOT_EXECUTED);
    in.mark.consumed = 5;
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_RECEIVES);
    in.mark.consumed = 8;
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_TAKEN_RANGE);
    in.mark.consumed = 4; /* fewer than known */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_TAKEN_RANGE);
}

static void read_behind_executed_fence_is_complete(void) {
    struct list list = {{{.first = 0, .end = 3, .op = LP_OP_READ},
                         {.first = 3, .end = 4, .op = LP_OP_ATOMIC},
                         {.first = 4, .end = 6, .op = LP_OP_WRITE, .fence = true},
                         {.first = 6, .end = 8, .op = LP_OP_READ}}};
    uint8_t verdicts[4];
    uint32_t bad;
    struct lp_settle_in in = {.requests = &list,
                              .span = span_at,
                              .count = 4,
                              .posted = 8,
                              .mark = {.psn = 5, .flags = LP_MARK_PSN}};
    CHECK(lp_settle(&in, verdicts, &bad) ==
          LP_SETTLE_FINE); /* one packet of the fenced WRITE is proof enough */
    CHECK(verdicts[0] == LP_EXECUTED && verdicts[1] == LP_EXECUTED && verdicts[2] == LP_PARTLY &&
          verdicts[3] == LP_NOT_EXECUTED);
    in.mark.psn = 4; /* none of it was seen: the atomic was executed, and its result may be lost */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_ATOMIC_LOST);
    CHECK(bad == 1 && verdicts[0] == LP_REREAD && verdicts[1] == LP_LOST);
    in.mark.psn = 2; /* half the READ's packets */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE);
    CHECK(verdicts[0] == LP_REREAD && verdicts[1] == LP_NOT_EXECUTED && verdicts[2] == LP_NOT_EXECUTED);
}

static void receives_alone_tell_up_to_the_last_message(void) {
    struct list list = {{{.first = 0, .end = 2, .op = LP_OP_WRITE},
                         {.first = 2, .end = 3, .op = LP_OP_SEND},
                         {.first = 3, .end = 4, .op = LP_OP_READ},
                         {.first = 4, .end = 6, .op = LP_OP_WRITE_IMM},
                         {.first = 6, .end = 7, .op = LP_OP_WRITE}}};
    uint8_t verdicts[5];
    uint32_t bad;
    struct lp_settle_in in = {.requests = &list,
                              .span = span_at,
                              .count = 5,
                              .posted = 7,
                              .mark = {.consumed = 1, .flags = LP_MARK_CONSUMED}};
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE);
    CHECK(verdicts[0] == LP_EXECUTED && verdicts[1] == LP_EXECUTED && verdicts[2] == LP_REREAD &&
          verdicts[3] == LP_PARTLY && verdicts[4] == LP_NOT_EXECUTED);
    in.mark.consumed = 0; /* was the first WRITE executed? */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_UNKNOWABLE && bad == 0);
    in.mark.consumed = 2; /* and here the last */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_UNKNOWABLE && bad == 4);
}

static void what_cannot_be_replayed_must_be_executed(void) {
    struct list list = {{{.first = 0, .end = 1, .op = LP_OP_OPAQUE},
                         {.first = 1, .end = 1, .op = LP_OP_LOCAL},
                         {.first = 1, .end = 2, .op = LP_OP_WRITE}}};
    uint8_t verdicts[3];
    uint32_t bad;
    struct lp_settle_in in = {.requests = &list,
                              .span = span_at,
                              .count = 3,
                              .posted = 2,
                              .mark = {.psn = 2, .flags = LP_MARK_PSN}};
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_FINE);
    in.mark.psn = 1; /* nothing behind the local operation was seen */
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_OPAQUE && bad == 1);
    in.mark.psn = 0;
    CHECK(lp_settle(&in, verdicts, &bad) == LP_SETTLE_OPAQUE && bad == 0);
}

int main(void) {
    packets_of_lengths_are_ceilings();
    psn_arithmetic_wraps_at_24_bits();
    writes_settle_at_the_measured_wrap();
    mark_out_of_range_settles_nothing();
    receives_that_contradict_settle_nothing();
    read_behind_executed_fence_is_complete();
    receives_alone_tell_up_to_the_last_message();
    what_cannot_be_replayed_must_be_executed();
    return check_end();
}
