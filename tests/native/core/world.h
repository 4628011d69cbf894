/* An abstract world for the core: two ends, a job at each, a few paths between them, two agents that relay.
 *
 * It moves by single steps, which the explorer picks. Packets run in order inside a path; a packet that isn't
 * delivered yet may be delivered at any later time, until the receiving queue pair is in ERR: so every point
 * of loss and every late packet is one of the orders of steps. The same for acknowledgements. The world knows
 * what was executed, so the oracle doesn't depend on the code under test.
 */
#ifndef WORLD_H
#define WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conn.h"
#include "mutant.h"

#define REQS 4  /* requests a side */
#define PATHS 4 /* 0: the job's own queue pairs; 1..3: spares 0..2 */
#define MTU 256
#define CQES 16
#define TELLS 6
#define SENDS_BYTES 704
#define RECVS_BYTES 256
#define MAIL_OP 0xff
#define MARK_OP 0xfe

struct request {
    uint8_t op; /* enum lp_op */
    uint8_t packets;
    bool signaled;
    bool fence;
};

struct program {
    struct request req[2][REQS];
    uint8_t count[2];
};

/* How much trouble a run may meet, and how the world is set up. */
struct limits {
    uint8_t faults;     /* queue pairs that die by themselves */
    uint8_t orders;     /* advice to leave, for whatever reason, true or false */
    uint8_t attempts;   /* impatience of an end */
    uint8_t timeouts;   /* give-up deadlines */
    uint8_t destroys;   /* by a job, at any time */
    uint8_t app_errors; /* a request that the peer refuses */
    uint8_t repeats;    /* a relayed message or a mail is handed in twice */
    uint8_t drops;      /* relayed messages lost; 255: the relay is silent */
    uint8_t lies;       /* relayed messages that nobody sent */
    uint8_t reorder;    /* relayed messages may overtake each other */
    uint8_t late_sends; /* the last so many requests of an end are posted at any time */
    uint8_t late_recvs;
    uint8_t late_spare;  /* even the first spare comes at any time */
    uint8_t eager;       /* completions are polled at once */
    uint8_t untrusted;   /* bit e: end e's rq_psn can't be trusted */
    uint8_t no_consumed; /* bit e: end e can't count its receives */
    uint8_t atomics;     /* queue pairs allow remote atomics even to peers that send none */
};

struct wqe {
    uint8_t op; /* enum lp_op or MAIL_OP */
    uint8_t req;
    uint8_t first;
    uint8_t end;
    uint8_t signaled;
    uint8_t fence;
    uint32_t token;
};

struct cqe {
    uint32_t token;
    uint8_t status;
    uint8_t is_recv;
    uint8_t is_mail; /* the shim's own: op of the request */
    uint8_t message;
};

struct qp {
    uint8_t error;
    uint8_t acked;    /* packets of ours that we know executed */
    uint8_t expected; /* packets of the peer that we executed */
    uint8_t sq_count;
    uint8_t rq_count;
    uint8_t rq_used;
    uint8_t cq_head;
    uint8_t cq_count;
    uint8_t mail_unread;
    uint8_t mail_known;
    struct wqe sq[REQS + 3];
    uint32_t rq[REQS];
    struct cqe cq[CQES];
    struct lp_mail sent; /* what we wrote into the peer's mailbox; it travels as a packet */
};

struct tells {
    uint8_t count;
    struct lp_tell item[TELLS];
};

/* What the job at one end did and saw, and what really happened to its requests at the other end. */
struct job {
    uint8_t sends_posted;
    uint8_t recvs_posted;
    uint8_t next_send; /* the oldest request whose fate the job doesn't know */
    uint8_t next_recv;
    uint8_t failed; /* an error was shown */
    uint8_t send_failed;
    uint8_t destroyed;
    uint8_t executed[REQS]; /* times its last packet was executed at the peer */
    uint8_t touched[REQS];  /* packets of it executed, the most of any path */
    uint8_t answered[REQS]; /* its result came back */
};

struct end {
    struct lp_conn conn;
    struct job job;
    struct tells inbox;
    uint8_t spare_known; /* bit k */
    _Alignas(64) uint8_t sends[SENDS_BYTES];
    _Alignas(64) uint8_t recvs[RECVS_BYTES];
};

