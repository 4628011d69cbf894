/*
 * The doers: what carries out the core's actions (conn.h) on real verbs objects, for every protected queue
 * pair.
 *
 *   lane     one queue pair of the job, its rings and its halves
 *   half     one real queue pair of a lane: the job's own, or a spare on another NIC
 *   queue    a completion queue of the job (deliver.h): shows completions of all halves
 *   source   a completion queue of a spare NIC that feeds one of the job's
 *   domain   a protection domain of the job and its memory regions (keys.h)
 *   reserve  the same on a spare NIC, with the key table that peers read
 *   shared   a shared receive queue of the job, and the places where its receives lie (srq.h)
 *
 * Threads: the job's own, and one of this library (the keeper), which does everything that isn't a post or a
 * poll.  Locks, in the order of taking:
 *
 *   lp_engine.lock   the set of lanes, halves, sources; the keeper holds it while it works
 *   queue->poll_lock taking completions from the real queues of one CQ
 *   lane->lock       one lane: posts, the core, its halves
 *   leaves:          queue->ready_lock, bell->lock, domain->lock, shared->lock
 *
 * A post takes lane->lock only, a poll poll_lock and then the lane of each completion.
 */
#ifndef LP_ENGINE_H
#define LP_ENGINE_H

#include <pthread.h>

#include "attach.h"
#include "conn.h"
#include "lock.h"

/* What a work request of this library's is: the upper half of its wr_id.  The lower half is the token. */
enum lp_kind {
    LP_KIND_SEND = 1,
    LP_KIND_RECV,
    LP_KIND_MARKER,    /* LP_DO_MARK */
    LP_KIND_DRAIN,     /* posted after the move to ERR: when it is flushed, all before it was */
    LP_KIND_MAIL_SEND, /* a mail of ours */
    LP_KIND_MAIL_RECV, /* the peer's mail has come */
    LP_KIND_KEYS       /* a READ of the peer's key table */
};

#define LP_WR_ID(kind, token) (((uint64_t)(kind) << 32) | (uint32_t)(token))

/* Each half of a spare gets exactly these mails in its life, and posts as many receives for them. */
enum { LP_MAILS_PER_ROUND = 3 /* PROBE, ECHO, and OFFER or ACCEPT */ };
/* So long may a job take from RTR to RTS before its queue pair is taken for one that only receives, ns. */
#define LP_PASSIVE_NS UINT64_C(500000000)
/* Slots of a send queue beyond the job's: mails, markers, READs of keys. */
enum { LP_OWN_SLOTS = 16 };
/* Entries of the job's completion queues beyond what it asked for. */
enum { LP_MORE_CQE = 128 };

enum lp_stage {
    LP_STAGE_MADE = 1, /* INIT, told to the agent */
    LP_STAGE_JOINED,   /* RTS; the probe is out */
    LP_STAGE_USABLE,   /* carries data both ways */
    LP_STAGE_OPEN,     /* an epoch runs on it, or ran */
    LP_STAGE_BROKEN    /* to be destroyed */
};

enum lp_keys_state { LP_KEYS_NONE = 0, LP_KEYS_HEAD, LP_KEYS_BODY, LP_KEYS_READ };

struct lp_lane;
struct lp_reserve;
struct lp_source;
struct lp_queue;
struct lp_domain;
struct lp_shared;
struct lp_place;
struct lp_shelf;

struct lp_half {
    struct lp_lane *lane;     /* NULL: of a queue pair that isn't recorded, or is gone */
    struct lp_shared *shared; /* with a shared receive queue */
    struct lp_place *place;
    bool takes; /* it may take receives there: counted in place->users */
    struct ibv_qp *qp;
    uint32_t qp_num;
    uint32_t epoch; /* when open */
    uint8_t id;     /* of the spare; LP_SPARES: the job's own */
    uint8_t stage;  /* enum lp_stage */
    bool in_error, drained;
    uint64_t drain_at;  /* ns: when the drain marker was posted last, 0: not yet */
    bool overrun;       /* its completion queue lost something */
    uint32_t recvs_out; /* receives posted whose completion wasn't seen */

