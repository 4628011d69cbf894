/* Receive queues, a queue pair's own and shared ones. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>

int rq_post(struct rq *rq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    for (; wr; wr = wr->next) {
        if (rq->count == rq->capacity || wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge) {
            *bad = wr;
            return rq->count == rq->capacity ? ENOMEM : EINVAL;
        }
        struct rwqe *rwqe = &rq->ring[(rq->head + rq->count++) % rq->capacity];
        rwqe->wr_id = wr->wr_id;
        rwqe->sge_count = wr->num_sge;
        if (wr->num_sge)
            memcpy(rwqe->sges, wr->sg_list, (size_t)wr->num_sge * sizeof(rwqe->sges[0]));
    }
    return 0;
}

bool rq_take(struct qp *qp, struct rwqe *rwqe) {
    struct srq *srq = qp->ibv.srq ? CONTAINER(qp->ibv.srq, struct srq, ibv) : NULL;
    struct rq *rq = srq ? &srq->rq : &qp->rq;

    if (!rq->count)
        return false;
    *rwqe = rq->ring[rq->head];
    rq->head = (rq->head + 1) % rq->capacity;
    rq->count--;
    if (srq && srq->limit && rq->count < srq->limit) {
        srq->limit = 0;
        fake_async(qp->nic, srq->ibv.context, IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    }
    return true;
}

int fake_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    fake_lock();
    int result = rq_post(&CONTAINER(ibv, struct srq, ibv)->rq, wr, bad);
    fake_wake();
    fake_unlock();
    return result;
}

FAKE_API struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init) {
    struct nic *nic = fake_nic_of_context(pd->context);

    if (!init->attr.max_wr || init->attr.max_sge > FAKE_MAX_SGE) {
        errno = EINVAL;
        return NULL;
    }
    struct srq *srq = calloc(1, sizeof(*srq));
    struct rwqe *ring = calloc(init->attr.max_wr, sizeof(*ring));
    fake_lock();
    if (!srq || !ring || fake_refuse(nic)) {
        fake_unlock();
        free(srq);
        free(ring);
        return NULL;
    }
    srq->ibv.context = pd->context;
    srq->ibv.srq_context = init->srq_context;
    srq->ibv.pd = pd;
    pthread_mutex_init(&srq->ibv.mutex, NULL);
    pthread_cond_init(&srq->ibv.cond, NULL);
    srq->rq = (struct rq){.ring = ring, .capacity = init->attr.max_wr, .max_sge = init->attr.max_sge};
    srq->limit = init->attr.srq_limit;
    nic->objects++;
    fake_unlock();
    return &srq->ibv;
}

FAKE_API int ibv_modify_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr, int mask) {
    struct srq *srq = CONTAINER(ibv, struct srq, ibv);

    if (mask & IBV_SRQ_MAX_WR)
        return EINVAL; /* no resizing, as with many devices */
    fake_lock();
    if (mask & IBV_SRQ_LIMIT)
        srq->limit = attr->srq_limit;
    fake_unlock();
    return 0;
}

FAKE_API int ibv_query_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr) {
    const struct srq *srq = CONTAINER(ibv, struct srq, ibv);

    fake_lock();
    *attr = (struct ibv_srq_attr){
        .max_wr = srq->rq.capacity, .max_sge = srq->rq.max_sge, .srq_limit = srq->limit};
    fake_unlock();
    return 0;
}

FAKE_API int ibv_destroy_srq(struct ibv_srq *ibv) {
    struct srq *srq = CONTAINER(ibv, struct srq, ibv);

    fake_lock();
    if (srq->users) {
        fake_unlock();
        return EBUSY;
    }
    events_forget(&CONTAINER(ibv->context, struct context, verbs.context)->events, srq);
    fake_nic_of_context(ibv->context)->objects--;
    fake_unlock();
    pthread_mutex_destroy(&ibv->mutex);
    pthread_cond_destroy(&ibv->cond);
    free(srq->rq.ring);
    free(srq);
    return 0;
}
