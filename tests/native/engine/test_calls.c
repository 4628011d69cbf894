/* Promises about calls other than posts and polls: what a job may do with a queue pair while it is being
 * moved, and what it is told. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "promise.h"

static void write_in_batch(struct ibv_qp_ex *ex, const struct pair *pair, uint64_t id) {
    ex->wr_id = id;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory + 4096);
    ibv_wr_set_sge(ex, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 64);
}

/* A job that posts a refused batch again must not have run a part of it. */
static void batch_that_doesnt_fit_is_refused_whole(void) {
    const struct pair_options options = {.extended = true, .send_wr = 4};
    behave(&manners);
    struct pair *pair = covered_pair(&options);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair->a.qp);

    cut_rail_0(true); /* so that nothing completes meanwhile */
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 4096, 64, 0), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 2, 0, 4096, 64, 0), 0);
    ibv_wr_start(ex);
    for (uint64_t id = 10; id < 13; id++)
        write_in_batch(ex, pair, id);
    CHECK_EQ(ibv_wr_complete(ex), ENOMEM);
    ibv_wr_start(ex);
    for (uint64_t id = 20; id < 22; id++)
        write_in_batch(ex, pair, id);
    CHECK_EQ(ibv_wr_complete(ex), 0);
    cut_rail_0(false);
    wait_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 20, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 21, IBV_WC_SUCCESS);
    expect_none(pair->a.send_cq);
    done(pair);
}

static bool has_moved_again(void) {
    return agent_migrations() >= 4;
}

/* Spares need more access than the job grants, and must keep it. */
static void access_changed_after_a_move_leaves_the_next_move_possible(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_LOCAL_WRITE};
    struct end *ends[2] = {&pair->a, &pair->b};

    CHECK_EQ(post_recv(&pair->b, 7, 8192, 64), 0);
    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(within(has_moved, 1000));
    cut_rail_0(false);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(ibv_modify_qp(ends[i]->qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
    CHECK(within(agent_all_ready, 20000));
    fake_cut(1, 3, FAKE_ALL);
    fake_cut(3, 1, FAKE_ALL);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 2, 0, 0, 64, 0), 0);
    wait_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    wait_wc(pair->b.recv_cq, 7, IBV_WC_SUCCESS);
    CHECK(within(has_moved_again, 2000));
    done(pair);
}

static bool event_of(struct ibv_context *context, enum ibv_event_type type) {
    struct ibv_async_event event;

    for (int i = 0; i < 1000; i++) {
        if (!ibv_get_async_event(context, &event)) {
            const enum ibv_event_type got = event.event_type;
            ibv_ack_async_event(&event);
            if (got == type)
                return true;
        }
        nap_ms(1);
    }
    return false;
}

static void access_error_of_the_job_is_told_as_an_event_too(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = 8, .lkey = pair->a.mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = 5,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED};

    CHECK_EQ(fcntl(pair->b.context->async_fd, F_SETFL, O_NONBLOCK), 0);
    wr.wr.rdma.remote_addr = (uintptr_t)pair->b.memory;
    wr.wr.rdma.rkey = 0x7777777;
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    wait_wc(pair->a.send_cq, 5, IBV_WC_REM_ACCESS_ERR);
    CHECK(event_of(pair->b.context, IBV_EVENT_QP_ACCESS_ERR));
    done(pair);
}

static void end_that_only_receives_reads_the_state_it_was_in(void) {
    const struct pair_options options = {.passive_b = true};
    behave(&manners);
    struct pair *pair = covered_pair(&options);

    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(within(has_moved, 1000));
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_RTS);
    CHECK_EQ(state_of(pair->b.qp), IBV_QPS_RTR);
    done(pair);
}

static void question_about_a_queue_pair_whose_nic_is_gone_is_answered(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(within(has_moved, 1000));
    fake_fail_calls(0, EIO, 0);
    memset(&attr, 0, sizeof(attr));
    CHECK_EQ(ibv_query_qp(pair->a.qp, &attr, IBV_QP_STATE | IBV_QP_CAP | IBV_QP_DEST_QPN, &init), 0);
    fake_fail_calls(0, 0, 0);
    CHECK_EQ(attr.qp_state, IBV_QPS_RTS);
    CHECK_EQ(attr.dest_qp_num, pair->b.qp->qp_num);
    CHECK_EQ(attr.cap.max_send_wr, PAIR_DEPTH);
    CHECK(init.send_cq == pair->a.send_cq);
    done(pair);
}

