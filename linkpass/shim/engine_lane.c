/* Life of a lane: from the job's queue pair to the core's connection and back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attach_batch.h"
#include "channel.h"
#include "deliver.h"
#include "engine_why.h"
#include "keys.h"
#include "spare.h"
#include "srq.h"

static struct lp_lane *lane_of(const struct lp_qp *qp) {
    struct lp_lane *lane = qp->extra;

    return lane && lane->forks == atomic_load_explicit(&lp_engine.forks, memory_order_relaxed) ? lane : NULL;
}

const char *lp_lane_device(const struct lp_lane *lane, uint8_t *port) {
    const bool own = lane->now == &lane->own;

    *port = own ? lane->attr.port_num : lane->now->port;
    return own ? lane->qp->context->name : lane->now->reserve->nic->name;
}

bool lp_lane_may_hold(struct lp_lane *lane) {
    const bool trusted = lane->conn.psn_trusted && !lane->conn.peer_untrusted;

    if (!lane->peer_no_writes)
        return true;
    return trusted && (!lane->unsignaled || !atomic_load(&lane->conn.sends->fragile));
}

/* ---- birth
 * ---------------------------------------------------------------------------------------------- */

static enum lp_why reason_against(const struct lp_qp *qp, const struct lp_queue *send,
                                  const struct lp_queue *recv, const struct lp_pd *pd,
                                  const struct lp_shared *shared) {
    if (!lp_engine.covers)
        return LP_WHY_NO_AGENT;
    if (atomic_load(&qp->unprotected))
        return qp->unprotected == LP_OTHER_OPERATIONS ? LP_WHY_OPERATIONS : LP_WHY_KIND;
    if (qp->real->srq && (!shared || !pd || shared->domain != pd->extra || shared->leaving))
        return LP_WHY_SRQ;
    if (!send || !recv || !pd || !pd->extra)
        return LP_WHY_UNKNOWN_OBJECT;
    if (atomic_load(&pd->windows))
        return LP_WHY_WINDOWS;
    if (send->timed || recv->timed)
        return LP_WHY_TIMESTAMPS;
    return LP_WHY_NOT;
}

static bool give_rings(struct lp_lane *lane, const struct ibv_qp_cap *cap, const struct lp_shared *shared) {
    const uint32_t sends = cap->max_send_wr ? cap->max_send_wr : 1;
    const uint32_t recvs = cap->max_recv_wr ? cap->max_recv_wr : 1;
    const size_t send_bytes = lp_send_ring_bytes(sends, cap->max_send_sge, cap->max_inline_data);
    const size_t recv_bytes = lp_recv_ring_bytes(recvs, cap->max_recv_sge);

    if (posix_memalign(&lane->send_block, 64, send_bytes))
        return false;
    lane->conn.sends = lp_send_ring_init(lane->send_block, sends, cap->max_send_sge, cap->max_inline_data);
    if (shared)
        return true; /* its receives are recorded there */
    if (posix_memalign(&lane->recv_block, 64, recv_bytes))
        return false;
    lane->conn.recvs = lp_recv_ring_init(lane->recv_block, recvs, cap->max_recv_sge);
    return true;
}

static void own_half(struct lp_lane *lane) {
    lane->own = (struct lp_half){.lane = lane,
                                 .qp = lane->qp->real,
                                 .qp_num = lane->qp->qp_num,
                                 .shared = lane->shared,
                                 .place = lane->own.place,
                                 .id = LP_SPARES,
                                 .stage = LP_STAGE_OPEN};
    lane->now = &lane->own;
}

void lp_half_leaves_place(struct lp_half *half) {
    if (half->takes)
        lp_place_leave(half->place);
    half->takes = false;
}

static void enters_place(struct lp_half *half) {
    if (half->place && !half->takes)
        lp_place_enter(half->place);
    half->takes = half->place != NULL;
}

