/* The library with its thread on, and several threads of the program: every message arrives once, in order.
 */
#include "pair.h"

#include <pthread.h>

enum { MESSAGES = 4000, SLOT = 64, WINDOW = 8 };

struct job {
    struct end *end, *peer;
    bool events;
    uint64_t received;
    bool ordered;
};

static void poll_once(struct job *job, uint64_t *sent_done) {
    struct ibv_wc wc;

    while (next_wc(job->end->send_cq, &wc)) {
        *sent_done += wc.status == IBV_WC_SUCCESS;
    }
    while (next_wc(job->end->recv_cq, &wc)) {
        const uint32_t slot = (uint32_t)(job->received % WINDOW) * SLOT + 4096;
        uint64_t number;
        memcpy(&number, job->end->memory + slot, sizeof(number));
        job->ordered &= number == job->received && wc.wr_id == job->received;
        (void)post_recv(job->end, job->received + WINDOW, slot, SLOT);
        job->received++;
    }
}

static void wait_for_event(struct job *job) {
    struct ibv_cq *cq;
    void *context;

    if (ibv_get_cq_event(job->end->channel, &cq, &context) == 0) {
        ibv_ack_cq_events(cq, 1);
        ibv_req_notify_cq(cq, 0);
    }
}

static void *exchange(void *arg) {
    struct job *job = arg;
    uint64_t sent = 0, done = 0;

    if (job->events) {
        ibv_req_notify_cq(job->end->send_cq, 0);
        ibv_req_notify_cq(job->end->recv_cq, 0);
    }
    for (;;) {
        poll_once(job, &done);
        while (sent < MESSAGES && sent - done < WINDOW / 2) {
            const uint32_t slot = (uint32_t)(sent % WINDOW) * SLOT;
            memcpy(job->end->memory + slot, &sent, sizeof(sent));
            if (post(job->end, job->peer, IBV_WR_SEND, sent, slot, 0, SLOT, 0))
                return NULL;
            sent++;
        }
        if (done == MESSAGES && job->received == MESSAGES)
            return NULL;
        if (job->events)
            wait_for_event(job);
    }
}

static void both_ways(bool events) {
    const struct pair_options options = {.rnr_timer = 1};
    struct pair *pair = pair_new(&options);
    struct job a = {.end = &pair->a, .peer = &pair->b, .events = events, .ordered = true};
    struct job b = {.end = &pair->b, .peer = &pair->a, .events = events, .ordered = true};
    pthread_t thread;

    for (uint64_t i = 0; i < WINDOW; i++) {
        post_recv(&pair->a, i, (uint32_t)i * SLOT + 4096, SLOT);
        post_recv(&pair->b, i, (uint32_t)i * SLOT + 4096, SLOT);
    }
    fake_auto(true);
    CHECK_EQ(pthread_create(&thread, NULL, exchange, &a), 0);
    exchange(&b);
    pthread_join(thread, NULL);
    fake_auto(false);
    CHECK_EQ(a.received, MESSAGES);
    CHECK_EQ(b.received, MESSAGES);
    CHECK(a.ordered && b.ordered);
    pair_free(pair);
}

static void polling_threads_exchange_in_order(void) {
    both_ways(false);
}

static void waiting_threads_exchange_in_order(void) {
    both_ways(true);
}

static _Atomic bool stop_churn;

/* Makes and destroys objects on a NIC that others use: addresses and numbers come and go. */
static void *churn(void *arg) {
    struct end *end = arg;
    uint64_t rounds = 0;

    while (!stop_churn) {
        struct ibv_cq *cq = ibv_create_cq(end->context, 4, NULL, NULL, 0);
        struct ibv_qp_init_attr init = {.send_cq = cq,
                                        .recv_cq = cq,
                                        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_recv_sge = 1},
                                        .qp_type = IBV_QPT_RC};
        struct ibv_qp *qp = ibv_create_qp(end->pd, &init);
        struct ibv_mr *mr = ibv_reg_mr(end->pd, end->memory, 64, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
        struct ibv_recv_wr *bad, wr = {.wr_id = 77};
        struct ibv_wc wc;
        bool fine =
            cq && qp && mr &&
            !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) &&
            !ibv_post_recv(qp, &wr, &bad) && !to_state(qp, IBV_QPS_ERR);
        while (fine && ibv_poll_cq(cq, 1, &wc) == 0)
            continue;
        fine = fine && wc.wr_id == 77 && wc.status == IBV_WC_WR_FLUSH_ERR;
        if (!fine || ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(mr))
            return NULL;
        rounds++;
    }
    return rounds ? end : NULL;
}

static void objects_come_and_go_while_others_exchange(void) {
    const struct pair_options options = {.rnr_timer = 1};
    struct pair *pair = pair_new(&options);
    struct job a = {.end = &pair->a, .peer = &pair->b, .ordered = true};
    struct job b = {.end = &pair->b, .peer = &pair->a, .ordered = true};
    pthread_t thread, churners[2];
    void *result;

    for (uint64_t i = 0; i < WINDOW; i++) {
        post_recv(&pair->a, i, (uint32_t)i * SLOT + 4096, SLOT);
        post_recv(&pair->b, i, (uint32_t)i * SLOT + 4096, SLOT);
    }
    fake_auto(true);
    CHECK_EQ(pthread_create(&churners[0], NULL, churn, &pair->a), 0);
    CHECK_EQ(pthread_create(&churners[1], NULL, churn, &pair->b), 0);
    CHECK_EQ(pthread_create(&thread, NULL, exchange, &a), 0);
    exchange(&b);
    pthread_join(thread, NULL);
    stop_churn = true;
    for (int i = 0; i < 2; i++) {
        pthread_join(churners[i], &result);
        CHECK(result != NULL);
    }
    fake_auto(false);
    CHECK(a.ordered && b.ordered && a.received == MESSAGES && b.received == MESSAGES);
    pair_free(pair);
}

static const struct test tests[] = {
    TEST(polling_threads_exchange_in_order),
    TEST(waiting_threads_exchange_in_order),
    TEST(objects_come_and_go_while_others_exchange),
};

int main(int argc, char **argv) {
    return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
