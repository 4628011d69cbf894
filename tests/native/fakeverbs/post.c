/* Posting: ibv_post_send, ibv_post_recv, ibv_wr_*. */
#include "fake_internal.h"

#include <errno.h>

static bool may_post_send(const struct qp *qp) {
    return qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD || qp->state == IBV_QPS_ERR;
}

static const struct {
    enum opcode opcode;
    enum ibv_wc_opcode wc;
    bool imm, inv, local, known;
} opcodes[] = {
    [IBV_WR_RDMA_WRITE] = {OP_WRITE, IBV_WC_RDMA_WRITE, .known = true},
    [IBV_WR_RDMA_WRITE_WITH_IMM] = {OP_WRITE, IBV_WC_RDMA_WRITE, .imm = true, .known = true},
    [IBV_WR_SEND] = {OP_SEND, IBV_WC_SEND, .known = true},
    [IBV_WR_SEND_WITH_IMM] = {OP_SEND, IBV_WC_SEND, .imm = true, .known = true},
    [IBV_WR_RDMA_READ] = {OP_READ, IBV_WC_RDMA_READ, .known = true},
    [IBV_WR_ATOMIC_CMP_AND_SWP] = {OP_CMP_SWP, IBV_WC_COMP_SWAP, .known = true},
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = {OP_FETCH_ADD, IBV_WC_FETCH_ADD, .known = true},
    [IBV_WR_BIND_MW] = {OP_SEND, IBV_WC_BIND_MW, .local = true, .known = true},
    [IBV_WR_LOCAL_INV] = {OP_SEND, IBV_WC_LOCAL_INV, .local = true, .known = true},
    [IBV_WR_SEND_WITH_INV] = {OP_SEND, IBV_WC_SEND, .inv = true, .known = true},
};

static bool is_atomic(enum opcode opcode) {
    return opcode == OP_CMP_SWP || opcode == OP_FETCH_ADD;
}

static int copy_inline(const struct qp *qp, const struct ibv_send_wr *wr, struct wqe *wqe) {
    if (wqe->length > qp->init.cap.max_inline_data)
        return EINVAL;
    for (int i = 0, at = 0; i < wr->num_sge; i++) {
        if (wr->sg_list[i].length)
            memcpy(wqe->inline_data + at, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
        at += (int)wr->sg_list[i].length;
    }
    return 0;
}

int wqe_build(struct qp *qp, const struct ibv_send_wr *wr, struct wqe *wqe) {
    if ((size_t)wr->opcode >= sizeof(opcodes) / sizeof(opcodes[0]) || !opcodes[wr->opcode].known)
        return EOPNOTSUPP;
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->init.cap.max_send_sge)
        return EINVAL;
    const uint64_t length = sges_length(wr->sg_list, wr->num_sge);
    if (length > 1u << 30)
        return EINVAL;
    *wqe = (struct wqe){.wr_id = wr->wr_id,
                        .opcode = opcodes[wr->opcode].opcode,
                        .wc_opcode = opcodes[wr->opcode].wc,
                        .signaled = qp->init.sq_sig_all || (wr->send_flags & IBV_SEND_SIGNALED),
                        .solicited = (wr->send_flags & IBV_SEND_SOLICITED) != 0,
                        .fence = (wr->send_flags & IBV_SEND_FENCE) != 0,
                        .has_imm = opcodes[wr->opcode].imm,
                        .has_inv = opcodes[wr->opcode].inv,
                        .local = opcodes[wr->opcode].local,
                        .inlined = (wr->send_flags & IBV_SEND_INLINE) != 0,
                        .imm = opcodes[wr->opcode].imm   ? wr->imm_data
                               : opcodes[wr->opcode].inv ? wr->invalidate_rkey
                                                         : 0,
                        .sge_count = wr->num_sge,
                        .length = (uint32_t)length};
    if (wr->num_sge)
        memcpy(wqe->sges, wr->sg_list, (size_t)wr->num_sge * sizeof(wqe->sges[0]));
    if (is_atomic(wqe->opcode)) {
        wqe->remote_addr = wr->wr.atomic.remote_addr;
        wqe->rkey = wr->wr.atomic.rkey;
        wqe->compare_add = wr->wr.atomic.compare_add;
        wqe->swap = wr->wr.atomic.swap;
        if (length != 8)
            return EINVAL;
    } else {
        wqe->remote_addr = wr->wr.rdma.remote_addr;
        wqe->rkey = wr->wr.rdma.rkey;
    }
    if (wqe->inlined) {
        if (wqe->opcode != OP_SEND && wqe->opcode != OP_WRITE)
            return EINVAL;
        return copy_inline(qp, wr, wqe);
    }
    return 0;
}

