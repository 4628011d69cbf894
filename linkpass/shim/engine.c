/* Carrying out what the core says, lane by lane. */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "channel.h"
#include "deliver.h"
#include "keys.h"
#include "spare.h"
#include "srq.h"

enum {
    NAP_NS = 100000,       /* while queues are being drained */
    HOLD_NAP_NS = 1000000, /* while requests that can't be settled are waited for */
    DRAIN_AGAIN_NS = 20000000,
    KEYS_NS = 2000000000,     /* how long a key of the peer may be missing */
    FAIL_DRAIN_NS = 500000000 /* how long a connection that fails is drained */
};

uint64_t lp_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- one action after the other
 * ------------------------------------------------------------------------- */

static void tell(struct lp_lane *lane, uint32_t kind, uint32_t hard) {
    const struct lp_tell message = {
        .kind = kind, .epoch = lane->conn.mig.epoch, .hard = hard, .spare = lane->conn.prefer};

    lp_channel_tell(lane, &message);
}

static bool mail(struct lp_lane *lane, enum lp_mail_kind kind) {
    struct lp_half *half = lane->conn.mig.spare < LP_SPARES ? lane->spares[lane->conn.mig.spare] : NULL;
    struct lp_mail letter;

    if (!half)
        return false;
    lp_conn_write_mail(&lane->conn, kind, &letter);
    if (!lp_spare_mail(half, &letter))
        return false;
    if (!half->mail_qp)
        lp_conn_mail_sent(&lane->conn, half->id);
    return true;
}

/* What a lane is about, on standard error; for LINKPASS_DEBUG. */
static void trace(const struct lp_lane *lane, const char *what, uint32_t actions) {
    const struct lp_mig *mig = &lane->conn.mig;

    fprintf(stderr, "linkpass: %.6f lane %lu qp %u %s: %s, %s, epoch %u base %u spare %u, actions %x; spares",
            (double)lp_now_ns() * 1e-9, (unsigned long)lane->id, lane->own.qp_num,
            mig->role == LP_LEADER ? "leader" : "follower", what, lp_state_text(mig->state), mig->epoch,
            mig->base, mig->spare, actions);
    for (uint32_t id = 0; id < LP_SPARES; id++)
        if (lane->spares[id])
            fprintf(stderr, " %u:%u/%u%s", id, lane->spares[id]->mine.round, lane->spares[id]->stage,
                    lane->conn.spares[id].usable ? "+" : "");
    fputc('\n', stderr);
}

/* Doubles with each path that brought no answer: only LP_MARKS of them can be left unsettled, and a peer may
 * be silent for long without being gone. */
static uint64_t patience(const struct lp_lane *lane) {
    const uint32_t unsettled = lane->conn.mig.role == LP_LEADER ? lane->conn.mig.mark_count : 0;

    return lp_engine.attempt_ns << (unsettled > 1 ? (unsettled < 5 ? unsettled - 1 : 4) : 0);
}

