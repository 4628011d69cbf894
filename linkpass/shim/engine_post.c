/* The way down: requests of the job are recorded, then posted with their token as wr_id. */
#include "deliver.h"
#include "keys.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(struct lp_sge) == sizeof(struct ibv_sge), "lp_sge");

static bool op_of(const struct ibv_send_wr *wr, uint8_t *op) {
    switch (wr->opcode) {
    case IBV_WR_RDMA_WRITE:
        *op = LP_OP_WRITE;
        return true;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        *op = LP_OP_WRITE_IMM;
        return true;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        *op = LP_OP_SEND;
        return true;
    case IBV_WR_RDMA_READ:
        *op = LP_OP_READ;
        return true;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        *op = LP_OP_ATOMIC;
        return true;
    case IBV_WR_SEND_WITH_INV:
        *op = LP_OP_OPAQUE;
        return true;
    case IBV_WR_LOCAL_INV:
    case IBV_WR_BIND_MW:
        *op = LP_OP_LOCAL;
        return true;
    default:
        return false;
    }
}

static bool describe(const struct lp_lane *lane, const struct ibv_send_wr *wr, struct lp_send *send) {
    const bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    uint8_t flags = 0;

    if (lane->qp->sq_sig_all || (wr->send_flags & IBV_SEND_SIGNALED))
        flags |= LP_SEND_SIGNALED;
    if (wr->send_flags & IBV_SEND_FENCE)
        flags |= LP_SEND_FENCE;
    if (wr->send_flags & IBV_SEND_SOLICITED)
        flags |= LP_SEND_SOLICITED;
    if (wr->send_flags & IBV_SEND_INLINE)
        flags |= LP_SEND_INLINE;
    *send = (struct lp_send){.wr_id = wr->wr_id,
                             .sges = (const struct lp_sge *)(const void *)wr->sg_list,
                             .sge_count = (uint32_t)wr->num_sge,
                             .opcode = (uint8_t)wr->opcode,
                             .flags = flags,
                             .imm = wr->imm_data,
                             .rkey = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey,
                             .remote_addr = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr,
                             .compare_add = atomic ? wr->wr.atomic.compare_add : 0,
                             .swap = atomic ? wr->wr.atomic.swap : 0};
    return wr->num_sge >= 0 && op_of(wr, &send->op);
}

/* ---- from the record to a spare's real queue pair
 * ------------------------------------------------------- */

static bool local_sges(struct lp_half *half, const struct lp_sge *from, uint32_t count, struct ibv_sge *to) {
    for (uint32_t i = 0; i < count; i++) {
        to[i] = (struct ibv_sge){.addr = from[i].addr, .length = from[i].length, .lkey = from[i].lkey};
        if (half->reserve && from[i].length && !lp_keys_local(half->reserve, from[i].lkey, &to[i].lkey)) {
            lp_keys_behind(half->reserve);
            return false;
        }
    }
    return true;
}

static void set_remote(struct ibv_send_wr *wr, const struct lp_send_entry *entry, uint32_t rkey) {
    if (entry->op == LP_OP_ATOMIC) {
        wr->wr.atomic.remote_addr = entry->remote_addr;
        wr->wr.atomic.compare_add = entry->compare_add;
        wr->wr.atomic.swap = entry->swap;
        wr->wr.atomic.rkey = rkey;
    } else {
        wr->wr.rdma.remote_addr = entry->remote_addr;
        wr->wr.rdma.rkey = rkey;
    }
}

enum { LP_MAX_SGE = 64 };

/* The job's own queue pair has patched functions, spares haven't. */
static int send_real(struct lp_half *half, struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad = NULL;

    return half->reserve ? ibv_post_send(half->qp, wr, &bad)
                         : half->lane->qp->real_post_send(half->qp, wr, &bad);
}

static int recv_real(struct lp_half *half, struct ibv_recv_wr *wr) {
    struct ibv_recv_wr *bad = NULL;
    int result = half->reserve ? ibv_post_recv(half->qp, wr, &bad)
                               : half->lane->qp->real_post_recv(half->qp, wr, &bad);

    if (!result)
        half->recvs_out++;
    return result;
}

enum lp_posting lp_post_entry(struct lp_half *half, uint32_t token) {
    struct lp_lane *lane = half->lane;
    struct lp_send_entry *entry = lp_send_ring_at(lane->conn.sends, token);
    struct ibv_sge sges[LP_MAX_SGE];
    struct ibv_send_wr wr = {.wr_id = LP_WR_ID(LP_KIND_SEND, token),
                             .opcode = (enum ibv_wr_opcode)entry->opcode,
                             .sg_list = sges,
                             .num_sge = (int)entry->sge_count,
                             .imm_data = entry->imm};
    uint32_t rkey = entry->rkey;

