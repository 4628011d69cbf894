/* Data and completions without faults, posting limits, keys. Expected values follow from the verbs manual
 * pages. */
#include "pair.h"

#include <errno.h>
#include <poll.h>

static void fill(uint8_t *memory, uint32_t length, uint8_t seed) {
    for (uint32_t i = 0; i < length; i++)
        memory[i] = (uint8_t)(seed + i * 7);
}

static void write_of_three_packets_lands_and_completes(void) {
    struct pair *pair = pair_new(NULL);

    fill(pair->a.memory, 700, 1);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 9, 0, 1000, 700, 0), 0);
    expect_none(pair->a.send_cq);
    fake_run();
    expect_wc(pair->a.send_cq, 9, IBV_WC_SUCCESS);
    expect_none(pair->b.recv_cq);
    CHECK(!memcmp(pair->a.memory, pair->b.memory + 1000, 700));
    CHECK_EQ(pair->b.memory[999], 0);
    CHECK_EQ(pair->b.memory[1700], 0);
    /* 700 bytes by 256 are 3 packets: 0xfffffe, 0xffffff, 0x000000. */
    CHECK_EQ(rq_psn_of(pair->b.qp), 1);
    CHECK_EQ(sq_psn_of(pair->a.qp), 1);
    pair_free(pair);
}

