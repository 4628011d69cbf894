/* What a job changes and asks of a queue pair's state: modify, query, and what a connection starts from. */
#include <errno.h>
#include <string.h>

#include "deliver.h"
#include "engine_inner.h"
#include "engine_why.h"
#include "spare.h"
#include "srq.h"

static struct lp_lane *lane_of(const struct lp_qp *qp) {
    struct lp_lane *lane = qp->extra;

    return lane && lane->forks == atomic_load_explicit(&lp_engine.forks, memory_order_relaxed) ? lane : NULL;
}

static void note(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask) {
#define NOTE(bit, field)                                                                                     \
    if (mask & (bit))                                                                                        \
    to->field = from->field
    NOTE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
    NOTE(IBV_QP_PORT, port_num);
    NOTE(IBV_QP_AV, ah_attr);
    NOTE(IBV_QP_PATH_MTU, path_mtu);
    NOTE(IBV_QP_DEST_QPN, dest_qp_num);
    NOTE(IBV_QP_RQ_PSN, rq_psn);
    NOTE(IBV_QP_SQ_PSN, sq_psn);
    NOTE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
    NOTE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
    NOTE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
    NOTE(IBV_QP_TIMEOUT, timeout);
    NOTE(IBV_QP_RETRY_CNT, retry_cnt);
    NOTE(IBV_QP_RNR_RETRY, rnr_retry);
#undef NOTE
}

/* Before the queue pair can receive: completions are counted from the first one on. */
static void connect_lane(struct lp_lane *lane) {
    const struct ibv_ah_attr *ah = &lane->attr.ah_attr;
    struct lp_identity who = {.local_qpn = lane->own.qp_num,
                              .remote_qpn = lane->attr.dest_qp_num & LP_PSN_MASK,
                              .remote_psn = lane->attr.rq_psn & LP_PSN_MASK};
    enum lp_role role;
    union ibv_gid gid;
    uint32_t flags = 0;

    if (lane->leaving) {
        lane->plain = true;
        lp_why_count((enum lp_why)lane->leaving_why);
        return;
    }
    if (lane->own.place)
        lp_place_found(lane->own.place, lane->attr.port_num, ah->grh.sgid_index);
    if (!ah->is_global ||
        LP_REAL(ibv_query_gid)(lane->own.qp->context, lane->attr.port_num, ah->grh.sgid_index, &gid)) {
        lane->plain = true;
        lp_why_count(LP_WHY_NO_GID);
        return;
    }
    memcpy(who.local_gid, gid.raw, sizeof(who.local_gid));
    memcpy(who.remote_gid, ah->grh.dgid.raw, sizeof(who.remote_gid));
    if (lane->attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC)
        flags |= LP_CONN_ATOMICS;
    if (!lp_spare_psn_trusted(lane->own.qp->context))
        flags |= LP_CONN_PSN_UNTRUSTED;
    lane->plain = !lp_role_of(&who, &role);
    if (lane->plain) {
        lp_why_count(LP_WHY_TO_ITSELF);
        return;
    }
    lane->who = who;
    lane->connected = lp_conn_init(&lane->conn, &who, lane->conn.sends, lane->conn.recvs,
                                   128u << lane->attr.path_mtu, flags);
}

/* An RTR that the provider refused. */
static void unconnect(struct lp_lane *lane) {
    struct lp_send_ring *sends = lane->conn.sends;
    struct lp_recv_ring *recvs = lane->conn.recvs;

    memset(&lane->conn, 0, sizeof(lane->conn));
    lane->conn.sends = sends;
    lane->conn.recvs = recvs;
    lane->connected = lane->plain = false;
}

static void set_send_psn(struct lp_lane *lane, uint32_t psn) {
    lane->who.local_psn = psn;
    lane->conn.who = lane->who;
    lp_send_ring_epoch(lane->conn.sends, lane->who.local_psn, 128u << lane->attr.path_mtu, 0);
}

/* Some programs leave the end that only receives in RTR.  Its peer was told a first PSN for it all the same.
 */
void lp_lane_adopt(struct lp_lane *lane, uint32_t local_psn) {
    lp_lock(&lane->lock);
    if (lane->passive && !lane->adopted && !lane->up) {
        set_send_psn(lane, local_psn);
        lane->adopted = true;
    }
    lp_unlock(&lane->lock);
}

