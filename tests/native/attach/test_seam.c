/* The seam between the attach layer and what plugs into it, over the fake verbs library. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"
#include "probe.h"

static void every_object_is_seen_from_birth_to_death(void) {
    const struct pair_options options = {.srq = true};
    struct pair *pair = pair_new(&options);
    const struct probe *seen = probe_seen();

    CHECK_EQ(seen->contexts, 2);
    CHECK_EQ(seen->pds, 2);
    CHECK_EQ(seen->mrs, 2);
    CHECK_EQ(seen->channels, 2);
    CHECK_EQ(seen->cqs, 4);
    CHECK_EQ(seen->srqs, 2);
    CHECK_EQ(seen->qps, 2);
    CHECK_EQ(seen->mr_iova, (uintptr_t)pair->b.memory);
    CHECK_EQ(seen->mr_access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC);
    pair_free(pair);
    CHECK_EQ(seen->contexts + seen->pds + seen->mrs + seen->channels + seen->cqs + seen->srqs + seen->qps, 0);
}

static void refused_destruction_keeps_the_object_known(void) {
    struct pair *pair = pair_new(NULL);
    const int kept = probe_seen()->kept;

    CHECK_EQ(ibv_destroy_cq(pair->a.send_cq), EBUSY);
    CHECK_EQ(ibv_dealloc_pd(pair->a.pd), EBUSY);
    CHECK_EQ(ibv_destroy_comp_channel(pair->a.channel), EBUSY);
    CHECK_EQ(probe_seen()->kept - kept, 3);
    CHECK_EQ(probe_seen()->cqs, 4);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    fake_run();
    expect_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    pair_free(pair);
}

static void every_post_and_completion_is_seen(void) {
    struct pair *pair = pair_new(NULL);
    struct probe before = *probe_seen();

    post_recv(&pair->b, 1, 0, 64);
    pair->a.memory[0] = 42;
    post(&pair->a, &pair->b, IBV_WR_SEND, 7, 0, 0, 33, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 8, 0, 0, 44, IBV_SEND_INLINE);
    CHECK_EQ(probe_seen()->sends - before.sends, 2);
    CHECK_EQ(probe_seen()->recvs - before.recvs, 1);
    CHECK_EQ(probe_seen()->last_wr_id, 8);
    CHECK_EQ(probe_seen()->last_length, 44);
    CHECK_EQ(probe_seen()->last_byte, 42);
    fake_run();
    expect_wc(pair->a.send_cq, 7, IBV_WC_SUCCESS);
    expect_wc(pair->a.send_cq, 8, IBV_WC_SUCCESS);
    expect_wc(pair->b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(probe_seen()->known_completions - before.known_completions, 3);
    pair_free(pair);
}

static void shared_receives_are_seen(void) {
    const struct pair_options options = {.srq = true};
    struct pair *pair = pair_new(&options);
    const int before = probe_seen()->srq_recvs;

    post_recv(&pair->b, 1, 0, 64);
    CHECK_EQ(probe_seen()->srq_recvs - before, 1);
    pair_free(pair);
}

static void built_requests_arrive_as_a_list(void) {
    const struct pair_options options = {.extended = true};
    struct pair *pair = pair_new(&options);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair->a.qp);
    struct probe before = *probe_seen();
    char text[] = "inline";
    const struct ibv_data_buf parts[2] = {{.addr = text, .length = 2}, {.addr = text + 2, .length = 4}};

    pair->a.memory[5] = 99;
    for (int round = 0; round < 3; round++) {
        ibv_wr_start(ex);
        ex->wr_id = 20;
        ex->wr_flags = 0;
        ibv_wr_rdma_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory);
        ibv_wr_set_inline_data_list(ex, 2, parts);
        ibv_wr_rdma_read(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory);
        ibv_wr_set_sge(ex, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 1);
        ex->wr_id = 21;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write_imm(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory, 0);
        const struct ibv_sge sges[2] = {
            {.addr = (uintptr_t)pair->a.memory + 5, .length = 30, .lkey = pair->a.mr->lkey},
            {.addr = (uintptr_t)pair->a.memory, .length = 12, .lkey = pair->a.mr->lkey}};
        ibv_wr_set_sge_list(ex, 2, sges);
        post_recv(&pair->b, 1, 0, 64);
        CHECK_EQ(ibv_wr_complete(ex), 0);
    }
    CHECK_EQ(probe_seen()->batches - before.batches, 3);
    CHECK_EQ(probe_seen()->sends - before.sends, 9);
    CHECK_EQ(probe_seen()->opaque, 0);
    CHECK_EQ(probe_seen()->last_wr_id, 21);
    CHECK_EQ(probe_seen()->last_opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
    CHECK_EQ(probe_seen()->last_length, 42);
    CHECK_EQ(probe_seen()->last_byte, 99);
    CHECK_EQ(probe_seen()->last_rkey, pair->b.mr->rkey);
    CHECK_EQ(probe_seen()->last_flags, IBV_SEND_SIGNALED);
    fake_run();
    for (int round = 0; round < 3; round++)
        expect_wc(pair->a.send_cq, 21, IBV_WC_SUCCESS);
    CHECK(!memcmp(pair->b.memory + 30, pair->a.memory, 12));
    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory);
    ibv_wr_abort(ex);
    CHECK_EQ(probe_seen()->batches - before.batches, 3);
    pair_free(pair);
}

static void states_events_and_polls_pass_through_the_seam(void) {
    struct pair *pair = pair_new(NULL);
    struct probe before = *probe_seen();
    struct ibv_cq_init_attr_ex attr = {.cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_poll_cq_attr poll_attr = {0};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(pair->a.context, &attr);
    struct ibv_cq *woken;
    void *context;

    CHECK_EQ(ibv_start_poll(cq, &poll_attr), ENOENT);
    CHECK_EQ(probe_seen()->ex_polls - before.ex_polls, 1);
    CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    ibv_req_notify_cq(pair->a.send_cq, 0);
    post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 0, 4, 0);
    fake_run();
    CHECK_EQ(ibv_get_cq_event(pair->a.channel, &woken, &context), 0);
    CHECK(woken == pair->a.send_cq);
    ibv_ack_cq_events(woken, 1);
    CHECK_EQ(probe_seen()->notifies - before.notifies, 1);
    CHECK_EQ(probe_seen()->cq_events - before.cq_events, 1);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_RTS);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_ERR), 0);
    CHECK_EQ(probe_seen()->queries - before.queries, 1);
    CHECK_EQ(probe_seen()->modifies - before.modifies, 1);
    fake_port(0, false);
    expect_event(pair->a.context, IBV_EVENT_PORT_ERR);
    CHECK_EQ(probe_seen()->async_events - before.async_events, 1);
    pair_free(pair);
}

static void missing_function_says_not_supported(void) {
    struct pair *pair = pair_new(NULL);

    errno = 0;
    CHECK(ibv_reg_dmabuf_mr(pair->a.pd, 0, 4096, 0, 0, 0) == NULL);
    CHECK_EQ(errno, EOPNOTSUPP);
    pair_free(pair);
}

static void device_closed_with_objects_open_is_forgotten(void) {
    struct ibv_context *context = fake_open(1);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    const struct fake_config config = fake_default_config();

    CHECK_EQ(ibv_close_device(context), 0);
    CHECK_EQ(probe_seen()->contexts, 0);
    probe_seen()->pds = 0;
    free(pd);
    /* The NIC still counts what leaked: a new fleet can't start, so take the count back by hand. */
    CHECK(!fake_start(&config));
    context = fake_open(1);
    struct ibv_pd *again = ibv_alloc_pd(context);
    CHECK_EQ(ibv_dealloc_pd(again), 0);
    CHECK_EQ(ibv_close_device(context), 0);
}

static void child_of_a_fork_can_use_verbs(void) {
    const pid_t child = fork();

    if (child == 0) {
        struct ibv_context *context = fake_open(3);
        struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
        _exit(pd && !ibv_dealloc_pd(pd) && !ibv_close_device(context) ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static const struct test tests[] = {
    TEST(every_object_is_seen_from_birth_to_death),
    TEST(refused_destruction_keeps_the_object_known),
    TEST(every_post_and_completion_is_seen),
    TEST(shared_receives_are_seen),
    TEST(built_requests_arrive_as_a_list),
    TEST(states_events_and_polls_pass_through_the_seam),
    TEST(missing_function_says_not_supported),
    TEST(child_of_a_fork_can_use_verbs),
    TEST(device_closed_with_objects_open_is_forgotten), /* leaks on purpose: the last */
};

int main(int argc, char **argv) {
    return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
