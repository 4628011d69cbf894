/*
 * Requests that are refused, queue pairs in error, flushing. Expected values follow from the InfiniBand
 * specification and, for what a job sees, from measurements on rdma_rxe.
 */
#include "pair.h"

#include <poll.h>

enum { A = 0, B = 2 }; /* NICs of pair_new() */

static void wrong_rkey_is_refused_and_changes_nothing(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->a.memory, 3, 600);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 10, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, END_BYTES - 100, 600, 0); /* past the end */
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 3, 0, 100, 10, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_REM_ACCESS_ERR);
    expect_wc(pair->a.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(pair->b.memory[END_BYTES - 100], 0);
    CHECK_EQ(pair->b.memory[100], 0);
    CHECK_EQ(state_of(pair->b.qp), IBV_QPS_ERR);
    expect_event(pair->b.context, IBV_EVENT_QP_ACCESS_ERR);
    pair_free(pair);
}

static void key_of_another_nic_is_wrong(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_context *other = fake_open(3);
    struct ibv_pd *pd = ibv_alloc_pd(other);
    struct ibv_mr *mr = ibv_reg_mr(pd, pair->b.memory, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_send_wr *bad, wr = {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE};
    struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = 4, .lkey = pair->a.mr->lkey};

    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.rkey = mr->rkey;
    wr.wr.rdma.remote_addr = (uintptr_t)pair->b.memory;
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_REM_ACCESS_ERR);
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(other);
    pair_free(pair);
}

static void operation_that_is_not_allowed_is_an_invalid_request(void) {
    const struct pair_options options = {.access = IBV_ACCESS_LOCAL_WRITE};
    struct pair *pair = pair_new(&options);

    post(&pair->a, &pair->b, IBV_WR_RDMA_READ, 1, 0, 0, 10, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_REM_INV_REQ_ERR);
    expect_event(pair->b.context, IBV_EVENT_QP_REQ_ERR);
    pair_free(pair);
}

static void message_longer_than_the_receive_fails_both_ends(void) {
    struct pair *pair = pair_new(NULL);

    post_recv(&pair->b, 2, 0, 300);
    post(&pair->a, &pair->b, IBV_WR_SEND, 1, 0, 0, 301, 0);
    fake_run();
    expect_wc(pair->b.recv_cq, 2, IBV_WC_LOC_LEN_ERR);
    expect_wc(pair->a.send_cq, 1, IBV_WC_REM_INV_REQ_ERR);
    pair_free(pair);
}

static void wrong_lkey_fails_after_what_came_before(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = 4, .lkey = pair->a.mr->lkey + 1};
    struct ibv_send_wr *bad, wr = {.wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1};

    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 10, 0);
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 3, 0, 100, 10, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_LOC_PROT_ERR);
    expect_wc(pair->a.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    pair_free(pair);
}

static void full_completion_queue_overflows_with_an_event(void) {
    const struct pair_options options = {.cqe = 2};
    struct pair *pair = pair_new(&options);

    for (uint64_t i = 1; i <= 4; i++)
        post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, i, 0, 0, 4, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    expect_none(pair->a.send_cq);
    CHECK_EQ(fake_stats(A).overflows, 2);
    expect_event(pair->a.context, IBV_EVENT_CQ_ERR);
    pair_free(pair);
}

static void lost_gid_fails_the_oldest_request_at_once(void) {
    struct pair *pair = pair_new(NULL);

    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 0, 4, 0);
    fake_lose_gid(A);
    fake_run();
    expect_event(pair->a.context, IBV_EVENT_GID_CHANGE);
    expect_wc(pair->a.send_cq, 1, IBV_WC_LOC_QP_OP_ERR);
    expect_wc(pair->a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
    pair_free(pair);
}

static void flushing_takes_its_time(void) {
    struct pair *pair = pair_new(NULL);

    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    post_recv(&pair->a, 2, 0, 4);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_ERR), 0);
    expect_none(pair->a.send_cq);
    CHECK_EQ(fake_flush(A, 1), 1);
    expect_wc(pair->a.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
    expect_none(pair->a.recv_cq);
    CHECK_EQ(fake_flush(A, 9), 1);
    expect_wc(pair->a.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
    /* Posting in ERR is allowed and flushed. */
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 3, 0, 0, 4, 0), 0);
    CHECK_EQ(fake_flush(A, 9), 1);
    expect_wc(pair->a.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    pair_free(pair);
}

