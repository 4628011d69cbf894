#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(char *why, size_t room, const char *what) {
    int code = errno ? errno : EIO;
    snprintf(why, room, "cannot create %s: %s", what, strerror(code));
    return code;
}

/* Atomics are granted to those that use them, as careful programs do. */
static int atomic_access(const struct workload *w) {
    return w->weights[OP_FETCH_ADD] || w->weights[OP_CMP_SWP] ? IBV_ACCESS_REMOTE_ATOMIC : 0;
}

static int create_regions(struct objects *x, const struct workload *w, const struct memory *m, char *why,
                          size_t room) {
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | atomic_access(w);
    for (uint64_t i = 0; i < w->mrs; i++) {
        x->mrs[i] = ibv_reg_mr(x->pd, m->base[i], m->bytes, access);
        if (!x->mrs[i])
            return fail(why, room, "a memory region (is the memlock limit high enough?)");
        x->lkeys[i] = x->mrs[i]->lkey;
    }
    return 0;
}

static int create_queue(struct objects *x, struct queue *q, bool extended, uint64_t entries) {
    if (extended) {
        struct ibv_cq_init_attr_ex attr = {
            .cqe = (uint32_t)entries,
            .channel = x->channel,
            .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM,
        };
        q->ex = ibv_create_cq_ex(x->device.context, &attr);
        q->cq = q->ex ? ibv_cq_ex_to_cq(q->ex) : NULL;
    } else {
        q->cq = ibv_create_cq(x->device.context, (int)entries, NULL, x->channel, 0);
    }
    return q->cq ? 0 : -1;
}

static int create_queues(struct objects *x, const struct options *o, const struct workload *w, char *why,
                         size_t room) {
    uint64_t sends = w->qps * w->depth + 16, receives = w->qps * w->rx_depth + 16;
    if (o->events) {
        x->channel = ibv_create_comp_channel(x->device.context);
        if (!x->channel)
            return fail(why, room, "a completion channel");
        fcntl(x->channel->fd, F_SETFL, fcntl(x->channel->fd, F_GETFL) | O_NONBLOCK);
    }
    x->queue_count = o->split_cq ? 2 : 1;
    x->queues[0].batch = x->queues[1].batch = o->cq_ex_batch;
    if (create_queue(x, &x->queues[0], o->cq_ex, o->split_cq ? sends : sends + receives) ||
        (o->split_cq && create_queue(x, &x->queues[1], o->cq_ex, receives)))
        return fail(why, room, "a completion queue");
    if (w->srq) {
        struct ibv_srq_init_attr attr = {
            .attr = {.max_wr = (uint32_t)(w->qps * w->rx_depth), .max_sge = (uint32_t)w->sges}};
        x->srq = ibv_create_srq(x->pd, &attr);
        if (!x->srq)
            return fail(why, room, "a shared receive queue");
    }
    return 0;
}

static struct ibv_qp *create_qp(struct objects *x, const struct options *o, const struct workload *w) {
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = x->queues[0].cq,
        .recv_cq = x->queues[x->queue_count - 1].cq,
        .srq = x->srq,
        .cap = {.max_send_wr = (uint32_t)w->depth,
                .max_recv_wr = x->srq ? 0 : (uint32_t)w->rx_depth,
                .max_send_sge = (uint32_t)w->sges,
                .max_recv_sge = x->srq ? 0 : (uint32_t)w->sges,
                .max_inline_data = (uint32_t)w->inline_max},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = (int)w->sq_sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = x->pd,
    };
    if (!o->new_api)
        return ibv_create_qp(x->pd, (struct ibv_qp_init_attr *)&attr);
    attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
    return ibv_create_qp_ex(x->device.context, &attr);
}

static int create_qps(struct objects *x, const struct options *o, const struct workload *w, char *why,
                      size_t room) {
    x->qps = calloc(w->qps, sizeof(struct ibv_qp *));
    x->qps_ex = calloc(w->qps, sizeof(struct ibv_qp_ex *));
    if (!x->qps || !x->qps_ex)
        return fail(why, room, "queue pairs");
    for (x->qp_count = 0; x->qp_count < w->qps; x->qp_count++) {
        struct ibv_qp *qp = create_qp(x, o, w);
        if (!qp)
            return fail(why, room, "a queue pair (fewer SGEs, less inline or depth?)");
        x->qps[x->qp_count] = qp;
        x->qps_ex[x->qp_count] = o->new_api ? ibv_qp_to_qp_ex(qp) : NULL;
        int rc = qp_to_init(qp, &o->settings, atomic_access(w), why, room);
        if (rc) {
            x->qp_count++;
            return rc;
        }
    }
    return 0;
}

