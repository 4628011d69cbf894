/* Completion channels and completion queues. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>

FAKE_API struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct nic *nic = fake_nic_of_context(context);
    struct channel *channel = calloc(1, sizeof(*channel));

    if (!channel)
        return NULL;
    fake_lock();
    if (fake_refuse(nic) || !events_open(&channel->events)) {
        fake_unlock();
        free(channel);
        return NULL;
    }
    channel->ibv.context = context;
    channel->ibv.fd = channel->events.fd;
    nic->objects++;
    fake_unlock();
    return &channel->ibv;
}

FAKE_API int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv) {
    struct channel *channel = CONTAINER(ibv, struct channel, ibv);

    fake_lock();
    if (ibv->refcnt) {
        fake_unlock();
        return EBUSY;
    }
    fake_nic_of_context(ibv->context)->objects--;
    events_close(&channel->events);
    fake_unlock();
    free(channel);
    return 0;
}

FAKE_API struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                      struct ibv_comp_channel *channel, int vector) {
    struct nic *nic = fake_nic_of_context(context);

    if (cqe < 1 || vector) {
        errno = EINVAL;
        return NULL;
    }
    struct cq *cq = calloc(1, sizeof(*cq));
    struct cqe *ring = calloc((size_t)cqe, sizeof(*ring));
    fake_lock();
    if (!cq || !ring || fake_refuse(nic)) {
        fake_unlock();
        free(cq);
        free(ring);
        return NULL;
    }
    cq->ring = ring;
    cq->ibv.context = context;
    cq->ibv.channel = channel;
    cq->ibv.cq_context = cq_context;
    cq->ibv.cqe = cqe;
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    pthread_cond_init(&cq->ibv.cond, NULL);
    pthread_mutex_init(&cq->poll_lock, NULL);
    if (channel)
        channel->refcnt++;
    nic->objects++;
    fake_unlock();
    return &cq->ibv;
}

FAKE_API int ibv_resize_cq(struct ibv_cq *ibv, int cqe) {
    struct cq *cq = CONTAINER(ibv, struct cq, ibv);
    struct cqe *ring = cqe > 0 ? calloc((size_t)cqe, sizeof(*ring)) : NULL;
    int result = 0;

    if (!ring)
        return EINVAL;
    fake_lock();
    if (cqe < cq->count) {
        result = EINVAL;
        free(ring);
    } else {
        for (int i = 0; i < cq->count; i++)
            ring[i] = cq->ring[(cq->head + i) % ibv->cqe];
        free(cq->ring);
        cq->ring = ring;
        cq->head = 0;
        ibv->cqe = cqe;
    }
    fake_unlock();
    return result;
}

/* Waits, as the real call does, until all events that the program took are acknowledged. */
FAKE_API int ibv_destroy_cq(struct ibv_cq *ibv) {
    struct cq *cq = CONTAINER(ibv, struct cq, ibv);

    fake_lock();
    if (cq->users) {
        fake_unlock();
        return EBUSY;
    }
    if (ibv->channel) {
        struct channel *channel = CONTAINER(ibv->channel, struct channel, ibv);
        for (struct event *event = channel->events.head; event; event = event->next)
            cq->events -= event->about == cq;
        events_forget(&channel->events, cq);
        ibv->channel->refcnt--;
    }
    events_forget(&CONTAINER(ibv->context, struct context, verbs.context)->events, cq);
    const uint32_t taken = cq->events;
    fake_nic_of_context(ibv->context)->objects--;
    fake_unlock();
    pthread_mutex_lock(&ibv->mutex);
    while (ibv->comp_events_completed != taken)
        pthread_cond_wait(&ibv->cond, &ibv->mutex);
    pthread_mutex_unlock(&ibv->mutex);
    pthread_mutex_destroy(&ibv->mutex);
    pthread_cond_destroy(&ibv->cond);
    pthread_mutex_destroy(&cq->poll_lock);
    free(cq->ring);
    free(cq);
    return 0;
}

static void cq_notify(struct cq *cq, bool solicited) {
    if (!cq->armed || (cq->armed_solicited && !solicited) || !cq->ibv.channel)
        return;
    cq->armed = false;
    if (events_push(&CONTAINER(cq->ibv.channel, struct channel, ibv)->events, cq, NULL))
        cq->events++;
}

/* A completion with an error always counts as solicited. */
void cq_add(struct cq *cq, const struct ibv_wc *wc, bool solicited, struct qp *frees, uint32_t slots) {
    struct nic *nic = fake_nic_of_context(cq->ibv.context);

    if (cq->count == cq->ibv.cqe) {
        nic->stats.overflows++;
        if (!cq->overrun)
            fake_async(nic, cq->ibv.context, IBV_EVENT_CQ_ERR, cq);
        cq->overrun = true;
        return;
    }
    cq->ring[(cq->head + cq->count++) % cq->ibv.cqe] =
        (struct cqe){.wc = *wc, .frees = frees, .slots = slots};
    nic->stats.completions++;
    cq_notify(cq, solicited || wc->status != IBV_WC_SUCCESS);
}