/* All or nothing. */
int sq_push(struct qp *qp, const struct wqe *wqes, uint32_t count) {
    if (!may_post_send(qp))
        return EINVAL;
    if (qp->sq_count + qp->sq_unfreed + qp->sq_uncounted * fake.config.free_on_poll + count > qp->sq_capacity)
        return ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        qp->sq[(qp->sq_head + qp->sq_count++) % qp->sq_capacity] = wqes[i];
    qp->nic->stats.posted += count;
    mark_set(qp->state == IBV_QPS_ERR ? MAY_FLUSH : MAY_SEND, qp);
    while (qp->state == IBV_QPS_ERR && fake.config.flush_at_once && qp_flush_one(qp))
        continue;
    fake_wake();
    return 0;
}

int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *qp = CONTAINER(ibv, struct qp, ibv);
    struct wqe wqe;
    int result = 0;

    fake_lock();
    for (; wr && !result; wr = result ? wr : wr->next) {
        result = fake_refuse(qp->nic) ? errno : wqe_build(qp, wr, &wqe);
        if (!result)
            result = sq_push(qp, &wqe, 1);
        if (result)
            *bad = wr;
    }
    fake_unlock();
    return result;
}

int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct qp *qp = CONTAINER(ibv, struct qp, ibv);
    int result;

    fake_lock();
    if (qp->state == IBV_QPS_RESET || ibv->srq) {
        *bad = wr;
        result = EINVAL;
    } else if (fake_refuse(qp->nic)) {
        *bad = wr;
        result = errno;
    } else {
        result = rq_post(&qp->rq, wr, bad);
        qp->unseen = qp->state == IBV_QPS_ERR && fake.config.unseen_receives;
        mark_set(MAY_FLUSH, qp);
    }
    while (qp->state == IBV_QPS_ERR && fake.config.flush_at_once && qp_flush_one(qp))
        continue;
    fake_wake();
    fake_unlock();
    return result;
}

/* ---- ibv_wr_*: requests collect in qp->building; the lock is held from wr_start to wr_complete or wr_abort
 * ---- */

static struct qp *of_ex(struct ibv_qp_ex *ex) {
    return CONTAINER(ex, struct qp, ex);
}

static void wr_start(struct ibv_qp_ex *ex) {
    pthread_mutex_lock(&of_ex(ex)->build_lock);
    of_ex(ex)->build_count = 0;
    of_ex(ex)->build_error = 0;
}

static int wr_complete(struct ibv_qp_ex *ex) {
    struct qp *qp = of_ex(ex);
    int result = qp->build_error;

    if (!result) {
        fake_lock();
        result = fake_refuse(qp->nic) ? errno : sq_push(qp, qp->building, qp->build_count);
        fake_unlock();
    }
    pthread_mutex_unlock(&qp->build_lock);
    return result;
}

static void wr_abort(struct ibv_qp_ex *ex) {
    of_ex(ex)->build_count = 0;
    pthread_mutex_unlock(&of_ex(ex)->build_lock);
}

static struct wqe *request(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote) {
    struct qp *qp = of_ex(ex);

    if (qp->build_count == qp->sq_capacity)
        qp->build_error = ENOMEM;
    if (qp->build_error)
        return NULL;
    struct wqe *wqe = &qp->building[qp->build_count++];
    *wqe = (struct wqe){.wr_id = ex->wr_id,
                        .opcode = opcodes[opcode].opcode,
                        .wc_opcode = opcodes[opcode].wc,
                        .signaled = qp->init.sq_sig_all || (ex->wr_flags & IBV_SEND_SIGNALED),
                        .solicited = (ex->wr_flags & IBV_SEND_SOLICITED) != 0,
                        .fence = (ex->wr_flags & IBV_SEND_FENCE) != 0,
                        .has_imm = opcodes[opcode].imm,
                        .has_inv = opcodes[opcode].inv,
                        .local = opcodes[opcode].local,
                        .rkey = rkey,
                        .remote_addr = remote};
    return wqe;
}

