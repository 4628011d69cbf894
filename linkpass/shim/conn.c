#include "conn.h"

#include <stddef.h>
#include <string.h>

#include "mutant.h"

enum lp_status_class lp_status_class(uint32_t wc_status) {
    switch (wc_status) {
    case LP_WC_OK:
        return LP_CLASS_OK;
    case LP_WC_FLUSH:
        return LP_CLASS_FLUSH;
    case LP_WC_LOC_QP_OP: /* what rxe says when route or GID have vanished */
    case LP_WC_RETRY_EXC:
    case LP_WC_FATAL:
    case LP_WC_RESP_TIMEOUT:
        return LP_CLASS_PATH;
    default:
        return LP_CLASS_APP;
    }
}

uint64_t lp_mail_sum(const struct lp_mail *mail) {
    const uint8_t *byte = (const uint8_t *)mail;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < offsetof(struct lp_mail, sum); i++) {
        sum = (sum ^ byte[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

bool lp_conn_init(struct lp_conn *conn, const struct lp_identity *who, struct lp_send_ring *sends,
                  struct lp_recv_ring *recvs, uint32_t mtu, uint32_t conn_flags) {
    enum lp_role role;
    memset(conn, 0, sizeof(*conn));
    if (!lp_role_of(who, &role)) {
        return false;
    }
    lp_mig_init(&conn->mig, role);
    conn->who = *who;
    conn->sends = sends;
    conn->recvs = recvs;
    conn->peer_atomics = (conn_flags & LP_CONN_ATOMICS) != 0;
    conn->psn_trusted = (conn_flags & LP_CONN_PSN_UNTRUSTED) == 0;
    conn->prefer = LP_SPARES;
    lp_send_ring_epoch(sends, who->local_psn, mtu, 0);
    return true;
}

/* ---- the state machine's surroundings
 * ------------------------------------------------------------------------ */

static enum lp_settle_fault try_settle(struct lp_conn *conn, const struct lp_mail *mail, bool commit) {
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
    enum lp_settle_fault fault = lp_send_ring_settle(conn->sends, mark, commit, &executed);
    conn->executed += executed;
    conn->fault = (uint8_t)fault;
    return fault;
}

static void forget_marks_before(struct lp_mig *mig, uint32_t epoch) {
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
static void rebase_sends(struct lp_conn *conn) {
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

static uint32_t pick_spare(const struct lp_conn *conn) {
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
    if (try_settle(conn, &conn->offer, true) != LP_SETTLE_FINE) {
        mig->pending = 0;
        return run(conn, LP_EV_OFFER_BAD);
    }
    forget_marks_before(mig, conn->offer.base);
    enter_epoch(conn, mig->pending, mig->pending_spare);
    rebase_sends(conn);
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

static uint32_t step(struct lp_conn *conn, enum lp_event event);

/* Would a fence now leave a request of ours that can't be settled? */
static bool at_risk(const struct lp_conn *conn) {
    if (conn->peer_untrusted) {
        return lp_send_ring_has_posted(conn->sends);
    }
    return atomic_load_explicit(&conn->sends->fragile, memory_order_relaxed) != 0;
}

/* Steps that follow from what is already known. */
static uint32_t pump(struct lp_conn *conn) {
    struct lp_mig *mig = &conn->mig;
    if (mig->state == LP_HOLD && !at_risk(conn)) {
        return run(conn, LP_EV_QUIET);
    }
    if (mig->state == LP_ACTIVE && conn->prep_waits) {
        conn->prep_waits = 0;
        return step(conn, LP_EV_PREP);
    }
    if (mig->state == LP_FENCED && mig->role == LP_FOLLOWER && mig->pending != 0) {
        return take_offer(conn);
    }
    if (mig->state == LP_FENCED && mig->role == LP_LEADER && pick_spare(conn) != LP_SPARES) {
        return take_spare(conn, pick_spare(conn));
    }
    return 0;
}

static uint32_t step(struct lp_conn *conn, enum lp_event event) {
    uint32_t actions = run(conn, event);
    if ((actions & LP_DO_MARK) && !at_risk(conn)) {
        actions &= ~(uint32_t)LP_DO_MARK;
    }
    uint32_t more = pump(conn);
    if (more != 0) { /* what was to be told of the epoch just left is past */
        actions &= ~(uint32_t)(LP_DO_TELL_NEED | LP_DO_ATTEMPT);
    }
    return actions | more;
}

/* ---- the job's calls
 * ----------------------------------------------------------------------------------------- */

static enum lp_post posted(enum lp_push push, bool now) {
    switch (push) {
    case LP_PUSH_OK:
        return now ? LP_POST_NOW : LP_POST_HELD;
    case LP_PUSH_FULL:
        return LP_POST_FULL;
    default:
        return LP_POST_TOO_BIG;
    }
}

enum lp_post lp_conn_post_send(struct lp_conn *conn, const struct lp_send *send, uint32_t *token) {
    uint32_t backlog;
    bool now = !conn->holding && !lp_send_ring_next(conn->sends, &backlog); /* never overtakes what is held */
    return posted(lp_send_ring_push(conn->sends, send, now, token), now);
}

enum lp_post lp_conn_post_recv(struct lp_conn *conn, uint64_t wr_id, const struct lp_sge *sges,
                               uint32_t count, uint32_t *token) {
    uint32_t backlog;
    bool now = !conn->holding_recvs && !lp_recv_ring_next(conn->recvs, &backlog);
    return posted(lp_recv_ring_push(conn->recvs, wr_id, sges, count, now, token), now);
}

void lp_conn_unpost_send(struct lp_conn *conn, uint32_t token) {
    lp_send_ring_unpush(conn->sends, token);
}

void lp_conn_unpost_recv(struct lp_conn *conn, uint32_t token) {
    lp_recv_ring_unpush(conn->recvs, token);
}

/* ---- completions
 * --------------------------------------------------------------------------------------------- */

/* May this epoch's queue pair still say something? */
static bool is_open(const struct lp_conn *conn, uint32_t epoch) {
    return epoch == conn->mig.epoch && !lp_mig_is_fenced(&conn->mig);
}

static uint32_t bad_status(struct lp_conn *conn, uint32_t status) {
    if (lp_status_class(status) == LP_CLASS_APP) {
        if (!conn->failing) {
            conn->error = status;
        }
        return step(conn, LP_EV_APP_ERROR);
    }
    if (conn->error == 0 && status != LP_WC_FLUSH) {
        conn->error = status;
    }
    return step(conn, LP_EV_ERROR); /* flushed, and not by us: somebody has moved the queue pair to ERR */
}

uint32_t lp_conn_send_cqe(struct lp_conn *conn, uint32_t epoch, uint32_t token, uint32_t status) {
    if (!is_open(conn, epoch)) {
        return 0;
    }
    if (status != LP_WC_OK) {
        /* The responder refused this very request, and by that acknowledged all before it. */
        if (lp_status_class(status) == LP_CLASS_APP && conn->mig.base == epoch &&
            token != conn->sends->undone) {
            (void)lp_send_ring_complete(conn->sends, token - 1);
        }
        return bad_status(conn, status);
    }
    if (conn->mig.base != epoch || !lp_send_ring_complete(conn->sends, token)) {
        return bad_status(conn, LP_WC_FATAL); /* a completion of nothing: this provider can't be followed */
    }
    conn->error = 0; /* this path works */
    return pump(conn);
}

bool lp_conn_send_cqe_fast(struct lp_conn *conn, uint32_t epoch, uint32_t token, uint64_t *job_wr_id) {
    if (conn->mig.state != LP_ACTIVE || epoch != conn->mig.epoch ||
        !lp_send_ring_retire(conn->sends, token, job_wr_id)) {
        return false;
    }
    conn->error = 0;
    return true;
}

uint32_t lp_conn_recv_cqe(struct lp_conn *conn, uint32_t epoch, uint32_t token, uint32_t status,
                          bool *deliver, uint64_t *job_wr_id) {
    struct lp_recv_entry entry;
    *deliver = false;
    if (!is_open(conn, epoch)) {
        return 0;
    }
    if (status != LP_WC_OK) {
        return bad_status(conn, status);
    }
    if (!lp_recv_ring_consume(conn->recvs, token, &entry)) {
        return bad_status(conn, LP_WC_FATAL);
    }
    conn->consumed++;
    *deliver = true;
    *job_wr_id = entry.wr_id;
    return 0;
}

static void describe_send(const struct lp_send_entry *entry, uint32_t status, struct lp_done *done) {
    memset(done, 0, sizeof(*done));
    done->wr_id = entry->wr_id;
    done->status = status;
    done->length = entry->length;
    done->opcode = entry->opcode;
}

static bool next_error(struct lp_conn *conn, struct lp_done *done) {
    struct lp_send_entry send;
    struct lp_recv_entry recv;
    if (lp_send_ring_discard(conn->sends, &send)) {
        if (LP_MUTANT(LP_M_WRONG_FAILURE) && send.state == LP_DONE) {
            describe_send(&send, LP_WC_OK, done);
            return true;
        }
        uint32_t original = conn->error != 0 ? conn->error : (uint32_t)LP_WC_RETRY_EXC;
        describe_send(&send, conn->first_error_out ? (uint32_t)LP_WC_FLUSH : original, done);
        conn->first_error_out = 1;
        return true;
    }
    if (conn->recvs != NULL && lp_recv_ring_discard(conn->recvs, &recv)) {
        memset(done, 0, sizeof(*done));
        done->wr_id = recv.wr_id;
        done->status = LP_WC_FLUSH;
        done->is_recv = 1;
        return true;
    }
    return false;
}

bool lp_conn_next(struct lp_conn *conn, struct lp_done *done) {
    struct lp_send_entry entry;
    if (conn->failing && conn->first_error_out) {
        return next_error(conn, done);
    }
    while (lp_send_ring_pop(conn->sends, &entry)) {
        if (entry.flags & LP_SEND_SIGNALED) {
            describe_send(&entry, LP_WC_OK, done);
            return true;
        }
    }
    return conn->failing && next_error(conn, done);
}

/* ---- what happens
 * -------------------------------------------------------------------------------------------- */

uint32_t lp_conn_order(struct lp_conn *conn, uint32_t prefer) {
    struct lp_mig *mig = &conn->mig;
    if (mig->state != LP_ACTIVE) {
        return 0;
    }
    if (mig->role == LP_LEADER) {
        conn->prefer = (uint8_t)(prefer < LP_SPARES ? prefer : LP_SPARES);
        if (pick_spare(conn) == LP_SPARES) {
            return 0; /* nowhere to go: advice isn't worth losing a path that may work */
        }
    }
    bool gently = conn->peer_atomics || !conn->psn_trusted || at_risk(conn);
    return step(conn, gently ? LP_EV_ORDER : LP_EV_ORDER_FREE);
}

uint32_t lp_conn_fatal(struct lp_conn *conn, uint32_t epoch) {
    if (!is_open(conn, epoch)) {
        return 0;
    }
    return step(conn, LP_EV_ERROR);
}

static bool mirrors(const struct lp_identity *mine, const struct lp_identity *theirs) {
    return memcmp(mine->local_gid, theirs->remote_gid, sizeof(mine->local_gid)) == 0 &&
           memcmp(mine->remote_gid, theirs->local_gid, sizeof(mine->local_gid)) == 0 &&
           mine->local_qpn == theirs->remote_qpn && mine->remote_qpn == theirs->local_qpn &&
           mine->local_psn == theirs->remote_psn && mine->remote_psn == theirs->local_psn;
}

uint32_t lp_conn_tell(struct lp_conn *conn, const struct lp_identity *who, const struct lp_tell *tell) {
    struct lp_mig *mig = &conn->mig;
    if (!mirrors(&conn->who, who)) {
        return 0;
    }
    if (tell->kind == LP_TELL_ABORT) {
        return step(conn, LP_EV_ABORT);
    }
    if (mig->state == LP_FAILED) {
        return LP_DO_TELL_ABORT;
    }
    if (tell->epoch != mig->epoch) {
        return 0;
    }
    if (tell->kind == LP_TELL_NEED && mig->role == LP_LEADER) {
        return tell->hard ? step(conn, LP_EV_NEED) : lp_conn_order(conn, tell->spare);
    }
    if (tell->kind == LP_TELL_PREP && mig->role == LP_FOLLOWER) {
        conn->prep_waits = mig->state == LP_REPLAYING; /* the leader was quicker to get there */
        return step(conn, LP_EV_PREP);
    }
    return 0;
}

uint32_t lp_conn_spare_usable(struct lp_conn *conn, uint32_t spare, const struct lp_path *path) {
    if (spare >= LP_SPARES || (spare == conn->mig.spare && !lp_mig_is_fenced(&conn->mig))) {
        return 0; /* in use: a spare is made anew only after its epoch was fenced */
    }
    if (path->mtu == 0) {
        return 0;
    }
    if (conn->mig.pending != 0 && conn->mig.pending_spare == spare) {
        conn->mig.pending = 0; /* that offer was for the pair before this one */
    }
    conn->spares[spare] = *path;
    conn->spares[spare].usable = true;
    conn->peer_untrusted = path->peer_untrusted;
    return pump(conn);
}

uint32_t lp_conn_spare_gone(struct lp_conn *conn, uint32_t spare) {
    if (spare >= LP_SPARES) {
        return 0;
    }
    conn->spares[spare].usable = false;
    return spare == conn->mig.spare ? lp_conn_fatal(conn, conn->mig.epoch) : 0;
}

uint32_t lp_conn_drained(struct lp_conn *conn, uint32_t epoch, uint32_t known, uint32_t rq_psn) {
    struct lp_mig *mig = &conn->mig;
    if (mig->state != LP_FENCING || epoch != mig->epoch) {
        return 0;
    }
    if (mig->mark_count == LP_MARKS) {
        return step(conn, LP_EV_UNFENCED);
    }
    if (!conn->psn_trusted) {
        known &= ~(uint32_t)LP_MARK_PSN;
    }
    mig->marks[mig->mark_count++] =
        (struct lp_mark){.epoch = epoch, .psn = rq_psn, .consumed = conn->consumed, .flags = known};
    return step(conn, LP_EV_DRAINED);
}

uint32_t lp_conn_unfenced(struct lp_conn *conn, uint32_t epoch) {
    return conn->mig.state == LP_FENCING && epoch == conn->mig.epoch ? step(conn, LP_EV_UNFENCED) : 0;
}

uint32_t lp_conn_opened(struct lp_conn *conn, uint32_t epoch, bool done) {
    if (conn->mig.state != LP_OPENING || epoch != conn->mig.epoch) {
        return 0;
    }
    return step(conn, done ? LP_EV_OPENED : LP_EV_UNOPENED);
}

uint32_t lp_conn_replayed(struct lp_conn *conn, uint32_t epoch) {
    return conn->mig.state == LP_REPLAYING && epoch == conn->mig.epoch ? step(conn, LP_EV_REPLAYED) : 0;
}

uint32_t lp_conn_attempt(struct lp_conn *conn) {
    return step(conn, LP_EV_ATTEMPT);
}

uint32_t lp_conn_timeout(struct lp_conn *conn) {
    return step(conn, LP_EV_TIMEOUT);
}

uint32_t lp_conn_destroy(struct lp_conn *conn) {
    return step(conn, LP_EV_DESTROY);
}

/* ---- mails
 * --------------------------------------------------------------------------------------------------- */

static bool is_sound(const struct lp_conn *conn, uint32_t spare, const struct lp_mail *mail) {
    return spare < LP_SPARES && mail->magic == LP_MAIL_MAGIC && mail->version == LP_ABI_VERSION &&
           mail->sum == lp_mail_sum(mail) && mail->mark_count <= LP_MARKS && mail->spare == spare &&
           mail->round == conn->spares[spare].round && mirrors(&conn->who, &mail->who);
}

static uint32_t take_accept(struct lp_conn *conn, const struct lp_mail *mail) {
    struct lp_mig *mig = &conn->mig;
    if (mig->state != LP_OFFERED || mail->epoch != mig->epoch || mail->spare != mig->spare) {
        return 0;
    }
    if (try_settle(conn, mail, true) != LP_SETTLE_FINE) {
        return step(conn, LP_EV_ACCEPT_BAD);
    }
    rebase_sends(conn);
    forget_marks_before(mig, mig->epoch);
    return step(conn, LP_EV_ACCEPT);
}

uint32_t lp_conn_mail(struct lp_conn *conn, uint32_t spare, const struct lp_mail *mail) {
    struct lp_mig *mig = &conn->mig;
    if (!is_sound(conn, spare, mail)) {
        return 0;
    }
    if (mail->kind == LP_MAIL_ACCEPT && mig->role == LP_LEADER) {
        return take_accept(conn, mail);
    }
    if (mail->kind != LP_MAIL_OFFER || mig->role != LP_FOLLOWER) {
        return 0;
    }
    if (mig->state == LP_FAILED) {
        return LP_DO_TELL_ABORT;
    }
    if (!conn->spares[spare].usable && !LP_MUTANT(LP_M_OLD_OFFER)) {
        return 0; /* used up already, or gone: the leader will find out */
    }
    if ((mail->epoch <= mig->epoch || mail->epoch <= mig->pending) && !LP_MUTANT(LP_M_OLD_OFFER)) {
        return 0; /* late or repeated: a newer one was seen */
    }
    conn->offer = *mail;
    mig->pending = mail->epoch;
    mig->pending_spare = (uint8_t)spare;
    return mig->state == LP_FENCED ? pump(conn) : step(conn, LP_EV_OFFER);
}

void lp_conn_write_mail(const struct lp_conn *conn, enum lp_mail_kind kind, struct lp_mail *mail) {
    const struct lp_mig *mig = &conn->mig;
    memset(mail, 0, sizeof(*mail));
    mail->magic = LP_MAIL_MAGIC;
    mail->version = LP_ABI_VERSION;
    mail->kind = (uint16_t)kind;
    mail->who = conn->who;
    mail->epoch = mig->epoch;
    mail->base = mig->base;
    mail->spare = mig->spare;
    mail->round = mig->spare < LP_SPARES ? conn->spares[mig->spare].round : 0;
    mail->mark_count = mig->mark_count;
    memcpy(mail->marks, mig->marks, mig->mark_count * sizeof(mig->marks[0]));
    mail->sum = lp_mail_sum(mail);
}

void lp_conn_mail_sent(struct lp_conn *conn, uint32_t spare) {
    conn->spares[spare].mails++;
    if (spare == conn->mig.spare && conn->mig.base == conn->mig.epoch && !LP_MUTANT(LP_M_MAILS_FORGOTTEN)) {
        conn->sends->posted++;
    }
}

void lp_conn_marker_sent(struct lp_conn *conn, uint32_t *token) {
    *token = conn->sends->next - 1;
    conn->sends->posted++;
}

uint32_t lp_conn_marker_done(struct lp_conn *conn, uint32_t epoch, uint32_t token) {
    if (!is_open(conn, epoch) || conn->mig.base != epoch) {
        return 0;
    }
    (void)lp_send_ring_complete(conn->sends, token); /* false: its own completion came before */
    return pump(conn);
}

/* ---- posting what was recorded
 * ------------------------------------------------------------------------------- */

bool lp_conn_next_post(struct lp_conn *conn, uint32_t *token) {
    return lp_send_ring_next(conn->sends, token);
}

void lp_conn_posted(struct lp_conn *conn, uint32_t token) {
    conn->replayed += lp_send_ring_at(conn->sends, token)->replays != 0;
    lp_send_ring_posted(conn->sends, token);
}

bool lp_conn_next_recv(struct lp_conn *conn, uint32_t *token) {
    return conn->recvs != NULL && lp_recv_ring_next(conn->recvs, token);
}

void lp_conn_recv_posted(struct lp_conn *conn, uint32_t token) {
    lp_recv_ring_posted(conn->recvs, token);
}
