/* rcflow's checkers against a perfect fabric, and against one that goes wrong in exactly one way. */
#include "check.h"
#include "common/pattern.h"
#include "fabric.h"

static struct fabric f;
static struct completion c;

static struct workload only(enum op a, enum op b) {
    struct workload w = fabric_workload();
    for (int op = 0; op < OP_KINDS; op++)
        w.weights[op] = op == (int)a || op == (int)b;
    return w;
}

static void clean_run(struct workload w) {
    fabric_open(&f, w);
    fabric_run(&f, 700);
    while (f.initiator.completed < f.initiator.built) { /* an unsignaled tail */
        struct outgoing *o = initiator_build(&f.initiator, true);
        initiator_publish(&f.initiator, 1);
        if (fabric_execute(&f, o, &c))
            fabric_receive(&f, &c);
        c = fabric_done(&f, o);
        fabric_complete(&f, &c);
    }
    responder_finish(&f.responder, f.initiator.posted, f.initiator.completed);
    if (f.verdict.violation_count)
        fprintf(stderr, "%s\n", f.verdict.violations[0].detail);
    CHECK(f.verdict.violation_count == 0);
    uint64_t verified = 0;
    for (int op = 0; op < OP_KINDS; op++)
        verified += f.responder.verified_count[op] + f.initiator.counts.verified[op];
    CHECK(verified == f.initiator.completed && verified >= 700);
    fabric_close(&f);
}

static void perfect_fabric_shows_no_violation_in_any_shape(void) {
    for (int shape = 0; shape < 24; shape++) {
        struct workload w = fabric_workload();
        w.sges = shape % 2 ? 3 : 1;
        w.mrs = shape % 3 + 1;
        w.signal_every = shape % 4 ? 1 : 5;
        w.srq = shape % 5 == 0;
        w.depth = shape % 6 ? 8 : 1;
        w.window = shape % 7 ? 16 : w.depth;
        w.sq_sig_all = shape % 11 == 0;
        w.seed = (uint64_t)shape;
        if (shape % 8 == 7) {
            w.size_count = 3;
            w.sizes[0] = 0;
            w.sizes[1] = 1;
            w.sizes[2] = 4097;
        }
        clean_run(w);
    }
    for (int op = 0; op < OP_KINDS; op++)
        clean_run(only((enum op)op, (enum op)op));
}

/* One-byte payloads take every value, also that of the poison: no reason for alarm. */
static void single_bytes_that_look_like_poison_are_right(void) {
    for (int op = 0; op < OP_KINDS; op++) {
        struct workload w = only((enum op)op, (enum op)op);
        w.size_count = 1;
        w.sizes[0] = 1;
        for (w.seed = 1; w.seed < 5; w.seed++)
            clean_run(w);
    }
}

static void write_with_flipped_byte_is_a_mismatch(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 20);
    fabric_execute(&f, o, &c);
    fabric_target(&f, o->request.seq)[17] ^= 4;
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    CHECK(f.verdict.violation_count == 0);
    fabric_credit(&f);
    CHECK(fabric_saw(&f, DATA_MISMATCH));
}

static void send_with_flipped_byte_is_a_mismatch(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_SEND, 40);
    fabric_execute(&f, o, &c);
    f.answering.base[0][receive_offset(&f.answering, c.wr_id & 0x7ffffff) + 39] ^= 1;
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, DATA_MISMATCH));
}

static void write_said_done_but_not_executed_is_lost(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 20);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    fabric_credit(&f);
    CHECK(fabric_saw(&f, LOST));
}

static void last_byte_not_written_is_a_mismatch(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE_IMM, 20);
    fabric_execute(&f, o, &c);
    fabric_target(&f, o->request.seq)[o->request.size - 1] = POISON;
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, DATA_MISMATCH));
}

