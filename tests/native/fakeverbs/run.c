/* What makes things move: steps, time, the thread; and faults of whole NICs. */
#include "fake_internal.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

/* One packet of the first that has one to send of the queue pairs with these numbers, from the highest down.
 */
static bool transmit_between(int nic, uint32_t from, uint32_t end) {
    struct qp *qp;

    while ((qp = marked_below(MAY_SEND, end)) && qp->ibv.qp_num >= from) {
        end = qp->ibv.qp_num;
        if (nic >= 0 && qp->nic->index != nic)
            continue;
        if (requester_transmit(qp)) {
            const struct qp *older = qp_older(qp);
            fake.cursor = (older ? older : qp_newest())->ibv.qp_num;
            return true;
        }
        mark_clear(MAY_SEND, qp);
    }
    return false;
}

/* One packet of the queue pair whose turn it is, of that NIC (-1: any). */
static bool transmit_one(int nic) {
    const uint32_t turn = fake.cursor ? fake.cursor : UINT32_MAX - 1;

    return transmit_between(nic, 0, turn + 1) || transmit_between(nic, turn + 1, UINT32_MAX);
}

static bool flush_one(int nic) {
    struct qp *qp;

    for (uint32_t end = UINT32_MAX; (qp = marked_below(MAY_FLUSH, end)); end = qp->ibv.qp_num) {
        if (nic >= 0 && qp->nic->index != nic)
            continue;
        if (qp_flush_one(qp))
            return true;
        mark_clear(MAY_FLUSH, qp);
    }
    return false;
}

static bool deliver_one(int nic) {
    return wire_deliver(nic, false);
}

static bool step_locked(void) {
    static bool (*const kinds[])(int nic) = {deliver_one, transmit_one, flush_one};

    for (uint32_t i = 0; i < 3; i++)
        if (kinds[(fake.turn++) % 3](-1))
            return true;
    return false;
}

bool fake_step(void) {
    fake_lock();
    const bool done = step_locked();
    fake_unlock();
    return done;
}

size_t fake_run(void) {
    size_t steps = 0;

    while (fake_step())
        steps++;
    return steps;
}

static size_t repeat(bool (*one)(int nic), int nic, size_t n) {
    size_t done = 0;

    fake_lock();
    while (done < n && one(nic))
        done++;
    fake_wake();
    fake_unlock();
    return done;
}

size_t fake_transmit(int nic, size_t n) {
    return repeat(transmit_one, nic, n);
}

size_t fake_flush(int nic, size_t n) {
    return repeat(flush_one, nic, n);
}

/* ---- time
 * --------------------------------------------------------------------------------------------------- */

static void advance_to(uint64_t until) {
    struct qp *qp;

    while ((qp = timer_first()) && qp->timer <= until) {
        if (qp->timer > fake.now)
            fake.now = qp->timer;
        requester_timeout(qp);
    }
    if (until > fake.now)
        fake.now = until;
}

void fake_advance(uint64_t ns) {
    fake_lock();
    advance_to(fake.now + ns);
    fake_unlock();
}

uint64_t fake_now(void) {
    fake_lock();
    const uint64_t now = fake.now;
    fake_unlock();
    return now;
}

uint64_t fake_next_timer(void) {
    fake_lock();
    const struct qp *qp = timer_first();
    const uint64_t at = qp ? qp->timer : UINT64_MAX;
    fake_unlock();
    return at;
}

void fake_settle(uint64_t limit_ns) {
    const uint64_t limit = fake_now() + limit_ns;

    for (;;) {
        (void)fake_run();
        const uint64_t next = fake_next_timer();
        if (next > limit)
            return;
        const uint64_t now = fake_now();
        fake_advance(next > now ? next - now : 0);
    }
}

/* ---- the thread
 * --------------------------------------------------------------------------------------------- */

enum { STEPS_AT_ONCE = 64 }; /* before others get the lock */