    /* spares only */
    struct lp_reserve *reserve;
    struct lp_source *send_source, *recv_source;
    struct lp_spare mine, peer;
    bool told, sent_echo, heard_echo;
    uint8_t port, sgid_index;
    uint8_t mails_in, mails_read; /* arrived, looked at */
    uint32_t nonce, mails;        /* mails: sent before it was usable */
    struct ibv_qp *mail_qp;       /* with a shared receive queue: takes the mails */
    uint8_t *block;               /* mailbox, outbox, key table: registered */
    struct ibv_mr *block_mr;

    uint8_t keys; /* enum lp_keys_state */
    bool keys_wanted, keys_fresh;
    uint8_t *keys_block; /* what was read; may be part of `block` */
    struct ibv_mr *keys_mr;
    uint32_t keys_room, keys_count;
    uint64_t keys_version;
};

struct lp_lane {
    struct lp_lock lock;
    struct lp_conn conn;
    struct lp_half own;
    struct lp_half *spares[LP_SPARES];
    struct lp_half *now; /* where requests go */
    struct lp_qp *qp;
    struct lp_queue *send_queue, *recv_queue;
    struct lp_shared *shared; /* NULL: receives of its own */
    struct lp_domain *domain;
    void *send_block, *recv_block;
    _Atomic(struct lp_wr_batch *) batch; /* arrays for the next ibv_wr_* batch, kept from one to the other */
    uint64_t id;
    struct ibv_qp_attr attr; /* as the job set it */
    struct lp_identity who;
    _Atomic bool connected; /* the core knows it (RTR) */
    bool announced;
    bool passive, adopted;    /* announced before RTS; and its first PSN is known from the peer */
    _Atomic uint64_t ripe_at; /* ns: when a lane that isn't in RTS by then is taken for passive */
    _Atomic bool up;          /* RTS */
    _Atomic bool covered;     /* a spare was usable once: errors of the path are ours from now on */
    _Atomic bool plain;       /* completions are only renamed: it ends as it would without this library */
    bool dead;                /* being destroyed, or left behind by a fork */
    bool failing, failed;     /* FAIL was said; its errors may be handed out */
    bool fencing, replaying, resuming, marking, opening, closing;
    bool leaving;          /* to be let go of: it runs on as without this library */
    uint8_t leaving_why;   /* enum lp_why */
    bool wants_keys;       /* a post waits for a key of the peer */
    bool unsignaled;       /* requests that can't be settled were posted without a completion to come */
    bool peer_no_writes;   /* LP_SPARE_NO_WRITES */
    _Atomic uint32_t todo; /* enum lp_action from polls */
    uint64_t give_up_at, attempt_at, keys_until, order_at, fail_at, look_at; /* ns, 0: off */
    uint64_t triggered_ns, fenced_ns, settled_ns, replayed_ns;
    uint64_t last_trigger_ns, gap_ns, fence_ns, settle_ns,
        replay_ns; /* of the last move, as struct lp_conn_state */
    uint64_t replayed_bytes;
    uint8_t told_state;
    uint32_t told_epoch, forks;
    struct lp_lane *next, *previous;
    struct lp_shelf *shelf; /* engine_set.c */
    uint8_t shelf_at;
};

struct lp_engine {
    pthread_mutex_t lock;
    struct lp_lane *lanes;
    uint32_t sharing;        /* lanes with a shared receive queue */
    uint64_t next_id, looks; /* looks: rounds of the keeper */
    uint64_t give_up_ns, attempt_ns;
    _Atomic int wake_fd;    /* eventfd, or -1 */
    _Atomic bool woken;     /* a wake is under way */
    _Atomic bool running;   /* the keeper lives */
    _Atomic uint32_t forks; /* objects of an older process are left alone */
    _Atomic(const struct lp_page *) page;
    _Atomic uint64_t page_seen;
    bool covers; /* queue pairs are recorded: there is an agent, or there may be */
};

extern struct lp_engine lp_engine;

/* engine.c */
void lp_engine_start(void); /* from the first device on; any thread, no lock */
void lp_engine_wake(void);
uint64_t lp_now_ns(void);
/* Carries actions out.  engine.lock and lane->lock held. */
void lp_engine_act(struct lp_lane *lane, uint32_t actions);
/* Everything that waits in a lane.  engine.lock held, lane->lock not.  Returns ns to the next look. */
uint64_t lp_engine_look(struct lp_lane *lane, uint64_t now);
void lp_engine_page(void); /* the page changed.  engine.lock held */
/* The connection ends with this status.  engine.lock and lane->lock held. */
void lp_engine_fail(struct lp_lane *lane, uint32_t status, bool by_job);
bool lp_engine_settled(const struct lp_lane *lane);

