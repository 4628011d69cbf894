/* Life of a lane: from the job's queue pair to the core's connection and back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attach_batch.h"
#include "channel.h"
#include "deliver.h"
#include "engine_inner.h"
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
    if (atomic_load(&send->direct) || atomic_load(&recv->direct))
        return LP_WHY_DIRECT;
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

void lp_lane_own_half(struct lp_lane *lane) {
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

void lp_half_enters_place(struct lp_half *half) {
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
        lp_lock(&recv->poll_lock);
        (void)lp_map_put(&recv->halves, (uintptr_t)qp->qp_num + 1, half);
        lp_unlock(&recv->poll_lock);
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
        lp_half_enters_place(&lane->own);
    for (int i = 0; added && i < 2; i++) {
        lp_lock(&queues[i]->poll_lock);
        (void)lp_map_put(&queues[i]->halves, (uintptr_t)lane->own.qp_num + 1, &lane->own);
        lp_unlock(&queues[i]->poll_lock);
        atomic_store(&queues[i]->lanes, 1);
    }
    pthread_mutex_unlock(&lp_engine.lock);
    return added;
}

static uint32_t receives_of(const struct lp_qp *qp, const struct lp_shared *shared) {
    return shared ? shared->slots : qp->cap.max_recv_wr;
}

static void free_lane(struct lp_lane *lane) {
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
    lane->qp = qp;
    lane->send_queue = send;
    lane->recv_queue = recv;
    lane->domain = domain;
    lane->shared = shared;
    lane->own.place = shared ? lp_place_of(shared, qp->real->srq) : NULL;
    lane->forks = atomic_load(&lp_engine.forks);
    lane->look_at = UINT64_MAX;
    lp_lane_own_half(lane);
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

void lp_lane_disconnect(struct lp_lane *lane) {
    lp_lock(&lane->lock);
    const bool announced = lane->announced && !lane->failed;
    if (lane->connected && !lane->plain && !lane->failing)
        lp_engine_act(lane, lp_conn_destroy(&lane->conn));
    lane->dead = true;
    lp_unlock(&lane->lock);
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
    lp_lane_disconnect(lane);
    lp_lanes_remove(lane);
    for (int i = 0; i < 2; i++) {
        lp_lock(&queues[i]->poll_lock);
        (void)lp_map_put(&queues[i]->halves, (uintptr_t)lane->own.qp_num + 1,
                         lane->shared ? &lane->shared->gone : &lp_gone);
        lp_deliver_forget(queues[i], lane->own.qp_num);
        lp_unlock(&queues[i]->poll_lock);
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
    lp_lanes_leave((struct lp_leaving){.domain = pd->extra}, LP_WHY_WINDOWS);
}

static bool leaves(const struct lp_lane *lane, const struct lp_leaving *what) {
    return (what->domain && lane->domain == what->domain) || (what->shared && lane->shared == what->shared) ||
           (what->qp && lane->qp == what->qp) ||
           (what->queue && (lane->send_queue == what->queue || lane->recv_queue == what->queue));
}

void lp_lanes_leave(struct lp_leaving what, int why) {
    pthread_mutex_lock(&lp_engine.lock);
    if (what.shared)
        what.shared->leaving = true;
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        if (!leaves(lane, &what))
            continue;
        lp_lock(&lane->lock);
        lane->leaving = true;
        lane->leaving_why = (uint8_t)why;
        lp_unlock(&lane->lock);
        if (!lp_lane_let_go(lane))
            lp_lane_dirty(lane); /* when it has come home */
    }
    pthread_mutex_unlock(&lp_engine.lock);
}

void lp_lane_used_directly(struct lp_qp *qp, struct lp_cq *cq, struct lp_srq *srq) {
    struct lp_queue *queue = cq ? lp_queue_of(cq) : NULL;
    const struct lp_leaving what = {.qp = qp, .queue = queue, .shared = srq ? lp_shared_of(srq->real) : NULL};

    if (queue)
        atomic_store(&queue->direct, true);
    lp_lanes_leave(what, LP_WHY_DIRECT);
}

bool lp_lane_let_go(struct lp_lane *lane) {
    lp_lock(&lane->lock);
    const bool home = lane->connected && lane->now == &lane->own && lane->conn.mig.state == LP_ACTIVE &&
                      !lane->failing && !lane->resuming && !lane->plain;
    lane->plain = lane->plain || home;
    lp_unlock(&lane->lock);
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
