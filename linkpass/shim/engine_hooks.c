/* Where the attach layer (attach.h) meets the doers. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

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

static int post_send(struct lp_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct lp_lane *lane = lane_of(qp);

    return lane ? lp_lane_post_send(lane, wr, bad) : qp->real_post_send(qp->real, wr, bad);
}

static int post_recv(struct lp_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct lp_lane *lane = lane_of(qp);

    return lane && !lane->shared ? lp_lane_post_recv(lane, wr, bad) : qp->real_post_recv(qp->real, wr, bad);
}

/*
 * The provider has built the requests with the job's wr_ids and holds its lock.  They are dropped there and
 * posted from the batch the plain way, under tokens.  Another thread may start the next batch as soon as the
 * provider's lock is gone, so the batch is taken away first.
 */
static int wr_complete(struct lp_qp *qp, struct lp_wr_batch *batch, int (*complete_real)(struct lp_qp *qp)) {
    struct lp_lane *lane = lane_of(qp);

    if (!lane)
        return complete_real(qp);
    struct lp_wr_batch *other = atomic_exchange(&lane->batch, NULL);
    if (!other && !(other = calloc(1, sizeof(*other)))) {
        qp->ex->wr_abort(qp->ex);
        return ENOMEM;
    }
    struct lp_wr_batch mine = *batch;
    *batch = *other;
    qp->ex->wr_abort(qp->ex);
    int result = mine.opaque ? ENOMEM : mine.recorded ? lp_lane_post_batch(lane, mine.wrs) : 0;
    *other = mine;
    lp_batch_free(atomic_exchange(&lane->batch, other));
    return result;
}

/* ---- asynchronous events
 * -------------------------------------------------------------------------------- */

static bool covers(const struct lp_lane *lane) {
    return lane->covered && !lane->plain && !lane->failing;
}

/* The lane of the event's queue pair, locked, with engine.lock, so that nobody destroys it meanwhile. */
static struct lp_lane *lock_lane_of(const struct ibv_qp *real) {
    pthread_mutex_lock(&lp_engine.lock);
    struct lp_qp *qp = lp_qp_of(real);
    struct lp_lane *lane = qp ? lane_of(qp) : NULL;
    if (lane)
        lp_lock(&lane->lock);
    else
        pthread_mutex_unlock(&lp_engine.lock);
    return lane;
}

static void unlock_lane(struct lp_lane *lane) {
    lp_unlock(&lane->lock);
    pthread_mutex_unlock(&lp_engine.lock);
}

/* QP_FATAL: a reason to move. */
static bool fatal_is_ours(const struct ibv_qp *real) {
    struct lp_lane *lane = lock_lane_of(real);

    if (!lane)
        return false;
    const bool ours = covers(lane);
    if (ours)
        lp_engine_act(lane, lp_conn_fatal(&lane->conn, lane->own.epoch));
    unlock_lane(lane);
    return ours;
}

/* An event of a queue pair that this library has left, or is leaving; of one in use it is the job's own
 * doing. */
static bool is_left(const struct ibv_qp *real) {
    struct lp_lane *lane = lock_lane_of(real);

    if (!lane)
        return false;
    const bool left = covers(lane) && (lane->now != &lane->own || lane->fencing || lane->own.in_error);
    unlock_lane(lane);
    return left;
}

/* Does every queue pair of this device have somewhere to go? */
static bool covers_device(const struct lp_context *context, bool fatal) {
    bool any = false, all = !atomic_load(&context->unfollowed);

    pthread_mutex_lock(&lp_engine.lock);
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        if (lane->qp->context != context)
            continue;
        lp_lock(&lane->lock);
        const bool covered = covers(lane);
        if (covered && fatal)
            lp_engine_act(lane, lp_conn_fatal(&lane->conn, lane->own.epoch));
        lp_unlock(&lane->lock);
        any = any || covered;
        all = all && covered;
    }
    pthread_mutex_unlock(&lp_engine.lock);
    return any && all;
}

static bool is_ours(const struct lp_context *context, const struct ibv_async_event *event) {
    switch (event->event_type) {
    case IBV_EVENT_QP_FATAL:
        return fatal_is_ours(event->element.qp);
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        return is_left(event->element.qp);
    case IBV_EVENT_DEVICE_FATAL:
        return covers_device(context, true);
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_GID_CHANGE:
        return covers_device(context, false);
    default:
        return false;
    }
}

