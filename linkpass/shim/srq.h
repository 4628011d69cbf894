/*
 * Shared receive queues.
 *
 *   shared   a shared receive queue of the job: every receive that it has posted and that isn't complete
 *   place    one real shared receive queue of it: the job's own, or one made beside spares on another NIC
 *
 * A receive lies in one place, or is held.  A real shared receive queue gives nothing back, so a receive
 * changes places in one of three ways:
 *   - it was held (posted while no place could take it);
 *   - its place has no live queue pair left, so nobody can take it there any more: the place is dead, and
 *     everything in it free (what was taken by a message that came in part included);
 *   - it is called back: an empty SEND over a queue pair connected to itself takes it (srq_recall.c).
 *
 * A dead place is never used again: spares attached to it that no epoch runs on are made anew, and the job's
 * next queue pair gets another real queue than the one that the job made.
 */
#ifndef LP_SRQ_H
#define LP_SRQ_H

#include "engine.h"

enum { LP_NO_SLOT = UINT32_MAX };

struct lp_loop; /* srq_recall.c */

struct lp_receive {
    uint64_t wr_id;
    struct lp_place *place; /* NULL: held, or free */
    uint32_t sge_count;
    uint32_t next; /* in the list of those held, or of free slots */
    bool used;
};

struct lp_place {
    struct lp_shared *shared;
    struct lp_reserve *reserve; /* NULL: the job's own NIC */
    struct ibv_srq *real;
    bool ours; /* the real queue: made here */
    bool dead;
    uint32_t users;           /* queue pairs that may take receives here */
    uint32_t halves;          /* attached, whatever their state */
    uint32_t posted;          /* receives that lie here */
    uint64_t given;           /* when one was posted here last, counted in posts */
    uint8_t port, sgid_index; /* of a queue pair that has been in use here; port 0: none was */
    struct lp_loop *loop;
    uint32_t loop_failures; /* in a row */
    struct lp_place *next;
};

struct lp_shared {
    struct lp_srq *srq;
    struct lp_context *context;
    struct lp_domain *domain;
    pthread_mutex_t lock; /* a leaf */
    uint32_t forks;
    uint32_t slots, max_sge;
    struct lp_receive *receives;
    struct lp_sge *sges;
    uint32_t free, held_first, held_last, held, used;
    uint64_t posts;
    uint64_t recall_at; /* ns: none is called back before, so that whoever was given one can use it */
    struct lp_place *places;
    struct lp_place *home;   /* what the job's new queue pairs use */
    bool spread;             /* there is, or was, another place than home */
    bool leaving;            /* no queue pair of it is to be protected any more */
    _Atomic bool hungry;     /* a place with queue pairs has run out, or receives are held */
    struct lp_half stranger; /* of queue pairs that aren't recorded, for look-ups by number */
    struct lp_half gone;     /* of those destroyed */
};

/* Hooks of the attach layer. */
void lp_srq_created(struct lp_srq *srq);
void lp_srq_destroying(struct lp_srq *srq);
int lp_srq_post(struct lp_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int lp_srq_modify(struct lp_srq *srq, struct ibv_srq_attr *attr, int mask);
/* What a new queue pair of the job is to be attached to instead of `real`: another only when that place is
 * dead. It can't die until _over() is called, when the queue pair is known or can't be made. */
struct ibv_srq *lp_srq_for_new_qp(struct ibv_srq *real);
void lp_srq_new_qp_over(struct ibv_srq *used);

/* The shared queue behind a real one, or NULL: not followed. */
struct lp_shared *lp_shared_of(const struct ibv_srq *real);

/* Where a queue pair of the job stands that is attached to that real queue. */
struct lp_place *lp_place_of(struct lp_shared *shared, const struct ibv_srq *real);
/* The place on a spare NIC, made if need be; NULL when it can't be.  engine.lock held. */
struct lp_place *lp_place_on(struct lp_shared *shared, struct lp_reserve *reserve);
void lp_place_attach(struct lp_place *place);
void lp_place_detach(struct lp_place *place);
/* A queue pair may take receives there from now on; no longer. */
void lp_place_enter(struct lp_place *place);
void lp_place_leave(struct lp_place *place);
/* Where a queue pair can be connected to itself: port and GID of one that is in use there. */
void lp_place_found(struct lp_place *place, uint8_t port, uint8_t sgid_index);

/* The receive of a completion: its wr_id, and the slot is free again.  False: there is no such receive. */
bool lp_shared_done(struct lp_shared *shared, uint32_t slot, uint64_t *wr_id);
/* It was taken by nobody that counts: held, to be posted again. */
void lp_shared_return(struct lp_shared *shared, uint32_t slot);
/* Hands out what is held or lies in a place that nobody uses any more. */
void lp_shared_settle(struct lp_shared *shared);
/* The same, and calls back from where there are many what is missing elsewhere.  engine.lock held, no lane's.
 * Returns ns to the next look. */
uint64_t lp_shared_work_all(uint64_t now);
/* May an epoch open there?  True when a receive lies there, or the job has posted none at all. */
bool lp_place_fed(struct lp_place *place);

/* srq_recall.c: calls `count` receives of a place back.  engine.lock held, no other.  False: that NIC can't
 * reach itself. */
bool lp_recall(struct lp_place *place, uint32_t count);
/* What a slow NIC brings back later.  True: more is on its way. */
bool lp_recall_rest(struct lp_place *place);
void lp_recall_end(struct lp_place *place);

#endif