    if (entry->op == LP_OP_OPAQUE || entry->op == LP_OP_LOCAL || entry->sge_count > LP_MAX_SGE)
        return LP_POSTING_FAILED;
    if (lp_send_must_signal(entry) || entry->op == LP_OP_ATOMIC) /* spares' queues have room for all */
        wr.send_flags |= IBV_SEND_SIGNALED;
    if (entry->flags & LP_SEND_FENCE)
        wr.send_flags |= IBV_SEND_FENCE;
    if (entry->flags & LP_SEND_SOLICITED)
        wr.send_flags |= IBV_SEND_SOLICITED;
    if (entry->flags & LP_SEND_INLINE) {
        wr.send_flags |= IBV_SEND_INLINE;
        sges[0] = (struct ibv_sge){.addr = (uintptr_t)lp_send_ring_payload(lane->conn.sends, token),
                                   .length = entry->length};
        wr.num_sge = entry->length ? 1 : 0;
    } else if (!local_sges(half, lp_send_ring_payload(lane->conn.sends, token), entry->sge_count, sges)) {
        return LP_POSTING_LOCAL;
    }
    if (entry->op != LP_OP_SEND) {
        const uint64_t length = entry->op == LP_OP_ATOMIC ? 8 : entry->length;
        if (half->reserve && length && !lp_keys_remote(half, entry->rkey, entry->remote_addr, length, &rkey))
            return LP_POSTING_KEYS;
        set_remote(&wr, entry, rkey);
    }
    int result = send_real(half, &wr);
    return result == 0 ? LP_POSTING_DONE : result == ENOMEM ? LP_POSTING_LATER : LP_POSTING_FAILED;
}

enum lp_posting lp_post_recv_entry(struct lp_half *half, uint32_t token) {
    struct lp_recv_ring *ring = half->lane->conn.recvs;
    const struct lp_recv_entry *entry = lp_recv_ring_at(ring, token);
    struct ibv_sge sges[LP_MAX_SGE];
    struct ibv_recv_wr wr = {
        .wr_id = LP_WR_ID(LP_KIND_RECV, token), .sg_list = sges, .num_sge = (int)entry->sge_count};

    if (entry->sge_count > LP_MAX_SGE)
        return LP_POSTING_FAILED;
    if (!local_sges(half, lp_recv_ring_sges(ring, token), entry->sge_count, sges))
        return LP_POSTING_LOCAL;
    int result = recv_real(half, &wr);
    return result == 0 ? LP_POSTING_DONE : result == ENOMEM ? LP_POSTING_LATER : LP_POSTING_FAILED;
}

/* An empty WRITE: touches no memory, so its keys say nothing. */
int lp_post_marker(struct lp_half *half, uint64_t wr_id) {
    struct ibv_send_wr wr = {.wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};

    return send_real(half, &wr);
}

/* ---- the job's calls
 * ------------------------------------------------------------------------------------ */

/* Requests that can't be settled must be known to be over: by a completion of their own, where the queue has
 * room for one more of each.  The job sees those that it asked for. */
static unsigned int signal_for(struct lp_lane *lane, const struct lp_send *send) {
    struct lp_queue *queue = lane->send_queue;

    if (send->op != LP_OP_ATOMIC || (send->flags & LP_SEND_SIGNALED))
        return 0;
    if (!atomic_load_explicit(&queue->crowded, memory_order_relaxed) &&
        atomic_load_explicit(&queue->promised, memory_order_relaxed) <= (uint32_t)queue->cq->real->cqe)
        return IBV_SEND_SIGNALED;
    lane->unsignaled = true;
    return 0;
}

static int post_now(struct lp_lane *lane, const struct ibv_send_wr *job, const struct lp_send *send,
                    uint32_t token) {
    if (lane->now == &lane->own) {
        struct ibv_send_wr wr = *job;
        wr.send_flags |= signal_for(lane, send);
        wr.wr_id = LP_WR_ID(LP_KIND_SEND, token);
        wr.next = NULL;
        int result = send_real(&lane->own, &wr);
        if (result == ENOMEM && lane->connected && !lane->plain)
            return EAGAIN; /* a marker of ours has taken the slot that the job was granted */
        if (result)
            lp_conn_unpost_send(&lane->conn, token);
        return result;
    }
    switch (lp_post_entry(lane->now, token)) {
    case LP_POSTING_DONE:
        return 0;
    case LP_POSTING_FAILED:
        lp_conn_unpost_send(&lane->conn, token);
        return EINVAL;
    default:
        return EAGAIN;
    }
}

/* Recorded only: the keeper posts it when it can. */
static int post_later(struct lp_lane *lane, const struct lp_send *send) {
    const uint8_t holding = lane->conn.holding;
    uint32_t token;

    lane->conn.holding = 1;
    enum lp_post how = lp_conn_post_send(&lane->conn, send, &token);
    lane->conn.holding = holding;
    lane->resuming = true;
    lp_lane_dirty(lane);
    return how == LP_POST_HELD ? 0 : ENOMEM;
}

static int post_one(struct lp_lane *lane, const struct ibv_send_wr *wr) {
    struct lp_send send;
    uint32_t token;

    if (!describe(lane, wr, &send))
        return EINVAL;
    if (lane->now != &lane->own && (send.op == LP_OP_OPAQUE || send.op == LP_OP_LOCAL))
        return EOPNOTSUPP;
    switch (lp_conn_post_send(&lane->conn, &send, &token)) {
    case LP_POST_NOW: {
        int result = post_now(lane, wr, &send, token);
        if (result != EAGAIN)
            return result;
        lp_conn_unpost_send(&lane->conn, token);
        return post_later(lane, &send);
    }
    case LP_POST_HELD:
        if (lane->failed)
            lp_deliver_owed(lane);
        else
            lp_lane_dirty(lane);
        return 0;
    case LP_POST_FULL:
        return ENOMEM;
    default:
        return EINVAL;
    }
}

