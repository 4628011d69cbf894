/* Queue pairs: made, moved through their states, asked, destroyed. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>

/*
 * What ibv_modify_qp needs and allows for a reliable connection (InfiniBand specification, QP state
 * transition properties; as in the kernel's ib_modify_qp_is_ok).
 */
static const struct transition {
    enum ibv_qp_state from, to;
    int needed, allowed;
} rc_transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_CUR_STATE | IBV_QP_ALT_PATH |
         IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
};

static bool transition_ok(enum ibv_qp_state from, enum ibv_qp_state to, int mask) {
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
        return !(mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE));
    for (size_t i = 0; i < sizeof(rc_transitions) / sizeof(rc_transitions[0]); i++) {
        const struct transition *row = &rc_transitions[i];
        if (row->from == from && row->to == to)
            return (mask & row->needed) == row->needed &&
                   !(mask & ~(row->needed | row->allowed | IBV_QP_STATE | IBV_QP_CUR_STATE));
    }
    return false;
}

static bool cap_ok(const struct ibv_qp_cap *cap) {
    return cap->max_send_wr <= 16384 && cap->max_recv_wr <= 16384 && cap->max_send_sge <= FAKE_MAX_SGE &&
           cap->max_recv_sge <= FAKE_MAX_SGE && cap->max_inline_data <= FAKE_MAX_INLINE;
}

static void qp_free(struct qp *qp) {
    free(qp->sq);
    free(qp->building);
    free(qp->rq.ring);
    free(qp);
}

static struct qp *qp_new(const struct ibv_qp_init_attr *init) {
    struct qp *qp = calloc(1, sizeof(*qp));

    if (!qp)
        return NULL;
    qp->sq_capacity = init->cap.max_send_wr;
    qp->sq = calloc(qp->sq_capacity + 1, sizeof(qp->sq[0]));
    qp->building = calloc(qp->sq_capacity + 1, sizeof(qp->building[0]));
    qp->rq.capacity = init->srq ? 0 : init->cap.max_recv_wr;
    qp->rq.max_sge = init->cap.max_recv_sge;
    qp->rq.ring = calloc(qp->rq.capacity + 1, sizeof(qp->rq.ring[0]));
    if (!qp->sq || !qp->building || !qp->rq.ring) {
        qp_free(qp);
        return NULL;
    }
    return qp;
}

static void qp_users(struct qp *qp, uint32_t change) {
    CONTAINER(qp->ibv.send_cq, struct cq, ibv)->users += change;
    CONTAINER(qp->ibv.recv_cq, struct cq, ibv)->users += change;
    if (qp->ibv.srq)
        CONTAINER(qp->ibv.srq, struct srq, ibv)->users += change;
}

static struct ibv_qp *qp_create(struct ibv_pd *pd, const struct ibv_qp_init_attr *init, bool extended) {
    struct nic *nic = fake_nic_of_context(pd->context);

    if (init->qp_type != IBV_QPT_RC || !cap_ok(&init->cap) || !init->send_cq || !init->recv_cq) {
        errno = init->qp_type == IBV_QPT_RC ? EINVAL : EOPNOTSUPP;
        return NULL;
    }
    struct qp *qp = qp_new(init);
    if (!qp)
        return NULL;
    fake_lock();
    qp->ibv.qp_num = fake.next_qpn;
    if (fake_refuse(nic) || !table_add(qp)) {
        fake_unlock();
        qp_free(qp);
        return NULL;
    }
    fake.next_qpn++;
    qp->ibv.context = pd->context;
    qp->ibv.qp_context = init->qp_context;
    qp->ibv.pd = pd;
    qp->ibv.send_cq = init->send_cq;
    qp->ibv.recv_cq = init->recv_cq;
    qp->ibv.srq = init->srq;
    qp->ibv.state = qp->state = IBV_QPS_RESET;
    qp->ibv.qp_type = init->qp_type;
    pthread_mutex_init(&qp->ibv.mutex, NULL);
    pthread_cond_init(&qp->ibv.cond, NULL);
    pthread_mutex_init(&qp->build_lock, NULL);
    qp->init = *init;
    qp->nic = nic;
    qp->peer = -1;
    qp->extended = extended;
    if (extended)
        qp_ex_fill(qp);
    qp_users(qp, 1);
    nic->objects++;
    fake_unlock();
    return &qp->ibv;
}

FAKE_API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    return qp_create(pd, init, false);
}

struct ibv_qp *fake_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *ex) {
    const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    struct ibv_qp_init_attr init;

    (void)context;
    if ((ex->comp_mask & ~known) || !(ex->comp_mask & IBV_QP_INIT_ATTR_PD)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    memcpy(&init, ex, sizeof(init)); /* the extended struct begins with the plain one */
    return qp_create(ex->pd, &init, (ex->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0);
}

FAKE_API struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *ibv) {
    struct qp *qp = CONTAINER(ibv, struct qp, ibv);

    return qp->extended ? &qp->ex : NULL;
}

static void qp_reset(struct qp *qp) {
    cq_forget_qp(CONTAINER(qp->ibv.send_cq, struct cq, ibv), qp);
    cq_forget_qp(CONTAINER(qp->ibv.recv_cq, struct cq, ibv), qp);
    qp->sq_head = qp->sq_count = qp->sq_unfreed = qp->sq_uncounted = qp->sq_sent = 0;
    qp->rq.head = qp->rq.count = 0;
    timer_set(qp, 0);
    qp->rnr_waiting = qp->nak_sent = qp->in_message = qp->has_rwqe = false;
    memset(qp->atomics, 0, sizeof(qp->atomics));
}

void qp_error(struct qp *qp) {
    if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET)
        return;
    qp->state = IBV_QPS_ERR;
    timer_set(qp, 0);
    mark_set(MAY_FLUSH, qp);
    qp->rnr_waiting = false;
    if (qp->ibv.srq)
        fake_async(qp->nic, qp->ibv.context, IBV_EVENT_QP_LAST_WQE_REACHED, qp);
    while (fake.config.flush_at_once && qp_flush_one(qp))
        continue;
}