int objects_create(struct objects *x, const struct options *o, const struct workload *w,
                   const struct memory *m, char *why, size_t room) {
    int rc = device_open(&x->device, &o->settings, why, room);
    if (rc)
        return rc;
    x->pd = ibv_alloc_pd(x->device.context);
    if (!x->pd)
        return fail(why, room, "a protection domain");
    if ((rc = create_regions(x, w, m, why, room)) || (rc = create_queues(x, o, w, why, room)))
        return rc;
    return create_qps(x, o, w, why, room);
}

void objects_destroy(struct objects *x) {
    for (uint64_t i = 0; i < x->qp_count; i++)
        ibv_destroy_qp(x->qps[i]);
    free(x->qps);
    free(x->qps_ex);
    if (x->srq)
        ibv_destroy_srq(x->srq);
    for (int i = 0; i < 2; i++)
        if (x->queues[i].cq) {
            ibv_ack_cq_events(x->queues[i].cq, x->queues[i].events_taken);
            ibv_destroy_cq(x->queues[i].cq);
        }
    if (x->channel)
        ibv_destroy_comp_channel(x->channel);
    for (int i = 0; i < MRS_MAX; i++)
        if (x->mrs[i])
            ibv_dereg_mr(x->mrs[i]);
    if (x->pd)
        ibv_dealloc_pd(x->pd);
    device_close(&x->device);
    memset(x, 0, sizeof(*x));
}

static void read_extended(struct ibv_cq_ex *ex, struct completion *c) {
    *c = (struct completion){.wr_id = ex->wr_id, .status = (int)ex->status, .qp_num = ibv_wc_read_qp_num(ex)};
    if (c->status != IBV_WC_SUCCESS) {
        c->vendor_err = ibv_wc_read_vendor_err(ex);
        return;
    }
    c->opcode = (int)ibv_wc_read_opcode(ex);
    c->byte_len = ibv_wc_read_byte_len(ex);
    c->has_imm = ibv_wc_read_wc_flags(ex) & IBV_WC_WITH_IMM;
    c->imm = c->has_imm ? be32toh(ibv_wc_read_imm_data(ex)) : 0;
}

/* One completion per start and end, unless in batches: rxe's next_poll at the end of a queue is broken
 * (--help). */
static int drain_extended(struct ibv_cq_ex *ex, bool batch, struct completion *out, int max) {
    int n = 0, rc = 0;
    while (n < max && rc == 0) {
        struct ibv_poll_cq_attr attr = {0};
        rc = ibv_start_poll(ex, &attr);
        if (rc)
            break;
        do
            read_extended(ex, &out[n++]);
        while (batch && n < max && (rc = ibv_next_poll(ex)) == 0);
        ibv_end_poll(ex);
    }
    return rc == 0 || rc == ENOENT ? n : -1;
}

static int drain_plain(struct ibv_cq *cq, struct completion *out, int max) {
    struct ibv_wc wc[CQ_BATCH];
    int n = ibv_poll_cq(cq, max < CQ_BATCH ? max : CQ_BATCH, wc);
    for (int i = 0; i < n; i++) {
        bool imm = wc[i].wc_flags & IBV_WC_WITH_IMM;
        out[i] = (struct completion){.wr_id = wc[i].wr_id,
                                     .status = (int)wc[i].status,
                                     .opcode = (int)wc[i].opcode,
                                     .byte_len = wc[i].byte_len,
                                     .imm = imm ? be32toh(wc[i].imm_data) : 0,
                                     .has_imm = imm,
                                     .qp_num = wc[i].qp_num,
                                     .vendor_err = wc[i].vendor_err};
    }
    return n;
}

int queue_drain(struct queue *q, struct completion *out, int max) {
    return q->ex ? drain_extended(q->ex, q->batch, out, max) : drain_plain(q->cq, out, max);
}

int queues_arm(struct objects *x, bool solicited) {
    int rc = ibv_req_notify_cq(x->queues[0].cq, 0);
    if (rc == 0 && x->queue_count == 2)
        rc = ibv_req_notify_cq(x->queues[1].cq, solicited);
    return rc;
}

int queues_take_events(struct objects *x) {
    struct ibv_cq *cq;
    void *context;
    int n = 0;
    while (ibv_get_cq_event(x->channel, &cq, &context) == 0) {
        struct queue *q = cq == x->queues[0].cq ? &x->queues[0] : &x->queues[1];
        if (q->cq != cq)
            return -1; /* an event for a queue that isn't ours */
        if (++q->events_taken == 64) {
            ibv_ack_cq_events(cq, q->events_taken);
            q->events_taken = 0;
        }
        n++;
    }
    return errno == EAGAIN || errno == EINTR ? n : -1;
}

int objects_qp_index(const struct objects *x, uint32_t qp_num) {
    for (uint64_t i = 0; i < x->qp_count; i++)
        if (x->qps[i]->qp_num == qp_num)
            return (int)i;
    return -1;
}