static void send_executed_twice_is_a_duplicate(void) {
    static const enum op SENDS[] = {OP_SEND, OP_SEND_IMM, OP_WRITE_IMM};
    for (int i = 0; i < 3; i++) {
        fabric_open(&f, fabric_workload());
        struct outgoing *o = fabric_run_to(&f, SENDS[i], 30);
        fabric_execute(&f, o, &c);
        fabric_receive(&f, &c);
        fabric_execute(&f, o, &c);
        fabric_receive(&f, &c);
        CHECK(f.verdict.violation_count >= 1 && f.verdict.violations[0].kind == DUPLICATE);
        fabric_close(&f);
    }
}

static void send_skipped_is_lost_when_the_next_one_comes(void) {
    fabric_open(&f, only(OP_SEND_IMM, OP_SEND_IMM));
    fabric_run(&f, 50);
    fabric_post(&f);
    fabric_execute(&f, fabric_post(&f), &c);
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, LOST) && f.verdict.violations[0].seq == 50);
}

static void sends_swapped_are_lost_then_reordered(void) {
    fabric_open(&f, only(OP_SEND, OP_SEND_IMM));
    uint64_t first = 50;
    fabric_run(&f, first);
    struct outgoing *a = fabric_post(&f);
    struct outgoing *b = fabric_post(&f);
    while (a->request.size < 16 || b->request.size < 16) { /* shorter ones can't be told apart by payload */
        fabric_execute(&f, a, &c);
        fabric_receive(&f, &c);
        c = fabric_done(&f, a);
        fabric_complete(&f, &c);
        a = b;
        b = fabric_post(&f);
        first++;
    }
    fabric_execute(&f, b, &c);
    fabric_receive(&f, &c);
    fabric_execute(&f, a, &c);
    fabric_receive(&f, &c);
    CHECK(f.verdict.violation_count == 2);
    CHECK(f.verdict.violations[0].kind == LOST && f.verdict.violations[1].kind == REORDERED);
}

static void send_never_received_is_lost_at_the_end(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_SEND, 10);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    responder_finish(&f.responder, f.initiator.posted, f.initiator.completed);
    CHECK(fabric_saw(&f, LOST));
}

static void wrong_immediate_value_is_noticed(void) {
    fabric_open(&f, fabric_workload());
    fabric_execute(&f, fabric_run_to(&f, OP_SEND_IMM, 0), &c);
    c.imm ^= 0x01000000;
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, WRONG_IMM));
}

static void absent_immediate_value_is_noticed(void) {
    fabric_open(&f, fabric_workload());
    fabric_execute(&f, fabric_run_to(&f, OP_WRITE_IMM, 0), &c);
    c.has_imm = false;
    c.imm = 0;
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, WRONG_IMM));
}

static void wrong_receive_length_is_noticed(void) {
    fabric_open(&f, fabric_workload());
    fabric_execute(&f, fabric_run_to(&f, OP_SEND, 40), &c);
    c.byte_len--;
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, WRONG_LENGTH));
}

static void wrong_opcodes_are_noticed_at_both_ends(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE_IMM, 0);
    fabric_execute(&f, o, &c);
    c.opcode = 128;
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, WRONG_OPCODE) && f.verdict.violation_count == 1);
    c = fabric_done(&f, o);
    c.opcode = 2;
    fabric_complete(&f, &c);
    CHECK(fabric_saw(&f, WRONG_OPCODE) && f.verdict.violation_count == 2);
}

static void write_beyond_its_end_is_an_overwrite(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 10);
    fabric_execute(&f, o, &c);
    fabric_target(&f, o->request.seq)[o->request.size] = 0;
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    fabric_credit(&f);
    CHECK(fabric_saw(&f, OVERWRITTEN));
}