static void half_received_message_is_flushed_before_later_receives(void) {
    struct pair *pair = pair_new(NULL);

    post_recv(&pair->b, 1, 0, 600);
    post_recv(&pair->b, 2, 0, 600);
    post(&pair->a, &pair->b, IBV_WR_SEND, 9, 0, 0, 600, 0);
    fake_transmit(A, 99);
    fake_deliver(B, 1);
    CHECK_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    fake_run();
    expect_wc(pair->b.recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
    expect_wc(pair->b.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
    pair_free(pair);
}

static void fatal_queue_pair_has_an_event(void) {
    struct pair *pair = pair_new(NULL);

    fake_qp_fatal(pair->a.qp);
    expect_event(pair->a.context, IBV_EVENT_QP_FATAL);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_ERR);
    pair_free(pair);
}

static void packet_from_another_nic_is_dropped(void) {
    static const struct pair_options usual;
    static struct end stranger;
    struct pair *pair = pair_new(NULL);

    end_open(&stranger, 1, &usual);
    end_connect(&stranger, &pair->b, SEND_PSN_A, SEND_PSN_B, &usual);
    stranger.memory[0] = 9;
    post(&stranger, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    fake_run();
    CHECK_EQ(pair->b.memory[0], 0);
    CHECK_EQ(rq_psn_of(pair->b.qp), SEND_PSN_A);
    expect_none(stranger.send_cq);
    end_close(&stranger);
    pair_free(pair);
}

static void region_without_remote_write_is_refused(void) {
    struct pair *pair = pair_new(NULL);
    static uint8_t readable[64];
    struct ibv_mr *mr = ibv_reg_mr(pair->b.pd, readable, sizeof(readable), IBV_ACCESS_REMOTE_READ);
    struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = 4, .lkey = pair->a.mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};

    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.rkey = mr->rkey;
    wr.wr.rdma.remote_addr = (uintptr_t)readable;
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    wr.opcode = IBV_WR_RDMA_WRITE;
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_REM_ACCESS_ERR);
    ibv_dereg_mr(mr);
    pair_free(pair);
}

static void moving_to_error_twice_says_so_once(void) {
    const struct pair_options options = {.srq = true};
    struct pair *pair = pair_new(&options);
    struct pollfd waiting = {.fd = pair->a.context->async_fd, .events = POLLIN};

    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_ERR), 0);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_ERR), 0);
    expect_event(pair->a.context, IBV_EVENT_QP_LAST_WQE_REACHED);
    CHECK_EQ(poll(&waiting, 1, 0), 0);
    pair_free(pair);
}

static void lying_driver_says_psn_zero(void) {
    struct pair *pair = pair_new(NULL);
    struct fake_config config = fake_default_config();

    config.lying_psn = true;
    fake_tune(&config);
    CHECK_EQ(rq_psn_of(pair->b.qp), 0);
    pair_free(pair);
}

static const struct test tests[] = {
    TEST(wrong_rkey_is_refused_and_changes_nothing),
    TEST(key_of_another_nic_is_wrong),
    TEST(operation_that_is_not_allowed_is_an_invalid_request),
    TEST(message_longer_than_the_receive_fails_both_ends),
    TEST(wrong_lkey_fails_after_what_came_before),
    TEST(full_completion_queue_overflows_with_an_event),
    TEST(lost_gid_fails_the_oldest_request_at_once),
    TEST(flushing_takes_its_time),
    TEST(half_received_message_is_flushed_before_later_receives),
    TEST(fatal_queue_pair_has_an_event),
    TEST(packet_from_another_nic_is_dropped),
    TEST(region_without_remote_write_is_refused),
    TEST(moving_to_error_twice_says_so_once),
    TEST(lying_driver_says_psn_zero),
};

int main(int argc, char **argv) {
    return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
