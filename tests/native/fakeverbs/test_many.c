/* More queue pairs than the first table has room for: each is found, takes its turn, and timers run in order.
 */
#include "pair.h"

enum { MANY = 1100 };

static struct pair *pair;
static struct ibv_qp *senders[MANY]; /* the oldest first */
static uint32_t order[4 * MANY];     /* sources of the packets as they were sent */
static size_t sent;

static enum fake_verdict note(const struct fake_packet_info *packet, void *arg) {
    (void)arg;
    if (packet->kind == FAKE_REQUEST && sent < sizeof(order) / sizeof(order[0]))
        order[sent++] = packet->source_qpn;
    return FAKE_PASS;
}

static struct ibv_qp *one_more(const struct end *end) {
    struct ibv_qp_init_attr init = {
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .cap = {.max_send_wr = 2, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};

    return ibv_create_qp(end->pd, &init);
}

static void connect_both(struct ibv_qp *a, struct ibv_qp *b, const struct pair_options *options) {
    struct end near = {.qp = a, .context = pair->a.context}, far = {.qp = b, .context = pair->b.context};

    end_connect(&near, &far, 1, 1, options);
    end_connect(&far, &near, 1, 1, options);
}

static void write_from(struct ibv_qp *qp) {
    struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = 8, .lkey = pair->a.mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = qp->qp_num,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {(uintptr_t)pair->b.memory, pair->b.mr->rkey}};

    CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
}

static struct ibv_qp *receivers[MANY];

static void open_many(bool no_retry) {
    const struct pair_options options = {.cqe = 4 * MANY, .no_retry = no_retry};

    pair = pair_new(&options);
    for (int i = 0; i < MANY; i++) {
        senders[i] = one_more(&pair->a);
        receivers[i] = one_more(&pair->b);
        if (!senders[i] || !receivers[i])
            exit(2);
        connect_both(senders[i], receivers[i], &options);
    }
    sent = 0;
    fake_filter(note, NULL);
}

static void close_many(void) {
    fake_filter(NULL, NULL);
    for (int i = 0; i < MANY; i++) {
        if (senders[i])
            CHECK_EQ(ibv_destroy_qp(senders[i]), 0);
        CHECK_EQ(ibv_destroy_qp(receivers[i]), 0);
    }
    pair_free(pair);
}

static void many_take_turns_the_newest_first(void) {
    open_many(false);
    for (int i = 0; i < MANY; i++) {
        write_from(senders[i]);
        write_from(senders[i]);
    }
    CHECK_EQ(fake_transmit(0, 4 * MANY), 2 * MANY);
    CHECK_EQ(sent, 2 * MANY);
    for (int i = 0; i < 2 * MANY; i++)
        CHECK(order[i] == senders[MANY - 1 - i % MANY]->qp_num);
    (void)fake_run();
    CHECK_EQ(fake_stats(0).completions, 2 * MANY);
    close_many();
}

static void turn_of_a_destroyed_one_goes_to_the_next_older(void) {
    open_many(false);
    for (int i = 0; i < MANY; i++)
        write_from(senders[i]);
    CHECK_EQ(fake_transmit(0, 10), 10); /* the next would be the eleventh */
    CHECK_EQ(ibv_destroy_qp(senders[MANY - 11]), 0);
    senders[MANY - 11] = NULL;
    CHECK_EQ(fake_transmit(0, 1), 1);
    CHECK_EQ(order[10], senders[MANY - 12]->qp_num);
    (void)fake_run();
    close_many();
}

static void timers_run_in_order_and_of_two_at_once_the_newer_first(void) {
    static const int chosen[] = {3, 5, 700}; /* the first sends at time 0, the others at 1 */
    struct ibv_wc wc;

    open_many(true);
    fake_cut(0, 2, FAKE_ALL);
    write_from(senders[chosen[0]]);
    (void)fake_run();
    fake_advance(1);
    write_from(senders[chosen[1]]);
    write_from(senders[chosen[2]]);
    (void)fake_run();
    const uint64_t due = fake_next_timer();
    CHECK_EQ(due, UINT64_C(4096) << 14);
    fake_advance(due - fake_now());
    expect_wc(pair->a.send_cq, senders[chosen[0]]->qp_num, IBV_WC_RETRY_EXC_ERR);
    CHECK(!next_wc(pair->a.send_cq, &wc));
    CHECK_EQ(fake_next_timer(), due + 1);
    fake_advance(1);
    expect_wc(pair->a.send_cq, senders[chosen[2]]->qp_num, IBV_WC_RETRY_EXC_ERR);
    expect_wc(pair->a.send_cq, senders[chosen[1]]->qp_num, IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(fake_next_timer(), UINT64_MAX);
    close_many();
}

static const struct test tests[] = {
    TEST(many_take_turns_the_newest_first),
    TEST(turn_of_a_destroyed_one_goes_to_the_next_older),
    TEST(timers_run_in_order_and_of_two_at_once_the_newer_first),
};

int main(int argc, char **argv) {
    return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
