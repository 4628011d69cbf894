/* The doers, one promise at a time: two hosts in this process, the fake verbs library moving by the real
 * clock. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "promise.h"

/* ---- what must hold
 * ------------------------------------------------------------------------------------- */

static void silent_cut_moves_everything_and_loses_nothing(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);

    for (int i = 0; i < 8; i++)
        CHECK_EQ(post_recv(&pair->b, (uint64_t)i, (uint32_t)(4096 + i * 64), 64), 0);
    cut_rail_0(true);
    for (int i = 0; i < 8; i++) {
        memset(pair->a.memory + i * 64, i + 1, 64);
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 100 + (uint64_t)i, (uint32_t)i * 64, 0, 64, 0), 0);
    }
    for (int i = 0; i < 8; i++) {
        wait_wc(pair->a.send_cq, 100 + (uint64_t)i, IBV_WC_SUCCESS);
        wait_wc(pair->b.recv_cq, (uint64_t)i, IBV_WC_SUCCESS);
        CHECK_EQ(pair->b.memory[4096 + i * 64 + 63], i + 1);
    }
    expect_none(pair->a.send_cq);
    expect_none(pair->b.recv_cq);
    CHECK(within(has_moved, 1000));
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_RTS);
    CHECK_EQ(state_of(pair->b.qp), IBV_QPS_RTS);
    done(pair);
}

/* Programs look at the queue pair's own field too: UCX does before each post. */
static void state_that_the_library_notes_stays_what_the_job_knows(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);

    fail_the_rail();
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(within(has_moved, 1000));
    CHECK_EQ(pair->a.qp->state, IBV_QPS_RTS);
    CHECK_EQ(pair->b.qp->state, IBV_QPS_RTS);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_RTS);
    CHECK_EQ(pair->a.qp->state, IBV_QPS_RTS);
    CHECK_EQ(to_state(pair->a.qp, IBV_QPS_ERR), 0);
    CHECK_EQ(pair->a.qp->state, IBV_QPS_ERR);
    done(pair);
}

static void lost_acknowledgements_repeat_no_atomic_and_no_send(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);

    CHECK_EQ(post_recv(&pair->b, 1, 4096, 64), 0);
    CHECK_EQ(post_recv(&pair->b, 2, 5120, 64), 0);
    fake_cut(2, 0, FAKE_ALL); /* what A asks is done, and A doesn't hear of it */
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 10, 0, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 1, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 10, IBV_WC_SUCCESS);
    nap_ms(20);
    expect_none(pair->b.recv_cq); /* it came once */
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 11, 64, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 2, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 11, IBV_WC_SUCCESS);
    done(pair);
}

static void atomic_whose_result_was_lost_is_an_error(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    uint64_t *word = (uint64_t *)(void *)(pair->b.memory + 4096);

    *word = 40;
    fake_cut(2, 0, FAKE_ALL);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_ATOMIC_FETCH_AND_ADD, 7, 0, 4096, 8, 0), 0);
    wait_wc(pair->a.send_cq, 7, IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(__atomic_load_n(word, __ATOMIC_SEQ_CST), 45); /* once */
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_ERR);
    done(pair);
}

/* Programs that only write leave the other end in RTR. */
static void end_that_never_sends_moves_as_well(void) {
    const struct pair_options options = {.passive_b = true};
    behave(&manners);
    struct pair *pair = covered_pair(&options);

    fail_the_rail();
    for (int i = 0; i < 8; i++) {
        memset(pair->a.memory + i * 64, i + 1, 64);
        const uint32_t at = (uint32_t)i * 64;
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 100 + (uint64_t)i, at, 4096 + at, 64, 0), 0);
    }
    for (int i = 0; i < 8; i++) {
        wait_wc(pair->a.send_cq, 100 + (uint64_t)i, IBV_WC_SUCCESS);
        CHECK_EQ(pair->b.memory[4096 + i * 64 + 63], i + 1);
    }
    CHECK(within(has_moved, 1000));
    /* Late, and already on the spare: it begins to send. */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                               .timeout = 14,
                               .retry_cnt = 6,
                               .rnr_retry = 7,
                               .sq_psn = SEND_PSN_B,
                               .max_rd_atomic = 4};
    CHECK_EQ(ibv_modify_qp(pair->b.qp, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
             0);
    CHECK_EQ(post_recv(&pair->a, 1, 0, 64), 0);
    CHECK_EQ(post(&pair->b, &pair->a, IBV_WR_SEND, 5, 4096, 0, 64, 0), 0);
    wait_wc(pair->b.send_cq, 5, IBV_WC_SUCCESS);
    wait_wc(pair->a.recv_cq, 1, IBV_WC_SUCCESS);
    done(pair);
}