static void write_executed_again_after_its_check_is_an_overwrite(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing again = *fabric_run_to(&f, OP_WRITE, 20), *o = &again;
    unsigned char payload[256];
    fabric_execute(&f, o, &c);
    memcpy(payload, fabric_target(&f, o->request.seq), o->request.size);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    fabric_credit(&f);
    CHECK(f.verdict.violation_count == 0);
    memcpy(fabric_target(&f, again.request.seq), payload, again.request.size);
    fabric_run(&f, f.initiator.built + 2 * f.w.window);
    CHECK(fabric_saw(&f, OVERWRITTEN) && f.verdict.violations[0].seq == again.request.seq);
}

static void write_repeated_at_the_very_end_is_an_overwrite(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 20);
    fabric_execute(&f, o, &c);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    fabric_credit(&f);
    fabric_target(&f, o->request.seq)[3] = 0;
    responder_finish(&f.responder, f.initiator.posted, f.initiator.completed);
    CHECK(fabric_saw(&f, OVERWRITTEN));
}

static void write_of_a_buffer_already_given_back_is_noticed(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 20);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);   /* the job has its buffer back ... */
    fabric_execute(&f, o, &c); /* ... and only now it is sent */
    fabric_credit(&f);
    CHECK(fabric_saw(&f, LOST)); /* what arrived is poison: as if nothing had been written */
}

static void write_landing_in_another_slot_is_noticed_in_both(void) {
    fabric_open(&f, only(OP_WRITE, OP_WRITE));
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 20);
    memcpy(fabric_target(&f, o->request.seq + f.w.window), f.own.base[0] + o->source_at, o->request.size);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    fabric_credit(&f);
    CHECK(f.verdict.violation_count == 2);
    CHECK(f.verdict.violations[0].kind == LOST && f.verdict.violations[1].kind == OVERWRITTEN);
}

static void atomic_executed_twice_shows_in_the_next_result(void) {
    static const enum op ATOMICS[] = {OP_FETCH_ADD, OP_CMP_SWP};
    for (int i = 0; i < 2; i++) {
        fabric_open(&f, only(ATOMICS[i], ATOMICS[i]));
        struct outgoing *o = fabric_run_to(&f, ATOMICS[i], 0);
        while (o->request.swap_fails) {
            fabric_execute(&f, o, &c);
            c = fabric_done(&f, o);
            fabric_complete(&f, &c);
            fabric_credit(&f);
            o = fabric_run_to(&f, ATOMICS[i], 0);
        }
        fabric_execute(&f, o, &c);
        fabric_execute(&f, o, &c);
        c = fabric_done(&f, o);
        fabric_complete(&f, &c);
        CHECK(fabric_saw(&f, WRONG_ATOMIC)); /* its own result is already that of the second execution */
        fabric_close(&f);
    }
}

static void atomic_repeated_behind_the_result_shows_at_the_end(void) {
    fabric_open(&f, only(OP_FETCH_ADD, OP_FETCH_ADD));
    struct outgoing *o = fabric_run_to(&f, OP_FETCH_ADD, 0), copy = *o;
    fabric_execute(&f, o, &c);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    fabric_credit(&f);
    fabric_execute(&f, &copy, &c);
    responder_finish(&f.responder, f.initiator.posted, f.initiator.completed);
    CHECK(fabric_saw(&f, WRONG_ATOMIC));
}

static void atomic_or_read_completed_without_result_is_lost(void) {
    static const enum op FETCHES[] = {OP_FETCH_ADD, OP_CMP_SWP, OP_READ};
    for (int i = 0; i < 3; i++) {
        fabric_open(&f, fabric_workload());
        struct outgoing *o = fabric_run_to(&f, FETCHES[i], 8);
        c = fabric_done(&f, o);
        fabric_complete(&f, &c);
        CHECK(fabric_saw(&f, LOST));
        fabric_close(&f);
    }
}

static void read_of_stale_data_is_a_mismatch(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_READ, 30);
    fabric_execute(&f, o, &c);
    pattern_fill(f.initiator.key, o->request.seq - 2 * f.w.window, 0, f.own.base[0] + o->source_at,
                 o->request.size);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    CHECK(fabric_saw(&f, DATA_MISMATCH));
}

