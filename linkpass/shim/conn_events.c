/* What happens to a connection: advice, faults, timers, the peer's mails. Checks it, then steps. */
#include <stddef.h>
#include <string.h>

#include "conn_inner.h"
#include "mutant.h"

/* ---- what happens
 * -------------------------------------------------------------------------------------------- */

uint32_t lp_conn_order(struct lp_conn *conn, uint32_t prefer) {
    struct lp_mig *mig = &conn->mig;
    if (mig->state != LP_ACTIVE) {
        return 0;
    }
    if (mig->role == LP_LEADER) {
        conn->prefer = (uint8_t)(prefer < LP_SPARES ? prefer : LP_SPARES);
        if (lp_conn_pick_spare(conn) == LP_SPARES) {
            return 0; /* nowhere to go: advice isn't worth losing a path that may work */
        }
    }
    bool gently = conn->peer_atomics || !conn->psn_trusted || lp_conn_at_risk(conn);
    return lp_conn_step(conn, gently ? LP_EV_ORDER : LP_EV_ORDER_FREE);
}

uint32_t lp_conn_fatal(struct lp_conn *conn, uint32_t epoch) {
    if (!lp_conn_is_open(conn, epoch)) {
        return 0;
    }
    return lp_conn_step(conn, LP_EV_ERROR);
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
        return lp_conn_step(conn, LP_EV_ABORT);
    }
    if (mig->state == LP_FAILED) {
        return LP_DO_TELL_ABORT;
    }
    if (tell->epoch != mig->epoch) {
        return 0;
    }
    if (tell->kind == LP_TELL_NEED && mig->role == LP_LEADER) {
        return tell->hard ? lp_conn_step(conn, LP_EV_NEED) : lp_conn_order(conn, tell->spare);
    }
    if (tell->kind == LP_TELL_PREP && mig->role == LP_FOLLOWER) {
        conn->prep_waits = mig->state == LP_REPLAYING; /* the leader was quicker to get there */
        return lp_conn_step(conn, LP_EV_PREP);
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
    return lp_conn_pump(conn);
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
        return lp_conn_step(conn, LP_EV_UNFENCED);
    }
    if (!conn->psn_trusted) {
        known &= ~(uint32_t)LP_MARK_PSN;
    }
    mig->marks[mig->mark_count++] =
        (struct lp_mark){.epoch = epoch, .psn = rq_psn, .consumed = conn->consumed, .flags = known};
    return lp_conn_step(conn, LP_EV_DRAINED);
}

uint32_t lp_conn_unfenced(struct lp_conn *conn, uint32_t epoch) {
    return conn->mig.state == LP_FENCING && epoch == conn->mig.epoch ? lp_conn_step(conn, LP_EV_UNFENCED) : 0;
}

uint32_t lp_conn_opened(struct lp_conn *conn, uint32_t epoch, bool done) {
    if (conn->mig.state != LP_OPENING || epoch != conn->mig.epoch) {
        return 0;
    }
    return lp_conn_step(conn, done ? LP_EV_OPENED : LP_EV_UNOPENED);
}

uint32_t lp_conn_replayed(struct lp_conn *conn, uint32_t epoch) {
    return conn->mig.state == LP_REPLAYING && epoch == conn->mig.epoch ? lp_conn_step(conn, LP_EV_REPLAYED)
                                                                       : 0;
}

uint32_t lp_conn_attempt(struct lp_conn *conn) {
    return lp_conn_step(conn, LP_EV_ATTEMPT);
}

uint32_t lp_conn_timeout(struct lp_conn *conn) {
    return lp_conn_step(conn, LP_EV_TIMEOUT);
}

uint32_t lp_conn_destroy(struct lp_conn *conn) {
    return lp_conn_step(conn, LP_EV_DESTROY);
}

/* ---- mails
 * --------------------------------------------------------------------------------------------------- */

uint64_t lp_mail_sum(const struct lp_mail *mail) {
    const uint8_t *byte = (const uint8_t *)mail;
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < offsetof(struct lp_mail, sum); i++) {
        sum = (sum ^ byte[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

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
    if (lp_conn_settle(conn, mail) != LP_SETTLE_FINE) {
        return lp_conn_step(conn, LP_EV_ACCEPT_BAD);
    }
    lp_conn_rebase(conn);
    lp_conn_forget_marks(mig, mig->epoch);
    return lp_conn_step(conn, LP_EV_ACCEPT);
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
    return mig->state == LP_FENCED ? lp_conn_pump(conn) : lp_conn_step(conn, LP_EV_OFFER);
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
    if (!lp_conn_is_open(conn, epoch) || conn->mig.base != epoch) {
        return 0;
    }
    (void)lp_send_ring_complete(conn->sends, token); /* false: its own completion came before */
    return lp_conn_pump(conn);
}