/* A peer that lets nobody write takes no marker behind atomics: they must tell for themselves. */
static void atomics_without_completions_of_their_own_are_waited_for(void) {
    const struct pair_options options = {
        .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, .passive_b = true, .retry = 7};
    behave(&manners);
    struct pair *pair = covered_pair(&options);
    uint64_t *word = (uint64_t *)(void *)(pair->b.memory + 4096);

    *word = 40;
    cut_rail_0(true);
    for (int i = 0; i < 4; i++) {
        struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = 8, .lkey = pair->a.mr->lkey};
        struct ibv_send_wr *bad, wr = {.wr_id = 70 + (uint64_t)i,
                                       .sg_list = &sge,
                                       .num_sge = 1,
                                       .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                       .send_flags = i == 1 ? IBV_SEND_SIGNALED : 0};
        wr.wr.atomic.remote_addr = (uintptr_t)word;
        wr.wr.atomic.rkey = pair->b.mr->rkey;
        wr.wr.atomic.compare_add = 1;
        CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    }
    agent_page_state("fake_h0r0", LP_NIC_DOWN);
    nap_ms(50);
    expect_none(pair->a.send_cq);
    CHECK(!has_moved());
    cut_rail_0(false);
    wait_wc(pair->a.send_cq, 71, IBV_WC_SUCCESS);
    CHECK(within(has_moved, 10000));
    CHECK_EQ(__atomic_load_n(word, __ATOMIC_SEQ_CST), 44);
    expect_none(pair->a.send_cq);
    done(pair);
}

/* A completion queue with room for exactly what the job posts: flushes and our marker come on top. */
static void queue_made_to_measure_has_room_for_a_fence(void) {
    const struct pair_options options = {.cqe = 1, .send_wr = 1, .timeout = 20, .retry = 7};
    behave(&manners);
    struct pair *pair = covered_pair(&options);

    for (int i = 0; i < 3; i++) {
        cut_rail_0(i == 0);
        fake_cut(1, 3, i == 1 ? FAKE_ALL : 0);
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, (uint64_t)i, 0, 4096, 64, 0), 0);
        agent_page_state("fake_h0r0", i == 0 ? LP_NIC_DOWN : LP_NIC_UP);
        agent_page_state("fake_h0r1", i == 1 ? LP_NIC_DOWN : LP_NIC_UP);
        wait_wc(pair->a.send_cq, (uint64_t)i, IBV_WC_SUCCESS);
        CHECK(within(agent_all_ready, 20000));
    }
    done(pair);
}

/* Its address is away when it is asked for: the agent must hear so, and ask again. */
static void spare_that_cant_be_made_yet_is_made_later(void) {
    behave(&manners);
    struct pair *pair = pair_new(NULL);

    fake_gid_there(1, false);
    fake_auto(true);
    nap_ms(200);
    CHECK(!agent_all_ready());
    CHECK_EQ(agent_malformed(), 0);
    fake_gid_there(1, true);
    CHECK(within(agent_all_ready, 20000));
    done(pair);
}

/* The spare's NIC has its address at another index than the job's, and there is one of the wrong kind before
 * it. */
static void spare_takes_the_gid_of_the_jobs_type_wherever_it_stands(void) {
    behave(&manners);
    struct pair *pair = pair_new(NULL);

    fake_gid_twin(1);
    fake_auto(true);
    CHECK(within(agent_all_ready, 20000));
    done(pair);
}