static void wr_send(struct ibv_qp_ex *ex) {
    (void)request(ex, IBV_WR_SEND, 0, 0);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm) {
    struct wqe *wqe = request(ex, IBV_WR_SEND_WITH_IMM, 0, 0);
    if (wqe)
        wqe->imm = imm;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey) {
    struct wqe *wqe = request(ex, IBV_WR_SEND_WITH_INV, 0, 0);
    if (wqe)
        wqe->imm = rkey;
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey) {
    (void)request(ex, IBV_WR_LOCAL_INV, rkey, 0);
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
                       const struct ibv_mw_bind_info *info) {
    (void)mw;
    (void)info;
    (void)request(ex, IBV_WR_BIND_MW, rkey, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote) {
    (void)request(ex, IBV_WR_RDMA_WRITE, rkey, remote);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, __be32 imm) {
    struct wqe *wqe = request(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote);
    if (wqe)
        wqe->imm = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote) {
    (void)request(ex, IBV_WR_RDMA_READ, rkey, remote);
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t compare,
                              uint64_t swap) {
    struct wqe *wqe = request(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote);
    if (wqe) {
        wqe->compare_add = compare;
        wqe->swap = swap;
    }
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t add) {
    struct wqe *wqe = request(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote);
    if (wqe)
        wqe->compare_add = add;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *sges) {
    struct qp *qp = of_ex(ex);

    if (count > qp->init.cap.max_send_sge || !qp->build_count)
        qp->build_error = EINVAL;
    if (qp->build_error)
        return;
    struct wqe *wqe = &qp->building[qp->build_count - 1];
    memcpy(wqe->sges, sges, count * sizeof(sges[0]));
    wqe->sge_count = (int)count;
    wqe->length = (uint32_t)sges_length(sges, (int)count);
    if (is_atomic(wqe->opcode) && wqe->length != 8)
        qp->build_error = EINVAL;
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length) {
    const struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};
    wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *parts) {
    struct qp *qp = of_ex(ex);
    uint32_t at = 0;

    for (size_t i = 0; i < count && !qp->build_error; i++) {
        if (!qp->build_count || at + parts[i].length > qp->init.cap.max_inline_data) {
            qp->build_error = EINVAL;
            return;
        }
        struct wqe *wqe = &qp->building[qp->build_count - 1];
        memcpy(wqe->inline_data + at, parts[i].addr, parts[i].length);
        at += (uint32_t)parts[i].length;
        wqe->inlined = true;
        wqe->length = at;
    }
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length) {
    const struct ibv_data_buf part = {.addr = addr, .length = length};
    wr_set_inline_data_list(ex, 1, &part);
}

/* A WRITE of eight bytes, as far as these tests can tell. */
static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, const void *value) {
    const struct ibv_data_buf part = {.addr = (void *)(uintptr_t)value, .length = 8};

    if (request(ex, IBV_WR_RDMA_WRITE, rkey, remote))
        wr_set_inline_data_list(ex, 1, &part);
}

void qp_ex_fill(struct qp *qp) {
    struct ibv_qp_ex *ex = &qp->ex;

    ex->wr_start = wr_start;
    ex->wr_complete = wr_complete;
    ex->wr_abort = wr_abort;
    ex->wr_send = wr_send;
    ex->wr_send_imm = wr_send_imm;
    ex->wr_send_inv = wr_send_inv;
    ex->wr_local_inv = wr_local_inv;
    ex->wr_bind_mw = wr_bind_mw;
    ex->wr_rdma_write = wr_rdma_write;
    ex->wr_rdma_write_imm = wr_rdma_write_imm;
    ex->wr_rdma_read = wr_rdma_read;
    ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
    ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
    ex->wr_atomic_write = wr_atomic_write;
    ex->wr_set_sge = wr_set_sge;
    ex->wr_set_sge_list = wr_set_sge_list;
    ex->wr_set_inline_data = wr_set_inline_data;
    ex->wr_set_inline_data_list = wr_set_inline_data_list;
}