/* engine_set.c; engine.lock held, but for lp_lane_dirty */
bool lp_lanes_add(struct lp_lane *lane); /* gives it its id; false: no memory */
void lp_lanes_remove(struct lp_lane *lane);
void lp_lanes_renumber(struct lp_lane *lane); /* the agent knows it no more under the old id */
void lp_lanes_forget_all(void);               /* after a fork */
struct lp_lane *lp_lane_by_id(uint64_t id);
void lp_lane_dirty(struct lp_lane *lane); /* the keeper should look */
/* Calls `look` for each lane that is dirty or whose time has come; it returns ns to the next look, or
 * UINT64_MAX. Returns the least of them. */
uint64_t lp_lanes_look(uint64_t now, uint64_t (*look)(struct lp_lane *lane, uint64_t now));

/* engine_lane.c, engine_state.c: life of lanes, the job's calls that aren't on the hot path */
void lp_lane_qp_created(struct lp_qp *qp);
void lp_lane_qp_destroying(struct lp_qp *qp);
void lp_lane_qp_kept(struct lp_qp *qp);
int lp_lane_modify(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask);
int lp_lane_query(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init);
void lp_lane_mw_created(struct lp_pd *pd);
/* All lanes that have to do with one of these (NULL: none) leave.  No lock held. */
struct lp_leaving {
    const struct lp_domain *domain;
    struct lp_shared *shared;
    const struct lp_qp *qp;
    const struct lp_queue *queue;
};
void lp_lanes_leave(struct lp_leaving what, int why);
/* The hook of that name: what the job has put its own hands on isn't followed any more. */
void lp_lane_used_directly(struct lp_qp *qp, struct lp_cq *cq, struct lp_srq *srq);
/* As ibv_modify_qp and ibv_query_qp; programs read ->state of their queue pair (UCX does before each post),
 * where libibverbs notes what it sees, so there it stays what they know. */
int lp_half_to_error(struct lp_half *half);
int lp_half_query(struct lp_half *half, struct ibv_qp_attr *attr, int mask);
/* A half takes no more receives of a shared queue: it is fenced, or gone. */
void lp_half_leaves_place(struct lp_half *half);
/* Lets go of a lane that is `leaving`, if its own queue pair carries it now.  engine.lock held. */
bool lp_lane_let_go(struct lp_lane *lane);
/* A passive lane: the first PSN that it would send, as its peer was told by the job.  engine.lock held. */
void lp_lane_adopt(struct lp_lane *lane, uint32_t local_psn);
/* May it be asked to hold new requests until none is left that can't be settled?  Where those have no
 * completion of their own and the peer takes no marker behind them, it would wait for ever.  lane->lock held.
 */
bool lp_lane_may_hold(struct lp_lane *lane);
/* NIC and port of the path in use. */
const char *lp_lane_device(const struct lp_lane *lane, uint8_t *port);

/* engine_post.c: the hot path down */
int lp_lane_post_send(struct lp_lane *lane, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
/* All of them or none, as ibv_wr_complete promises. */
int lp_lane_post_batch(struct lp_lane *lane, struct ibv_send_wr *wr);
int lp_lane_post_recv(struct lp_lane *lane, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
enum lp_posting {
    LP_POSTING_DONE = 0,
    LP_POSTING_LATER, /* no slot */
    LP_POSTING_KEYS,  /* the peer's key table doesn't know this rkey: read it again */
    LP_POSTING_LOCAL, /* memory that can't be had on the spare's NIC, or not yet */
    LP_POSTING_FAILED
};
/* Posts a recorded request on a half.  lane->lock held. */
enum lp_posting lp_post_entry(struct lp_half *half, uint32_t token);
enum lp_posting lp_post_recv_entry(struct lp_half *half, uint32_t token);
int lp_post_marker(struct lp_half *half, uint64_t wr_id);

#endif