/* B's address moves: B can answer no more, has nothing to send that would fail, and A tries for very long. */
static void lost_gid_of_an_end_that_only_answers_moves_both(void) {
    const struct pair_options options = {.passive_b = true, .timeout = 20, .retry = 7};
    behave(&manners);
    struct pair *pair = covered_pair(&options);

    fake_cut(2, 0, FAKE_ALL);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 9, 0, 4096, 64, 0), 0);
    nap_ms(50);
    expect_none(pair->a.send_cq);
    fake_gid_there(2, false);
    wait_wc(pair->a.send_cq, 9, IBV_WC_SUCCESS);
    CHECK(within(has_moved, 1000));
    done(pair);
}

static void port_error_isnt_the_jobs_business(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct pollfd quiet = {.fd = pair->a.context->async_fd, .events = POLLIN};
    struct ibv_async_event event;

    CHECK_EQ(fcntl(quiet.fd, F_SETFL, O_NONBLOCK), 0);
    fail_the_rail();
    expect_none(pair->a.send_cq); /* a job that polls learns of it from the page */
    CHECK(within(has_moved, 5000));
    CHECK_EQ(poll(&quiet, 1, 0), 1);
    CHECK_EQ(ibv_get_async_event(pair->a.context, &event), -1);
    CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 3, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 3, IBV_WC_SUCCESS);
    fake_port(0, true);
    agent_page_state("fake_h0r0", LP_NIC_UP);
    done(pair);
}

/* What nobody protects has only the job to look after it. */
static void port_error_is_told_to_a_job_that_has_other_queue_pairs_there(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 1}};
    struct ibv_srq *srq = ibv_create_srq(pair->a.pd, &shared);
    struct ibv_qp_init_attr init = {.send_cq = pair->a.send_cq,
                                    .recv_cq = pair->a.recv_cq,
                                    .srq = srq,
                                    .cap = {.max_send_wr = 1, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *other = ibv_create_qp(pair->a.pd, &init);
    struct ibv_async_event event;

    CHECK(srq && other);
    CHECK_EQ(fcntl(pair->a.context->async_fd, F_SETFL, O_NONBLOCK), 0);
    fail_the_rail();
    CHECK(within(has_moved, 5000));
    CHECK_EQ(ibv_get_async_event(pair->a.context, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_PORT_ERR);
    ibv_ack_async_event(&event);
    CHECK_EQ(ibv_destroy_qp(other), 0);
    CHECK_EQ(ibv_destroy_srq(srq), 0);
    fake_port(0, true); /* and without it, it is nobody's business again */
    CHECK_EQ(ibv_get_async_event(pair->a.context, &event), -1);
    done(pair);
}

/* The job sleeps in poll() on its own descriptor, set to O_NONBLOCK, while all moves to the other NIC. */
static void channel_wakes_for_either_nic(void) {
    struct fake_config config = fake_default_config();
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    config.unseen_receives = true; /* a bell that needs them to be flushed would never ring */
    fake_tune(&config);
    struct pollfd waiting = {.fd = pair->b.channel->fd, .events = POLLIN};
    struct ibv_cq *cq = NULL;
    void *context = NULL;

    CHECK_EQ(fcntl(waiting.fd, F_SETFL, O_NONBLOCK), 0);
    CHECK_EQ(ibv_get_cq_event(pair->b.channel, &cq, &context), -1);
    CHECK_EQ(errno, EAGAIN);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(post_recv(&pair->b, (uint64_t)round, 4096, 64), 0);
        CHECK_EQ(ibv_req_notify_cq(pair->b.recv_cq, 0), 0);
        expect_none(pair->b.recv_cq);
        if (round == 1)
            cut_rail_0(true);
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 50, 0, 0, 64, 0), 0);
        bool found = false, sent = false;
        for (int tries = 0; tries < 4 && !found; tries++) { /* an event too many is allowed */
            struct ibv_wc wc;
            if (!sent && round == 1) { /* A is awake: it is the one that sees the error */
                wait_wc(pair->a.send_cq, 50, IBV_WC_SUCCESS);
                sent = true;
            }
            CHECK_EQ(poll(&waiting, 1, 10000), 1);
            CHECK_EQ(ibv_get_cq_event(pair->b.channel, &cq, &context), 0);
            CHECK(cq == pair->b.recv_cq);
            CHECK(context == &pair->b);
            ibv_ack_cq_events(cq, 1);
            found = next_wc(cq, &wc);
            if (found)
                CHECK_EQ(wc.wr_id, round);
            else
                CHECK_EQ(ibv_req_notify_cq(pair->b.recv_cq, 0), 0);
        }
        CHECK(found);
        if (!sent)
            wait_wc(pair->a.send_cq, 50, IBV_WC_SUCCESS);
    }
    done(pair); /* which waits for every event to be acknowledged */
}