/* On its way to RTS, late or in time. */
static void starts_to_send(struct lp_lane *lane) {
    const uint32_t psn = lane->attr.sq_psn & LP_PSN_MASK;

    if (!lane->adopted)
        set_send_psn(lane, psn);
    else if (psn != lane->who.local_psn)
        lane->plain = true; /* its peer expects others: nothing will work */
}

/* Everything anew: the queue pair may be connected to another one next. */
static int to_reset(struct lp_lane *lane, struct ibv_qp_attr *attr, int mask) {
    const struct ibv_qp_cap *cap = &lane->qp->cap;

    pthread_mutex_lock(&lp_engine.lock);
    if (lane->own.place && lane->own.place->dead) { /* its real queue holds what lies elsewhere by now */
        pthread_mutex_unlock(&lp_engine.lock);
        return EBUSY; /* a new queue pair will do */
    }
    lp_deliver_pump(lane->send_queue);
    lp_deliver_pump(lane->recv_queue);
    int result = LP_REAL(ibv_modify_qp)(lane->own.qp, attr, mask);
    if (result) { /* all goes on as it did */
        pthread_mutex_unlock(&lp_engine.lock);
        return result;
    }
    lp_lane_disconnect(lane);
    lp_deliver_pump(lane->send_queue);
    lp_deliver_pump(lane->recv_queue);
    lp_deliver_forget(lane->send_queue, lane->own.qp_num);
    lp_deliver_forget(lane->recv_queue, lane->own.qp_num);
    lp_lock(&lane->lock);
    unconnect(lane);
    lane->conn.sends = lp_send_ring_init(lane->send_block, lane->conn.sends->max_wr, cap->max_send_sge,
                                         cap->max_inline_data);
    if (lane->conn.recvs)
        lane->conn.recvs = lp_recv_ring_init(lane->recv_block, lane->conn.recvs->max_wr, cap->max_recv_sge);
    lp_half_leaves_place(&lane->own);
    lp_lane_own_half(lane);
    lp_half_enters_place(&lane->own);
    lane->passive = lane->adopted = lane->unsignaled = lane->peer_no_writes = false;
    lane->announced = lane->up = lane->covered = lane->dead = lane->failing = lane->failed = false;
    lane->fencing = lane->opening = lane->replaying = lane->resuming = lane->marking = lane->closing = false;
    lane->give_up_at = lane->attempt_at = lane->keys_until = lane->order_at = lane->triggered_ns = 0;
    atomic_store(&lane->todo, 0);
    lp_lanes_renumber(lane);
    lp_unlock(&lane->lock);
    pthread_mutex_unlock(&lp_engine.lock);
    return 0;
}

/* The job ends the connection itself: everything is flushed. */
static int to_error(struct lp_lane *lane, struct ibv_qp_attr *attr, int mask) {
    pthread_mutex_lock(&lp_engine.lock);
    lp_lock(&lane->lock);
    const bool ours = lane->covered && lane->connected && !lane->plain;
    const bool away = lane->now != &lane->own;
    if (ours)
        lp_engine_fail(lane, IBV_WC_GENERAL_ERR, true);
    else if (lane->connected)
        lane->plain = true;
    lp_unlock(&lane->lock);
    pthread_mutex_unlock(&lp_engine.lock);
    if (ours)
        lp_lane_dirty(lane);
    if (!ours || !away)
        return LP_REAL(ibv_modify_qp)(lane->own.qp, attr, mask);
    lane->own.qp->state = IBV_QPS_ERR;
    return 0;
}

/* Spares need what their mails and keys need, whatever the job allows its peer. */
static int modify_spare(struct lp_half *half, const struct ibv_qp_attr *attr, int mask) {
    struct ibv_qp_attr more = *attr;

    more.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    return LP_REAL(ibv_modify_qp)(half->qp, &more, mask);
}

/* The real call, on whatever carries the connection; spares that wait learn of other access too.  With
 * engine.lock, or before anything can move. */
