/*
 * Loss, retries, late packets, ports. Expected values follow from the InfiniBand specification's timers
 * and, for what a job sees, from measurements on rdma_rxe.
 */
#include "pair.h"

#include <poll.h>

enum { A = 0, B = 2 }; /* NICs of pair_new() */

/* 4.096 us * 2^14, as an InfiniBand timeout of 14. */
static const uint64_t timeout_14 = UINT64_C(4096) << 14;

static uint64_t word_at(const uint8_t *memory) {
    uint64_t word;

    memcpy(&word, memory, sizeof(word));
    return word;
}

static void silent_cut_ends_after_all_retries_and_flushes_in_order(void) {
    struct pair *pair = pair_new(NULL);

    post_recv(&pair->a, 50, 0, 16);
    for (uint64_t i = 1; i <= 3; i++)
        post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, i, 0, 0, 700, 0);
    fake_cut(A, B, FAKE_ALL);
    fake_run();
    /* retry_cnt 6: seven waits of 67 ms, 0.47 s in all. */
    for (int i = 0; i < 6; i++) {
        fake_advance(timeout_14);
        fake_run();
    }
    fake_advance(timeout_14 - 1);
    fake_run();
    expect_none(pair->a.send_cq);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_RTS);
    fake_advance(1);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_ERR);
    expect_wc(pair->a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    expect_none(pair->a.send_cq);
    fake_run();
    expect_wc(pair->a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
    expect_wc(pair->a.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    expect_wc(pair->a.recv_cq, 50, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(state_of(pair->b.qp), IBV_QPS_RTS); /* the other end saw nothing */
    CHECK_EQ(fake_stats(A).sent, 9 + 6 * 9);
    fake_cut(-1, -1, 0);
    pair_free(pair);
}

static void retry_count_7_never_gives_up_on_rxe(void) {
    const struct pair_options options = {.retry = 7};
    struct pair *pair = pair_new(&options);

    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    fake_cut(A, B, FAKE_ALL);
    fake_settle(100 * timeout_14);
    expect_none(pair->a.send_cq);
    fake_cut(A, B, 0);
    fake_settle(2 * timeout_14);
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void retry_count_7_is_seven_retries_by_the_specification(void) {
    const struct pair_options options = {.retry = 7};
    struct pair *pair = pair_new(&options);
    struct fake_config config = fake_default_config();

    config.retry_7_forever = false;
    fake_tune(&config);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    fake_cut(A, B, FAKE_ALL);
    fake_settle(8 * timeout_14);
    expect_wc(pair->a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    fake_cut(A, B, 0);
    pair_free(pair);
}

static void lost_acks_leave_requests_executed_and_unknown(void) {
    const struct pair_options options = {.no_retry = true};
    struct pair *pair = pair_new(&options);

    memset(pair->a.memory, 7, 3000);
    for (uint64_t i = 1; i <= 3; i++)
        post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, i, 0, (uint32_t)i * 1000, 700, 0);
    fake_cut(B, A, FAKE_ACK);
    fake_transmit(A, 99);
    fake_deliver(B, 7); /* two whole requests and one packet of the third */
    CHECK_EQ(rq_psn_of(pair->b.qp), (SEND_PSN_A + 7) & 0xffffff);
    fake_lose(A, B, 99);
    fake_settle(2 * timeout_14);
    expect_wc(pair->a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    expect_wc(pair->a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
    expect_wc(pair->a.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(pair->b.memory[2699], 7);
    CHECK_EQ(pair->b.memory[3255], 7);
    CHECK_EQ(pair->b.memory[3256], 0);
    CHECK_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    CHECK_EQ(rq_psn_of(pair->b.qp), (SEND_PSN_A + 7) & 0xffffff); /* the same after the move to ERR */
    fake_cut(B, A, 0);
    pair_free(pair);
}

static void repeated_atomic_is_executed_once_and_answered_again(void) {
    struct pair *pair = pair_new(NULL);
    uint64_t value = 100;

    memcpy(pair->b.memory, &value, 8);
    post(&pair->a, &pair->b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 0, 8, 0);
    fake_cut(B, A, FAKE_ALL);
    fake_run();
    CHECK_EQ(word_at(pair->b.memory), 105);
    fake_cut(B, A, 0);
    fake_settle(2 * timeout_14);
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(word_at(pair->a.memory), 100);
    CHECK_EQ(word_at(pair->b.memory), 105);
    CHECK_EQ(fake_stats(B).duplicates, 1);
    pair_free(pair);
}

static void lost_packet_is_asked_for_without_a_timeout(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->a.memory, 9, 1000);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 1000, 0);
    fake_transmit(A, 99);
    CHECK_EQ(fake_lose(A, B, 1), 1);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(pair->b.memory[999], 9);
    CHECK_EQ(fake_now(), 0);
    CHECK_EQ(fake_stats(B).naks, 1);
    CHECK_EQ(fake_stats(A).retransmitted, 4);
    pair_free(pair);
}

static void packet_that_overtakes_is_not_executed(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->a.memory, 9, 1000);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 512, 0);
    fake_transmit(A, 99);
    CHECK(fake_overtake(A, B, 1));
    CHECK_EQ(pair->b.memory[256], 0);
    CHECK_EQ(rq_psn_of(pair->b.qp), SEND_PSN_A);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void lost_read_response_is_read_again_from_there(void) {
    struct pair *pair = pair_new(NULL);

    for (int i = 0; i < 1000; i++)
        pair->b.memory[i] = (uint8_t)i;
    post(&pair->a, &pair->b, IBV_WR_RDMA_READ, 1, 0, 0, 1000, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 2000, 2000, 4, 0);
    fake_transmit(A, 99);
    fake_deliver(B, 99);
    fake_deliver(A, 1);
    fake_lose(B, A, 1);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK(!memcmp(pair->a.memory, pair->b.memory, 1000));
    pair_free(pair);
}

static void acknowledged_past_a_missing_response_reads_again(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->b.memory, 5, 1000);
    post(&pair->a, &pair->b, IBV_WR_RDMA_READ, 1, 0, 0, 300, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 2000, 2000, 4, 0);
    fake_transmit(A, 99);
    fake_deliver(B, 99);
    fake_lose(B, A, 2); /* the whole response: only the ACK of the write arrives */
    fake_deliver(A, 1);
    expect_none(pair->a.send_cq);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(pair->a.memory[299], 5);
    pair_free(pair);
}

static void receiver_not_ready_is_waited_for(void) {
    struct pair *pair = pair_new(NULL);

    post(&pair->a, &pair->b, IBV_WR_SEND, 1, 0, 0, 600, 0);
    fake_run();
    expect_none(pair->a.send_cq);
    CHECK_EQ(fake_stats(B).rnr_naks, 1);
    CHECK_EQ(fake_stats(B).naks, 0); /* the packets behind it are dropped without a word */
    post_recv(&pair->b, 2, 0, 1000);
    fake_advance(639999); /* RNR timer 12: 0.64 ms */
    fake_run();
    expect_none(pair->b.recv_cq);
    fake_advance(1);
    fake_run();
    expect_wc(pair->b.recv_cq, 2, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void receiver_never_ready_ends_in_an_error(void) {
    const struct pair_options options = {.rnr_retry = 2};
    struct pair *pair = pair_new(&options);

    post(&pair->a, &pair->b, IBV_WR_SEND, 1, 0, 0, 6, 0);
    fake_settle(timeout_14);
    expect_wc(pair->a.send_cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK_EQ(fake_stats(B).rnr_naks, 3);
    pair_free(pair);
}

static void write_with_imm_waits_with_its_last_packet_only(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->a.memory, 3, 600);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 0, 600, 0);
    fake_run();
    CHECK_EQ(pair->b.memory[511], 3);
    CHECK_EQ(pair->b.memory[512], 0);
    CHECK_EQ(rq_psn_of(pair->b.qp), 0); /* 0xfffffe and 0xffffff are done */
    post_recv(&pair->b, 2, 5000, 8);
    fake_settle(timeout_14);
    expect_wc(pair->b.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(pair->b.memory[599], 3);
    pair_free(pair);
}

static void late_packet_is_dropped_by_a_queue_pair_in_error(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->a.memory, 4, 10);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 10, 0);
    fake_hold(A, B, true);
    fake_run();
    CHECK_EQ(fake_on_wire(A, B), 1);
    CHECK_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    fake_hold(A, B, false);
    fake_run();
    CHECK_EQ(pair->b.memory[0], 0);
    expect_none(pair->a.send_cq);
    pair_free(pair);
}

static void late_packet_lands_while_the_target_is_not_fenced(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->a.memory, 4, 10);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 10, 0);
    fake_hold(A, B, true);
    fake_run();
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_ERR), 0); /* fencing only the sender isn't enough */
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
    fake_hold(A, B, false);
    fake_run();
    CHECK_EQ(pair->b.memory[0], 4);
    pair_free(pair);
}

