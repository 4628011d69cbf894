#include "pair.h"

#include <fcntl.h>
#include <poll.h>

int checks_failed;

static void *need(void *object, const char *what) {
    if (!object) {
        fprintf(stderr, "could not make %s\n", what);
        exit(2);
    }
    return object;
}

void end_open(struct end *end, int nic, const struct pair_options *options) {
    const int access = options->access ? options->access
                                       : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    const int cqe = options->cqe ? options->cqe : 64;

    end->nic = nic;
    end->context = need(fake_open(nic), "context");
    end->pd = need(ibv_alloc_pd(end->context), "protection domain");
    end->channel = need(ibv_create_comp_channel(end->context), "completion channel");
    end->send_cq = need(ibv_create_cq(end->context, cqe, end, end->channel, 0), "send queue's CQ");
    end->recv_cq = need(ibv_create_cq(end->context, cqe, end, end->channel, 0), "receive queue's CQ");
    end->mr = need(ibv_reg_mr(end->pd, end->memory, sizeof(end->memory), access), "memory region");
    if (options->srq) {
        struct ibv_srq_init_attr srq = {.attr = {.max_wr = PAIR_DEPTH, .max_sge = 4}};
        end->srq = need(ibv_create_srq(end->pd, &srq), "shared receive queue");
    }
    struct ibv_qp_init_attr_ex init = {
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .srq = end->srq,
        .cap = {.max_send_wr = options->send_wr ? options->send_wr : PAIR_DEPTH,
                .max_recv_wr = PAIR_DEPTH,
                .max_send_sge = 4,
                .max_recv_sge = 4,
                .max_inline_data = 64},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = options->sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = end->pd};
    if (options->extended) {
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ |
                              IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_IMM |
                              IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        if (options->atomic_write)
            init.send_ops_flags |= IBV_QP_EX_WITH_ATOMIC_WRITE;
    }
    end->qp = need(ibv_create_qp_ex(end->context, &init), "queue pair");
}

void end_connect(struct end *end, struct end *peer, uint32_t psn, uint32_t peer_psn,
                 const struct pair_options *options) {
    const int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    const uint8_t rd_atomic = options->rd_atomic ? options->rd_atomic : 4;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags =
                                   (unsigned int)(options->access ? options->access & access : access)};

    CHECK_EQ(
        ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = options->mtu ? options->mtu : IBV_MTU_256,
                                .dest_qp_num = peer->qp->qp_num,
                                .rq_psn = peer_psn,
                                .max_dest_rd_atomic = rd_atomic,
                                .min_rnr_timer = options->rnr_timer ? options->rnr_timer : 12,
                                .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}}};
    CHECK_EQ(ibv_query_gid(peer->context, 1, 1, &attr.ah_attr.grh.dgid), 0);
    CHECK_EQ(ibv_modify_qp(end->qp, &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
             0);
    if (options->passive)
        return;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = options->no_timeout || options->timeout ? options->timeout : 14,
                                .retry_cnt = options->no_retry || options->retry ? options->retry : 6,
                                .rnr_retry =
                                    options->no_rnr_retry || options->rnr_retry ? options->rnr_retry : 7,
                                .sq_psn = psn,
                                .max_rd_atomic = rd_atomic};
    CHECK_EQ(ibv_modify_qp(end->qp, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
             0);
}

/* Host 0 rail 0 and host 1 rail 0 of a fresh fleet of 2 x 2. */
struct pair *pair_new(const struct pair_options *options) {
    static const struct pair_options usual;
    const struct fake_config config = fake_default_config();
    struct pair *pair = need(calloc(1, sizeof(*pair)), "pair");

    CHECK(fake_start(&config));
    if (!options)
        options = &usual;
    end_open(&pair->a, 0, options);
    end_open(&pair->b, 2, options);
    end_connect(&pair->a, &pair->b, SEND_PSN_A, SEND_PSN_B, options);
    struct pair_options far = *options;
    far.passive = options->passive_b;
    end_connect(&pair->b, &pair->a, SEND_PSN_B, SEND_PSN_A, &far);
    return pair;
}