static void write_arrives_packet_by_packet(void) {
    struct pair *pair = pair_new(NULL);

    fill(pair->a.memory, 700, 3);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 700, 0);
    CHECK_EQ(fake_transmit(0, 99), 3);
    CHECK_EQ(fake_on_wire(0, 2), 3);
    CHECK_EQ(fake_deliver(2, 1), 1);
    CHECK_EQ(rq_psn_of(pair->b.qp), 0xffffff);
    CHECK(!memcmp(pair->a.memory, pair->b.memory, 256));
    CHECK_EQ(pair->b.memory[256], 0);
    expect_none(pair->a.send_cq);
    CHECK_EQ(fake_deliver(2, 2), 2);
    CHECK(!memcmp(pair->a.memory, pair->b.memory, 700));
    expect_none(pair->a.send_cq);
    CHECK_EQ(fake_deliver(0, 9), 1);
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void empty_message_takes_one_psn(void) {
    struct pair *pair = pair_new(NULL);

    post_recv(&pair->b, 4, 0, 16);
    post(&pair->a, &pair->b, IBV_WR_SEND, 1, 0, 0, 0, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 0, 0, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    expect_wc(pair->b.recv_cq, 4, IBV_WC_SUCCESS);
    CHECK_EQ(rq_psn_of(pair->b.qp), 0);
    pair_free(pair);
}

static void send_with_imm_fills_the_receive(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_wc wc;

    fill(pair->a.memory, 300, 5);
    post_recv(&pair->b, 40, 2000, 400);
    post(&pair->a, &pair->b, IBV_WR_SEND_WITH_IMM, 1, 0, 0, 300, 0);
    fake_run();
    CHECK(next_wc(pair->b.recv_cq, &wc));
    CHECK_EQ(wc.wr_id, 40);
    CHECK_EQ(wc.opcode, IBV_WC_RECV);
    CHECK_EQ(wc.byte_len, 300);
    CHECK_EQ(wc.wc_flags, IBV_WC_WITH_IMM);
    CHECK_EQ(be32toh(wc.imm_data), 0x1234);
    CHECK_EQ(wc.qp_num, pair->b.qp->qp_num);
    CHECK(!memcmp(pair->a.memory, pair->b.memory + 2000, 300));
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void write_with_imm_takes_a_receive_and_not_its_memory(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_wc wc;

    fill(pair->a.memory, 600, 5);
    post_recv(&pair->b, 41, 4000, 16);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 0, 600, 0);
    fake_run();
    CHECK(next_wc(pair->b.recv_cq, &wc));
    CHECK_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK_EQ(wc.byte_len, 600);
    CHECK(!memcmp(pair->a.memory, pair->b.memory, 600));
    CHECK_EQ(pair->b.memory[4000], 0);
    pair_free(pair);
}

static void read_takes_as_many_psns_as_its_response(void) {
    struct pair *pair = pair_new(NULL);

    fill(pair->b.memory, 700, 8);
    post(&pair->a, &pair->b, IBV_WR_RDMA_READ, 1, 100, 0, 700, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 5000, 1, 0);
    CHECK_EQ(fake_transmit(0, 99), 2);
    CHECK_EQ(fake_deliver(2, 99), 2);
    CHECK_EQ(fake_on_wire(2, 0), 4); /* three packets of the response, one ACK */
    CHECK_EQ(rq_psn_of(pair->b.qp), 2);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK(!memcmp(pair->b.memory, pair->a.memory + 100, 700));
    pair_free(pair);
}

static void atomics_return_the_old_value(void) {
    struct pair *pair = pair_new(NULL);
    uint64_t value = 40, old;

    memcpy(pair->b.memory, &value, 8);
    post(&pair->a, &pair->b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 0, 8, 0); /* adds 5 */
    post(&pair->a, &pair->b, IBV_WR_ATOMIC_CMP_AND_SWP, 2, 8, 0, 8, 0);   /* 45 isn't 5 */
    fake_run();
    memcpy(&old, pair->a.memory, 8);
    CHECK_EQ(old, 40);
    memcpy(&old, pair->a.memory + 8, 8);
    CHECK_EQ(old, 45);
    memcpy(&value, pair->b.memory, 8);
    CHECK_EQ(value, 45);
    value = 5;
    memcpy(pair->b.memory, &value, 8);
    post(&pair->a, &pair->b, IBV_WR_ATOMIC_CMP_AND_SWP, 3, 8, 0, 8, 0);
    fake_run();
    memcpy(&value, pair->b.memory, 8);
    CHECK_EQ(value, 77);
    pair_free(pair);
}

static void several_sges_are_gathered_and_scattered(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_sge from[2] = {
        {.addr = (uintptr_t)pair->a.memory, .length = 250, .lkey = pair->a.mr->lkey},
        {.addr = (uintptr_t)pair->a.memory + 1000, .length = 250, .lkey = pair->a.mr->lkey}};
    struct ibv_sge to[2] = {
        {.addr = (uintptr_t)pair->b.memory, .length = 300, .lkey = pair->b.mr->lkey},
        {.addr = (uintptr_t)pair->b.memory + 1000, .length = 300, .lkey = pair->b.mr->lkey}};
    struct ibv_recv_wr *bad_recv, recv = {.wr_id = 2, .sg_list = to, .num_sge = 2};
    struct ibv_send_wr *bad, wr = {.wr_id = 1, .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND};

    fill(pair->a.memory, 2000, 11);
    CHECK_EQ(ibv_post_recv(pair->b.qp, &recv, &bad_recv), 0);
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    fake_run();
    expect_wc(pair->b.recv_cq, 2, IBV_WC_SUCCESS);
    expect_none(pair->a.send_cq); /* not signaled */
    CHECK(!memcmp(pair->b.memory, pair->a.memory, 250));
    CHECK(!memcmp(pair->b.memory + 250, pair->a.memory + 1000, 50));
    CHECK(!memcmp(pair->b.memory + 1000, pair->a.memory + 1050, 200));
    pair_free(pair);
}

static void inline_data_is_copied_when_posted(void) {
    struct pair *pair = pair_new(NULL);

    memset(pair->a.memory, 'x', 60);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 60, IBV_SEND_INLINE), 0);
    memset(pair->a.memory, 'y', 60);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 100, 65, IBV_SEND_INLINE), EINVAL);
    fake_run();
    CHECK_EQ(pair->b.memory[0], 'x');
    CHECK_EQ(pair->b.memory[59], 'x');
    pair_free(pair);
}

static void full_send_queue_says_enomem_and_where(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_send_wr *bad = NULL, wrs[3] = {{.opcode = IBV_WR_RDMA_WRITE, .next = &wrs[1]},
                                              {.opcode = IBV_WR_RDMA_WRITE, .next = &wrs[2]},
                                              {.opcode = IBV_WR_RDMA_WRITE}};

    for (int i = 0; i < PAIR_DEPTH - 2; i++)
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0), 0);
    CHECK_EQ(ibv_post_send(pair->a.qp, wrs, &bad), ENOMEM);
    CHECK(bad == &wrs[2]);
    fake_run();
    CHECK_EQ(ibv_post_send(pair->a.qp, &wrs[2], &bad), 0);
    pair_free(pair);
}

