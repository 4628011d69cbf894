/* Completion channels, completion queues, shared receive queues, and the events of all of them. */
#include "attach_life.h"

struct ibv_cq *lp_made_cq(struct ibv_cq *real, bool extended) {
    struct lp_cq *cq = LP_NEW_SHADOW(cq, real);

    if (cq) {
        cq->real_poll = cq->context->ops.poll_cq;
        cq->extended = extended;
        if (LP_PUBLISH(cq, cq) && extended)
            lp_patch_cq_ex(cq);
    }
    return real;
}

struct ibv_srq *lp_made_srq(struct ibv_srq *real, const struct ibv_srq_attr *attr, bool simple) {
    struct lp_srq *srq = LP_NEW_SHADOW(srq, real);

    if (!srq)
        return real;
    srq->max_wr = attr->max_wr;
    srq->max_sge = attr->max_sge;
    srq->simple = simple && !attr->srq_limit;
    (void)LP_PUBLISH(srq, srq);
    return real;
}

static void lp_fold_channel(struct lp_channel *channel) {
    (void)channel;
}

static void lp_fold_cq(struct lp_cq *cq) {
    lp_counts_fold(&cq->context->counts, &cq->counts);
}

static void lp_fold_srq(struct lp_srq *srq) {
    lp_counts_fold(&srq->context->counts, &srq->counts);
}

/* While the shadow can still be found: a thread that acknowledges is waited for. */
static void cq_leaves(struct lp_cq *cq) {
    LP_RUN(cq_leaves, cq);
}

LP_DEFINE_DESTROY(channel, ibv_comp_channel, ibv_destroy_comp_channel)
LP_DEFINE_DESTROY_AFTER(cq_leaves, cq, ibv_cq, ibv_destroy_cq)
LP_DEFINE_DESTROY(srq, ibv_srq, ibv_destroy_srq)

struct ibv_comp_channel *lp_hook_ibv_create_comp_channel(struct ibv_context *context) {
    const bool outermost = lp_enter();
    struct ibv_comp_channel *real = LP_REAL(ibv_create_comp_channel)(context);
    lp_leave();
    struct lp_channel *channel = outermost ? LP_NEW_SHADOW(channel, real) : NULL;
    if (channel)
        (void)LP_PUBLISH(channel, channel);
    return real;
}

/* Some programs make them for exactly what they post.  The larger one is tried first. */
static int with_more(int cqe) {
    return lp_hooks->more_cqe ? cqe + lp_hooks->more_cqe() : cqe;
}

struct ibv_cq *lp_hook_ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                     struct ibv_comp_channel *channel, int vector) {
    const bool outermost = lp_enter();
    struct ibv_cq *cq = NULL;

    if (outermost && cqe > 0)
        cq = LP_REAL(ibv_create_cq)(context, with_more(cqe), cq_context, channel, vector);
    if (!cq)
        cq = LP_REAL(ibv_create_cq)(context, cqe, cq_context, channel, vector);
    lp_leave();
    return outermost ? lp_made_cq(cq, false) : cq;
}

int lp_hook_ibv_resize_cq(struct ibv_cq *real, int cqe) {
    struct lp_cq *cq = lp_enter() ? lp_cq_of(real) : NULL;
    int result = cq && cqe > 0 ? LP_REAL(ibv_resize_cq)(real, with_more(cqe)) : -1;

    if (result)
        result = LP_REAL(ibv_resize_cq)(real, cqe);
    lp_leave();
    return result;
}

int lp_hook_ibv_get_cq_event(struct ibv_comp_channel *real, struct ibv_cq **cq, void **cq_context) {
    struct lp_channel *channel = lp_outermost() ? lp_channel_of(real) : NULL;

    return channel && lp_hooks->get_cq_event ? lp_hooks->get_cq_event(channel, cq, cq_context)
                                             : LP_REAL(ibv_get_cq_event)(real, cq, cq_context);
}

void lp_hook_ibv_ack_cq_events(struct ibv_cq *real, unsigned int count) {
    struct lp_cq *cq = lp_enter() ? lp_cq_of(real) : NULL;

    if (cq && lp_hooks->ack_cq_events)
        lp_hooks->ack_cq_events(cq, count);
    else
        LP_REAL(ibv_ack_cq_events)(real, count);
    lp_leave();
}

struct ibv_srq *lp_hook_ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    const bool outermost = lp_enter();
    struct ibv_srq *srq = LP_REAL(ibv_create_srq)(pd, attr);
    lp_leave();
    return outermost ? lp_made_srq(srq, &attr->attr, true) : srq;
}

int lp_hook_ibv_modify_srq(struct ibv_srq *real, struct ibv_srq_attr *attr, int mask) {
    struct lp_srq *srq = lp_enter() ? lp_srq_of(real) : NULL;
    int result = srq && lp_hooks->modify_srq ? lp_hooks->modify_srq(srq, attr, mask)
                                             : LP_REAL(ibv_modify_srq)(real, attr, mask);

    lp_leave();
    return result;
}

int lp_hook_ibv_get_async_event(struct ibv_context *real, struct ibv_async_event *event) {
    struct lp_context *context = lp_outermost() ? lp_context_of(real) : NULL;

    return context && lp_hooks->get_async_event ? lp_hooks->get_async_event(context, event)
                                                : LP_REAL(ibv_get_async_event)(real, event);
}

void lp_hook_ibv_ack_async_event(struct ibv_async_event *event) {
    if (lp_enter() && lp_hooks->ack_async_event)
        lp_hooks->ack_async_event(event);
    else
        LP_REAL(ibv_ack_async_event)(event);
    lp_leave();
}