/* A program that takes one completion after each event, as perftest takes 16. */
static void completions_that_came_at_once_have_an_event_each(void) {
    enum { COUNT = 8 };
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct pollfd waiting = {.fd = pair->b.channel->fd, .events = POLLIN};
    struct ibv_cq *cq = NULL;
    void *context = NULL;
    struct ibv_wc wc;
    int found = 0;

    for (int i = 0; i < COUNT; i++)
        CHECK_EQ(post_recv(&pair->b, (uint64_t)i, 4096, 64), 0);
    CHECK_EQ(ibv_req_notify_cq(pair->b.recv_cq, 0), 0);
    fail_the_rail();
    CHECK(within(has_moved, 5000));
    for (int i = 0; i < COUNT; i++)
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 50, 0, 0, 64, 0), 0);
    for (int i = 0; i < COUNT; i++)
        wait_wc(pair->a.send_cq, 50, IBV_WC_SUCCESS);
    while (found < COUNT && poll(&waiting, 1, 5000) == 1) {
        CHECK_EQ(ibv_get_cq_event(pair->b.channel, &cq, &context), 0);
        ibv_ack_cq_events(cq, 1);
        CHECK_EQ(ibv_req_notify_cq(pair->b.recv_cq, 0), 0);
        found += next_wc(pair->b.recv_cq, &wc);
    }
    CHECK_EQ(found, COUNT);
    while (poll(&waiting, 1, 100) == 1) { /* an event too many is allowed */
        CHECK_EQ(ibv_get_cq_event(pair->b.channel, &cq, &context), 0);
        ibv_ack_cq_events(cq, 1);
    }
    done(pair);
}

/* A change that the provider refuses is no change: the connection is still there, and still moves. */
static void refused_reset_changes_nothing(void) {
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    behave(&manners);
    struct pair *pair = covered_pair(NULL);

    CHECK_EQ(post_recv(&pair->b, 1, 4096, 64), 0);
    CHECK(ibv_modify_qp(pair->a.qp, &reset, IBV_QP_STATE | IBV_QP_PORT) != 0); /* a port isn't RESET's */
    fail_the_rail();
    CHECK(within(has_moved, 5000));
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 50, 0, 0, 64, 0), 0);
    wait_wc(pair->a.send_cq, 50, IBV_WC_SUCCESS);
    wait_wc(pair->b.recv_cq, 1, IBV_WC_SUCCESS);
    done(pair);
}

static _Atomic bool all_gone;

static void *destroys_all(void *pair) {
    done(pair);
    atomic_store(&all_gone, true);
    return NULL;
}

