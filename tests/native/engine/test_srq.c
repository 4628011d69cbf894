/* Promises about shared receive queues. */
#include <unistd.h>

#include "promise.h"

static const struct pair_options usual = {.srq = true};
/* Who must not move by itself, however busy the machine: a second for each of 7 tries. */
static const struct pair_options patient = {.srq = true, .timeout = 18};

/* ---- more connections on the same shared receive queues
 * ------------------------------------------------ */

enum { MORE = 7 };

struct crowd {
    struct pair *first;
    struct pair *more[MORE];
    int count;
};

static struct ibv_qp *another_qp(const struct end *end) {
    struct ibv_qp_init_attr init = {
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .srq = end->srq,
        .cap = {.max_send_wr = PAIR_DEPTH, .max_send_sge = 4, .max_inline_data = 64},
        .qp_type = IBV_QPT_RC};

    return ibv_create_qp(end->pd, &init);
}

/* The same objects, but for the queue pair. */
static void beside(struct end *end, const struct end *first) {
    memcpy(end, first, sizeof(*end));
    end->qp = another_qp(first);
    CHECK(end->qp);
}

static struct pair *another(const struct pair *first) {
    struct pair *pair = calloc(1, sizeof(*pair));

    beside(&pair->a, &first->a);
    beside(&pair->b, &first->b);
    end_connect(&pair->a, &pair->b, 77, 99, &usual);
    end_connect(&pair->b, &pair->a, 99, 77, &usual);
    return pair;
}

static struct crowd *crowd_of(int more) {
    struct crowd *crowd = calloc(1, sizeof(*crowd));

    behave(&manners);
    crowd->first = pair_new(&patient);
    for (; crowd->count < more; crowd->count++)
        crowd->more[crowd->count] = another(crowd->first);
    fake_auto(true);
    CHECK(within(agent_all_ready, 20000));
    return crowd;
}

static void leave(struct crowd *crowd) {
    fake_filter(NULL, NULL);
    for (int i = 0; i < crowd->count; i++) {
        CHECK_EQ(ibv_destroy_qp(crowd->more[i]->a.qp), 0);
        CHECK_EQ(ibv_destroy_qp(crowd->more[i]->b.qp), 0);
        free(crowd->more[i]);
    }
    done(crowd->first);
    free(crowd);
}

static int send_from(struct pair *pair, const struct pair *first, uint64_t id, uint8_t value) {
    struct ibv_sge sge = {
        .addr = (uintptr_t)first->a.memory + id * 64, .length = 64, .lkey = first->a.mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = id,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED};

    memset((void *)(uintptr_t)sge.addr, value, 64);
    return ibv_post_send(pair->a.qp, &wr, &bad);
}

/* `count` receives with ids from `from` on complete in any order, each once; their buffers hold what `seen`
 * counts. */
static void collect(const struct pair *first, int from, int count, int *seen) {
    bool came[64] = {false};
    struct ibv_wc wc;

    for (int got = 0, tries = 0; got < count && tries < 10000; tries++) {
        if (next_wc(first->a.send_cq, &wc))
            CHECK_EQ(wc.status, IBV_WC_SUCCESS);
        if (!next_wc(first->b.recv_cq, &wc)) {
            nap_ms(1);
            continue;
        }
        got++;
        CHECK_EQ(wc.status, IBV_WC_SUCCESS);
        CHECK(wc.wr_id >= (uint64_t)from && wc.wr_id < (uint64_t)from + 64 &&
              !came[wc.wr_id - (uint64_t)from]);
        came[wc.wr_id - (uint64_t)from] = true;
        const uint8_t *buffer = first->b.memory + 8192 + wc.wr_id * 64;
        CHECK_EQ(buffer[0], buffer[63]);
        seen[buffer[0]]++;
    }
}

static int give_receive(struct pair *first, uint64_t id) {
    return post_recv(&first->b, id, (uint32_t)(8192 + id * 64), 64);
}

static bool one_conn_moved(void) {
    return agent_migrations() >= 2;
}

static bool all_moved(void) {
    return agent_migrations() >= 2 * 4;
}

/* Only this connection's packets are lost: its neighbours stay where they are. */
static enum fake_verdict drop_its(const struct fake_packet_info *packet, void *arg) {
    const struct pair *pair = arg;

    return packet->source_qpn == pair->a.qp->qp_num || packet->source_qpn == pair->b.qp->qp_num ? FAKE_DROP
                                                                                                : FAKE_PASS;
}

/* ---- what must hold
 * ------------------------------------------------------------------------------------- */

static void a_queue_pair_takes_its_receives_along(void) {
    behave(&manners);
    struct pair *pair = covered_pair(&usual);

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
    CHECK(within(has_moved, 1000));
    expect_none(pair->b.recv_cq);
    done(pair);
}