/* As the providers do: completions of a destroyed queue pair are not given out any more. */
void cq_forget_qp(struct cq *cq, const struct qp *qp) {
    int kept = 0;

    for (int i = 0; i < cq->count; i++) {
        const struct cqe *cqe = &cq->ring[(cq->head + i) % cq->ibv.cqe];
        if (cqe->wc.qp_num != qp->ibv.qp_num)
            cq->ring[(cq->head + kept++) % cq->ibv.cqe] = *cqe;
    }
    cq->count = kept;
}

static bool cq_take(struct cq *cq, struct cqe *out) {
    if (!cq->count)
        return false;
    *out = cq->ring[cq->head];
    cq->head = (cq->head + 1) % cq->ibv.cqe;
    cq->count--;
    if (out->frees)
        out->frees->sq_unfreed -= out->slots;
    return true;
}

int fake_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc) {
    struct cq *cq = CONTAINER(ibv, struct cq, ibv);
    struct cqe cqe;
    int taken = 0;

    fake_lock();
    while (taken < count && cq_take(cq, &cqe))
        wc[taken++] = cqe.wc;
    fake_unlock();
    return taken;
}

/* Armed with completions waiting: no event for those, as the specification has it. */
int fake_req_notify_cq(struct ibv_cq *ibv, int solicited_only) {
    struct cq *cq = CONTAINER(ibv, struct cq, ibv);

    fake_lock();
    /* "Any" overrides "solicited only", not the other way round. */
    cq->armed_solicited = solicited_only && (!cq->armed || cq->armed_solicited);
    cq->armed = true;
    fake_unlock();
    return 0;
}

FAKE_API int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context) {
    struct event event;

    if (!events_pop(&CONTAINER(ibv, struct channel, ibv)->events, &event))
        return -1;
    *cq = &((struct cq *)event.about)->ibv;
    *cq_context = (*cq)->cq_context;
    return 0;
}

FAKE_API void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

/* ---- ibv_cq_ex
 * ---------------------------------------------------------------------------------------------- */

static int next_poll(struct ibv_cq_ex *ex) {
    struct cq *cq = CONTAINER(ex, struct cq, ex);

    fake_lock();
    const bool taken = cq_take(cq, &cq->current);
    fake_unlock();
    if (!taken)
        return ENOENT;
    ex->status = cq->current.wc.status;
    ex->wr_id = cq->current.wc.wr_id;
    return 0;
}

/* Holds the queue's poll lock until end_poll, unless there is nothing. */
static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr) {
    struct cq *cq = CONTAINER(ex, struct cq, ex);

    if (attr->comp_mask)
        return EINVAL;
    pthread_mutex_lock(&cq->poll_lock);
    int result = next_poll(ex);
    if (result)
        pthread_mutex_unlock(&cq->poll_lock);
    return result;
}

static void end_poll(struct ibv_cq_ex *ex) {
    pthread_mutex_unlock(&CONTAINER(ex, struct cq, ex)->poll_lock);
}

#define READER(type, name, field)                                                                            \
    static type read_##name(struct ibv_cq_ex *ex) {                                                          \
        return CONTAINER(ex, struct cq, ex)->current.wc.field;                                               \
    }
READER(enum ibv_wc_opcode, opcode, opcode)
READER(uint32_t, vendor_err, vendor_err)
READER(uint32_t, byte_len, byte_len)
READER(__be32, imm_data, imm_data)
READER(uint32_t, qp_num, qp_num)
READER(uint32_t, src_qp, src_qp)
READER(unsigned int, wc_flags, wc_flags)

struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
    struct ibv_cq *ibv =
        ibv_create_cq(context, (int)attr->cqe, attr->cq_context, attr->channel, (int)attr->comp_vector);

    if (!ibv)
        return NULL;
    struct ibv_cq_ex *ex = &CONTAINER(ibv, struct cq, ibv)->ex;
    ex->start_poll = start_poll;
    ex->next_poll = next_poll;
    ex->end_poll = end_poll;
    ex->read_opcode = read_opcode;
    ex->read_vendor_err = read_vendor_err;
    ex->read_byte_len = read_byte_len;
    ex->read_imm_data = read_imm_data;
    ex->read_qp_num = read_qp_num;
    ex->read_src_qp = read_src_qp;
    ex->read_wc_flags = read_wc_flags;
    return ex;
}