static void slots_can_wait_for_the_poll(void) {
    struct pair *pair = pair_new(NULL);
    struct fake_config config = fake_default_config();
    struct ibv_wc wc;

    config.free_on_poll = true;
    fake_tune(&config);
    for (int i = 0; i < PAIR_DEPTH; i++)
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0), 0);
    fake_run();
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0), ENOMEM);
    CHECK(next_wc(pair->a.send_cq, &wc));
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0), 0);
    pair_free(pair);
}

static void state_machine_refuses_what_the_table_forbids(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE};
    struct ibv_recv_wr *bad_recv, recv = {.wr_id = 1};

    CHECK_EQ(ibv_modify_qp(pair->a.qp, &attr, IBV_QP_STATE), EINVAL); /* RTS to RTR */
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_INIT), EINVAL);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_RTS);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_RESET), 0);
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), EINVAL);
    CHECK_EQ(ibv_post_recv(pair->a.qp, &recv, &bad_recv), EINVAL);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_RTR), EINVAL);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_INIT), EINVAL); /* without port and access flags */
    pair_free(pair);
}

static void drained_queue_pair_finishes_what_it_started(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};

    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 700, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 0, 700, 0);
    CHECK_EQ(fake_transmit(0, 1), 1);
    CHECK_EQ(ibv_modify_qp(pair->a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_none(pair->a.send_cq);
    expect_event(pair->a.context, IBV_EVENT_SQ_DRAINED);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_RTS), 0);
    fake_run();
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void channel_wakes_once_per_arming(void) {
    struct pair *pair = pair_new(NULL);
    struct pollfd waiting = {.fd = pair->a.channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;

    CHECK_EQ(ibv_req_notify_cq(pair->a.send_cq, 0), 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 0, 4, 0);
    CHECK_EQ(poll(&waiting, 1, 0), 0);
    fake_run();
    CHECK_EQ(poll(&waiting, 1, 0), 1);
    CHECK_EQ(ibv_get_cq_event(pair->a.channel, &cq, &context), 0);
    CHECK(cq == pair->a.send_cq && context == &pair->a);
    CHECK_EQ(poll(&waiting, 1, 0), 0);
    ibv_ack_cq_events(cq, 1);
    CHECK_EQ(ibv_req_notify_cq(pair->a.send_cq, 1), 0); /* solicited only */
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 3, 0, 0, 4, 0);
    fake_run();
    CHECK_EQ(poll(&waiting, 1, 0), 0);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_ERR), 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 4, 0, 0, 4, 0);
    fake_run();
    CHECK_EQ(poll(&waiting, 1, 0), 1); /* an error counts as solicited; destroy takes the event back */
    pair_free(pair);
}

static void solicited_send_wakes_the_receiver(void) {
    struct pair *pair = pair_new(NULL);
    struct pollfd waiting = {.fd = pair->b.channel->fd, .events = POLLIN};

    ibv_req_notify_cq(pair->b.recv_cq, 1);
    post_recv(&pair->b, 1, 0, 16);
    post_recv(&pair->b, 2, 0, 16);
    post(&pair->a, &pair->b, IBV_WR_SEND, 1, 0, 0, 4, 0);
    fake_run();
    CHECK_EQ(poll(&waiting, 1, 0), 0);
    post(&pair->a, &pair->b, IBV_WR_SEND, 2, 0, 0, 4, IBV_SEND_SOLICITED);
    fake_run();
    CHECK_EQ(poll(&waiting, 1, 0), 1);
    pair_free(pair);
}

static void objects_in_use_cannot_be_destroyed(void) {
    struct pair *pair = pair_new(NULL);

    CHECK_EQ(ibv_destroy_cq(pair->a.send_cq), EBUSY);
    CHECK_EQ(ibv_dealloc_pd(pair->a.pd), EBUSY);
    CHECK_EQ(ibv_destroy_comp_channel(pair->a.channel), EBUSY);
    pair_free(pair);
}