/* Advice that waits posts a marker behind what is under way: the slot is the job's all the same. */
static void marker_of_ours_costs_the_job_no_slot(void) {
    const struct pair_options options = {.send_wr = 2, .timeout = 16};

    CHECK_EQ(setenv("LINKPASS_PSN", "doubt", 1), 0);
    behave(&manners);
    struct pair *pair = covered_pair(&options);
    CHECK_EQ(post_recv(&pair->b, 1, 4096, 64), 0);
    CHECK_EQ(post_recv(&pair->b, 2, 4160, 64), 0);
    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 1, 0, 0, 64, 0), 0);
    agent_order("fake_h0r0", LP_WHY_DRAIN);
    nap_ms(250); /* held, marked, and given up as mere advice */
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 2, 64, 0, 64, 0), 0);
    cut_rail_0(false);
    wait_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    wait_wc(pair->b.recv_cq, 1, IBV_WC_SUCCESS);
    wait_wc(pair->b.recv_cq, 2, IBV_WC_SUCCESS);
    done(pair);
}

/* As in mlx5dv.h. */
int mlx5dv_init_obj(void *object, uint64_t kinds);
struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, void *more);

/* What it writes to the hardware's queue nobody else sees: a move would lose it. */
static void queue_pair_used_past_the_library_is_let_go_of(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct {
        void *in, *out;
    } object[3] = {{pair->a.qp, NULL}};

    CHECK_EQ(mlx5dv_init_obj(object, 1), 0);
    agent_order("fake_h0r0", LP_WHY_DRAIN);
    nap_ms(200);
    CHECK_EQ(agent_migrations(), 0);
    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    done(pair);
}

static void queue_pair_made_past_the_library_sees_its_own_names(void) {
    const struct pair_options options = {.srq = true};
    behave(&manners);
    struct pair *pair = covered_pair(&options);
    struct ibv_qp_init_attr_ex init = {.send_cq = pair->b.send_cq,
                                       .recv_cq = pair->b.recv_cq,
                                       .srq = pair->b.srq,
                                       .cap = {.max_send_wr = 4, .max_send_sge = 1},
                                       .qp_type = IBV_QPT_RC,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD,
                                       .pd = pair->b.pd};
    struct end *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));

    end_open(a, 0, &options);
    memcpy(b, &pair->b, sizeof(*b));
    b->qp = mlx5dv_create_qp(pair->b.context, &init, NULL);
    CHECK(b->qp);
    end_connect(a, b, 7, 9, &options);
    end_connect(b, a, 9, 7, &options);
    CHECK_EQ(post_recv(&pair->b, 0x1122334455667788, 4096, 64), 0);
    CHECK_EQ(post(a, &pair->b, IBV_WR_SEND, 2, 0, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 0x1122334455667788, IBV_WC_SUCCESS);
    wait_wc(a->send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(ibv_destroy_qp(b->qp), 0);
    CHECK_EQ(ibv_destroy_qp(a->qp), 0);
    CHECK_EQ(ibv_destroy_srq(a->srq), 0);
    done(pair);
}

static const struct test tests[] = {
    TEST(batch_that_doesnt_fit_is_refused_whole),
    TEST(access_changed_after_a_move_leaves_the_next_move_possible),
    TEST(access_error_of_the_job_is_told_as_an_event_too),
    TEST(end_that_only_receives_reads_the_state_it_was_in),
    TEST(question_about_a_queue_pair_whose_nic_is_gone_is_answered),
    TEST(marker_of_ours_costs_the_job_no_slot),
    TEST(queue_pair_used_past_the_library_is_let_go_of),
    TEST(queue_pair_made_past_the_library_sees_its_own_names),
};

int main(int argc, char **argv) {
    return run_promises(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