static void read_length_is_checked(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_READ, 30);
    fabric_execute(&f, o, &c);
    c = fabric_done(&f, o);
    c.byte_len++;
    fabric_complete(&f, &c);
    CHECK(fabric_saw(&f, WRONG_LENGTH));
}

static void completion_repeated_is_a_duplicate(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 0);
    fabric_execute(&f, o, &c);
    c = fabric_done(&f, o);
    CHECK(fabric_complete(&f, &c) == 1);
    CHECK(fabric_complete(&f, &c) == 0);
    CHECK(fabric_saw(&f, DUPLICATE));
}

static void completion_skipped_is_lost_and_late_one_a_duplicate(void) {
    fabric_open(&f, only(OP_WRITE, OP_WRITE));
    fabric_run(&f, 40);
    struct outgoing *a = fabric_post(&f), *b = fabric_post(&f);
    fabric_execute(&f, a, &c);
    fabric_execute(&f, b, &c);
    c = fabric_done(&f, b);
    CHECK(fabric_complete(&f, &c) == 2);
    CHECK(fabric_saw(&f, LOST) && f.verdict.violations[0].seq == 40);
    c = fabric_done(&f, a);
    fabric_complete(&f, &c);
    CHECK(f.verdict.violation_count == 2 && f.verdict.violations[1].kind == DUPLICATE);
}

static void completion_of_unsignaled_or_unposted_request_is_unexpected(void) {
    struct workload w = only(OP_WRITE, OP_WRITE);
    w.signal_every = 4;
    fabric_open(&f, w);
    fabric_run(&f, 40);
    struct outgoing *o = fabric_post(&f);
    CHECK(!o->is_signaled);
    fabric_execute(&f, o, &c);
    c = fabric_done(&f, o);
    fabric_complete(&f, &c);
    CHECK(fabric_saw(&f, UNEXPECTED) && f.verdict.violation_count == 1);
    c.wr_id = own_wr_id(0, 44);
    fabric_complete(&f, &c);
    CHECK(fabric_saw(&f, UNEXPECTED) && f.verdict.violation_count == 2);
}

static void success_after_an_error_is_unexpected(void) {
    fabric_open(&f, only(OP_WRITE, OP_WRITE));
    fabric_run(&f, 40);
    struct outgoing *a = fabric_post(&f), *b = fabric_post(&f);
    c = fabric_done(&f, a);
    c.status = 12;
    CHECK(fabric_complete(&f, &c) == 0 && f.verdict.violation_count == 0);
    c = fabric_done(&f, b);
    fabric_complete(&f, &c);
    CHECK(f.verdict.violation_count >= 1 && f.verdict.violations[0].kind == UNEXPECTED);
}

static void completion_naming_another_queue_pair_is_noticed(void) {
    fabric_open(&f, fabric_workload());
    struct outgoing *o = fabric_run_to(&f, OP_WRITE, 0);
    fabric_execute(&f, o, &c);
    c = fabric_done(&f, o);
    c.qp_num++;
    fabric_complete(&f, &c);
    CHECK(fabric_saw(&f, WRONG_QP));
}

static void receive_completed_twice_or_out_of_order_is_noticed(void) {
    fabric_open(&f, only(OP_SEND_IMM, OP_SEND_IMM));
    fabric_run(&f, 40);
    fabric_execute(&f, fabric_post(&f), &c);
    fabric_receive(&f, &c);
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, DUPLICATE) && f.verdict.violation_count == 1);
    fabric_close(&f);
    fabric_open(&f, only(OP_SEND_IMM, OP_SEND_IMM));
    f.oldest++; /* the fabric takes the second-oldest receive */
    fabric_execute(&f, fabric_post(&f), &c);
    fabric_receive(&f, &c);
    CHECK(fabric_saw(&f, REORDERED));
}

