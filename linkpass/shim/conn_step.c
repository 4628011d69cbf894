/* The state machine's surroundings: an event in, the core's own part of its actions done, the rest out. */
#include <string.h>

#include "conn_inner.h"
#include "mutant.h"

/* ---- the state machine's surroundings
 * ------------------------------------------------------------------------ */

enum lp_settle_fault lp_conn_settle(struct lp_conn *conn, const struct lp_mail *mail) {
    const struct lp_mark *mark = NULL;
    for (uint32_t i = 0; i < mail->mark_count; i++) {
        bool wanted = mail->marks[i].epoch == conn->mig.base;
        if (wanted || LP_MUTANT(LP_M_WRONG_MARK)) {
            mark = &mail->marks[i];
        }
    }
    if (mark == NULL) {
        return LP_SETTLE_NO_MARK;
    }
    uint32_t executed = 0;
    enum lp_settle_fault fault = lp_send_ring_settle(conn->sends, mark, true, &executed);
    conn->executed += executed;
    conn->fault = (uint8_t)fault;
    return fault;
}

void lp_conn_forget_marks(struct lp_mig *mig, uint32_t epoch) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < mig->mark_count; i++) {
        if (mig->marks[i].epoch >= epoch) {
            mig->marks[kept++] = mig->marks[i];
        }
    }
    memset(&mig->marks[kept], 0, (LP_MARKS - kept) * sizeof(mig->marks[0]));
    mig->mark_count = kept;
}

/* The epoch's path is ours to send requests on: their packets count from here. */
void lp_conn_rebase(struct lp_conn *conn) {
    const struct lp_path *path = &conn->spares[conn->mig.spare];
    lp_send_ring_epoch(conn->sends, path->tx_psn, path->mtu, path->mails);
    conn->mig.base = conn->mig.epoch;
    conn->migrations++;
}

static void enter_epoch(struct lp_conn *conn, uint32_t epoch, uint32_t spare) {
    conn->mig.epoch = epoch;
    conn->mig.spare = (uint8_t)spare;
    conn->spares[spare].usable = false;
    conn->consumed = 0;
    conn->prep_waits = 0;
    if (conn->recvs != NULL) {
        lp_recv_ring_epoch(conn->recvs);
    }
}

/* Runs one event and does those of its actions that are the core's own. Returns the caller's part. */
static uint32_t run(struct lp_conn *conn, enum lp_event event) {
    struct lp_outcome outcome = lp_mig_event(&conn->mig, event);
    if (outcome.actions & LP_DO_HOLD) {
        conn->holding = 1;
    }
    if (outcome.actions & LP_DO_FENCE) {
        conn->holding_recvs = 1;
    }
    if (event == LP_EV_OPENED) { /* from here on a receive that the job posts can be needed at once */
        conn->holding_recvs = 0;
    }
    if (outcome.actions & LP_DO_RESUME) {
        conn->holding = 0; /* what is held goes first: see post_now */
    }
    if (outcome.actions & LP_DO_FAIL) {
        conn->failing = 1;
        conn->holding = conn->holding_recvs = 1;
    }
    return outcome.actions & ~(uint32_t)(LP_DO_HOLD | LP_DO_SETTLE);
}

uint32_t lp_conn_pick_spare(const struct lp_conn *conn) {
    if (conn->prefer < LP_SPARES && conn->spares[conn->prefer].usable) {
        return conn->prefer;
    }
    for (uint32_t id = 0; id < LP_SPARES; id++) {
        if (conn->spares[id].usable) {
            return id;
        }
    }
    return LP_SPARES;
}

/* Follower, fenced, with an offer at hand. */
static uint32_t take_offer(struct lp_conn *conn) {
    struct lp_mig *mig = &conn->mig;
    if (lp_conn_settle(conn, &conn->offer) != LP_SETTLE_FINE) {
        mig->pending = 0;
        return run(conn, LP_EV_OFFER_BAD);
    }
    lp_conn_forget_marks(mig, conn->offer.base);
    enter_epoch(conn, mig->pending, mig->pending_spare);
    lp_conn_rebase(conn);
    mig->pending = 0;
    return run(conn, LP_EV_OFFER);
}

/* Leader, fenced, with a spare at hand. */
static uint32_t take_spare(struct lp_conn *conn, uint32_t spare) {
    struct lp_mig *mig = &conn->mig;
    if (mig->mark_count == LP_MARKS) {
        return run(conn, LP_EV_EXHAUSTED);
    }
    mig->last_epoch++;
    enter_epoch(conn, mig->last_epoch, spare);
    return run(conn, LP_EV_SPARE);
}

/* Would a fence now leave a request of ours that can't be settled? */
bool lp_conn_at_risk(const struct lp_conn *conn) {
    if (conn->peer_untrusted) {
        return lp_send_ring_has_posted(conn->sends);
    }
    return atomic_load_explicit(&conn->sends->fragile, memory_order_relaxed) != 0;
}

/* Steps that follow from what is already known. */
uint32_t lp_conn_pump(struct lp_conn *conn) {
    struct lp_mig *mig = &conn->mig;
    if (mig->state == LP_HOLD && !lp_conn_at_risk(conn)) {
        return run(conn, LP_EV_QUIET);
    }
    if (mig->state == LP_ACTIVE && conn->prep_waits) {
        conn->prep_waits = 0;
        return lp_conn_step(conn, LP_EV_PREP);
    }
    if (mig->state == LP_FENCED && mig->role == LP_FOLLOWER && mig->pending != 0) {
        return take_offer(conn);
    }
    if (mig->state == LP_FENCED && mig->role == LP_LEADER && lp_conn_pick_spare(conn) != LP_SPARES) {
        return take_spare(conn, lp_conn_pick_spare(conn));
    }
    return 0;
}

uint32_t lp_conn_step(struct lp_conn *conn, enum lp_event event) {
    uint32_t actions = run(conn, event);
    if ((actions & LP_DO_MARK) && !lp_conn_at_risk(conn)) {
        actions &= ~(uint32_t)LP_DO_MARK;
    }
    uint32_t more = lp_conn_pump(conn);
    if (more != 0) { /* what was to be told of the epoch just left is past */
        actions &= ~(uint32_t)(LP_DO_TELL_NEED | LP_DO_ATTEMPT);
    }
    return actions | more;
}