static int modify_real(struct lp_lane *lane, struct ibv_qp_attr *attr, int mask) {
    const bool away = lane->now != &lane->own;

    if (away && (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RTS && !lane->up)
        return 0; /* a spare is in RTS already */
    for (uint32_t id = 0; (mask & IBV_QP_ACCESS_FLAGS) && id < LP_SPARES; id++) {
        struct lp_half *half = lane->spares[id];
        if (half && half != lane->now && half->stage >= LP_STAGE_MADE && half->stage <= LP_STAGE_USABLE)
            (void)modify_spare(half, attr, IBV_QP_ACCESS_FLAGS);
    }
    return away ? modify_spare(lane->now, attr, mask) : LP_REAL(ibv_modify_qp)(lane->own.qp, attr, mask);
}

static int modify(struct lp_lane *lane, struct ibv_qp_attr *attr, int mask) {
    const enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : IBV_QPS_UNKNOWN;

    lp_lock(&lane->lock);
    const struct ibv_qp_attr before = lane->attr;
    note(&lane->attr, attr, mask);
    if (to == IBV_QPS_RTR && !lane->connected)
        connect_lane(lane);
    if (to == IBV_QPS_RTS && lane->connected && !lane->up && (mask & IBV_QP_SQ_PSN))
        starts_to_send(lane);
    lp_unlock(&lane->lock);
    int result = modify_real(lane, attr, mask);
    const int error = errno;
    lp_lock(&lane->lock);
    if (result) {
        lane->attr = before;
        if (to == IBV_QPS_RTR && !lane->up)
            unconnect(lane);
    } else if (to == IBV_QPS_RTS && lane->connected) {
        lane->up = true;
        lane->own.qp->state = IBV_QPS_RTS;
    } else if (to == IBV_QPS_RTR && lane->connected) {
        atomic_store(&lane->ripe_at, lp_now_ns() + LP_PASSIVE_NS);
    }
    const bool connected = lane->connected;
    lp_unlock(&lane->lock);
    if (connected)
        lp_lane_dirty(lane);
    errno = error;
    return result;
}

int lp_lane_modify(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask) {
    struct lp_lane *lane = lane_of(qp);
    const enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : IBV_QPS_UNKNOWN;

    if (!lane)
        return LP_REAL(ibv_modify_qp)(qp->real, attr, mask);
    if (to == IBV_QPS_RESET)
        return to_reset(lane, attr, mask);
    if (to == IBV_QPS_ERR)
        return to_error(lane, attr, mask);
    if (!lane->connected) /* nothing can move it, and making spares for others may take a while */
        return modify(lane, attr, mask);
    pthread_mutex_lock(&lp_engine.lock);
    const int result = modify(lane, attr, mask);
    pthread_mutex_unlock(&lp_engine.lock);
    return result;
}

int lp_half_to_error(struct lp_half *half) {
    const enum ibv_qp_state shown = half->qp->state;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    const int result = LP_REAL(ibv_modify_qp)(half->qp, &attr, IBV_QP_STATE);

    half->qp->state = shown;
    return result;
}

int lp_half_query(struct lp_half *half, struct ibv_qp_attr *attr, int mask) {
    const enum ibv_qp_state shown = half->qp->state;
    struct ibv_qp_init_attr init;

    memset(attr, 0, sizeof(*attr));
    const int result = LP_REAL(ibv_query_qp)(half->qp, attr, mask, &init);
    half->qp->state = shown;
    return result;
}

/* What was set, where the NIC that could say more is gone. */
static void remember(const struct lp_lane *lane, struct ibv_qp_attr *attr, struct ibv_qp_init_attr *init) {
    const struct ibv_qp *real = lane->own.qp;

    *attr = lane->attr;
    attr->cap = lane->qp->cap;
    *init = (struct ibv_qp_init_attr){.qp_context = real->qp_context,
                                      .send_cq = real->send_cq,
                                      .recv_cq = real->recv_cq,
                                      .srq = real->srq,
                                      .cap = lane->qp->cap,
                                      .qp_type = lane->qp->type,
                                      .sq_sig_all = lane->qp->sq_sig_all};
}

/* The state that the job would see if its NIC had never failed. */
int lp_lane_query(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    struct lp_lane *lane = lane_of(qp);
    int result = LP_REAL(ibv_query_qp)(qp->real, attr, mask, init);

    if (!lane)
        return result;
    lp_lock(&lane->lock);
    const bool ours = lane->covered && !lane->plain;
    if (ours && result && (lane->now != &lane->own || lane->own.in_error)) {
        remember(lane, attr, init);
        attr->qp_state = IBV_QPS_ERR;
        result = 0;
    }
    if (ours && !result) {
        if (attr->qp_state == IBV_QPS_ERR && !lane->conn.failing)
            attr->qp_state = lane->up ? IBV_QPS_RTS : IBV_QPS_RTR;
        else if (lane->conn.failing)
            attr->qp_state = IBV_QPS_ERR;
        attr->cur_qp_state = attr->qp_state;
        if (mask & IBV_QP_STATE)
            qp->real->state = attr->qp_state;
    }
    lp_unlock(&lane->lock);
    return result;
}
