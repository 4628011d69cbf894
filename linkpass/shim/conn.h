/* One protected connection end: the rings, the marks and the state machine put together. Still no verbs call:
 * the caller (real shim, tests' model) tells what happened and does what the returned actions say.
 *
 * The caller's duties, on which exactness rests:
 *   - post on the real queue pair in the order of tokens, with the token as wr_id;
 *   - serialise posters with everything that returns actions (a migration's step), not with polling on the
 * fast path;
 *   - hand in every completion of this queue pair, in the order of its completion queue, with the epoch it
 * belongs to;
 *   - say lp_conn_drained only when the queue pair is in ERR and every completion has been handed in, and
 * read rq_psn after that;
 *   - on LP_DO_FAIL, drain the queue pair first when that is still possible, then take lp_conn_next's errors;
 *   - write nothing on a spare but mails counted with lp_conn_mail_sent, before the epoch opens on it, and
 * requests.
 */
#ifndef LINKPASS_CONN_H
#define LINKPASS_CONN_H

#include "migrate.h"
#include "ring.h"

/* A half of a path: what the wire's numbers start from. */
struct lp_path {
    uint32_t tx_psn; /* first PSN we send */
    uint32_t rx_psn; /* first PSN we expect */
    uint32_t mtu;    /* bytes */
    uint32_t mails;  /* packets that the shim itself has sent on it */
    uint32_t round;
    bool usable;         /* connected and proven to carry data both ways, never opened yet */
    bool peer_untrusted; /* the peer said so when it made its half (LP_SPARE_PSN_UNTRUSTED) */
    uint8_t reserved[2];
};

struct lp_conn {
    struct lp_mig mig;
    struct lp_identity who;
    struct lp_path spares[LP_SPARES];
    struct lp_mail offer; /* follower: the pending offer; leader: unused */
    struct lp_send_ring *sends;
    struct lp_recv_ring *recvs; /* NULL with an SRQ: see docs/shim.md */
    uint32_t error;             /* first path error seen, an ibv_wc_status; 0: none */
    uint32_t consumed;          /* receives of the present epoch that completed with success */
    uint32_t executed;          /* requests found executed by watermark, all migrations */
    uint32_t replayed;
    uint32_t migrations;
    uint8_t holding; /* new sends are only recorded */
    uint8_t holding_recvs;
    uint8_t prep_waits; /* follower: the leader's PREP came before the replay was through */
    uint8_t failing;    /* error completions are being handed out */
    uint8_t first_error_out;
    uint8_t peer_atomics; /* the peer may send atomics */
    uint8_t psn_trusted;  /* of this end's driver */
    uint8_t peer_untrusted;
    uint8_t fault;  /* enum lp_settle_fault of a failed settle */
    uint8_t prefer; /* spare that the agent prefers, or LP_SPARES */
};

enum lp_post {
    LP_POST_NOW = 0, /* recorded: post it on the real queue pair now */
    LP_POST_HELD,    /* recorded: success to the job, posted later */
    LP_POST_FULL,    /* ENOMEM */
    LP_POST_TOO_BIG  /* EINVAL */
};

/* A completion for the job. */
struct lp_done {
    uint64_t wr_id;
    uint32_t status; /* enum ibv_wc_status: 0 success, 5 flushed, else the original error */
    uint32_t length;
    uint8_t opcode; /* enum ibv_wr_opcode of the request */
    uint8_t is_recv;
    uint8_t reserved[6];
};

/* ibv_wc_status values that the core knows (they are kernel ABI). */
enum {
    LP_WC_OK = 0,
    LP_WC_LOC_QP_OP = 2,
    LP_WC_FLUSH = 5,
    LP_WC_RETRY_EXC = 12,
    LP_WC_FATAL = 19,
    LP_WC_RESP_TIMEOUT = 20
};
enum lp_status_class { LP_CLASS_OK, LP_CLASS_FLUSH, LP_CLASS_PATH, LP_CLASS_APP };
enum lp_status_class lp_status_class(uint32_t wc_status);

/* `sends` and `recvs` are initialised rings. `tx_psn`, `mtu`: of the job's own queue pair. */
bool lp_conn_init(struct lp_conn *conn, const struct lp_identity *who, struct lp_send_ring *sends,
                  struct lp_recv_ring *recvs, uint32_t mtu, uint32_t conn_flags);