void lp_engine_act(struct lp_lane *lane, uint32_t actions) {
    if (lp_debug && actions)
        trace(lane, "act", actions);
    while (actions) {
        const uint64_t now = lp_now_ns();
        uint32_t more = 0;
        if ((actions & LP_DO_ARM) && !lane->give_up_at)
            lane->give_up_at = now + lp_engine.give_up_ns;
        if (actions & LP_DO_TELL_NEED)
            tell(lane, LP_TELL_NEED, 1);
        if (actions & LP_DO_TELL_WISH)
            tell(lane, LP_TELL_NEED, 0);
        if (actions & LP_DO_TELL_PREP)
            tell(lane, LP_TELL_PREP, 0);
        if (actions & LP_DO_TELL_ABORT)
            tell(lane, LP_TELL_ABORT, 0);
        if (actions & LP_DO_FENCE) {
            lane->fencing = true;
            lane->opening = lane->replaying = lane->resuming = lane->marking = false;
            lane->replayed_ns = 0;
            lane->triggered_ns = lane->triggered_ns ? lane->triggered_ns : now;
        }
        if (actions & LP_DO_OPEN)
            lane->opening = true;
        if ((actions & LP_DO_OFFER) && !mail(lane, LP_MAIL_OFFER))
            more |= lp_conn_fatal(&lane->conn, lane->conn.mig.epoch);
        if ((actions & LP_DO_ACCEPT) && !mail(lane, LP_MAIL_ACCEPT))
            more |= lp_conn_fatal(&lane->conn, lane->conn.mig.epoch);
        if ((actions & LP_DO_REPLAY) && lane->conn.mig.state == LP_REPLAYING) {
            lane->replaying = true;
            lane->settled_ns = now;
        }
        if (actions & LP_DO_ATTEMPT)
            lane->attempt_at = now + patience(lane);
        if (actions & LP_DO_RESUME) {
            lane->resuming = true;
            lane->give_up_at = lane->attempt_at = 0;
        }
        if (actions & LP_DO_FAIL) {
            lane->failing = true;
            lane->fail_at = now + FAIL_DRAIN_NS;
            lane->fencing = lane->opening = lane->replaying = lane->resuming = lane->marking = false;
        }
        if (actions & LP_DO_MARK)
            lane->marking = !lane->peer_no_writes; /* else their own completions tell: lp_lane_may_hold */
        if (actions & LP_DO_CLOSE) {
            lane->closing = true;
            lane->give_up_at = lane->attempt_at = 0;
        }
        lp_deliver_owed(lane);
        lp_lane_dirty(lane);
        actions = more;
    }
}

void lp_engine_fail(struct lp_lane *lane, uint32_t status, bool by_job) {
    struct lp_conn *conn = &lane->conn;
    uint64_t unused;
    bool deliver;

    if (!lane->connected || lane->plain || lane->failing)
        return;
    if (by_job)
        conn->first_error_out = 1;
    if (lp_mig_is_fenced(&conn->mig)) {
        conn->error = status;
        lp_engine_act(lane, lp_conn_timeout(conn));
    } else {
        lp_engine_act(lane, lp_conn_recv_cqe(conn, conn->mig.epoch, 0, status, &deliver, &unused));
    }
}

/* ---- waiting for the world
 * ------------------------------------------------------------------------------ */

/* The queue pair in use to ERR, and all of its completions taken.  True when that is so. */
static bool drain(struct lp_lane *lane, bool *hopeless) {
    struct lp_half *half = lane->now;
    struct ibv_qp_attr attr;

    *hopeless = half->overrun;
    if (!half->in_error) {
        half->in_error = !lp_half_to_error(half) ||
                         (!lp_half_query(half, &attr, IBV_QP_STATE) && attr.qp_state == IBV_QPS_ERR);
        *hopeless = *hopeless || !half->in_error;
    }
    /* Again if it doesn't come: its completion may have been lost in an overrun queue.  Whichever comes last
     * is behind all of the job's. */
    const uint64_t now = lp_now_ns();
    if (half->in_error && !half->drained && (!half->drain_at || now - half->drain_at > DRAIN_AGAIN_NS) &&
        !lp_post_marker(half, LP_WR_ID(LP_KIND_DRAIN, 0)))
        half->drain_at = now;
    return half->drained && (half->place || half->recvs_out == 0);
}

static uint32_t step_fencing(struct lp_lane *lane) {
    struct lp_half *half = lane->now;
    struct ibv_qp_attr attr;
    bool hopeless;
    uint32_t known = LP_MARK_CONSUMED;

    const bool done = drain(lane, &hopeless);
    if (hopeless) {
        lane->fencing = false;
        return lp_conn_unfenced(&lane->conn, lane->conn.mig.epoch);
    }
    if (!done)
        return 0;
    if (!lp_half_query(half, &attr, IBV_QP_STATE | IBV_QP_RQ_PSN) && attr.qp_state == IBV_QPS_ERR)
        known |= LP_MARK_PSN;
    lane->fencing = false;
    lane->fenced_ns = lp_now_ns();
    lp_half_leaves_place(half);
    return lp_conn_drained(&lane->conn, lane->conn.mig.epoch, known, attr.rq_psn & LP_PSN_MASK);
}