static void calls_fail_when_told_to(void) {
    struct pair *pair = pair_new(NULL);

    fake_fail_calls(0, ENOSPC, 1);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 0, 4, 0), ENOSPC);
    fake_fail_calls(0, 0, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_none(pair->a.send_cq);
    pair_free(pair);
}

static void extended_functions_post_all_or_nothing(void) {
    const struct pair_options options = {.extended = true};
    struct pair *pair = pair_new(&options);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair->a.qp);

    fill(pair->a.memory, 100, 1);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory);
    ibv_wr_set_sge(ex, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 100);
    ex->wr_id = 2;
    ibv_wr_rdma_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory + 200);
    ibv_wr_set_inline_data(ex, (void *)"inline", 6);
    CHECK_EQ(ibv_wr_complete(ex), 0);
    ibv_wr_start(ex);
    for (int i = 0; i < PAIR_DEPTH; i++) {
        ibv_wr_rdma_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory + 300);
        ibv_wr_set_inline_data(ex, (void *)"no", 2);
    }
    CHECK_EQ(ibv_wr_complete(ex), ENOMEM);
    ibv_wr_start(ex);
    ibv_wr_abort(ex);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    expect_none(pair->a.send_cq);
    CHECK(!memcmp(pair->b.memory, pair->a.memory, 100));
    CHECK(!memcmp(pair->b.memory + 200, "inline", 6));
    CHECK_EQ(pair->b.memory[300], 0);
    pair_free(pair);
}

static void shared_receive_queue_serves_and_warns(void) {
    const struct pair_options options = {.srq = true};
    struct pair *pair = pair_new(&options);
    struct ibv_srq_attr attr = {.srq_limit = 2};

    CHECK_EQ(ibv_modify_srq(pair->b.srq, &attr, IBV_SRQ_LIMIT), 0);
    post_recv(&pair->b, 1, 0, 16);
    post_recv(&pair->b, 2, 0, 16);
    post(&pair->a, &pair->b, IBV_WR_SEND, 1, 0, 0, 4, 0);
    fake_run();
    expect_wc(pair->b.recv_cq, 1, IBV_WC_SUCCESS);
    expect_event(pair->b.context, IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    fake_run();
    expect_none(pair->b.recv_cq); /* what is in a shared queue isn't flushed */
    expect_event(pair->b.context, IBV_EVENT_QP_LAST_WQE_REACHED);
    pair_free(pair);
}

static void extended_cq_gives_the_same_completions(void) {
    struct pair *pair = pair_new(NULL);
    struct ibv_cq_init_attr_ex attr = {.cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(pair->a.context, &attr);
    struct ibv_poll_cq_attr poll_attr = {0};

    CHECK(cq != NULL);
    CHECK_EQ(ibv_start_poll(cq, &poll_attr), ENOENT);
    CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    pair_free(pair);
}

static const struct test tests[] = {
    TEST(write_of_three_packets_lands_and_completes),
    TEST(write_arrives_packet_by_packet),
    TEST(empty_message_takes_one_psn),
    TEST(send_with_imm_fills_the_receive),
    TEST(write_with_imm_takes_a_receive_and_not_its_memory),
    TEST(read_takes_as_many_psns_as_its_response),
    TEST(atomics_return_the_old_value),
    TEST(several_sges_are_gathered_and_scattered),
    TEST(inline_data_is_copied_when_posted),
    TEST(full_send_queue_says_enomem_and_where),
    TEST(slots_can_wait_for_the_poll),
    TEST(state_machine_refuses_what_the_table_forbids),
    TEST(drained_queue_pair_finishes_what_it_started),
    TEST(channel_wakes_once_per_arming),
    TEST(solicited_send_wakes_the_receiver),
    TEST(objects_in_use_cannot_be_destroyed),
    TEST(calls_fail_when_told_to),
    TEST(extended_functions_post_all_or_nothing),
    TEST(shared_receive_queue_serves_and_warns),
    TEST(extended_cq_gives_the_same_completions),
};

int main(int argc, char **argv) {
    return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