/* The job's calls. */
enum lp_post lp_conn_post_send(struct lp_conn *conn, const struct lp_send *send, uint32_t *token);
enum lp_post lp_conn_post_recv(struct lp_conn *conn, uint64_t wr_id, const struct lp_sge *sges,
                               uint32_t count, uint32_t *token);
/* The real post of a LP_POST_NOW failed; the job gets that error. */
void lp_conn_unpost_send(struct lp_conn *conn, uint32_t token);
void lp_conn_unpost_recv(struct lp_conn *conn, uint32_t token);

/* Completions of the real queue pair of `epoch`. Returns the actions to do. Send completions come out of
 * lp_conn_next; a successful receive goes to the job at once, `*job_wr_id` being its own wr_id (untouched
 * with an SRQ: the caller knows it) and `*deliver` true. */
uint32_t lp_conn_send_cqe(struct lp_conn *conn, uint32_t epoch, uint32_t token, uint32_t status);
/* The usual case, made short: a success while nothing is being moved. True: `*job_wr_id` goes to the job now,
 * nothing else to do. False: nothing was done, use lp_conn_send_cqe and lp_conn_next. */
bool lp_conn_send_cqe_fast(struct lp_conn *conn, uint32_t epoch, uint32_t token, uint64_t *job_wr_id);
uint32_t lp_conn_recv_cqe(struct lp_conn *conn, uint32_t epoch, uint32_t token, uint32_t status,
                          bool *deliver, uint64_t *job_wr_id);
/* The next completion that the shim itself owes the job, in order. */
bool lp_conn_next(struct lp_conn *conn, struct lp_done *done);

/* What happened. Each returns the actions to do (enum lp_action). */
uint32_t lp_conn_order(struct lp_conn *conn, uint32_t prefer);
uint32_t lp_conn_fatal(struct lp_conn *conn,
                       uint32_t epoch); /* async event of the queue pair or its device */
uint32_t lp_conn_tell(struct lp_conn *conn, const struct lp_identity *who, const struct lp_tell *tell);
uint32_t lp_conn_spare_usable(struct lp_conn *conn, uint32_t spare, const struct lp_path *path);
uint32_t lp_conn_spare_gone(struct lp_conn *conn, uint32_t spare);
/* `known`: which parts of the mark could be read (enum lp_mark_flags). */
uint32_t lp_conn_drained(struct lp_conn *conn, uint32_t epoch, uint32_t known, uint32_t rq_psn);
uint32_t lp_conn_unfenced(struct lp_conn *conn, uint32_t epoch);
uint32_t lp_conn_opened(struct lp_conn *conn, uint32_t epoch, bool done);
uint32_t lp_conn_replayed(struct lp_conn *conn, uint32_t epoch);
uint32_t lp_conn_attempt(struct lp_conn *conn);
uint32_t lp_conn_timeout(struct lp_conn *conn);
uint32_t lp_conn_destroy(struct lp_conn *conn);
/* Checks a mail against connection, role and spare, then takes it. Anything odd is dropped: no action. */
uint32_t lp_conn_mail(struct lp_conn *conn, uint32_t spare, const struct lp_mail *mail);

/* Doing what the actions say. */
void lp_conn_write_mail(const struct lp_conn *conn, enum lp_mail_kind kind, struct lp_mail *mail);
void lp_conn_mail_sent(struct lp_conn *conn, uint32_t spare);
/* The marker of LP_DO_MARK takes one packet. Count it when it is posted (`*token`: what it stands behind),
 * and hand that token in when it has completed with success. */
void lp_conn_marker_sent(struct lp_conn *conn, uint32_t *token);
uint32_t lp_conn_marker_done(struct lp_conn *conn, uint32_t epoch, uint32_t token);
bool lp_conn_next_post(struct lp_conn *conn, uint32_t *token); /* replay and held sends, in order */
void lp_conn_posted(struct lp_conn *conn, uint32_t token);
bool lp_conn_next_recv(struct lp_conn *conn, uint32_t *token);
void lp_conn_recv_posted(struct lp_conn *conn, uint32_t token);

uint64_t lp_mail_sum(const struct lp_mail *mail);

#endif
