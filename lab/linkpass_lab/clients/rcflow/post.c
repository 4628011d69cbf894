#include "post.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#define LIST_MAX 32 /* requests per call; longer lists are cut */

static const enum ibv_wr_opcode WR_OPCODE[OP_KINDS] = {
    IBV_WR_RDMA_WRITE,        IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,     IBV_WR_RDMA_READ,           IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_ATOMIC_CMP_AND_SWP};

static size_t to_sges(const struct objects *x, const struct initiator *i, const struct outgoing *o,
                      struct ibv_sge *out) {
    for (size_t p = 0; p < o->piece_count; p++) {
        const struct piece *piece = &o->pieces[p];
        out[p] = (struct ibv_sge){.addr = (uintptr_t)i->own->base[piece->mr] + o->source_at + piece->offset,
                                  .length = piece->len,
                                  .lkey = o->is_inline ? 0 : x->lkeys[piece->mr]};
    }
    return o->piece_count;
}

static unsigned flags_of(const struct initiator *i, const struct outgoing *o) {
    return (o->is_signaled && !i->w->sq_sig_all ? IBV_SEND_SIGNALED : 0u) |
           (o->is_inline ? IBV_SEND_INLINE : 0u) | (o->fenced ? IBV_SEND_FENCE : 0u) |
           (o->solicited ? IBV_SEND_SOLICITED : 0u);
}

static int post_plain(struct objects *x, struct initiator *i, const struct remote_regions *remote,
                      uint64_t from, uint64_t count) {
    struct ibv_send_wr wrs[LIST_MAX], *bad = NULL;
    struct ibv_sge sges[LIST_MAX][SGES_MAX];
    memset(wrs, 0, count * sizeof(*wrs));
    for (uint64_t n = 0; n < count; n++) {
        const struct outgoing *o = &i->ring[(from + n) % i->w->depth];
        struct ibv_send_wr *wr = &wrs[n];
        wr->wr_id = own_wr_id(i->qp, o->request.seq);
        wr->next = n + 1 < count ? wr + 1 : NULL;
        wr->num_sge = (int)to_sges(x, i, o, sges[n]);
        wr->sg_list = wr->num_sge ? sges[n] : NULL;
        wr->opcode = WR_OPCODE[o->request.op];
        wr->send_flags = flags_of(i, o);
        if (op_has_imm(o->request.op))
            wr->imm_data = htobe32(o->request.imm);
        uint64_t remote_addr = remote->base[o->remote_mr] + o->remote_at;
        if (op_is_atomic(o->request.op)) {
            wr->wr.atomic.remote_addr = remote_addr;
            wr->wr.atomic.rkey = remote->rkey[o->remote_mr];
            wr->wr.atomic.compare_add = o->values.compare_add;
            wr->wr.atomic.swap = o->values.swap;
        } else {
            wr->wr.rdma.remote_addr = remote_addr;
            wr->wr.rdma.rkey = remote->rkey[o->remote_mr];
        }
    }
    return ibv_post_send(x->qps[i->qp], wrs, &bad);
}

static void begin_extended(struct ibv_qp_ex *qp, const struct outgoing *o, uint64_t addr, uint32_t rkey) {
    __be32 imm = htobe32(o->request.imm);
    switch (o->request.op) {
    case OP_WRITE:
        ibv_wr_rdma_write(qp, rkey, addr);
        break;
    case OP_WRITE_IMM:
        ibv_wr_rdma_write_imm(qp, rkey, addr, imm);
        break;
    case OP_SEND:
        ibv_wr_send(qp);
        break;
    case OP_SEND_IMM:
        ibv_wr_send_imm(qp, imm);
        break;
    case OP_READ:
        ibv_wr_rdma_read(qp, rkey, addr);
        break;
    case OP_FETCH_ADD:
        ibv_wr_atomic_fetch_add(qp, rkey, addr, o->values.compare_add);
        break;
    default:
        ibv_wr_atomic_cmp_swp(qp, rkey, addr, o->values.compare_add, o->values.swap);
    }
}

static void set_extended_data(struct ibv_qp_ex *qp, const struct outgoing *o, const struct ibv_sge *sges,
                              size_t n) {
    if (o->is_inline && n == 1) {
        ibv_wr_set_inline_data(qp, (void *)(uintptr_t)sges[0].addr, sges[0].length);
    } else if (o->is_inline && n > 1) {
        struct ibv_data_buf bufs[SGES_MAX];
        for (size_t p = 0; p < n; p++)
            bufs[p] = (struct ibv_data_buf){(void *)(uintptr_t)sges[p].addr, sges[p].length};
        ibv_wr_set_inline_data_list(qp, n, bufs);
    } else if (n == 1) {
        ibv_wr_set_sge(qp, sges[0].lkey, sges[0].addr, sges[0].length);
    } else {
        ibv_wr_set_sge_list(qp, n, sges);
    }
}

static int post_extended(struct objects *x, struct initiator *i, const struct remote_regions *remote,
                         uint64_t from, uint64_t count) {
    struct ibv_qp_ex *qp = x->qps_ex[i->qp];
    ibv_wr_start(qp);
    for (uint64_t n = 0; n < count; n++) {
        const struct outgoing *o = &i->ring[(from + n) % i->w->depth];
        struct ibv_sge sges[SGES_MAX];
        size_t sge_count = to_sges(x, i, o, sges);
        qp->wr_id = own_wr_id(i->qp, o->request.seq);
        qp->wr_flags = flags_of(i, o); /* rxe goes by the inline flag, others by the setter */
        begin_extended(qp, o, remote->base[o->remote_mr] + o->remote_at, remote->rkey[o->remote_mr]);
        set_extended_data(qp, o, sges, sge_count);
    }
    return ibv_wr_complete(qp);
}

int post_requests(struct objects *x, struct initiator *i, const struct remote_regions *remote, uint64_t from,
                  uint64_t count) {
    while (count > 0) {
        uint64_t now = count < LIST_MAX ? count : LIST_MAX;
        int rc =
            x->qps_ex[i->qp] ? post_extended(x, i, remote, from, now) : post_plain(x, i, remote, from, now);
        if (rc)
            return rc < 0 ? errno : rc;
        from += now;
        count -= now;
    }
    return 0;
}

int post_receive(struct objects *x, struct receive_slots *slots, const struct workload *w,
                 const struct memory *m, uint64_t slot, uint32_t qp) {
    struct piece pieces[SGES_MAX];
    struct ibv_sge sges[SGES_MAX];
    size_t n = cut_pieces(workload_max_size(w), w->sges, w->mrs, slot, pieces);
    for (size_t p = 0; p < n; p++)
        sges[p] = (struct ibv_sge){.addr = (uintptr_t)m->base[pieces[p].mr] + receive_offset(m, slot) +
                                           pieces[p].offset,
                                   .length = pieces[p].len,
                                   .lkey = x->lkeys[pieces[p].mr]};
    struct ibv_recv_wr wr = {.wr_id = receive_slots_post(slots, slot), .num_sge = (int)n}, *bad = NULL;
    wr.sg_list = n ? sges : NULL;
    return x->srq ? ibv_post_srq_recv(x->srq, &wr, &bad) : ibv_post_recv(x->qps[qp], &wr, &bad);
}