static uint64_t clock_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void wait_for_work(void) {
    const struct qp *qp = timer_first();
    const uint64_t until = qp ? qp->timer : UINT64_MAX;
    const struct timespec at = {.tv_sec = (time_t)(until / 1000000000),
                                .tv_nsec = (long)(until % 1000000000)};

    if (qp)
        (void)pthread_cond_timedwait(&fake.work, &fake.lock, &at);
    else
        (void)pthread_cond_wait(&fake.work, &fake.lock);
}

static void *run_thread(void *arg) {
    (void)prctl(PR_SET_NAME, "fake NICs");
    pthread_mutex_lock(&fake.lock);
    while (!fake.stopping) {
        bool busy = true;
        advance_to(clock_ns());
        for (int i = 0; i < STEPS_AT_ONCE && busy; i++)
            busy = step_locked();
        if (!busy) {
            wait_for_work();
        } else {
            pthread_mutex_unlock(&fake.lock);
            pthread_mutex_lock(&fake.lock);
        }
    }
    pthread_mutex_unlock(&fake.lock);
    return arg;
}

void fake_auto_start_locked(void) {
    static bool clocked;
    pthread_condattr_t attributes;

    if (fake.automatic)
        return;
    if (!clocked) {
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&fake.work, &attributes);
        pthread_condattr_destroy(&attributes);
        clocked = true;
    }
    fake.stopping = false;
    fake.automatic = pthread_create(&fake.thread, NULL, run_thread, NULL) == 0;
}

void fake_auto(bool on) {
    fake_lock();
    if (on) {
        fake_auto_start_locked();
        fake_unlock();
        return;
    }
    const bool running = fake.automatic;
    fake.stopping = true;
    fake.automatic = false;
    fake_wake();
    fake_unlock();
    if (running)
        pthread_join(fake.thread, NULL);
}

void fake_wake(void) {
    pthread_cond_signal(&fake.work);
}

/* ---- NICs
 * --------------------------------------------------------------------------------------------------- */

void fake_port(int nic, bool up) {
    fake_lock();
    if (fake.nics[nic].up != up) {
        fake.nics[nic].up = up;
        fake_async(&fake.nics[nic], NULL, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, NULL);
    }
    fake_unlock();
}

void fake_lose_gid(int nic) {
    fake_lock();
    fake_async(&fake.nics[nic], NULL, IBV_EVENT_GID_CHANGE, NULL);
    for (struct qp *qp = qp_newest(); qp; qp = qp_older(qp))
        if (qp->nic->index == nic && qp->sq_count && qp->state == IBV_QPS_RTS)
            requester_fail(qp, IBV_WC_LOC_QP_OP_ERR);
    fake_wake();
    fake_unlock();
}

void fake_gid_there(int nic, bool there) {
    fake_lock();
    fake.nics[nic].no_gid = !there;
    fake_async(&fake.nics[nic], NULL, IBV_EVENT_GID_CHANGE, NULL);
    fake_wake();
    fake_unlock();
}

void fake_gid_twin(int nic) {
    fake_lock();
    fake.nics[nic].twin_gid = true;
    fake_unlock();
}

void fake_device_fatal(int nic) {
    fake_lock();
    fake_async(&fake.nics[nic], NULL, IBV_EVENT_DEVICE_FATAL, NULL);
    for (struct qp *qp = qp_newest(); qp; qp = qp_older(qp))
        if (qp->nic->index == nic)
            qp_error(qp);
    fake_wake();
    fake_unlock();
}

void fake_fail_calls(int nic, int error, unsigned int after) {
    fake_lock();
    fake.nics[nic].fail_error = error;
    fake.nics[nic].fail_after = after;
    fake_unlock();
}

struct fake_stats fake_stats(int nic) {
    fake_lock();
    const struct fake_stats stats = fake.nics[nic].stats;
    fake_unlock();
    return stats;
}

int fake_nics(void) {
    fake_lock();
    const int count = fake.nic_count;
    fake_unlock();
    return count;
}

int fake_nic_of(const struct ibv_context *context) {
    return fake_nic_of_context(context)->index;
}

size_t fake_open_objects(int nic) {
    fake_lock();
    const size_t objects = fake.nics[nic].objects;
    fake_unlock();
    return objects;
}
