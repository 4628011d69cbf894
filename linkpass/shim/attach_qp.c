/* Queue pairs: made, changed, asked, destroyed. */
#include "attach_life.h"

static void lp_drop_qp(struct lp_qp *qp) {
    lp_counts_fold(&qp->context->counts, &qp->counts);
    lp_unpatch_qp_ex(qp);
    lp_qp_free(qp);
}

struct ibv_qp *lp_made_qp(struct ibv_qp *real, const struct ibv_qp_cap *cap, enum ibv_qp_type type,
                          bool sq_sig_all, enum lp_unprotected why) {
    struct lp_context *context = real ? lp_adopt(real->context) : NULL;
    struct lp_qp *stale = context ? lp_qp_withdraw(real) : NULL;
    struct lp_qp *qp = context ? lp_qp_alloc() : NULL;

    if (stale)
        lp_drop_qp(stale);
    if (!qp)
        return real;
    qp->real = real;
    qp->context = context;
    qp->real_post_send = context->ops.post_send;
    qp->real_post_recv = context->ops.post_recv;
    qp->cap = *cap;
    qp->qp_num = real->qp_num;
    qp->type = type;
    qp->unprotected = why;
    qp->sq_sig_all = sq_sig_all;
    if (!lp_qp_publish(qp)) {
        lp_qp_free(qp);
        return real;
    }
    qp->ex = lp_forward_has(LP_S_ibv_qp_to_qp_ex) ? LP_REAL(ibv_qp_to_qp_ex)(real) : NULL;
    if (qp->ex && !lp_patch_qp_ex(qp)) {
        lp_qp_withdraw(real);
        lp_qp_free(qp);
        return real;
    }
    LP_RUN(qp_created, qp);
    return real;
}

struct ibv_qp *lp_hook_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    const bool outermost = lp_enter();
    struct ibv_srq *asked = attr->srq, *used = lp_srq_instead(asked, outermost);
    attr->srq = used;
    struct ibv_qp *qp = asked && !used ? NULL : LP_REAL(ibv_create_qp)(pd, attr);
    attr->srq = asked;
    lp_leave();
    if (qp && outermost)
        (void)lp_made_qp(qp, &attr->cap, attr->qp_type, attr->sq_sig_all != 0,
                         attr->qp_type == IBV_QPT_RC ? LP_PROTECTABLE : LP_NOT_RC);
    lp_srq_over(used, outermost);
    return qp;
}

int lp_hook_ibv_modify_qp(struct ibv_qp *real, struct ibv_qp_attr *attr, int mask) {
    struct lp_qp *qp = lp_enter() ? lp_qp_of(real) : NULL;
    int result = qp && lp_hooks->modify_qp ? lp_hooks->modify_qp(qp, attr, mask)
                                           : LP_REAL(ibv_modify_qp)(real, attr, mask);

    lp_leave();
    return result;
}

int lp_hook_ibv_query_qp(struct ibv_qp *real, struct ibv_qp_attr *attr, int mask,
                         struct ibv_qp_init_attr *init) {
    struct lp_qp *qp = lp_enter() ? lp_qp_of(real) : NULL;
    int result = qp && lp_hooks->query_qp ? lp_hooks->query_qp(qp, attr, mask, init)
                                          : LP_REAL(ibv_query_qp)(real, attr, mask, init);

    lp_leave();
    return result;
}

int lp_hook_ibv_destroy_qp(struct ibv_qp *real) {
    struct lp_qp *qp = lp_enter() ? lp_qp_withdraw(real) : NULL;

    if (qp)
        LP_RUN(qp_destroying, qp);
    int result = LP_REAL(ibv_destroy_qp)(real);
    const int error = errno;
    lp_leave();
    if (qp && result && lp_qp_publish(qp))
        LP_RUN(qp_kept, qp);
    else if (qp)
        lp_drop_qp(qp);
    errno = error;
    return result;
}