static void report_beyond_credit_or_backwards_is_unexpected(void) {
    fabric_open(&f, fabric_workload());
    fabric_run(&f, 40);
    responder_on_report(&f.responder, f.responder.granted + 1);
    CHECK(fabric_saw(&f, UNEXPECTED) && f.verdict.violation_count == 1);
    responder_on_report(&f.responder, f.responder.reported - 1);
    CHECK(fabric_saw(&f, UNEXPECTED) && f.verdict.violation_count == 2);
}

static void error_with_requests_under_way_is_no_violation(void) {
    fabric_open(&f, only(OP_WRITE, OP_FETCH_ADD));
    fabric_run(&f, 40);
    struct outgoing *a = fabric_post(&f);
    fabric_execute(&f, a, &c); /* executed, never acknowledged */
    fabric_post(&f);           /* not executed */
    c = fabric_done(&f, a);
    c.status = 12;
    fabric_complete(&f, &c);
    responder_finish(&f.responder, f.initiator.posted, f.initiator.completed);
    CHECK(f.verdict.violation_count == 0);
}

static void window_and_depth_bound_what_may_be_posted(void) {
    struct workload w = only(OP_WRITE, OP_WRITE);
    w.signal_every = 100;
    fabric_open(&f, w);
    for (uint64_t n = 0; n < w.depth; n++)
        fabric_post(&f);
    CHECK(initiator_room(&f.initiator, SEQ_MASK) == 0);
    CHECK(f.initiator.ring[w.depth - 1].is_signaled); /* the last place is signaled whatever was asked */
}

#define CASE(f)                                                                                              \
    { #f, f }
int main(int argc, char **argv) {
    static const struct test_case CASES[] = {
        CASE(perfect_fabric_shows_no_violation_in_any_shape),
        CASE(single_bytes_that_look_like_poison_are_right),
        CASE(write_with_flipped_byte_is_a_mismatch),
        CASE(send_with_flipped_byte_is_a_mismatch),
        CASE(write_said_done_but_not_executed_is_lost),
        CASE(last_byte_not_written_is_a_mismatch),
        CASE(send_executed_twice_is_a_duplicate),
        CASE(send_skipped_is_lost_when_the_next_one_comes),
        CASE(sends_swapped_are_lost_then_reordered),
        CASE(send_never_received_is_lost_at_the_end),
        CASE(wrong_immediate_value_is_noticed),
        CASE(absent_immediate_value_is_noticed),
        CASE(wrong_receive_length_is_noticed),
        CASE(wrong_opcodes_are_noticed_at_both_ends),
        CASE(write_beyond_its_end_is_an_overwrite),
        CASE(write_executed_again_after_its_check_is_an_overwrite),
        CASE(write_repeated_at_the_very_end_is_an_overwrite),
        CASE(write_of_a_buffer_already_given_back_is_noticed),
        CASE(write_landing_in_another_slot_is_noticed_in_both),
        CASE(atomic_executed_twice_shows_in_the_next_result),
        CASE(atomic_repeated_behind_the_result_shows_at_the_end),
        CASE(atomic_or_read_completed_without_result_is_lost),
        CASE(read_of_stale_data_is_a_mismatch),
        CASE(read_length_is_checked),
        CASE(completion_repeated_is_a_duplicate),
        CASE(completion_skipped_is_lost_and_late_one_a_duplicate),
        CASE(completion_of_unsignaled_or_unposted_request_is_unexpected),
        CASE(success_after_an_error_is_unexpected),
        CASE(completion_naming_another_queue_pair_is_noticed),
        CASE(receive_completed_twice_or_out_of_order_is_noticed),
        CASE(report_beyond_credit_or_backwards_is_unexpected),
        CASE(error_with_requests_under_way_is_no_violation),
        CASE(window_and_depth_bound_what_may_be_posted),
    };
    int rc = run_cases(CASES, sizeof(CASES) / sizeof(*CASES), argc, argv);
    fabric_close(&f);
    return rc;
}