struct world {
    struct end ends[2];
    struct limits left;
    const struct limits *limits;
    const struct program *program;
    const char *wrong;       /* what the oracle found, NULL: nothing */
    uint8_t paths;           /* paths that this run can need */
    uint8_t excuse;          /* a reason why an error may be shown (enum excuse) */
    struct qp qps[PATHS][2]; /* last: only `paths` of them are copied */
};

enum excuse {
    EXCUSE_TIMEOUT = 1,
    EXCUSE_DESTROY = 2,
    EXCUSE_APP = 4,
    EXCUSE_LIE = 8,
    EXCUSE_ATOMIC = 16, /* an atomic's result was truly lost: executed, not answered, its queue pair gone */
    EXCUSE_BLIND = 32   /* a mark was incomplete */
};

/* Steps. */
enum step_kind {
    ST_POST_SEND,
    ST_POST_RECV,
    ST_DELIVER,
    ST_ACK,
    ST_POLL,
    ST_DRAIN,
    ST_OPEN,
    ST_REPLAY,
    ST_MAIL,
    ST_TELL,
    ST_RETRY_EXC,
    ST_SPARE,
    ST_LAST_PROGRESS = ST_SPARE, /* what comes after is trouble and needs budget */
    ST_FAULT,
    ST_ORDER,
    ST_ATTEMPT,
    ST_TIMEOUT,
    ST_DESTROY,
    ST_APP_ERROR,
    ST_REPEAT_TELL,
    ST_REPEAT_MAIL,
    ST_DROP,
    ST_LIE,
    ST_KINDS
};

struct step {
    uint8_t kind;
    uint8_t end;
    uint8_t a; /* path, or index */
    uint8_t b;
};

#define MAX_STEPS 96

void world_init(struct world *world, const struct program *program, const struct limits *limits);
void world_copy(struct world *to, const struct world *from);
unsigned world_steps(const struct world *world, struct step *steps); /* enabled ones, at most MAX_STEPS */
void world_apply(struct world *world, struct step step);
uint64_t world_hash(struct world *world);
/* No step is left that isn't trouble: everything must be well now. */
void world_check_end(struct world *world);

/* nic.c */
bool nic_can_deliver(const struct world *world, unsigned path, unsigned from, bool *starved);
void nic_deliver(struct world *world, unsigned path, unsigned from);
bool nic_can_ack(const struct world *world, unsigned path, unsigned end);
void nic_ack(struct world *world, unsigned path, unsigned end);
void nic_post(struct world *world, unsigned path, unsigned end, const struct wqe *wqe, unsigned packets);
void nic_post_recv(struct world *world, unsigned path, unsigned end, uint32_t token);
void nic_to_error(struct world *world, unsigned path, unsigned end, uint32_t status);
bool nic_has_open_sends(const struct qp *qp);
bool nic_take_cqe(struct qp *qp, struct cqe *cqe);

/* driver.c: the shim's doing part */
void driver_do(struct world *world, unsigned end, uint32_t actions);
void driver_poll_one(struct world *world, unsigned path, unsigned end);
void driver_poll_all(struct world *world, unsigned end);
void driver_drain(struct world *world, unsigned end);
void driver_open(struct world *world, unsigned end);
void driver_replay(struct world *world, unsigned end);
void driver_post_send(struct world *world, unsigned end);
void driver_post_recv(struct world *world, unsigned end);
void driver_give_job(struct world *world, unsigned end);
void driver_spare(struct world *world, unsigned end, unsigned spare);
unsigned driver_path(const struct world *world, unsigned end);

/* oracle.c */
void oracle_packet(struct world *world, unsigned from, const struct wqe *wqe, unsigned index);
void oracle_executed(struct world *world, unsigned from, unsigned req);
void oracle_send_done(struct world *world, unsigned end, const struct lp_done *done);
void oracle_recv_done(struct world *world, unsigned end, uint64_t wr_id, unsigned message);
void oracle_end(struct world *world);
void oracle_wrong(struct world *world, const char *what);

/* program.c */
bool program_parse(const char *text, struct program *program);
void program_print(const struct program *program, char *text, unsigned size);
bool limits_parse(const char *text, struct limits *limits);
void limits_print(const struct limits *limits, char *text, unsigned size);
void step_print(struct step step, char *text, unsigned size);
bool step_parse(const char *text, struct step *step);

#endif
