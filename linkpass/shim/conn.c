#include "conn_inner.h"

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
bool lp_conn_is_open(const struct lp_conn *conn, uint32_t epoch) {
    return epoch == conn->mig.epoch && !lp_mig_is_fenced(&conn->mig);
}

static uint32_t bad_status(struct lp_conn *conn, uint32_t status) {
    if (lp_status_class(status) == LP_CLASS_APP) {
        if (!conn->failing) {
            conn->error = status;
        }
        return lp_conn_step(conn, LP_EV_APP_ERROR);
    }
    if (conn->error == 0 && status != LP_WC_FLUSH) {
        conn->error = status;
    }
    return lp_conn_step(conn,
                        LP_EV_ERROR); /* flushed, and not by us: somebody has moved the queue pair to ERR */
}

uint32_t lp_conn_send_cqe(struct lp_conn *conn, uint32_t epoch, uint32_t token, uint32_t status) {
    if (!lp_conn_is_open(conn, epoch)) {
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
    return lp_conn_pump(conn);
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
    if (!lp_conn_is_open(conn, epoch)) {
        return 0;
    }
    if (status != LP_WC_OK) {
        return bad_status(conn, status);
    }
    if (conn->recvs != NULL) {
        if (!lp_recv_ring_consume(conn->recvs, token, &entry)) {
            return bad_status(conn, LP_WC_FATAL);
        }
        *job_wr_id = entry.wr_id;
    }
    conn->consumed++;
    *deliver = true;
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
