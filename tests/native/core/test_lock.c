/* The lock of the hot path: one at a time, also past the point where a waiter sleeps; for ThreadSanitizer
 * too. */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "lock.h"

enum { THREADS = 4, TURNS = 20000, LONG_TURN = 5000, LONG_NS = 200000 };

static struct lp_lock lock;
static long inside, turns; /* plain: what the lock guards */
static _Atomic long overlaps, errnos;

static void *take_turns(void *argument) {
    const struct timespec nap = {.tv_nsec = LONG_NS};

    for (int i = 0; i < TURNS; i++) {
        errno = 4711;
        lp_lock(&lock);
        errnos += errno != 4711;
        overlaps += inside++ != 0;
        turns++;
        if (i % LONG_TURN == 0) {
            nanosleep(&nap, NULL); /* the others get tired of trying */
        }
        inside--;
        lp_unlock(&lock);
    }
    return argument;
}

int main(void) {
    pthread_t threads[THREADS];

    CHECK(lp_try_lock(&lock));
    CHECK(!lp_try_lock(&lock));
    lp_unlock(&lock);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, take_turns, NULL) != 0) {
            return 2;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(turns == (long)THREADS * TURNS && inside == 0);
    CHECK(overlaps == 0);
    CHECK(errnos == 0);
    CHECK(lp_try_lock(&lock));
    return check_end();
}