/* A send queue that looks full may have completions that the job hasn't polled: providers that free a slot
 * when the request is acknowledged would take more. */
static int post_full(struct lp_lane *lane, const struct ibv_send_wr *wr) {
    lp_unlock(&lane->lock);
    lp_deliver_pump(lane->send_queue);
    lp_lock(&lane->lock);
    return lane->dead ? EINVAL : post_one(lane, wr);
}

int lp_lane_post_send(struct lp_lane *lane, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    int result = 0;

    lp_lock(&lane->lock);
    for (; wr; wr = wr->next) {
        result = post_one(lane, wr);
        if (result == ENOMEM)
            result = post_full(lane, wr);
        if (result) {
            *bad = wr;
            break;
        }
    }
    lp_unlock(&lane->lock);
    return result;
}

static int fits(struct lp_lane *lane, const struct ibv_send_wr *wr) {
    const bool away = lane->now != &lane->own;
    struct lp_send send;

    for (uint32_t before = 0; wr; wr = wr->next, before++) {
        if (!describe(lane, wr, &send))
            return EINVAL;
        if (away && (send.op == LP_OP_OPAQUE || send.op == LP_OP_LOCAL))
            return EOPNOTSUPP;
        const enum lp_push push = lp_send_ring_fits(lane->conn.sends, &send, before);
        if (push != LP_PUSH_OK)
            return push == LP_PUSH_FULL ? ENOMEM : EINVAL;
    }
    return 0;
}

/* What the NIC doesn't take in the middle of a batch is posted later: the job was told nothing else. */
static int post_rest(struct lp_lane *lane, const struct ibv_send_wr *wr) {
    struct lp_send send;

    (void)describe(lane, wr, &send);
    return post_later(lane, &send);
}

int lp_lane_post_batch(struct lp_lane *lane, struct ibv_send_wr *wr) {
    lp_lock(&lane->lock);
    int result = fits(lane, wr);
    if (result == ENOMEM) {
        lp_unlock(&lane->lock);
        lp_deliver_pump(lane->send_queue);
        lp_lock(&lane->lock);
        result = lane->dead ? EINVAL : fits(lane, wr);
    }
    for (bool first = true; wr && !result; wr = wr->next, first = false) {
        result = post_one(lane, wr);
        if (result && !first)
            result = post_rest(lane, wr);
    }
    lp_unlock(&lane->lock);
    return result;
}

static int recv_now(struct lp_lane *lane, const struct ibv_recv_wr *job, uint32_t token) {
    if (lane->now == &lane->own) {
        struct ibv_recv_wr wr = *job;
        wr.wr_id = LP_WR_ID(LP_KIND_RECV, token);
        wr.next = NULL;
        int result = recv_real(&lane->own, &wr);
        if (result)
            lp_conn_unpost_recv(&lane->conn, token);
        return result;
    }
    switch (lp_post_recv_entry(lane->now, token)) {
    case LP_POSTING_DONE:
        return 0;
    case LP_POSTING_FAILED:
        lp_conn_unpost_recv(&lane->conn, token);
        return EINVAL;
    default:
        return EAGAIN;
    }
}

static int recv_one(struct lp_lane *lane, const struct ibv_recv_wr *wr) {
    const struct lp_sge *sges = (const struct lp_sge *)(const void *)wr->sg_list;
    const uint32_t count = (uint32_t)wr->num_sge;
    uint32_t token;

    if (wr->num_sge < 0)
        return EINVAL;
    switch (lp_conn_post_recv(&lane->conn, wr->wr_id, sges, count, &token)) {
    case LP_POST_NOW: {
        int result = recv_now(lane, wr, token);
        if (result != EAGAIN)
            return result;
        const uint8_t holding = lane->conn.holding_recvs;
        lp_conn_unpost_recv(&lane->conn, token);
        lane->conn.holding_recvs = 1;
        enum lp_post how = lp_conn_post_recv(&lane->conn, wr->wr_id, sges, count, &token);
        lane->conn.holding_recvs = holding;
        lane->resuming = true;
        lp_lane_dirty(lane);
        return how == LP_POST_HELD ? 0 : ENOMEM;
    }
    case LP_POST_HELD:
        if (lane->failed)
            lp_deliver_owed(lane);
        else
            lp_lane_dirty(lane);
        return 0;
    case LP_POST_FULL:
        return ENOMEM;
    default:
        return EINVAL;
    }
}

int lp_lane_post_recv(struct lp_lane *lane, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    int result = 0;

    lp_lock(&lane->lock);
    for (; wr; wr = wr->next) {
        result = recv_one(lane, wr);
        if (result) {
            *bad = wr;
            break;
        }
    }
    lp_unlock(&lane->lock);
    return result;
}