/* As the provider would: a queue isn't gone while a thread still handles an event of it. */
static void queue_waits_for_an_event_made_here(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct pollfd waiting = {.fd = pair->b.channel->fd, .events = POLLIN};
    struct ibv_cq *cq = NULL;
    void *context = NULL;
    pthread_t thread;

    CHECK_EQ(post_recv(&pair->b, 1, 4096, 64), 0);
    fail_the_rail();
    CHECK(within(has_moved, 5000));
    CHECK_EQ(ibv_req_notify_cq(pair->b.recv_cq, 0), 0); /* the provider's own has nothing to tell any more */
    expect_none(pair->b.recv_cq);
    CHECK_EQ(poll(&waiting, 1, 100), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 50, 0, 0, 64, 0), 0);
    wait_wc(pair->a.send_cq, 50, IBV_WC_SUCCESS);
    CHECK_EQ(poll(&waiting, 1, 5000), 1);
    CHECK_EQ(ibv_get_cq_event(pair->b.channel, &cq, &context), 0);
    CHECK(cq == pair->b.recv_cq);
    CHECK_EQ(pthread_create(&thread, NULL, destroys_all, pair), 0);
    (void)usleep(200000);
    CHECK(!atomic_load(&all_gone));
    ibv_ack_cq_events(cq, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(atomic_load(&all_gone));
}

/* One processor for all threads, and a job that never sleeps. */
static void job_that_spins_lets_its_move_go_on(void) {
    const struct pair_options options = {.timeout = 20, .retry = 7};
    cpu_set_t one;
    struct ibv_wc wc = {0};
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    behave(&manners);
    struct pair *pair = covered_pair(&options);

    cut_rail_0(true);
    CHECK_EQ(post(&pair->b, &pair->a, IBV_WR_RDMA_WRITE, 9, 0, 4096, 64, 0), 0);
    agent_page_state("fake_h1r0", LP_NIC_DOWN);
    const time_t end = time(NULL) + 10;
    while (!next_wc(pair->b.send_cq, &wc) && time(NULL) < end)
        continue;
    CHECK_EQ(wc.wr_id, 9);
    CHECK_EQ(wc.status, IBV_WC_SUCCESS);
    done(pair);
}

static void order_moves_a_healthy_connection(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);

    agent_order("fake_h0r0", LP_WHY_DRAIN);
    CHECK(within(has_moved, 5000));
    CHECK_EQ(post(&pair->b, &pair->a, IBV_WR_RDMA_READ, 4, 0, 4096, 1000, 0), 0);
    wait_wc(pair->b.send_cq, 4, IBV_WC_SUCCESS);
    done(pair);
}

static void job_that_moves_to_err_gets_flushes_only(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);

    agent_order("fake_h0r0", LP_WHY_DRAIN);
    CHECK(within(has_moved, 5000));
    CHECK_EQ(post_recv(&pair->b, 21, 4096, 64), 0);
    CHECK_EQ(post_recv(&pair->b, 22, 4096, 64), 0);
    CHECK_EQ(to_state(pair->b.qp, IBV_QPS_ERR), 0);
    wait_wc(pair->b.recv_cq, 21, IBV_WC_WR_FLUSH_ERR);
    wait_wc(pair->b.recv_cq, 22, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(state_of(pair->b.qp), IBV_QPS_ERR);
    CHECK_EQ(post(&pair->b, &pair->a, IBV_WR_RDMA_WRITE, 23, 0, 4096, 64, 0), 0);
    wait_wc(pair->b.send_cq, 23, IBV_WC_WR_FLUSH_ERR);
    expect_none(pair->b.recv_cq);
    done(pair);
}

static void without_an_agent_the_original_error_comes_at_once(void) {
    struct pair *pair = pair_new(NULL);

    fake_auto(true);
    nap_ms(20);
    cut_rail_0(true);
    CHECK_EQ(post_recv(&pair->a, 1, 4096, 64), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 5, 0, 4096, 64, 0), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 6, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 5, IBV_WC_RETRY_EXC_ERR);
    wait_wc(pair->a.send_cq, 6, IBV_WC_WR_FLUSH_ERR);
    wait_wc(pair->a.recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_ERR);
    behave(&manners); /* done() stops it */
    done(pair);
}

