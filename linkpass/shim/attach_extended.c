/*
 * Functions that programs call through struct verbs_context (ibv_create_qp_ex, ... are inline).
 *
 * The struct grows at its front, towards lower addresses, and says its size; a field is there only if the
 * size covers it, which verbs_get_ctx_op() checks.  Fields newer than the header that this was compiled with
 * stay untouched.
 */
#include "attach_life.h"

#include <errno.h>

/* What is asked for was there when the context was patched, so the shadow exists: but never trust it blindly.
 */
#define LP_CONTEXT_OR_FAIL(real)                                                                             \
    struct lp_context *context = lp_context_of(real);                                                        \
    if (!context) {                                                                                          \
        errno = EINVAL;                                                                                      \
        return NULL;                                                                                         \
    }

/* What attach_wr.c writes down.  Requests of any other kind, also of those that newer headers bring, pass it
 * unseen: queue pairs that ask for them must be left to the provider from the start. */
static const uint64_t lp_followed_ops =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
    IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_TSO;

static enum lp_unprotected lp_reason_against(const struct ibv_qp_init_attr_ex *attr) {
    if (attr->qp_type != IBV_QPT_RC)
        return LP_NOT_RC;
    if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && (attr->send_ops_flags & ~lp_followed_ops))
        return LP_OTHER_OPERATIONS;
    return LP_PROTECTABLE;
}

static struct ibv_qp *lp_create_qp_ex(struct ibv_context *real, struct ibv_qp_init_attr_ex *attr) {
    LP_CONTEXT_OR_FAIL(real)
    const bool outermost = lp_enter();
    struct ibv_srq *asked = attr->srq, *used = lp_srq_instead(asked, outermost);
    attr->srq = used;
    struct ibv_qp *qp = asked && !used ? NULL : context->create_qp_ex(real, attr);
    attr->srq = asked;
    lp_leave();
    if (qp && outermost)
        (void)lp_made_qp(qp, &attr->cap, attr->qp_type, attr->sq_sig_all != 0, lp_reason_against(attr));
    lp_srq_over(used, outermost);
    return qp;
}

static struct ibv_qp *lp_open_qp(struct ibv_context *real, struct ibv_qp_open_attr *attr) {
    LP_CONTEXT_OR_FAIL(real)
    static const struct ibv_qp_cap none;
    const bool outermost = lp_enter();
    struct ibv_qp *qp = context->open_qp(real, attr);
    lp_leave();
    return outermost && qp ? lp_made_qp(qp, &none, qp->qp_type, false, LP_OPENED_BY_NUMBER) : qp;
}

static struct ibv_cq_ex *lp_create_cq_ex(struct ibv_context *real, struct ibv_cq_init_attr_ex *attr) {
    LP_CONTEXT_OR_FAIL(real)
    const bool outermost = lp_enter();
    const uint32_t more = outermost && attr->cqe && lp_hooks->more_cqe ? (uint32_t)lp_hooks->more_cqe() : 0;
    attr->cqe += more;
    struct ibv_cq_ex *cq = context->create_cq_ex(real, attr);
    attr->cqe -= more;
    if (!cq && more)
        cq = context->create_cq_ex(real, attr);
    lp_leave();
    if (cq && outermost)
        (void)lp_made_cq(ibv_cq_ex_to_cq(cq), true);
    return cq;
}

static struct ibv_srq *lp_create_srq_ex(struct ibv_context *real, struct ibv_srq_init_attr_ex *attr) {
    LP_CONTEXT_OR_FAIL(real)
    const bool outermost = lp_enter();
    struct ibv_srq *srq = context->create_srq_ex(real, attr);
    lp_leave();
    const bool typed = (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && attr->srq_type != IBV_SRQT_BASIC;
    return outermost ? lp_made_srq(srq, &attr->attr, !typed) : srq;
}

static struct ibv_pd *lp_alloc_parent_domain(struct ibv_context *real,
                                             struct ibv_parent_domain_init_attr *attr) {
    LP_CONTEXT_OR_FAIL(real)
    const bool outermost = lp_enter();
    struct ibv_pd *pd = context->alloc_parent_domain(real, attr);
    lp_leave();
    return outermost ? lp_made_pd(pd) : pd;
}

static struct ibv_mr *lp_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
                                   unsigned int access) {
    LP_CONTEXT_OR_FAIL(pd->context)
    const bool outermost = lp_enter();
    struct ibv_mr *mr = context->reg_dm_mr(pd, dm, offset, length, access);
    lp_leave();
    return outermost ? lp_made_mr(mr, 0, (int)access, LP_DEVICE_MEMORY, offset) : mr;
}

static struct ibv_mr *lp_alloc_null_mr(struct ibv_pd *pd) {
    LP_CONTEXT_OR_FAIL(pd->context)
    const bool outermost = lp_enter();
    struct ibv_mr *mr = context->alloc_null_mr(pd);
    lp_leave();
    return outermost ? lp_made_mr(mr, 0, 0, LP_NULL_MEMORY, 0) : mr;
}

#define LP_PATCH(name)                                                                                       \
    do {                                                                                                     \
        struct verbs_context *extended = verbs_get_ctx_op(context->real, name);                              \
        if (extended) {                                                                                      \
            context->name = extended->name;                                                                  \
            extended->name = lp_##name;                                                                      \
        }                                                                                                    \
    } while (0)

void lp_patch_extended(struct lp_context *context) {
    LP_PATCH(create_qp_ex);
    LP_PATCH(open_qp);
    LP_PATCH(create_cq_ex);
    LP_PATCH(create_srq_ex);
    LP_PATCH(alloc_parent_domain);
    LP_PATCH(reg_dm_mr);
    LP_PATCH(alloc_null_mr);
}