/* A queue pair of the job that isn't recorded takes receives all the same, and they bear names of ours. */
static void strange(struct lp_qp *qp, struct lp_shared *shared, struct lp_queue *recv, bool there) {
    struct lp_place *place = lp_place_of(shared, qp->real->srq);
    struct lp_half *half = there ? &shared->stranger : &shared->gone;

    pthread_mutex_lock(&lp_engine.lock);
    if (there) {
        lp_place_attach(place);
        lp_place_enter(place);
    } else {
        lp_place_leave(place);
        lp_place_detach(place);
    }
    if (recv) {
        pthread_mutex_lock(&recv->poll_lock);
        (void)lp_map_put(&recv->halves, (uintptr_t)qp->qp_num + 1, half);
        pthread_mutex_unlock(&recv->poll_lock);
        atomic_store(&recv->lanes, 1);
    }
    pthread_mutex_unlock(&lp_engine.lock);
}

/* False: no memory. */
static bool insert(struct lp_lane *lane) {
    struct lp_queue *queues[2] = {lane->send_queue, lane->recv_queue};

    pthread_mutex_lock(&lp_engine.lock);
    const bool added = lp_lanes_add(lane);
    if (added && lane->own.place)
        lp_place_attach(lane->own.place);
    if (added)
        enters_place(&lane->own);
    for (int i = 0; added && i < 2; i++) {
        pthread_mutex_lock(&queues[i]->poll_lock);
        (void)lp_map_put(&queues[i]->halves, (uintptr_t)lane->own.qp_num + 1, &lane->own);
        pthread_mutex_unlock(&queues[i]->poll_lock);
        atomic_store(&queues[i]->lanes, 1);
    }
    pthread_mutex_unlock(&lp_engine.lock);
    return added;
}

static uint32_t receives_of(const struct lp_qp *qp, const struct lp_shared *shared) {
    return shared ? shared->slots : qp->cap.max_recv_wr;
}

static void free_lane(struct lp_lane *lane) {
    pthread_mutex_destroy(&lane->lock);
    lp_batch_free(atomic_load(&lane->batch));
    free(lane->send_block);
    free(lane->recv_block);
    free(lane);
}

/* NULL: no memory. */
static struct lp_lane *new_lane(struct lp_qp *qp, struct lp_queue *send, struct lp_queue *recv,
                                struct lp_domain *domain, struct lp_shared *shared) {
    struct lp_lane *lane = calloc(1, sizeof(*lane));

    if (!lane)
        return NULL;
    pthread_mutex_init(&lane->lock, NULL);
    lane->qp = qp;
    lane->send_queue = send;
    lane->recv_queue = recv;
    lane->domain = domain;
    lane->shared = shared;
    lane->own.place = shared ? lp_place_of(shared, qp->real->srq) : NULL;
    lane->forks = atomic_load(&lp_engine.forks);
    lane->look_at = UINT64_MAX;
    own_half(lane);
    if (give_rings(lane, &qp->cap, shared) && insert(lane))
        return lane;
    free_lane(lane);
    return NULL;
}

void lp_lane_qp_created(struct lp_qp *qp) {
    struct lp_cq *send_cq = qp->real->send_cq ? lp_cq_of(qp->real->send_cq) : NULL;
    struct lp_cq *recv_cq = qp->real->recv_cq ? lp_cq_of(qp->real->recv_cq) : NULL;
    struct lp_queue *send = send_cq ? lp_queue_of(send_cq) : NULL;
    struct lp_queue *recv = recv_cq ? lp_queue_of(recv_cq) : NULL;
    struct lp_pd *pd = lp_pd_of(qp->real->pd);
    struct lp_shared *shared = lp_shared_of(qp->real->srq);
    enum lp_why why = reason_against(qp, send, recv, pd, shared);
    struct lp_lane *lane = NULL;

    qp->extra = NULL;
    if (!why && (!lp_bell_ready(send) || !lp_bell_ready(recv)))
        why = LP_WHY_CHANNEL;
    if (!why && !(lane = new_lane(qp, send, recv, pd->extra, shared)))
        why = LP_WHY_MEMORY;
    lp_why_count(why);
    qp->unfollowed = why != LP_WHY_NOT;
    if (why) {
        if (shared)
            strange(qp, shared, recv, true);
        atomic_fetch_add(&qp->context->unfollowed, 1);
        if (send)
            atomic_store(&send->crowded, true);
        if (recv)
            atomic_store(&recv->crowded, true);
        return;
    }
    atomic_fetch_add(&send->promised, qp->cap.max_send_wr);
    atomic_fetch_add(&recv->promised, receives_of(qp, shared));
    qp->extra = lane;
}

