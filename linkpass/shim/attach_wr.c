/*
 * ibv_wr_*: a program builds requests by calling functions of struct ibv_qp_ex between wr_start and
 * wr_complete.
 *
 * Each call goes on to the provider.  Beside it, if a hook wants it, the same request is written down as the
 * struct ibv_send_wr that ibv_post_send would have taken (attach_batch.c), so that what comes later knows one
 * form only.
 */
#include "attach_batch.h"

#include <errno.h>
#include <stdlib.h>

/* The provider's functions, under the names of struct ibv_qp_ex. */
struct lp_wr_real {
    void (*wr_atomic_cmp_swp)(struct ibv_qp_ex *, uint32_t, uint64_t, uint64_t, uint64_t);
    void (*wr_atomic_fetch_add)(struct ibv_qp_ex *, uint32_t, uint64_t, uint64_t);
    void (*wr_bind_mw)(struct ibv_qp_ex *, struct ibv_mw *, uint32_t, const struct ibv_mw_bind_info *);
    void (*wr_local_inv)(struct ibv_qp_ex *, uint32_t);
    void (*wr_rdma_read)(struct ibv_qp_ex *, uint32_t, uint64_t);
    void (*wr_rdma_write)(struct ibv_qp_ex *, uint32_t, uint64_t);
    void (*wr_rdma_write_imm)(struct ibv_qp_ex *, uint32_t, uint64_t, __be32);
    void (*wr_send)(struct ibv_qp_ex *);
    void (*wr_send_imm)(struct ibv_qp_ex *, __be32);
    void (*wr_send_inv)(struct ibv_qp_ex *, uint32_t);
    void (*wr_send_tso)(struct ibv_qp_ex *, void *, uint16_t, uint16_t);
    void (*wr_set_inline_data)(struct ibv_qp_ex *, void *, size_t);
    void (*wr_set_inline_data_list)(struct ibv_qp_ex *, size_t, const struct ibv_data_buf *);
    void (*wr_set_sge)(struct ibv_qp_ex *, uint32_t, uint64_t, uint32_t);
    void (*wr_set_sge_list)(struct ibv_qp_ex *, size_t, const struct ibv_sge *);
    void (*wr_start)(struct ibv_qp_ex *);
    int (*wr_complete)(struct ibv_qp_ex *);
    void (*wr_abort)(struct ibv_qp_ex *);
};

/* The shadow of a queue pair whose functions were replaced exists until it is destroyed. */
static inline struct lp_qp *lp_qp_of_ex(struct ibv_qp_ex *ex) {
    return lp_qp_of(&ex->qp_base);
}

static inline bool lp_recording(void) {
    return lp_hooks->wr_complete != NULL;
}

/* Counts a request; the record to fill in, or NULL if nobody wants one. */
static inline struct ibv_send_wr *lp_request(struct lp_qp *qp, enum ibv_wr_opcode opcode) {
    if (!lp_recording()) {
        qp->batch->count++;
        return NULL;
    }
    return lp_batch_request(qp->batch, qp->ex, opcode);
}

static void lp_wr_start(struct ibv_qp_ex *ex) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    qp->wr_real->wr_start(ex); /* takes the provider's lock, if it has one: the batch is ours from here */
    lp_batch_reset(qp->batch);
}

static int lp_complete_real(struct lp_qp *qp) {
    return qp->wr_real->wr_complete(qp->ex);
}

static int lp_wr_complete(struct ibv_qp_ex *ex) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    const uint32_t count = qp->batch->count; /* after wr_complete another thread may start the next batch */
    int result;

    if (lp_recording()) {
        lp_batch_link(qp->batch);
        result = lp_hooks->wr_complete(qp, qp->batch, lp_complete_real);
    } else {
        result = lp_complete_real(qp);
    }
    lp_count(result ? &qp->counts.refused : &qp->counts.send, result ? 1 : count);
    return result;
}

static void lp_wr_abort(struct ibv_qp_ex *ex) {
    lp_qp_of_ex(ex)->wr_real->wr_abort(ex);
}

static void lp_wr_send(struct ibv_qp_ex *ex) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    (void)lp_request(qp, IBV_WR_SEND);
    qp->wr_real->wr_send(ex);
}

static void lp_wr_send_imm(struct ibv_qp_ex *ex, __be32 imm_data) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    struct ibv_send_wr *wr = lp_request(qp, IBV_WR_SEND_WITH_IMM);

    if (wr)
        wr->imm_data = imm_data;
    qp->wr_real->wr_send_imm(ex, imm_data);
}

static void lp_wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    struct ibv_send_wr *wr = lp_request(qp, IBV_WR_SEND_WITH_INV);

    if (wr)
        wr->invalidate_rkey = rkey;
    qp->wr_real->wr_send_inv(ex, rkey);
}

static void lp_wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    struct ibv_send_wr *wr = lp_request(qp, IBV_WR_LOCAL_INV);

    if (wr)
        wr->invalidate_rkey = rkey;
    qp->wr_real->wr_local_inv(ex, rkey);
}

static void lp_remote(struct ibv_send_wr *wr, uint32_t rkey, uint64_t address) {
    if (wr) {
        wr->wr.rdma.rkey = rkey;
        wr->wr.rdma.remote_addr = address;
    }
}

static void lp_wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    lp_remote(lp_request(qp, IBV_WR_RDMA_WRITE), rkey, address);
    qp->wr_real->wr_rdma_write(ex, rkey, address);
}