static void nowhere_to_go_ends_with_the_original_error_after_the_deadline(void) {
    static const struct agent_manners hasty = {.rails = 2, .give_up_ms = 400, .attempt_ms = 50};

    behave(&hasty);
    struct pair *pair = covered_pair(NULL);
    fake_cut(-1, -1, FAKE_ALL); /* both rails */
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 5, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 5, IBV_WC_RETRY_EXC_ERR);
    fake_cut(-1, -1, 0);
    done(pair);
}

static void access_error_of_the_job_stays_what_it_is(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = 8, .lkey = pair->a.mr->lkey};
    struct ibv_send_wr *bad = NULL, wr = {.wr_id = 9,
                                          .sg_list = &sge,
                                          .num_sge = 1,
                                          .opcode = IBV_WR_RDMA_WRITE,
                                          .send_flags = IBV_SEND_SIGNALED};

    wr.wr.rdma.remote_addr = (uintptr_t)pair->b.memory;
    wr.wr.rdma.rkey = 0xdead00;
    CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
    wait_wc(pair->a.send_cq, 9, IBV_WC_REM_ACCESS_ERR);
    CHECK_EQ(state_of(pair->a.qp), IBV_QPS_ERR);
    done(pair);
}

/* Registered, used, and given back while requests run on the spare: keys of both ends are new to it. */
static void memory_registered_after_a_move_can_be_used(void) {
    static uint8_t late_a[4096], late_b[4096];
    const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    agent_order("fake_h0r0", LP_WHY_DRAIN);
    CHECK(within(has_moved, 5000));
    for (int round = 0; round < 5; round++) {
        struct ibv_mr *a = ibv_reg_mr(pair->a.pd, late_a, sizeof(late_a), all);
        struct ibv_mr *b = ibv_reg_mr(pair->b.pd, late_b, sizeof(late_b), all);
        struct ibv_sge sge = {.addr = (uintptr_t)late_a, .length = 4096, .lkey = a->lkey};
        struct ibv_send_wr *bad = NULL, wr = {.wr_id = 30,
                                              .sg_list = &sge,
                                              .num_sge = 1,
                                              .opcode = IBV_WR_RDMA_WRITE,
                                              .send_flags = IBV_SEND_SIGNALED};
        memset(late_a, 1 + round, sizeof(late_a));
        wr.wr.rdma.remote_addr = (uintptr_t)late_b;
        wr.wr.rdma.rkey = b->rkey;
        CHECK_EQ(ibv_post_send(pair->a.qp, &wr, &bad), 0);
        wait_wc(pair->a.send_cq, 30, IBV_WC_SUCCESS);
        CHECK_EQ(late_b[4095], 1 + round);
        CHECK_EQ(ibv_dereg_mr(a), 0);
        CHECK_EQ(ibv_dereg_mr(b), 0);
    }
    done(pair);
}

static void destroyed_in_the_middle_of_a_move(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 1, 0, 4096, 4096, 0), 0);
    fail_the_rail();
    nap_ms(1);
    done(pair);
}

/* What windows do can't be repeated elsewhere, and must work as without the library: also ibv_wr_bind_mw. */
static void memory_window_lets_go_of_its_domains_connections(void) {
    behave(&manners);
    const struct pair_options options = {.extended = true};
    struct pair *pair = covered_pair(&options);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair->a.qp);
    struct ibv_send_wr *bad, inv = {.wr_id = 12, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED};

    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 10, 0, 4096, 64, 0), 0);
    struct ibv_mw *mw = ibv_alloc_mw(pair->a.pd, IBV_MW_TYPE_2);
    CHECK(mw);
    const struct ibv_mw_bind_info info = {.mr = pair->a.mr, .addr = (uintptr_t)pair->a.memory, .length = 64};
    ibv_wr_start(ex);
    ex->wr_id = 11;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_bind_mw(ex, mw, mw->rkey, &info);
    CHECK_EQ(ibv_wr_complete(ex), 0);
    inv.invalidate_rkey = mw->rkey;
    CHECK_EQ(ibv_post_send(pair->a.qp, &inv, &bad), 0);
    wait_wc(pair->a.send_cq, 10, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 11, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 12, IBV_WC_SUCCESS);
    CHECK_EQ(agent_failures(), 0);
    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 13, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 13, IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(agent_migrations(), 0);
    CHECK_EQ(ibv_dealloc_mw(mw), 0);
    done(pair);
}