/* ---- death
 * ---------------------------------------------------------------------------------------------- */

/* Ends the connection of a lane, as for its peer and its agent.  engine.lock held. */
static void disconnect(struct lp_lane *lane) {
    pthread_mutex_lock(&lane->lock);
    const bool announced = lane->announced && !lane->failed;
    if (lane->connected && !lane->plain && !lane->failing)
        lp_engine_act(lane, lp_conn_destroy(&lane->conn));
    lane->dead = true;
    pthread_mutex_unlock(&lane->lock);
    lp_spare_drop_all(lane, true);
    if (announced)
        lp_channel_down(lane, LP_DOWN_DESTROYED, 0);
}

void lp_lane_qp_destroying(struct lp_qp *qp) {
    struct lp_lane *lane = lane_of(qp);

    if (qp->unfollowed) {
        struct lp_shared *shared = lp_shared_of(qp->real->srq);
        struct lp_cq *cq = shared && qp->real->recv_cq ? lp_cq_of(qp->real->recv_cq) : NULL;
        if (shared)
            strange(qp, shared, cq ? lp_queue_of(cq) : NULL, false);
        atomic_fetch_sub(&qp->context->unfollowed, 1);
    }
    qp->unfollowed = false;
    if (!lane) {
        qp->extra = NULL;
        return;
    }
    if (lane->shared) /* what it has taken is the job's to know of, and the slot free again */
        lp_deliver_pump(lane->recv_queue);
    struct lp_queue *queues[2] = {lane->send_queue, lane->recv_queue};
    pthread_mutex_lock(&lp_engine.lock);
    qp->extra = NULL;
    disconnect(lane);
    lp_lanes_remove(lane);
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&queues[i]->poll_lock);
        (void)lp_map_put(&queues[i]->halves, (uintptr_t)lane->own.qp_num + 1,
                         lane->shared ? &lane->shared->gone : &lp_gone);
        lp_deliver_forget(queues[i], lane->own.qp_num);
        pthread_mutex_unlock(&queues[i]->poll_lock);
    }
    if (lane->own.place) {
        lp_half_leaves_place(&lane->own);
        lp_place_detach(lane->own.place);
    }
    pthread_mutex_unlock(&lp_engine.lock);
    lp_engine_wake();
    atomic_fetch_sub(&lane->send_queue->promised, qp->cap.max_send_wr);
    atomic_fetch_sub(&lane->recv_queue->promised, receives_of(qp, lane->shared));
    free_lane(lane);
}

/* Who binds a window or hands its key on asks for what no spare can repeat.  Known before the first such
 * request is posted, the connection runs on as without this library. */
void lp_lane_mw_created(struct lp_pd *pd) {
    lp_lanes_leave(pd->extra, NULL, LP_WHY_WINDOWS);
}

void lp_lanes_leave(const struct lp_domain *domain, struct lp_shared *shared, int why) {
    pthread_mutex_lock(&lp_engine.lock);
    if (shared)
        shared->leaving = true;
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        if (shared ? lane->shared != shared : lane->domain != domain)
            continue;
        pthread_mutex_lock(&lane->lock);
        lane->leaving = true;
        lane->leaving_why = (uint8_t)why;
        pthread_mutex_unlock(&lane->lock);
        if (!lp_lane_let_go(lane))
            lp_lane_dirty(lane); /* when it has come home */
    }
    pthread_mutex_unlock(&lp_engine.lock);
}