void end_close(struct end *end) {
    CHECK_EQ(ibv_destroy_qp(end->qp), 0);
    if (end->srq)
        CHECK_EQ(ibv_destroy_srq(end->srq), 0);
    CHECK_EQ(ibv_destroy_cq(end->send_cq), 0);
    CHECK_EQ(ibv_destroy_cq(end->recv_cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(end->channel), 0);
    CHECK_EQ(ibv_dereg_mr(end->mr), 0);
    CHECK_EQ(ibv_dealloc_pd(end->pd), 0);
    CHECK_EQ(ibv_close_device(end->context), 0);
    CHECK_EQ(fake_open_objects(end->nic), 0);
}

void pair_free(struct pair *pair) {
    end_close(&pair->a);
    end_close(&pair->b);
    free(pair);
}

int to_state(struct ibv_qp *qp, enum ibv_qp_state state) {
    struct ibv_qp_attr attr = {.qp_state = state};

    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static struct ibv_qp_attr query(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init;

    CHECK_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &init), 0);
    return attr;
}

enum ibv_qp_state state_of(struct ibv_qp *qp) {
    return query(qp).qp_state;
}

uint32_t rq_psn_of(struct ibv_qp *qp) {
    return query(qp).rq_psn;
}

uint32_t sq_psn_of(struct ibv_qp *qp) {
    return query(qp).sq_psn;
}

int post(struct end *from, struct end *to, enum ibv_wr_opcode opcode, uint64_t wr_id, uint32_t at,
         uint32_t to_at, uint32_t length, unsigned int flags) {
    struct ibv_sge sge = {.addr = (uintptr_t)from->memory + at, .length = length, .lkey = from->mr->lkey};
    struct ibv_send_wr *bad = NULL, wr = {.wr_id = wr_id,
                                          .sg_list = &sge,
                                          .num_sge = length ? 1 : 0,
                                          .opcode = opcode,
                                          .send_flags = IBV_SEND_SIGNALED | flags,
                                          .imm_data = htobe32(0x1234)};

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = (uintptr_t)to->memory + to_at;
        wr.wr.atomic.rkey = to->mr->rkey;
        wr.wr.atomic.compare_add = 5;
        wr.wr.atomic.swap = 77;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)to->memory + to_at;
        wr.wr.rdma.rkey = to->mr->rkey;
    }
    return ibv_post_send(from->qp, &wr, &bad);
}

int post_recv(struct end *end, uint64_t wr_id, uint32_t at, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)end->memory + at, .length = length, .lkey = end->mr->lkey};
    struct ibv_recv_wr *bad = NULL, wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};

    return end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad);
}

bool next_wc(struct ibv_cq *cq, struct ibv_wc *wc) {
    return ibv_poll_cq(cq, 1, wc) == 1;
}

void expect_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status) {
    struct ibv_wc wc = {0};

    if (!next_wc(cq, &wc)) {
        fprintf(stderr, "no completion, wanted id %llu\n", (unsigned long long)wr_id);
        checks_failed++;
        return;
    }
    CHECK_EQ(wc.wr_id, wr_id);
    CHECK_EQ(wc.status, status);
}

void expect_none(struct ibv_cq *cq) {
    struct ibv_wc wc;

    CHECK(!next_wc(cq, &wc));
}

void expect_event(struct ibv_context *context, enum ibv_event_type type) {
    struct pollfd waiting = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event event;

    if (poll(&waiting, 1, 0) != 1) {
        fprintf(stderr, "no asynchronous event, wanted %d\n", (int)type);
        checks_failed++;
        return;
    }
    CHECK_EQ(ibv_get_async_event(context, &event), 0);
    CHECK_EQ(event.event_type, type);
    ibv_ack_async_event(&event);
}

int run_tests(const struct test *tests, size_t count, int argc, char **argv) {
    int passed = 0, failed = 0;

    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && !strstr(tests[i].name, argv[1]))
            continue;
        checks_failed = 0;
        tests[i].run();
        printf("%s %s\n", checks_failed ? "FAIL" : "ok  ", tests[i].name);
        checks_failed ? failed++ : passed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
