/*
 * Waking a job that sleeps on a completion channel.
 *
 * The job polls channel->fd itself, perhaps inside an epoll set, perhaps set to O_NONBLOCK, and the kernel
 * wants that very descriptor when a completion queue is made on it.  So the descriptor stays as it is, and
 * what makes it readable is a real event: a queue pair in ERR with a completion queue of its own on the job's
 * channel.  A send posted there is flushed at once, link or no link, and rings.  (A receive would not do:
 * some drivers put it into shared memory only, and rxe looks there when a packet comes.)  ibv_get_cq_event()
 * then sees the bell's queue and names the job's instead.
 */
#include "deliver.h"

#include <stdlib.h>

struct lp_bell {
    struct lp_channel *channel;
    pthread_mutex_t lock;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp; /* NULL: not made yet */
    bool rung;         /* a send is on its way to be flushed */
    struct lp_queue *first, **last;
};

void lp_bell_channel_created(struct lp_channel *channel) {
    struct lp_bell *bell = calloc(1, sizeof(*bell));

    if (!bell)
        return;
    bell->channel = channel;
    bell->last = &bell->first;
    pthread_mutex_init(&bell->lock, NULL);
    channel->extra = bell;
}

static void unmake(struct lp_bell *bell) {
    if (bell->qp)
        (void)LP_REAL(ibv_destroy_qp)(bell->qp);
    if (bell->cq)
        (void)LP_REAL(ibv_destroy_cq)(bell->cq);
    if (bell->pd)
        (void)LP_REAL(ibv_dealloc_pd)(bell->pd);
    bell->qp = NULL;
    bell->cq = NULL;
    bell->pd = NULL;
    bell->rung = false;
}

static bool to_error(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

    if (LP_REAL(ibv_modify_qp)(qp, &attr,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        return false;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_ERR};
    return LP_REAL(ibv_modify_qp)(qp, &attr, IBV_QP_STATE) == 0;
}

static bool make(struct lp_bell *bell) {
    struct lp_context *context = bell->channel->context;
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};

    if (bell->qp)
        return true;
    (void)lp_enter();
    bell->pd = LP_REAL(ibv_alloc_pd)(context->real);
    bell->cq = LP_REAL(ibv_create_cq)(context->real, 8, NULL, bell->channel->real, 0);
    init.send_cq = init.recv_cq = bell->cq;
    bell->qp = bell->pd && bell->cq ? LP_REAL(ibv_create_qp)(bell->pd, &init) : NULL;
    if (!bell->qp || !to_error(bell->qp) || context->ops.req_notify_cq(bell->cq, 0))
        unmake(bell);
    lp_leave();
    return bell->qp != NULL;
}

bool lp_bell_ready(struct lp_queue *queue) {
    struct ibv_comp_channel *real = queue->cq->real->channel;
    struct lp_channel *channel = real ? lp_channel_of(real) : NULL;
    struct lp_bell *bell = channel ? channel->extra : NULL;

    if (!real)
        return true;
    if (!bell)
        return false;
    pthread_mutex_lock(&bell->lock);
    const bool made = make(bell);
    if (made)
        queue->bell = bell;
    pthread_mutex_unlock(&bell->lock);
    return made;
}

/* bell->lock held. */
static void pull(struct lp_bell *bell) {
    struct lp_context *context = bell->channel->context;
    struct ibv_send_wr *bad = NULL, wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};

    bell->rung = bell->qp && context->ops.post_send(bell->qp, &wr, &bad) == 0;
}

void lp_bell_ring(struct lp_queue *queue) {
    struct lp_bell *bell = queue->bell;

    pthread_mutex_lock(&bell->lock);
    if (!queue->ringing) {
        queue->ringing = true;
        queue->next_ringing = NULL;
        *bell->last = queue;
        bell->last = &queue->next_ringing;
    }
    if (!bell->rung)
        pull(bell);
    pthread_mutex_unlock(&bell->lock);
}

void lp_bell_forget(struct lp_queue *queue) {
    struct lp_bell *bell = queue->bell;

    if (!bell)
        return;
    pthread_mutex_lock(&bell->lock);
    for (struct lp_queue **at = &bell->first; *at; at = &(*at)->next_ringing) {
        if (*at != queue)
            continue;
        *at = queue->next_ringing;
        if (!*at)
            bell->last = at;
        queue->ringing = false;
        break;
    }
    pthread_mutex_unlock(&bell->lock);
}

void lp_bell_channel_destroying(struct lp_channel *channel) {
    struct lp_bell *bell = channel->extra;

    if (!bell)
        return;
    pthread_mutex_lock(&bell->lock);
    const bool used = channel->real->refcnt > (bell->cq ? 1 : 0);
    if (!used)
        unmake(bell);
    pthread_mutex_unlock(&bell->lock);
    if (used)
        return; /* the provider will refuse */
    channel->extra = NULL;
    free(bell);
}

/* The bell was heard: whose turn is it?  Rings again for the next. */
static struct lp_queue *answer(struct lp_bell *bell) {
    struct ibv_wc wc;

    pthread_mutex_lock(&bell->lock);
    struct lp_context *context = bell->channel->context;
    while (context->ops.poll_cq(bell->cq, 1, &wc) > 0)
        continue;
    (void)context->ops.req_notify_cq(bell->cq, 0);
    bell->rung = false;
    struct lp_queue *queue = bell->first;
    if (queue) {
        bell->first = queue->next_ringing;
        if (!bell->first)
            bell->last = &bell->first;
        queue->ringing = false;
        atomic_fetch_add_explicit(&queue->rung, 1, memory_order_relaxed);
    }
    if (bell->first)
        pull(bell);
    pthread_mutex_unlock(&bell->lock);
    return queue;
}

int lp_bell_get(struct lp_channel *channel, struct ibv_cq **cq, void **context) {
    for (;;) {
        int result = LP_REAL(ibv_get_cq_event)(channel->real, cq, context);
        if (result)
            return result;
        struct lp_bell *bell = channel->extra;
        if (!bell || *cq != bell->cq)
            return 0; /* `armed` stays: an event too many is allowed, one too few isn't */
        LP_REAL(ibv_ack_cq_events)(*cq, 1);
        struct lp_queue *queue = answer(bell);
        if (queue) {
            *cq = queue->cq->real;
            *context = queue->cq->real->cq_context;
            return 0;
        }
    }
}

/* Events that were made here come off first: the provider must hear of its own only, and of all of them. */
void lp_bell_ack(struct lp_cq *cq, unsigned int count) {
    struct lp_queue *queue = lp_queue_of(cq);
    uint32_t rung = queue ? atomic_load_explicit(&queue->rung, memory_order_relaxed) : 0;
    uint32_t ours;

    do
        ours = rung < count ? rung : count;
    while (queue && ours && !atomic_compare_exchange_weak(&queue->rung, &rung, rung - ours));
    if (count > ours)
        LP_REAL(ibv_ack_cq_events)(cq->real, count - ours);
}
