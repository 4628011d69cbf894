/* The hot path: functions that programs call through context->ops (ibv_post_send, ibv_poll_cq, ... are
 * inline). */
#include "attach.h"

#include <errno.h>

/* Requests from `wr` up to, not including, `end`. */
static uint64_t lp_length_send(const struct ibv_send_wr *wr, const struct ibv_send_wr *end) {
    uint64_t length = 0;

    for (; wr && wr != end; wr = wr->next)
        length++;
    return length;
}

static uint64_t lp_length_recv(const struct ibv_recv_wr *wr, const struct ibv_recv_wr *end) {
    uint64_t length = 0;

    for (; wr && wr != end; wr = wr->next)
        length++;
    return length;
}

static int lp_post_send(struct ibv_qp *real, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct lp_qp *qp = lp_qp_of(real);

    if (__builtin_expect(!qp, 0)) {
        struct lp_context *context = lp_context_of(real->context);
        return context ? context->ops.post_send(real, wr, bad) : EINVAL;
    }
    int result = lp_hooks->post_send ? lp_hooks->post_send(qp, wr, bad) : qp->real_post_send(real, wr, bad);
    if (__builtin_expect(result != 0, 0)) {
        lp_count(&qp->counts.refused, 1);
        lp_count(&qp->counts.send, lp_length_send(wr, bad ? *bad : wr));
    } else {
        lp_count(&qp->counts.send, lp_length_send(wr, NULL));
    }
    return result;
}

static int lp_post_recv(struct ibv_qp *real, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct lp_qp *qp = lp_qp_of(real);

    if (__builtin_expect(!qp, 0)) {
        struct lp_context *context = lp_context_of(real->context);
        return context ? context->ops.post_recv(real, wr, bad) : EINVAL;
    }
    int result = lp_hooks->post_recv ? lp_hooks->post_recv(qp, wr, bad) : qp->real_post_recv(real, wr, bad);
    if (__builtin_expect(result != 0, 0))
        lp_count(&qp->counts.refused, 1);
    lp_count(&qp->counts.recv, lp_length_recv(wr, result ? (bad ? *bad : wr) : NULL));
    return result;
}

static int lp_post_srq_recv(struct ibv_srq *real, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct lp_srq *srq = lp_srq_of(real);
    struct lp_context *context = srq ? srq->context : lp_context_of(real->context);

    if (__builtin_expect(!srq, 0))
        return context ? context->ops.post_srq_recv(real, wr, bad) : EINVAL;
    int result = lp_hooks->post_srq_recv ? lp_hooks->post_srq_recv(srq, wr, bad)
                                         : context->ops.post_srq_recv(real, wr, bad);
    if (__builtin_expect(result != 0, 0))
        lp_count(&srq->counts.refused, 1);
    lp_count(&srq->counts.recv, lp_length_recv(wr, result ? (bad ? *bad : wr) : NULL));
    return result;
}

static int lp_poll_cq(struct ibv_cq *real, int count, struct ibv_wc *wc) {
    struct lp_cq *cq = lp_cq_of(real);

    if (__builtin_expect(!cq, 0)) {
        struct lp_context *context = lp_context_of(real->context);
        return context ? context->ops.poll_cq(real, count, wc) : -EINVAL;
    }
    int result = lp_hooks->poll_cq ? lp_hooks->poll_cq(cq, count, wc) : cq->real_poll(real, count, wc);
    if (result > 0)
        lp_count(&cq->counts.complete, (uint64_t)result);
    return result;
}

static int lp_req_notify_cq(struct ibv_cq *real, int solicited_only) {
    struct lp_cq *cq = lp_cq_of(real);
    struct lp_context *context = cq ? cq->context : lp_context_of(real->context);

    if (cq && lp_hooks->req_notify_cq)
        return lp_hooks->req_notify_cq(cq, solicited_only);
    return context ? context->ops.req_notify_cq(real, solicited_only) : EINVAL;
}

/* Memory windows pass through, and what uses them is marked. */
static int lp_bind_mw(struct ibv_qp *real, struct ibv_mw *mw, struct ibv_mw_bind *bind) {
    struct lp_qp *qp = lp_qp_of(real);
    struct lp_context *context = lp_context_of(real->context);

    if (qp)
        atomic_store_explicit(&qp->unprotected, LP_MEMORY_WINDOW, memory_order_relaxed);
    return context ? context->ops.bind_mw(real, mw, bind) : EINVAL;
}

/* Windows' keys change hands where nobody else can follow: whoever protects connections must know early. */
static struct ibv_mw *lp_alloc_mw(struct ibv_pd *real, enum ibv_mw_type type) {
    struct lp_context *context = lp_context_of(real->context);
    struct lp_pd *pd = lp_pd_of(real);
    struct ibv_mw *mw = context ? context->ops.alloc_mw(real, type) : NULL;

    if (mw && pd && !atomic_exchange(&pd->windows, true) && lp_hooks->mw_created)
        lp_hooks->mw_created(pd);
    return mw;
}

/* A provider leaves NULL what it hasn't got; a caller must find it so. */
#define LP_PATCH(name)                                                                                       \
    do {                                                                                                     \
        if (context->ops.name)                                                                               \
            context->real->ops.name = lp_##name;                                                             \
    } while (0)

void lp_patch_ops(struct lp_context *context) {
    LP_PATCH(post_send);
    LP_PATCH(post_recv);
    LP_PATCH(post_srq_recv);
    LP_PATCH(poll_cq);
    LP_PATCH(req_notify_cq);
    LP_PATCH(bind_mw);
    LP_PATCH(alloc_mw);
}
