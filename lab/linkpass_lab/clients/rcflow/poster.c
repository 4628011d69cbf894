/* Posting requests: a round gives every queue pair at most one list, so that polling is never far away. */
#include "../common/clock.h"
#include "flow.h"

#include <errno.h>
#include <string.h>

/* A duration's end finds unsignaled requests under way: one more, signaled, tells when they are done. */
static uint64_t to_build(struct flow *f, struct initiator *i, bool *force) {
    uint64_t target = f->workload.iterations ? f->workload.iterations : SEQ_MASK;
    *force = false;
    if (atomic_load_explicit(&f->stopping, memory_order_acquire)) {
        *force = true;
        return i->built > i->last_signaled && initiator_room(i, SEQ_MASK) ? 1 : 0;
    }
    uint64_t room = initiator_room(i, target);
    return room < f->workload.post_list ? room : f->workload.post_list;
}

static bool has_more(const struct flow *f, const struct initiator *i) {
    if (f->stopping)
        return i->built > i->last_signaled;
    return f->workload.iterations == 0 || i->built < f->workload.iterations;
}

static uint64_t post_list(struct flow *f, struct initiator *i) {
    bool force;
    uint64_t count = to_build(f, i, &force), from = i->built;
    if (count == 0)
        return 0;
    for (uint64_t n = 0; n < count; n++)
        initiator_build(i, force || (f->workload.iterations && i->built + 1 == f->workload.iterations));
    initiator_publish(i, count);
    int rc = post_requests(&f->objects, i, &f->remote, from, count);
    if (rc) {
        verdict_error(&f->verdict, false, 0, "POST_FAILED", now_ns(),
                      "queue pair %u, request %llu: posting failed: %s", i->qp, (unsigned long long)from,
                      strerror(rc));
        return 0;
    }
    initiator_posted(i, from, count);
    return count;
}

uint64_t poster_round(struct flow *f) {
    uint64_t posted = 0, more = 0;
    for (uint64_t q = 0; f->initiates && q < f->workload.qps; q++) {
        posted += post_list(f, &f->initiators[q]);
        more += has_more(f, &f->initiators[q]);
    }
    atomic_store_explicit(&f->still_posting, more, memory_order_release);
    return posted;
}

void poster_wake(struct flow *f) {
    pthread_mutex_lock(&f->kick_lock);
    pthread_cond_signal(&f->kick);
    pthread_mutex_unlock(&f->kick_lock);
}

void *poster_thread(void *flow) {
    struct flow *f = flow;
    while (!f->ended && !verdict_spoilt(&f->verdict)) {
        if (poster_round(f) > 0)
            continue;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000; /* a missed wake costs a millisecond, not the run */
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_mutex_lock(&f->kick_lock);
        pthread_cond_timedwait(&f->kick, &f->kick_lock, &until);
        pthread_mutex_unlock(&f->kick_lock);
    }
    return NULL;
}