static void opens(struct lp_lane *lane, struct lp_half *half) {
    if (half->place) {
        lp_place_found(half->place, half->port, half->sgid_index);
        lp_place_enter(half->place);
        half->takes = true;
    }
    half->stage = LP_STAGE_OPEN;
    half->epoch = lane->conn.mig.epoch;
    half->send_source->open++;
    half->recv_source->open++;
    atomic_fetch_add(&lane->send_queue->open, 1);
    atomic_fetch_add(&lane->recv_queue->open, 1);
    if (atomic_load(&lane->send_queue->armed) == 1)
        (void)ibv_req_notify_cq(half->send_source->cq, 0);
    if (atomic_load(&lane->recv_queue->armed) == 1)
        (void)ibv_req_notify_cq(half->recv_source->cq, 0);
    lane->now = half;
}

/* All receives that the peer may need, before it is told that it may send. */
static bool post_receives(struct lp_lane *lane) {
    uint32_t token;

    while (lp_conn_next_recv(&lane->conn, &token)) {
        enum lp_posting how = lp_post_recv_entry(lane->now, token);
        if (how == LP_POSTING_LOCAL && lane->now->reserve && lp_keys_catch_up(lane->now->reserve))
            how = lp_post_recv_entry(lane->now, token);
        if (how != LP_POSTING_DONE)
            return false;
        lp_conn_recv_posted(&lane->conn, token);
    }
    return true;
}

static uint32_t step_opening(struct lp_lane *lane) {
    struct lp_half *half = lane->spares[lane->conn.mig.spare];

    if (lane->now != half || half->stage != LP_STAGE_OPEN) {
        if (!half || half->stage != LP_STAGE_USABLE) {
            lane->opening = false;
            return lp_conn_timeout(
                &lane->conn); /* can't be: a usable spare is only dropped with the core's leave */
        }
        opens(lane, half);
    }
    if (half->place) {
        lp_shared_settle(lane->shared);
        if (!lp_place_fed(half->place))
            return 0; /* they are still somewhere else: again, soon */
    }
    lane->opening = false;
    return lp_conn_opened(&lane->conn, half->epoch, post_receives(lane));
}

/* True when nothing is left to post.  *actions: what went wrong. */
static bool post_backlog(struct lp_lane *lane, uint32_t *actions) {
    struct lp_conn *conn = &lane->conn;
    uint32_t token;

    while (lp_conn_next_post(conn, &token)) {
        enum lp_posting how = lp_post_entry(lane->now, token);
        if (how == LP_POSTING_LOCAL && lane->now->reserve && lp_keys_catch_up(lane->now->reserve))
            how = lp_post_entry(lane->now, token);
        if (how == LP_POSTING_LATER)
            return false;
        if (how == LP_POSTING_KEYS) {
            lane->keys_until = lane->keys_until ? lane->keys_until : lp_now_ns() + KEYS_NS;
            if (lane->now->keys == LP_KEYS_READ) /* read, and it isn't there: perhaps it is new */
                lane->now->keys_wanted = true;
            lp_keys_read(lane->now);
            if (lp_now_ns() > lane->keys_until)
                lp_engine_fail(lane, IBV_WC_REM_ACCESS_ERR, false);
            return false;
        }
        if (how == LP_POSTING_LOCAL) {
            lp_engine_fail(lane, conn->error ? conn->error : IBV_WC_LOC_PROT_ERR, false);
            return false;
        }
        if (how == LP_POSTING_FAILED) {
            *actions |= lp_conn_fatal(conn, conn->mig.epoch);
            return false;
        }
        lane->keys_until = 0;
        lane->replayed_ns = lane->replayed_ns ? lane->replayed_ns : lp_now_ns();
        if (lp_send_ring_at(conn->sends, token)->replays)
            lane->replayed_bytes += lp_send_ring_at(conn->sends, token)->length;
        lp_conn_posted(conn, token);
    }
    return conn->holding_recvs || post_receives(lane);
}

static void measure(struct lp_lane *lane) {
    const uint64_t now = lp_now_ns(), first = lane->replayed_ns ? lane->replayed_ns : now;

    lane->last_trigger_ns = lane->triggered_ns;
    lane->gap_ns = first - lane->triggered_ns;
    lane->replay_ns = now - lane->triggered_ns;
    lane->fence_ns = lane->fenced_ns - lane->triggered_ns;
    lane->settle_ns = lane->settled_ns - lane->triggered_ns;
    lane->triggered_ns = lane->replayed_ns = 0;
}