static void lp_wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, __be32 imm_data) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    struct ibv_send_wr *wr = lp_request(qp, IBV_WR_RDMA_WRITE_WITH_IMM);

    lp_remote(wr, rkey, address);
    if (wr)
        wr->imm_data = imm_data;
    qp->wr_real->wr_rdma_write_imm(ex, rkey, address, imm_data);
}

static void lp_wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    lp_remote(lp_request(qp, IBV_WR_RDMA_READ), rkey, address);
    qp->wr_real->wr_rdma_read(ex, rkey, address);
}

static void lp_atomic(struct ibv_send_wr *wr, uint32_t rkey, uint64_t address, uint64_t compare_add,
                      uint64_t swap) {
    if (wr) {
        wr->wr.atomic.rkey = rkey;
        wr->wr.atomic.remote_addr = address;
        wr->wr.atomic.compare_add = compare_add;
        wr->wr.atomic.swap = swap;
    }
}

static void lp_wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, uint64_t compare,
                                 uint64_t swap) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    lp_atomic(lp_request(qp, IBV_WR_ATOMIC_CMP_AND_SWP), rkey, address, compare, swap);
    qp->wr_real->wr_atomic_cmp_swp(ex, rkey, address, compare, swap);
}

static void lp_wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, uint64_t add) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    lp_atomic(lp_request(qp, IBV_WR_ATOMIC_FETCH_AND_ADD), rkey, address, add, 0);
    qp->wr_real->wr_atomic_fetch_add(ex, rkey, address, add);
}

static void lp_wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
                          const struct ibv_mw_bind_info *info) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    struct ibv_send_wr *wr = lp_request(qp, IBV_WR_BIND_MW);

    atomic_store_explicit(&qp->unprotected, LP_MEMORY_WINDOW, memory_order_relaxed);
    if (wr) {
        wr->bind_mw.mw = mw;
        wr->bind_mw.rkey = rkey;
        wr->bind_mw.bind_info = *info;
    }
    qp->wr_real->wr_bind_mw(ex, mw, rkey, info);
}

static void lp_wr_send_tso(struct ibv_qp_ex *ex, void *header, uint16_t header_size, uint16_t mss) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    struct ibv_send_wr *wr = lp_request(qp, IBV_WR_TSO);

    if (wr) {
        wr->tso.hdr = header;
        wr->tso.hdr_sz = header_size;
        wr->tso.mss = mss;
    }
    qp->wr_real->wr_send_tso(ex, header, header_size, mss);
}

static void lp_wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address, uint32_t length) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    const struct ibv_sge sge = {.addr = address, .length = length, .lkey = lkey};

    if (lp_recording())
        lp_batch_sges(qp->batch, 1, &sge);
    qp->wr_real->wr_set_sge(ex, lkey, address, length);
}

static void lp_wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *sges) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    if (lp_recording())
        lp_batch_sges(qp->batch, count, sges);
    qp->wr_real->wr_set_sge_list(ex, count, sges);
}

static void lp_wr_set_inline_data(struct ibv_qp_ex *ex, void *data, size_t length) {
    struct lp_qp *qp = lp_qp_of_ex(ex);
    const struct ibv_data_buf part = {.addr = data, .length = length};

    if (lp_recording())
        lp_batch_inline(qp->batch, 1, &part);
    qp->wr_real->wr_set_inline_data(ex, data, length);
}

static void lp_wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *parts) {
    struct lp_qp *qp = lp_qp_of_ex(ex);

    if (lp_recording())
        lp_batch_inline(qp->batch, count, parts);
    qp->wr_real->wr_set_inline_data_list(ex, count, parts);
}

#define LP_PATCH(name)                                                                                       \
    do {                                                                                                     \
        qp->wr_real->name = qp->ex->name;                                                                    \
        if (qp->ex->name)                                                                                    \
            qp->ex->name = lp_##name;                                                                        \
    } while (0)

bool lp_patch_qp_ex(struct lp_qp *qp) {
    qp->wr_real = calloc(1, sizeof(*qp->wr_real));
    qp->batch = calloc(1, sizeof(*qp->batch));
    if (!qp->wr_real || !qp->batch) {
        lp_unpatch_qp_ex(qp);
        return false;
    }
    LP_PATCH(wr_atomic_cmp_swp);
    LP_PATCH(wr_atomic_fetch_add);
    LP_PATCH(wr_bind_mw);
    LP_PATCH(wr_local_inv);
    LP_PATCH(wr_rdma_read);
    LP_PATCH(wr_rdma_write);
    LP_PATCH(wr_rdma_write_imm);
    LP_PATCH(wr_send);
    LP_PATCH(wr_send_imm);
    LP_PATCH(wr_send_inv);
    LP_PATCH(wr_send_tso);
    LP_PATCH(wr_set_inline_data);
    LP_PATCH(wr_set_inline_data_list);
    LP_PATCH(wr_set_sge);
    LP_PATCH(wr_set_sge_list);
    LP_PATCH(wr_start);
    LP_PATCH(wr_complete);
    LP_PATCH(wr_abort);
    return true;
}

void lp_unpatch_qp_ex(struct lp_qp *qp) {
    free(qp->wr_real);
    qp->wr_real = NULL;
    lp_batch_free(qp->batch);
    qp->batch = NULL;
}
