/* ncclflow's checks of clear-to-send entries and of completion order; the JSON writer. */
#include "check.h"
#include "common/json.h"
#include "ncclflow/clear_to_send.h"
#include "ncclflow/lane_order.h"

static const struct job JOB = {
    .connections = 1, .lanes = 2, .max_requests = 4, .group = 3, .size_low = 10, .size_high = 500};
static struct verdict v;
static struct cts_entry slot[GROUP_MAX];
static struct group g;

static void arrive(uint64_t number) {
    verdict_init(&v);
    memset(slot, 0, sizeof(slot));
    do
        g = plan_group(&JOB, 1, number++);
    while (g.count < 3);
    for (uint32_t r = 0; r < g.count; r++)
        slot[r] = (struct cts_entry){.addr = 0x10000 + buffer_offset(&JOB, g.number, r),
                                     .size = g.room[r],
                                     .rkey = 9,
                                     .count = g.count,
                                     .tag = g.tag[r],
                                     .index = g.number + 1};
}

static enum cts_state check(void) {
    return cts_check(slot, &JOB, &g, 0x10000, 9, &v, 0);
}

static void cts_complete_is_ready(void) {
    arrive(20);
    CHECK(check() == CTS_READY && v.violation_count == 0);
}

static void cts_absent_or_partly_arrived_is_not_yet(void) {
    arrive(20);
    slot[2].index = 0;
    CHECK(check() == CTS_NOT_YET);
    memset(slot, 0, sizeof(slot));
    CHECK(check() == CTS_NOT_YET && v.violation_count == 0);
}

static void cts_of_an_earlier_lap_is_a_duplicate(void) {
    arrive(20);
    slot[0].index -= job_slots(&JOB);
    CHECK(check() == CTS_WRONG && v.violation_count == 1 && v.violations[0].kind == DUPLICATE);
}

static void cts_of_a_later_lap_is_reordered(void) {
    arrive(20);
    slot[0].index += job_slots(&JOB);
    CHECK(check() == CTS_WRONG && v.violations[0].kind == REORDERED);
}

static void cts_with_any_wrong_field_is_a_mismatch(void) {
    for (int field = 0; field < 5; field++) {
        arrive(20);
        if (field == 0)
            slot[1].addr++;
        if (field == 1)
            slot[1].size++;
        if (field == 2)
            slot[1].rkey++;
        if (field == 3)
            slot[1].tag++;
        if (field == 4)
            slot[1].count--;
        CHECK(check() == CTS_WRONG && v.violation_count == 1 && v.violations[0].kind == DATA_MISMATCH);
    }
}

static void cts_leftovers_are_counted(void) {
    static struct cts_entry fifo[8 * GROUP_MAX];
    CHECK(cts_leftovers(fifo, &JOB) == 0);
    fifo[8 * GROUP_MAX - 1].index = 5;
    CHECK(cts_leftovers(fifo, &JOB) == 1);
}

static void lane_takes_completions_in_order(void) {
    struct lane_order o = {.posted = 3, .step = 1}, every = {.posted = 9, .step = 4};
    verdict_init(&v);
    for (uint64_t n = 0; n < 3; n++)
        CHECK(lane_order_take(&o, n, 0, "data", 0, &v));
    for (uint64_t n = 0; n < 9; n += 4)
        CHECK(lane_order_take(&every, n, 0, "clear-to-send", 0, &v));
    CHECK(v.violation_count == 0);
}

static void lane_notices_repeated_skipped_and_unposted_ones(void) {
    struct lane_order o = {.posted = 5, .step = 1};
    verdict_init(&v);
    lane_order_take(&o, 0, 0, "data", 0, &v);
    lane_order_take(&o, 0, 0, "data", 0, &v);
    lane_order_take(&o, 2, 0, "data", 0, &v);
    lane_order_take(&o, 5, 0, "data", 0, &v);
    CHECK(v.violation_count == 3 && v.violations[0].kind == DUPLICATE && v.violations[1].kind == LOST);
    CHECK(v.violations[1].seq == 1 && v.violations[2].kind == UNEXPECTED);
}

static void lane_success_after_an_error_is_unexpected(void) {
    struct lane_order o = {.posted = 5, .step = 1};
    verdict_init(&v);
    CHECK(!lane_order_take(&o, 0, 12, "data", 0, &v) && v.violation_count == 0);
    lane_order_take(&o, 1, 0, "data", 0, &v);
    CHECK(v.violations[0].kind == UNEXPECTED);
}

static void verdict_ranks_violations_above_errors(void) {
    verdict_init(&v);
    CHECK(verdict_exit(&v) == EXIT_RIGHT && !verdict_spoilt(&v));
    CHECK(verdict_error(&v, false, 12, "RETRY_EXC_ERR", 1, "first"));
    CHECK(!verdict_error(&v, true, 5, "WR_FLUSH_ERR", 2, "second"));
    CHECK(verdict_exit(&v) == EXIT_ERROR && v.error.status == 12 && !v.error.by_peer);
    verdict_violation(&v, LOST, 0, 0, "x");
    CHECK(verdict_exit(&v) == EXIT_VIOLATION);
    verdict_init(&v);
    v.peer_violations = 1;
    CHECK(verdict_exit(&v) == EXIT_VIOLATION && verdict_spoilt(&v));
}

/* Printed, and compared by the caller with what a JSON parser should get from it. */
static void json_is_what_a_parser_reads(void) {
    struct json j;
    json_start(&j, stdout);
    json_object(&j, NULL);
    json_string(&j, "text", "a\"b\\c\n\x01\x7f\xff");
    json_string(&j, "none", NULL);
    json_u64(&j, "big", UINT64_MAX);
    json_i64(&j, "small", INT64_MIN);
    json_seconds(&j, "seconds", 12000000034ull);
    json_double(&j, "nan", 0.0 / 0.0);
    json_double(&j, "half", 0.5);
    json_array(&j, "empty");
    json_end_array(&j);
    json_array(&j, "list");
    json_bool(&j, NULL, true);
    json_object(&j, NULL);
    json_end_object(&j);
    json_null(&j, NULL);
    json_end_array(&j);
    json_bool(&j, "last", false);
    json_end_object(&j);
}

#define CASE(f)                                                                                              \
    { #f, f }
int main(int argc, char **argv) {
    static const struct test_case CASES[] = {
        CASE(cts_complete_is_ready),
        CASE(cts_absent_or_partly_arrived_is_not_yet),
        CASE(cts_of_an_earlier_lap_is_a_duplicate),
        CASE(cts_of_a_later_lap_is_reordered),
        CASE(cts_with_any_wrong_field_is_a_mismatch),
        CASE(cts_leftovers_are_counted),
        CASE(lane_takes_completions_in_order),
        CASE(lane_notices_repeated_skipped_and_unposted_ones),
        CASE(lane_success_after_an_error_is_unexpected),
        CASE(verdict_ranks_violations_above_errors),
        CASE(json_is_what_a_parser_reads),
    };
    return run_cases(CASES, sizeof(CASES) / sizeof(*CASES), argc, argv);
}
