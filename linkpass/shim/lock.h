/*
 * The lock of the hot path.  It is taken and given back at each post and completion, nearly always without
 * anybody else about, and then costs one locked instruction: half of what a pthread_mutex_t takes, which has
 * to look for sleepers when it is given back.
 *
 * Who meets it taken tries for about a microsecond, then sleeps for 20 us at a time: sleeps, so that a holder
 * of lower priority on the same processor gets to run.  Nobody waits in a row: a thread that has to come in
 * although others spin says so beside the lock (lp_queue.wanted).
 */
#ifndef LP_LOCK_H
#define LP_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

struct lp_lock { /* free when zero */
    _Atomic bool taken;
};

/* The slow way: it was taken. */
void lp_lock_wait(struct lp_lock *lock);

static inline bool lp_try_lock(struct lp_lock *lock) {
    return !atomic_exchange_explicit(&lock->taken, true, memory_order_acquire);
}

static inline void lp_lock(struct lp_lock *lock) {
    if (__builtin_expect(!lp_try_lock(lock), 0))
        lp_lock_wait(lock);
}

static inline void lp_unlock(struct lp_lock *lock) {
    atomic_store_explicit(&lock->taken, false, memory_order_release);
}

#endif