static void lost_acknowledgements_take_no_receive_twice(void) {
    behave(&manners);
    struct pair *pair = covered_pair(&usual);

    CHECK_EQ(post_recv(&pair->b, 1, 4096, 64), 0);
    CHECK_EQ(post_recv(&pair->b, 2, 5120, 64), 0);
    fake_cut(2, 0, FAKE_ALL);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 10, 0, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 1, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 10, IBV_WC_SUCCESS);
    nap_ms(20);
    expect_none(pair->b.recv_cq);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 11, 64, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 2, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 11, IBV_WC_SUCCESS);
    done(pair);
}

/* The receiving NIC dies: everything that lay in its queue is free for the other, for all connections. */
static void a_dead_nic_gives_all_receives_to_the_others(void) {
    struct crowd *crowd = crowd_of(3);
    int seen[256] = {0};

    for (uint64_t i = 0; i < 16; i++)
        CHECK_EQ(give_receive(crowd->first, i), 0);
    fake_port(2, false);
    agent_page_state("fake_h1r0", LP_NIC_DOWN);
    for (int i = 0; i < 16; i++)
        CHECK_EQ(send_from(i % 4 ? crowd->more[i % 4 - 1] : crowd->first, crowd->first, (uint64_t)i,
                           (uint8_t)(i + 1)),
                 0);
    collect(crowd->first, 0, 16, seen);
    for (int i = 1; i <= 16; i++)
        CHECK_EQ(seen[i], 1);
    CHECK(within(all_moved, 5000));
    /* and the next round, posted while everything is away */
    for (uint64_t i = 0; i < 8; i++)
        CHECK_EQ(give_receive(crowd->first, 16 + i), 0);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(send_from(i % 4 ? crowd->more[i % 4 - 1] : crowd->first, crowd->first, 16 + (uint64_t)i,
                           (uint8_t)(101 + i)),
                 0);
    collect(crowd->first, 16, 8, seen);
    for (int i = 101; i <= 108; i++)
        CHECK_EQ(seen[i], 1);
    leave(crowd);
}

/* One connection moves, its neighbour lives on: receives are called back for it, and none is lost. */
static void receives_are_called_back_for_one_that_moves_alone(void) {
    struct crowd *crowd = crowd_of(1);
    int seen[256] = {0};

    for (uint64_t i = 0; i < 8; i++)
        CHECK_EQ(give_receive(crowd->first, i), 0);
    fake_filter(drop_its, crowd->more[0]);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(send_from(crowd->more[0], crowd->first, (uint64_t)i, (uint8_t)(i + 1)), 0);
    collect(crowd->first, 0, 4, seen);
    CHECK(within(one_conn_moved, 5000));
    for (int i = 4; i < 8; i++)
        CHECK_EQ(send_from(crowd->first, crowd->first, (uint64_t)i, (uint8_t)(i + 1)), 0);
    collect(crowd->first, 0, 4, seen);
    for (int i = 1; i <= 8; i++)
        CHECK_EQ(seen[i], 1);
    CHECK_EQ(agent_migrations(), 2);
    leave(crowd);
}

/* A single receive, and two NICs on which it may be needed. */
static void the_last_receive_goes_where_the_message_is(void) {
    struct crowd *crowd = crowd_of(1);
    int seen[256] = {0};

    fake_filter(drop_its, crowd->more[0]);
    CHECK_EQ(give_receive(crowd->first, 0), 0);
    CHECK_EQ(send_from(crowd->more[0], crowd->first, 0, 1), 0);
    collect(crowd->first, 0, 1, seen);
    for (int i = 1; i < 6; i++) {
        CHECK_EQ(give_receive(crowd->first, (uint64_t)i), 0);
        CHECK_EQ(
            send_from(i % 2 ? crowd->first : crowd->more[0], crowd->first, (uint64_t)i, (uint8_t)(i + 1)), 0);
        collect(crowd->first, 0, 1, seen);
    }
    for (int i = 1; i <= 6; i++)
        CHECK_EQ(seen[i], 1);
    leave(crowd);
}

static void orders_move_there_and_back_under_load(void) {
    struct crowd *crowd = crowd_of(3);
    int seen[256] = {0};

    for (int round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < 8; i++)
            CHECK_EQ(give_receive(crowd->first, i), 0);
        for (int i = 0; i < 8; i++) {
            CHECK_EQ(send_from(i % 4 ? crowd->more[i % 4 - 1] : crowd->first, crowd->first, (uint64_t)i,
                               (uint8_t)(round * 8 + i + 1)),
                     0);
            if (i == 3)
                agent_order(round % 2 ? "fake_h0r1" : "fake_h0r0", LP_WHY_DRAIN);
        }
        collect(crowd->first, 0, 8, seen);
        CHECK(within(agent_all_ready, 20000));
    }
    for (int i = 1; i <= 32; i++)
        CHECK_EQ(seen[i], 1);
    leave(crowd);
}