static void take_attributes(struct qp *qp, const struct ibv_qp_attr *attr, int mask) {
#define TAKE(bit, field)                                                                                     \
    if (mask & (bit))                                                                                        \
    qp->attr.field = attr->field
    TAKE(IBV_QP_PKEY_INDEX, pkey_index);
    TAKE(IBV_QP_PORT, port_num);
    TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
    TAKE(IBV_QP_AV, ah_attr);
    TAKE(IBV_QP_PATH_MTU, path_mtu);
    TAKE(IBV_QP_DEST_QPN, dest_qp_num);
    TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
    TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
    TAKE(IBV_QP_TIMEOUT, timeout);
    TAKE(IBV_QP_RETRY_CNT, retry_cnt);
    TAKE(IBV_QP_RNR_RETRY, rnr_retry);
    TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
#undef TAKE
    if (mask & IBV_QP_AV)
        qp->peer = fake_gid_to_nic(&attr->ah_attr.grh.dgid);
    if (mask & IBV_QP_RQ_PSN)
        qp->expected_psn = attr->rq_psn & PSN_MASK;
    if (mask & IBV_QP_SQ_PSN)
        qp->send_psn = qp->max_psn = qp->acked_psn = attr->sq_psn & PSN_MASK;
    qp->retries = qp->attr.retry_cnt;
    qp->rnr_retries = qp->attr.rnr_retry;
}

static int modify(struct qp *qp, const struct ibv_qp_attr *attr, int mask) {
    const enum ibv_qp_state from = qp->state;
    const enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;

    if (((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from) || !transition_ok(from, to, mask))
        return EINVAL;
    if ((mask & IBV_QP_PORT) && attr->port_num != 1)
        return EINVAL;
    if ((mask & IBV_QP_PATH_MTU) && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > fake.config.active_mtu))
        return EINVAL;
    /* RoCE v1 reaches nobody here: the peers speak v2. */
    if ((mask & IBV_QP_AV) &&
        (!attr->ah_attr.is_global ||
         (attr->ah_attr.grh.sgid_index != 0 && attr->ah_attr.grh.sgid_index != 1 + qp->nic->twin_gid)))
        return EINVAL;
    if (to == IBV_QPS_RESET)
        qp_reset(qp);
    take_attributes(qp, attr, mask);
    if (to == IBV_QPS_ERR) {
        qp_error(qp);
        return 0;
    }
    qp->sq_drained_due =
        to == IBV_QPS_SQD && (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) && attr->en_sqd_async_notify;
    qp->state = to;
    mark_set(MAY_SEND, qp);
    return 0;
}

FAKE_API int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask) {
    struct qp *qp = CONTAINER(ibv, struct qp, ibv);

    fake_lock();
    int result = fake_refuse(qp->nic) ? errno : modify(qp, attr, mask);
    if (!result && (mask & IBV_QP_STATE))
        ibv->state = attr->qp_state;
    fake_wake();
    fake_unlock();
    if (result)
        errno = result;
    return result;
}

FAKE_API int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask,
                          struct ibv_qp_init_attr *init) {
    struct qp *qp = CONTAINER(ibv, struct qp, ibv);

    fake_lock();
    if (fake_refuse(qp->nic)) {
        fake_unlock();
        return errno;
    }
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = qp->state;
    if (mask & IBV_QP_STATE)
        ibv->state = qp->state;
    attr->cap = qp->init.cap;
    attr->rq_psn = fake.config.lying_psn ? 0 : qp->expected_psn;
    attr->sq_psn = qp->send_psn;
    attr->sq_draining = qp->state == IBV_QPS_SQD && qp->sq_count != 0;
    *init = qp->init;
    fake_unlock();
    return 0;
}

FAKE_API int ibv_destroy_qp(struct ibv_qp *ibv) {
    struct qp *qp = CONTAINER(ibv, struct qp, ibv);
    struct events *events = &CONTAINER(ibv->context, struct context, verbs.context)->events;

    fake_lock();
    table_remove(qp);
    if (fake.cursor == ibv->qp_num) {
        const struct qp *older = qp_older(qp);
        fake.cursor = older ? older->ibv.qp_num : 0;
    }
    qp_reset(qp);
    qp_users(qp, UINT32_MAX);
    for (struct event *event = events->head; event; event = event->next)
        qp->async_made -= event->about == qp;
    events_forget(events, qp);
    qp->nic->objects--;
    fake_unlock();
    /* As the real call: wait until all events that were taken are acknowledged. */
    pthread_mutex_lock(&ibv->mutex);
    while (ibv->events_completed != qp->async_made)
        pthread_cond_wait(&ibv->cond, &ibv->mutex);
    pthread_mutex_unlock(&ibv->mutex);
    pthread_mutex_destroy(&ibv->mutex);
    pthread_cond_destroy(&ibv->cond);
    pthread_mutex_destroy(&qp->build_lock);
    qp_free(qp);
    return 0;
}

void fake_qp_fatal(struct ibv_qp *ibv) {
    struct qp *qp = CONTAINER(ibv, struct qp, ibv);

    fake_lock();
    fake_async(qp->nic, ibv->context, IBV_EVENT_QP_FATAL, qp);
    qp_error(qp);
    fake_wake();
    fake_unlock();
}