bool lp_lane_let_go(struct lp_lane *lane) {
    pthread_mutex_lock(&lane->lock);
    const bool home = lane->connected && lane->now == &lane->own && lane->conn.mig.state == LP_ACTIVE &&
                      !lane->failing && !lane->resuming && !lane->plain;
    lane->plain = lane->plain || home;
    pthread_mutex_unlock(&lane->lock);
    if (!home)
        return false;
    lp_why_count((enum lp_why)lane->leaving_why);
    lp_spare_drop_all(lane, true);
    if (lane->announced)
        lp_channel_down(lane, LP_DOWN_UNPROTECTED, lane->leaving_why);
    return true;
}

/* The provider refused: it lives on without us, from an empty record. */
void lp_lane_qp_kept(struct lp_qp *qp) {
    lp_lane_qp_created(qp);
}

/* ---- the job's calls
 * ------------------------------------------------------------------------------------ */

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
    pthread_mutex_lock(&lane->lock);
    if (lane->passive && !lane->adopted && !lane->up) {
        set_send_psn(lane, local_psn);
        lane->adopted = true;
    }
    pthread_mutex_unlock(&lane->lock);
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
    disconnect(lane);
    lp_deliver_pump(lane->send_queue);
    lp_deliver_pump(lane->recv_queue);
    int result = LP_REAL(ibv_modify_qp)(lane->own.qp, attr, mask);
    lp_deliver_pump(lane->send_queue);
    lp_deliver_pump(lane->recv_queue);
    lp_deliver_forget(lane->send_queue, lane->own.qp_num);
    lp_deliver_forget(lane->recv_queue, lane->own.qp_num);
    pthread_mutex_lock(&lane->lock);
    unconnect(lane);
    lane->conn.sends = lp_send_ring_init(lane->send_block, lane->conn.sends->max_wr, cap->max_send_sge,
                                         cap->max_inline_data);
    if (lane->conn.recvs)
        lane->conn.recvs = lp_recv_ring_init(lane->recv_block, lane->conn.recvs->max_wr, cap->max_recv_sge);
    lp_half_leaves_place(&lane->own);
    own_half(lane);
    enters_place(&lane->own);
    lane->passive = lane->adopted = lane->unsignaled = lane->peer_no_writes = false;
    lane->announced = lane->up = lane->covered = lane->dead = lane->failing = lane->failed = false;
    lane->fencing = lane->opening = lane->replaying = lane->resuming = lane->marking = lane->closing = false;
    lane->give_up_at = lane->attempt_at = lane->keys_until = lane->order_at = lane->triggered_ns = 0;
    atomic_store(&lane->todo, 0);
    lp_lanes_renumber(lane);
    pthread_mutex_unlock(&lane->lock);
    pthread_mutex_unlock(&lp_engine.lock);
    return result;
}

/* The job ends the connection itself: everything is flushed. */
static int to_error(struct lp_lane *lane, struct ibv_qp_attr *attr, int mask) {
    pthread_mutex_lock(&lp_engine.lock);
    pthread_mutex_lock(&lane->lock);
    const bool ours = lane->covered && lane->connected && !lane->plain;
    const bool away = lane->now != &lane->own;
    if (ours)
        lp_engine_fail(lane, IBV_WC_GENERAL_ERR, true);
    else if (lane->connected)
        lane->plain = true;
    pthread_mutex_unlock(&lane->lock);
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

    pthread_mutex_lock(&lane->lock);
    const struct ibv_qp_attr before = lane->attr;
    note(&lane->attr, attr, mask);
    if (to == IBV_QPS_RTR && !lane->connected)
        connect_lane(lane);
    if (to == IBV_QPS_RTS && lane->connected && !lane->up && (mask & IBV_QP_SQ_PSN))
        starts_to_send(lane);
    pthread_mutex_unlock(&lane->lock);
    int result = modify_real(lane, attr, mask);
    const int error = errno;
    pthread_mutex_lock(&lane->lock);
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
    pthread_mutex_unlock(&lane->lock);
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
    pthread_mutex_lock(&lane->lock);
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
    pthread_mutex_unlock(&lane->lock);
    return result;
}
