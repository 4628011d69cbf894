/*
 * A plug-in for the shim's seam, as the protecting layer will be one: built into a copy of the shim, it
 * counts what each hook is told and passes the call on.  The test program asks with the probe_* functions.
 */
#include "probe.h"

#include "attach.h"

static struct probe seen;

struct probe *probe_seen(void) {
    return &seen;
}

static void context_created(struct lp_context *context) {
    (void)context;
    seen.contexts++;
}

static void context_destroying(struct lp_context *context) {
    (void)context;
    seen.contexts--;
}

#define LIFE(kind, field)                                                                                    \
    static void kind##_created(struct lp_##kind *object) {                                                   \
        seen.field += object->real != NULL && object->context != NULL;                                       \
    }                                                                                                        \
    static void kind##_destroying(struct lp_##kind *object) {                                                \
        (void)object;                                                                                        \
        seen.field--;                                                                                        \
    }                                                                                                        \
    static void kind##_kept(struct lp_##kind *object) {                                                      \
        (void)object;                                                                                        \
        seen.field++;                                                                                        \
        seen.kept++;                                                                                         \
    }
LIFE(pd, pds)
LIFE(channel, channels)
LIFE(cq, cqs)
LIFE(srq, srqs)
LIFE(qp, qps)

static void mr_created(struct lp_mr *mr) {
    seen.mrs++;
    seen.mr_iova = mr->iova;
    seen.mr_access = mr->access;
}

static void mr_destroying(struct lp_mr *mr) {
    (void)mr;
    seen.mrs--;
}

static void mr_kept(struct lp_mr *mr) {
    mr_created(mr);
    seen.kept++;
}

static void note(const struct ibv_send_wr *wr) {
    for (; wr; wr = wr->next) {
        seen.sends++;
        seen.last_wr_id = wr->wr_id;
        seen.last_opcode = wr->opcode;
        seen.last_length = 0;
        for (int i = 0; i < wr->num_sge; i++)
            seen.last_length += wr->sg_list[i].length;
        seen.last_byte =
            wr->num_sge && wr->sg_list[0].length ? *(uint8_t *)(uintptr_t)wr->sg_list[0].addr : 0;
        seen.last_rkey = wr->wr.rdma.rkey;
        seen.last_flags = wr->send_flags;
    }
}

static int post_send(struct lp_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    note(wr);
    return qp->real_post_send(qp->real, wr, bad);
}

static int post_recv(struct lp_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    seen.recvs++;
    return qp->real_post_recv(qp->real, wr, bad);
}

static int post_srq_recv(struct lp_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    seen.srq_recvs++;
    return srq->context->ops.post_srq_recv(srq->real, wr, bad);
}

static int poll_cq(struct lp_cq *cq, int count, struct ibv_wc *wc) {
    const int taken = cq->real_poll(cq->real, count, wc);

    for (int i = 0; i < taken; i++) {
        const struct lp_qp *qp = lp_qp_by_number(cq->context, wc[i].qp_num);
        seen.known_completions += qp && qp->qp_num == wc[i].qp_num;
    }
    return taken;
}

static int req_notify_cq(struct lp_cq *cq, int solicited_only) {
    seen.notifies++;
    return cq->context->ops.req_notify_cq(cq->real, solicited_only);
}

static int wr_complete(struct lp_qp *qp, struct lp_wr_batch *batch, int (*complete_real)(struct lp_qp *qp)) {
    seen.batches++;
    seen.opaque += batch->opaque;
    note(batch->wrs && batch->recorded ? batch->wrs : NULL);
    return complete_real(qp);
}

static int start_poll(struct lp_cq *cq, struct ibv_poll_cq_attr *attr) {
    seen.ex_polls++;
    return cq->start_poll((struct ibv_cq_ex *)cq->real, attr);
}

static int modify_qp(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask) {
    seen.modifies++;
    return LP_REAL(ibv_modify_qp)(qp->real, attr, mask);
}

static int query_qp(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    seen.queries++;
    return LP_REAL(ibv_query_qp)(qp->real, attr, mask, init);
}

static int get_cq_event(struct lp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    seen.cq_events++;
    return LP_REAL(ibv_get_cq_event)(channel->real, cq, cq_context);
}

static int get_async_event(struct lp_context *context, struct ibv_async_event *event) {
    seen.async_events++;
    return LP_REAL(ibv_get_async_event)(context->real, event);
}

#define LIFE_HOOKS(kind)                                                                                     \
    .kind##_created = kind##_created, .kind##_destroying = kind##_destroying, .kind##_kept = kind##_kept

static const struct lp_hooks hooks = {
    .context_created = context_created,
    .context_destroying = context_destroying,
    LIFE_HOOKS(pd),
    LIFE_HOOKS(mr),
    LIFE_HOOKS(channel),
    LIFE_HOOKS(cq),
    LIFE_HOOKS(srq),
    LIFE_HOOKS(qp),
    .post_send = post_send,
    .post_recv = post_recv,
    .post_srq_recv = post_srq_recv,
    .poll_cq = poll_cq,
    .req_notify_cq = req_notify_cq,
    .wr_complete = wr_complete,
    .start_poll = start_poll,
    .modify_qp = modify_qp,
    .query_qp = query_qp,
    .get_cq_event = get_cq_event,
    .get_async_event = get_async_event,
};

__attribute__((constructor)) static void plug_in(void) {
    lp_hooks_set(&hooks);
}