static uint32_t step_flowing(struct lp_lane *lane) {
    uint32_t actions = 0;

    if (lane->replaying && post_backlog(lane, &actions)) {
        lane->replaying = false;
        actions |= lp_conn_replayed(&lane->conn, lane->conn.mig.epoch);
        if (lane->triggered_ns)
            measure(lane);
    } else if (lane->resuming && !lane->conn.holding && post_backlog(lane, &actions)) {
        lane->resuming = false;
    }
    if (lane->marking && !actions) {
        const uint32_t token = lane->conn.sends->next - 1;
        if (!lp_post_marker(lane->now, LP_WR_ID(LP_KIND_MARKER, token))) {
            uint32_t counted;
            lp_conn_marker_sent(&lane->conn, &counted);
            lane->marking = false;
        }
    }
    return actions;
}

static void step_failing(struct lp_lane *lane, uint64_t now) {
    bool hopeless;

    if (lane->failed || (!drain(lane, &hopeless) && now < lane->fail_at))
        return;
    lane->failed = true;
    if (lane->now->in_error)
        lp_half_leaves_place(lane->now);
    lp_deliver_owed(lane);
    lp_channel_down(lane, LP_DOWN_FAILED, lane->conn.error);
}

/* ---- advice
 * ---------------------------------------------------------------------------------------------- */

static uint32_t rank(const struct lp_page *page, const char *device, uint8_t port) {
    switch (lp_page_state(page, device, port)) {
    case LP_NIC_UP:
        return 0;
    case LP_NIC_UNKNOWN:
        return 1;
    case LP_NIC_SUSPECT:
        return 2;
    default:
        return 9;
    }
}

/* The spare to go to, should it come to that; LP_SPARES: none that is good. */
static uint32_t best_spare(const struct lp_lane *lane, const struct lp_page *page) {
    uint32_t best = LP_SPARES, least = 9;

    for (uint32_t id = 0; id < LP_SPARES; id++) {
        const struct lp_half *half = lane->spares[id];
        if (!half || !lane->conn.spares[id].usable)
            continue;
        const uint32_t r = rank(page, half->reserve->nic->name, half->port);
        if (r < least) {
            least = r;
            best = id;
        }
    }
    return best;
}

static uint64_t follow_page(struct lp_lane *lane, uint64_t now) {
    const struct lp_page *page = atomic_load_explicit(&lp_engine.page, memory_order_acquire);
    uint8_t port;

    if (!page || !lane->covered || lane->failing)
        return UINT64_MAX;
    const char *device = lp_lane_device(lane, &port);
    const uint32_t best = best_spare(lane, page);
    if (lane->conn.mig.state != LP_ACTIVE || rank(page, device, port) < 9) {
        if (lane->conn.mig.state != LP_ACTIVE && best < LP_SPARES)
            lane->conn.prefer = (uint8_t)best;
        return UINT64_MAX;
    }
    if (lane->order_at > now)
        return lane->order_at - now;
    if (best == LP_SPARES && lane->conn.mig.role == LP_LEADER)
        return UINT64_MAX;
    if (!lp_lane_may_hold(lane))
        return UINT64_MAX;
    lane->order_at = now + lp_engine.attempt_ns;
    lp_engine_act(lane, lp_conn_order(&lane->conn, best));
    return lp_engine.attempt_ns;
}

void lp_engine_page(void) {
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        lane->order_at = 0;
        lp_lane_dirty(lane);
    }
}

/* ---- the whole of a lane
 * --------------------------------------------------------------------------------- */

static uint64_t timers(struct lp_lane *lane, uint64_t now) {
    uint64_t next = UINT64_MAX;

    if (lane->give_up_at && lane->give_up_at <= now) {
        lane->give_up_at = 0;
        lp_engine_act(lane, lp_conn_timeout(&lane->conn));
    }
    if (lane->attempt_at && lane->attempt_at <= now) {
        lane->attempt_at = 0;
        lp_engine_act(lane, lp_conn_attempt(&lane->conn));
    }
    if (lane->give_up_at)
        next = lane->give_up_at - now;
    if (lane->attempt_at && lane->attempt_at - now < next)
        next = lane->attempt_at - now;
    return next;
}

