/*
 * Calling receives back from a real shared receive queue: a queue pair attached to it and connected to itself
 * sends itself empty messages, and each takes one receive, without a byte written.  Works as long as the NIC
 * can reach itself.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deliver.h"
#include "spare.h"
#include "srq_inner.h"

enum { LOOP_DEPTH = 64, LOOP_WAIT_NS = 20000000, LOOP_TIMEOUT = 8 /* 1 ms */, LOOP_RETRIES = 3 };

struct lp_loop {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    uint32_t sent, back; /* messages sent, messages that are over */
    bool broken, empty;  /* to be made anew; because the queue had nothing left, as the NIC said */
};

static struct ibv_context *context_of(const struct lp_place *place) {
    return place->reserve ? place->reserve->nic->context : place->shared->context->real;
}

static bool connect_to_itself(const struct lp_place *place, struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = place->port};

    if (LP_REAL(ibv_modify_qp)(qp, &attr,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        return false;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_256,
                                .dest_qp_num = qp->qp_num,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = 1,
                                .ah_attr = {.is_global = 1,
                                            .port_num = place->port,
                                            .grh = {.sgid_index = place->sgid_index, .hop_limit = 1}}};
    if (LP_REAL(ibv_query_gid)(context_of(place), place->port, place->sgid_index, &attr.ah_attr.grh.dgid) ||
        LP_REAL(ibv_modify_qp)(qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        return false;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = LOOP_TIMEOUT,
                                .retry_cnt = LOOP_RETRIES,
                                .rnr_retry = 0, /* an empty queue ends it */
                                .max_rd_atomic = 1};
    return !LP_REAL(ibv_modify_qp)(qp, &attr,
                                   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static struct lp_loop *make_loop(const struct lp_place *place) {
    struct lp_loop *loop = place->port ? calloc(1, sizeof(*loop)) : NULL;

    if (!loop)
        return NULL;
    loop->cq = LP_REAL(ibv_create_cq)(context_of(place), LOOP_DEPTH * 2 + 2, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = loop->cq,
                                    .recv_cq = loop->cq,
                                    .srq = place->real,
                                    .cap = {.max_send_wr = LOOP_DEPTH, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1};
    loop->qp = loop->cq ? LP_REAL(ibv_create_qp)(place->real->pd, &init) : NULL;
    loop->broken = !loop->qp || !connect_to_itself(place, loop->qp);
    return loop;
}

/* What has come back. */
static bool collect(struct lp_place *place) {
    struct lp_loop *loop = place->loop;
    struct ibv_wc wc[16];
    const int found = place->reserve ? ibv_poll_cq(loop->cq, 16, wc)
                                     : place->shared->context->ops.poll_cq(loop->cq, 16, wc);

    for (int i = 0; i < found; i++) {
        if (wc[i].wr_id >> 32 == LP_KIND_RECV) /* of the queue; it is written nothing, and goes elsewhere */
            lp_shared_return(place->shared, (uint32_t)wc[i].wr_id);
        else
            loop->back++;
        loop->empty = loop->empty || wc[i].status == IBV_WC_RNR_RETRY_EXC_ERR;
        loop->broken = loop->broken || wc[i].status;
    }
    return found > 0;
}

static bool send_one(struct lp_place *place) {
    struct ibv_send_wr *bad, wr = {.wr_id = LP_WR_ID(LP_KIND_MARKER, 0), .opcode = IBV_WR_SEND};
    struct ibv_qp *qp = place->loop->qp;

    return place->reserve ? !ibv_post_send(qp, &wr, &bad)
                          : !place->shared->context->ops.post_send(qp, &wr, &bad);
}

static void drop_loop(struct lp_place *place) {
    struct lp_loop *loop = place->loop;

    place->loop = NULL;
    if (loop->qp)
        (void)LP_REAL(ibv_destroy_qp)(loop->qp);
    if (loop->cq)
        (void)LP_REAL(ibv_destroy_cq)(loop->cq);
    free(loop);
}

static uint32_t lying(const struct lp_place *place) {
    pthread_mutex_lock(&place->shared->lock);
    const uint32_t posted = place->posted;
    pthread_mutex_unlock(&place->shared->lock);
    return posted;
}

bool lp_recall(struct lp_place *place, uint32_t count) {
    const uint64_t until = lp_now_ns() + LOOP_WAIT_NS;

    if (!place->loop)
        place->loop = make_loop(place);
    struct lp_loop *loop = place->loop;
    if (!loop)
        return false;
    const uint32_t before = lying(place);
    while (!loop->broken && loop->sent - loop->back < LOOP_DEPTH && count && send_one(place)) {
        loop->sent++;
        count--;
    }
    while (!loop->broken && loop->back != loop->sent && lp_now_ns() < until)
        if (!collect(place))
            (void)nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    const bool reached = loop->empty || lying(place) < before || !loop->broken;
    if (loop->broken) {
        while (collect(place))
            continue;
        drop_loop(place);
    }
    return reached;
}

bool lp_recall_rest(struct lp_place *place) {
    struct lp_loop *loop = place->loop;

    if (!loop || loop->back == loop->sent)
        return false;
    while (collect(place))
        continue;
    if (loop->broken)
        drop_loop(place);
    return place->loop && loop->back != loop->sent;
}

void lp_recall_end(struct lp_place *place) {
    if (!place->loop)
        return;
    while (collect(place))
        continue;
    drop_loop(place);
}