static void port_down_loses_packets_and_comes_back(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_port_attr attr;

    fake_port(A, false);
    expect_event(pair->a.context, IBV_EVENT_PORT_ERR);
    CHECK_EQ(ibv_query_port(pair->a.context, 1, &attr), 0);
    CHECK_EQ(attr.state, IBV_PORT_DOWN);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    fake_run();
    expect_none(pair->a.send_cq);
    fake_port(A, true);
    expect_event(pair->a.context, IBV_EVENT_PORT_ACTIVE);
    fake_settle(timeout_14);
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    pair_free(pair);
}

static enum fake_verdict drop_third(const struct fake_packet_info *packet, void *arg) {
    int *seen = arg;

    return packet->kind == FAKE_REQUEST && ++*seen == 3 ? FAKE_DROP : FAKE_PASS;
}

static void filter_chooses_single_packets(void) {
    struct pair *pair = pair_new(NULL);
    int seen = 0;

    fake_filter(drop_third, &seen);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 1000, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(fake_stats(A).lost, 1);
    fake_filter(NULL, NULL);
    pair_free(pair);
}

static void fenced_request_waits_for_reads(void) {
    struct pair *pair = pair_new(NULL);

    post(&pair->a, &pair->b, IBV_WR_RDMA_READ, 1, 0, 0, 10, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 0, 10, IBV_SEND_FENCE);
    CHECK_EQ(fake_transmit(A, 99), 1);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void reads_in_flight_are_limited(void) {
    const struct pair_options options = {.rd_atomic = 2};
    struct pair *pair = pair_new(&options);

    for (uint64_t i = 1; i <= 3; i++)
        post(&pair->a, &pair->b, IBV_WR_RDMA_READ, i, 0, 0, 10, 0);
    CHECK_EQ(fake_transmit(A, 99), 2);
    fake_run();
    for (uint64_t i = 1; i <= 3; i++)
        expect_wc(pair->a.send_cq, i, IBV_WC_SUCCESS);
    pair_free(pair);
}

static const struct test tests[] = {
    TEST(silent_cut_ends_after_all_retries_and_flushes_in_order),
    TEST(retry_count_7_never_gives_up_on_rxe),
    TEST(retry_count_7_is_seven_retries_by_the_specification),
    TEST(lost_acks_leave_requests_executed_and_unknown),
    TEST(repeated_atomic_is_executed_once_and_answered_again),
    TEST(lost_packet_is_asked_for_without_a_timeout),
    TEST(packet_that_overtakes_is_not_executed),
    TEST(lost_read_response_is_read_again_from_there),
    TEST(acknowledged_past_a_missing_response_reads_again),
    TEST(receiver_not_ready_is_waited_for),
    TEST(receiver_never_ready_ends_in_an_error),
    TEST(write_with_imm_waits_with_its_last_packet_only),
    TEST(late_packet_is_dropped_by_a_queue_pair_in_error),
    TEST(late_packet_lands_while_the_target_is_not_fenced),
    TEST(port_down_loses_packets_and_comes_back),
    TEST(filter_chooses_single_packets),
    TEST(fenced_request_waits_for_reads),
    TEST(reads_in_flight_are_limited),
};

int main(int argc, char **argv) {
    return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