static int get_async_event(struct lp_context *context, struct ibv_async_event *event) {
    for (;;) {
        int result = LP_REAL(ibv_get_async_event)(context->real, event);
        if (result || !is_ours(context, event))
            return result;
        LP_REAL(ibv_ack_async_event)(event);
    }
}

/* ---- life
 * ----------------------------------------------------------------------------------------------- */

static void context_created(struct lp_context *context) {
    (void)context;
    lp_engine_start();
}

/* Flushed requests and what this library posts behind them must not overrun a queue made for less. */
static int more_cqe(void) {
    return lp_engine.covers ? LP_MORE_CQE : 0;
}

/* What the job left open goes with the device. */
static void context_destroying(struct lp_context *context) {
    struct lp_qp *left;

    do {
        left = NULL;
        pthread_mutex_lock(&lp_engine.lock);
        for (struct lp_lane *lane = lp_engine.lanes; lane && !left; lane = lane->next)
            if (lane->qp->context == context)
                left = lane->qp;
        pthread_mutex_unlock(&lp_engine.lock);
        if (left)
            lp_lane_qp_destroying(left);
    } while (left);
}

static const struct lp_hooks hooks = {
    .context_created = context_created,
    .context_destroying = context_destroying,
    .pd_created = lp_keys_pd_created,
    .pd_destroying = lp_keys_pd_destroying,
    .mw_created = lp_lane_mw_created,
    .mr_created = lp_keys_mr_created,
    .mr_destroying = lp_keys_mr_destroying,
    .mr_kept = lp_keys_mr_created,
    .channel_created = lp_bell_channel_created,
    .channel_destroying = lp_bell_channel_destroying,
    .more_cqe = more_cqe,
    .cq_created = lp_deliver_cq_created,
    .cq_leaves = lp_deliver_cq_leaves,
    .cq_destroying = lp_deliver_cq_destroying,
    .srq_created = lp_srq_created,
    .srq_destroying = lp_srq_destroying,
    .srq_for_new_qp = lp_srq_for_new_qp,
    .srq_new_qp_over = lp_srq_new_qp_over,
    .qp_created = lp_lane_qp_created,
    .qp_destroying = lp_lane_qp_destroying,
    .qp_kept = lp_lane_qp_kept,
    .post_send = post_send,
    .post_recv = post_recv,
    .post_srq_recv = lp_srq_post,
    .modify_srq = lp_srq_modify,
    .used_directly = lp_lane_used_directly,
    .poll_cq = lp_deliver_poll,
    .req_notify_cq = lp_deliver_notify,
    .wr_complete = wr_complete,
    .start_poll = lp_deliver_start_poll,
    .next_poll = lp_deliver_next_poll,
    .end_poll = lp_deliver_end_poll,
    .modify_qp = lp_lane_modify,
    .query_qp = lp_lane_query,
    .get_cq_event = lp_bell_get,
    .ack_cq_events = lp_bell_ack,
    .get_async_event = get_async_event,
};

/* ---- fork
 * ----------------------------------------------------------------------------------------------- */

static void before_fork(void) {
    pthread_mutex_lock(&lp_engine.lock);
}

static void after_fork_parent(void) {
    pthread_mutex_unlock(&lp_engine.lock);
}

/* The keeper stayed behind, and so does everything that it kept: the child's calls on the parent's objects go
 * straight to the provider.  Devices that the child opens itself start anew. */
static void after_fork_child(void) {
    const int fd = atomic_load(&lp_engine.wake_fd);

    atomic_fetch_add(&lp_engine.forks, 1);
    lp_lanes_forget_all();
    lp_engine.covers = false;
    atomic_store(&lp_engine.page, NULL);
    atomic_store(&lp_engine.wake_fd, -1);
    atomic_store(&lp_engine.woken, false);
    atomic_store(&lp_engine.running, false);
    if (fd >= 0)
        (void)close(fd);
    lp_channel_close();
    lp_spare_forget_all();
    pthread_mutex_unlock(&lp_engine.lock);
}

__attribute__((constructor(102))) static void plug_in(void) {
    if (!lp_attached)
        return;
    lp_hooks_set(&hooks);
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

__attribute__((destructor)) static void say(void) {
    if (lp_debug)
        lp_why_dump();
}