static bool is_busy(const struct lp_lane *lane) {
    return lane->fencing || lane->opening || lane->replaying || lane->resuming || lane->marking ||
           (lane->failing && !lane->failed);
}

static bool reads_keys(const struct lp_lane *lane) {
    for (uint32_t id = 0; id < LP_SPARES; id++) {
        const struct lp_half *half = lane->spares[id];
        if (half && (half->keys == LP_KEYS_HEAD || half->keys == LP_KEYS_BODY || half->keys_wanted) &&
            half->stage >= LP_STAGE_USABLE && half->stage != LP_STAGE_BROKEN)
            return true;
    }
    return false;
}

/* Many lanes may share a queue: once a round is enough. */
static void pump_once(struct lp_queue *queue) {
    if (queue->pumped == lp_engine.looks)
        return;
    queue->pumped = lp_engine.looks;
    lp_deliver_pump(queue);
}

static void pump(struct lp_lane *lane) {
    pump_once(lane->send_queue);
    pump_once(lane->recv_queue);
}

/* Halves of epochs that are past: drained, their marks taken, so that they can be made anew. */
static void retire(struct lp_lane *lane, bool fenced) {
    for (uint32_t id = 0; id < LP_SPARES; id++) {
        struct lp_half *half = lane->spares[id];
        if (half && half->stage == LP_STAGE_OPEN && (fenced || half != lane->now))
            lp_spare_drop(lane, id);
    }
}

/* The states that an agent acts upon. */
static void tell_state(struct lp_lane *lane) {
    const struct lp_mig *mig = &lane->conn.mig;

    if ((mig->state != LP_ACTIVE && mig->state != LP_FENCED && mig->state != LP_FAILED) ||
        (mig->state == lane->told_state && mig->epoch == lane->told_epoch))
        return;
    lane->told_state = mig->state;
    lane->told_epoch = mig->epoch;
    lp_channel_state(lane);
}

/* In HOLD completions are waited for that the job may have no reason to poll for. The state moves with any
 * poll. */
static bool is_held(struct lp_lane *lane) {
    lp_lock(&lane->lock);
    const bool held = lane->conn.mig.state == LP_HOLD;
    lp_unlock(&lane->lock);
    return held;
}

uint64_t lp_engine_look(struct lp_lane *lane, uint64_t now) {
    if (!lane->connected || lane->plain || (lane->leaving && lp_lane_let_go(lane)))
        return UINT64_MAX;
    if (is_busy(lane) || reads_keys(lane) || is_held(lane))
        pump(lane);
    lp_spare_look(lane);
    lp_lock(&lane->lock);
    uint32_t actions = atomic_exchange_explicit(&lane->todo, 0, memory_order_acq_rel);
    lp_engine_act(lane, actions);
    uint64_t next = follow_page(lane, now);
    if (lane->fencing)
        lp_engine_act(lane, step_fencing(lane));
    if (lane->opening)
        lp_engine_act(lane, step_opening(lane));
    lp_engine_act(lane, step_flowing(lane));
    if (lane->failing)
        step_failing(lane, now);
    const uint64_t due = timers(lane, now);
    next = due < next ? due : next;
    const bool busy = is_busy(lane) || reads_keys(lane);
    const bool flows = lane->conn.mig.state == LP_ACTIVE && !busy;
    const bool fenced = lane->conn.mig.state == LP_FENCED;
    if (lane->conn.mig.state == LP_HOLD && next > HOLD_NAP_NS)
        next = HOLD_NAP_NS;
    const bool closes = lane->closing && (lane->failed || !lane->failing);
    tell_state(lane);
    lp_unlock(&lane->lock);
    if (flows || fenced)
        retire(lane, fenced);
    if (closes && lane->failed)
        lp_spare_drop_all(lane, true);
    lane->closing = lane->closing && !closes;
    return busy && next > NAP_NS ? NAP_NS : next;
}