/* What lies in the queue that the job made lies elsewhere by now: a new queue pair must not take it again. */
static void a_queue_pair_made_after_a_move_gets_a_queue_of_its_own(void) {
    struct crowd *crowd = crowd_of(0);
    int seen[256] = {0};

    for (uint64_t i = 0; i < 4; i++)
        CHECK_EQ(give_receive(crowd->first, i), 0);
    fake_port(2, false);
    agent_page_state("fake_h1r0", LP_NIC_DOWN);
    CHECK_EQ(send_from(crowd->first, crowd->first, 0, 1), 0);
    collect(crowd->first, 0, 1, seen);
    CHECK(within(one_conn_moved, 5000));
    fake_port(2, true);
    agent_page_state("fake_h1r0", LP_NIC_UP);
    crowd->more[crowd->count++] = another(crowd->first);
    CHECK(within(agent_all_ready, 20000));
    for (int i = 1; i < 4; i++)
        CHECK_EQ(
            send_from(i == 2 ? crowd->first : crowd->more[0], crowd->first, (uint64_t)i, (uint8_t)(i + 1)),
            0);
    collect(crowd->first, 0, 3, seen);
    for (int i = 1; i <= 4; i++)
        CHECK_EQ(seen[i], 1);
    expect_none(crowd->first->b.recv_cq);
    leave(crowd);
}

static void a_limit_leaves_the_queue_to_the_job(void) {
    behave(&manners);
    struct pair *pair = covered_pair(&usual);
    struct ibv_srq_attr limit = {.srq_limit = 1};

    CHECK_EQ(ibv_modify_srq(pair->b.srq, &limit, IBV_SRQ_LIMIT), 0);
    CHECK_EQ(post_recv(&pair->b, 5, 4096, 64), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 6, 0, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 5, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 6, IBV_WC_SUCCESS);
    expect_event(pair->b.context, IBV_EVENT_SRQ_LIMIT_REACHED);
    cut_rail_0(true);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 7, 0, 0, 64, 0), 0);
    wait_wc(pair->a.send_cq, 7, IBV_WC_RETRY_EXC_ERR);
    done(pair);
}

/* A queue pair that isn't recorded takes receives that bear names of ours. */
static void strangers_on_the_same_queue_see_the_jobs_names(void) {
    const struct pair_options extended = {.srq = true, .extended = true, .atomic_write = true};

    behave(&manners);
    struct pair *pair = pair_new(&extended);
    fake_auto(true);
    CHECK_EQ(post_recv(&pair->b, 0x123456789abcdef, 4096, 64), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 2, 0, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 0x123456789abcdef, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK(!agent_all_ready());
    done(pair);
}

static void a_message_that_is_too_long_is_the_jobs_own_error(void) {
    behave(&manners);
    struct pair *pair = covered_pair(&usual);

    CHECK_EQ(post_recv(&pair->b, 5, 4096, 16), 0);
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 6, 0, 0, 64, 0), 0);
    wait_wc(pair->b.recv_cq, 5, IBV_WC_LOC_LEN_ERR);
    wait_wc(pair->a.send_cq, 6, IBV_WC_REM_INV_REQ_ERR);
    CHECK_EQ(agent_migrations(), 0);
    done(pair);
}

static void an_empty_queue_is_no_reason_to_wait(void) {
    behave(&manners);
    struct pair *pair = covered_pair(&usual);

    fail_the_rail();
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 3, 0, 4096, 64, 0), 0);
    wait_wc(pair->a.send_cq, 3, IBV_WC_SUCCESS);
    CHECK(within(has_moved, 1000));
    CHECK_EQ(post(&pair->a, &pair->b, IBV_WR_SEND, 4, 0, 0, 64, 0), 0);
    nap_ms(20);
    expect_none(pair->a.send_cq);
    CHECK_EQ(post_recv(&pair->b, 9, 8192, 64), 0);
    wait_wc(pair->b.recv_cq, 9, IBV_WC_SUCCESS);
    wait_wc(pair->a.send_cq, 4, IBV_WC_SUCCESS);
    done(pair);
}

static const struct test tests[] = {
    TEST(a_queue_pair_takes_its_receives_along),
    TEST(lost_acknowledgements_take_no_receive_twice),
    TEST(a_dead_nic_gives_all_receives_to_the_others),
    TEST(receives_are_called_back_for_one_that_moves_alone),
    TEST(the_last_receive_goes_where_the_message_is),
    TEST(orders_move_there_and_back_under_load),
    TEST(a_queue_pair_made_after_a_move_gets_a_queue_of_its_own),
    TEST(a_limit_leaves_the_queue_to_the_job),
    TEST(strangers_on_the_same_queue_see_the_jobs_names),
    TEST(a_message_that_is_too_long_is_the_jobs_own_error),
    TEST(an_empty_queue_is_no_reason_to_wait),
};

int main(int argc, char **argv) {
    return run_promises(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