/* The shim doesn't see such requests: were the queue pair recorded, they would be dropped without a word. */
static void operations_that_cant_be_followed_pass_through_from_the_start(void) {
    const struct pair_options options = {.extended = true, .atomic_write = true};
    const uint64_t value = 0x1122334455667788;
    uint64_t landed = 0;

    behave(&manners);
    struct pair *pair = pair_new(&options);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair->a.qp);
    fake_auto(true);
    ibv_wr_start(ex);
    ex->wr_id = 31;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory, &value);
    CHECK_EQ(ibv_wr_complete(ex), 0);
    wait_wc(pair->a.send_cq, 31, IBV_WC_SUCCESS);
    memcpy(&landed, pair->b.memory, sizeof(landed));
    CHECK(landed == value);
    CHECK(!agent_all_ready());
    done(pair);
}

static void child_of_a_fork_leaves_the_parent_alone(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);
    const pid_t child = fork();

    if (child == 0)
        _exit(0);
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 8, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 8, IBV_WC_SUCCESS);
    done(pair);
}

static void agent_that_dies_and_returns_covers_again(void) {
    behave(&manners);
    struct pair *pair = covered_pair(NULL);

    agent_stop();
    cut_rail_0(true); /* the spare is there: nobody is needed but the peer, who sees the same */
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 8, 0, 4096, 64, 0), 0);
    CHECK_EQ(post(&pair->b, &pair->a, IBV_WR_RDMA_WRITE, 9, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 8, IBV_WC_SUCCESS);
    wait_wc(pair->b.send_cq, 9, IBV_WC_SUCCESS);
    cut_rail_0(false);
    behave(&manners);
    CHECK(within(agent_all_ready, 20000));
    agent_order("fake_h0r1", LP_WHY_FAIL_BACK);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 10, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 10, IBV_WC_SUCCESS);
    done(pair);
}

static const struct test tests[] = {
    TEST(silent_cut_moves_everything_and_loses_nothing),
    TEST(state_that_the_library_notes_stays_what_the_job_knows),
    TEST(lost_acknowledgements_repeat_no_atomic_and_no_send),
    TEST(atomic_whose_result_was_lost_is_an_error),
    TEST(end_that_never_sends_moves_as_well),
    TEST(atomics_without_completions_of_their_own_are_waited_for),
    TEST(queue_made_to_measure_has_room_for_a_fence),
    TEST(spare_that_cant_be_made_yet_is_made_later),
    TEST(spare_takes_the_gid_of_the_jobs_type_wherever_it_stands),
    TEST(lost_gid_of_an_end_that_only_answers_moves_both),
    TEST(port_error_isnt_the_jobs_business),
    TEST(port_error_is_told_to_a_job_that_has_other_queue_pairs_there),
    TEST(channel_wakes_for_either_nic),
    TEST(completions_that_came_at_once_have_an_event_each),
    TEST(queue_waits_for_an_event_made_here),
    TEST(refused_reset_changes_nothing),
    TEST(job_that_spins_lets_its_move_go_on),
    TEST(order_moves_a_healthy_connection),
    TEST(job_that_moves_to_err_gets_flushes_only),
    TEST(without_an_agent_the_original_error_comes_at_once),
    TEST(nowhere_to_go_ends_with_the_original_error_after_the_deadline),
    TEST(access_error_of_the_job_stays_what_it_is),
    TEST(memory_registered_after_a_move_can_be_used),
    TEST(destroyed_in_the_middle_of_a_move),
    TEST(memory_window_lets_go_of_its_domains_connections),
    TEST(operations_that_cant_be_followed_pass_through_from_the_start),
    TEST(child_of_a_fork_leaves_the_parent_alone),
    TEST(agent_that_dies_and_returns_covers_again),
};

int main(int argc, char **argv) {
    return run_promises(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
