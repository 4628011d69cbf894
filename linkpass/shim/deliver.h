/*
 * What the job's completion queues show: completions of whichever NIC carries its queue pairs, and those that
 * this library owes, in the order of each queue pair.
 */
#ifndef LP_DELIVER_H
#define LP_DELIVER_H

#include "engine.h"

enum { LP_SOURCES = 64, LP_SOURCE_CQE = 4096 };

struct lp_bell;

struct lp_queue {
    struct lp_cq *cq;
    uint32_t forks;
    _Atomic uint32_t lanes;    /* that report here */
    _Atomic uint32_t promised; /* completions that all its queue pairs may have waiting */
    _Atomic bool crowded;      /* there are queue pairs of which nothing is known */
    struct lp_lock poll_lock;
    _Atomic uint32_t wanted; /* threads that wait for it to pump: polls must not starve them */
    struct lp_map halves;    /* number of the job's own queue pair + 1 -> struct lp_half */
    struct lp_source *sources[LP_SOURCES];
    _Atomic uint32_t source_count;
    _Atomic uint32_t open; /* halves of sources that an epoch runs on */
    uint64_t pumped;       /* in which of lp_engine.looks; engine.lock */

    pthread_mutex_t ready_lock;
    struct ibv_wc *ready; /* a ring */
    uint32_t ready_head, ready_room;
    _Atomic uint32_t ready_count;

    struct lp_bell *bell;  /* of its channel, or NULL */
    _Atomic int armed;     /* 0, or 1 + solicited_only */
    _Atomic uint32_t rung; /* events made here that the job hasn't acknowledged */
    bool ringing;          /* on the bell's list (its lock) */
    struct lp_queue *next_ringing;

    _Atomic bool direct; /* the job reads the hardware's own queue */
    bool timed;          /* extended, with fields that an ibv_wc can't carry: not ours */
    pthread_mutex_t ex_lock;
    struct ibv_wc current; /* between start_poll and end_poll */
};

struct lp_source {
    struct lp_queue *queue;
    struct lp_reserve *reserve;
    const struct lp_shared *shared; /* the one whose receives complete here */
    struct ibv_cq *cq;
    struct lp_map halves;  /* number + 1 -> struct lp_half */
    uint32_t room, used;   /* entries promised to halves */
    _Atomic uint32_t open; /* halves that an epoch runs on */
};

/* Completes what is no longer there: a half that was destroyed. */
extern struct lp_half lp_gone;

void lp_deliver_cq_created(struct lp_cq *cq);
/* Waits until the job has acknowledged every event that was made here, as ibv_destroy_cq(3) says of all. */
void lp_deliver_cq_leaves(struct lp_cq *cq);
void lp_deliver_cq_destroying(struct lp_cq *cq);
int lp_deliver_poll(struct lp_cq *cq, int count, struct ibv_wc *wc);
int lp_deliver_notify(struct lp_cq *cq, int solicited_only);

/* Takes what the real queues hold into `ready`.  No lane's lock held. */
void lp_deliver_pump(struct lp_queue *queue);
/* A completion for the job behind all earlier ones.  A leaf; any lock may be held. */
void lp_deliver_push(struct lp_queue *queue, const struct ibv_wc *wc);
/* All that the core owes the job.  lane->lock held.  `wake`: the job may be asleep. */
void lp_deliver_owed(struct lp_lane *lane);
/* Forget completions of a queue pair that is destroyed or reset. */
void lp_deliver_forget(struct lp_queue *queue, uint32_t qp_num);
void lp_deliver_wake(struct lp_queue *queue);

/* deliver_ex.c: ibv_start_poll and its kin */
void lp_deliver_ex_init(struct lp_queue *queue);
int lp_deliver_start_poll(struct lp_cq *cq, struct ibv_poll_cq_attr *attr);
int lp_deliver_next_poll(struct lp_cq *cq);
void lp_deliver_end_poll(struct lp_cq *cq);

/* deliver_bell.c: events of completion channels */
void lp_bell_channel_created(struct lp_channel *channel);
void lp_bell_channel_destroying(struct lp_channel *channel);
bool lp_bell_ready(struct lp_queue *queue); /* makes what ringing needs; false: this channel can't be rung */
void lp_bell_ring(struct lp_queue *queue);
void lp_bell_forget(struct lp_queue *queue);
int lp_bell_get(struct lp_channel *channel, struct ibv_cq **cq, void **context);
void lp_bell_ack(struct lp_cq *cq, unsigned int count);

static inline struct lp_queue *lp_queue_of(const struct lp_cq *cq) {
    struct lp_queue *queue = cq->extra;
    return queue && queue->forks == atomic_load_explicit(&lp_engine.forks, memory_order_relaxed) ? queue
                                                                                                 : NULL;
}

#endif
