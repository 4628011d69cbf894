/* The keeper: the one thread of this library, asleep unless something happens. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "channel.h"
#include "deliver.h"
#include "engine.h"
#include "keys.h"
#include "spare.h"
#include "srq.h"

enum { KEEPER_FDS = 66 };

struct lp_engine lp_engine = {.lock = PTHREAD_MUTEX_INITIALIZER,
                              .wake_fd = -1,
                              .give_up_ns = UINT64_C(60000000000),
                              .attempt_ns = UINT64_C(1000000000)};

void lp_engine_wake(void) {
    const int fd = atomic_load_explicit(&lp_engine.wake_fd, memory_order_relaxed);
    const uint64_t one = 1;
    const int error = errno;

    if (fd >= 0 && !atomic_exchange_explicit(&lp_engine.woken, true, memory_order_acq_rel))
        (void)!write(fd, &one, sizeof(one));
    errno = error;
}

/* ns until the agent may be told of it; 0: now. */
static uint64_t ripens(const struct lp_lane *lane, uint64_t now) {
    const uint64_t at = atomic_load(&lane->ripe_at);

    if (!lane->connected || lane->plain)
        return UINT64_MAX;
    return lane->up || at <= now ? 0 : at - now;
}

static uint64_t look_at(struct lp_lane *lane, uint64_t now) {
    const uint64_t ripe = ripens(lane, now);

    if (!ripe && !lane->announced && lp_channel_welcome()) {
        lane->announced = true;
        lane->passive = !lane->up;
        (void)lp_nic_of(lane->qp->context->name); /* for its events: the job's own context is the job's */
        lp_channel_up(lane);
    }
    const uint64_t wait = lp_engine_look(lane, now);
    return ripe && ripe < wait ? ripe : wait;
}

static void look_at_page(void) {
    const struct lp_page *page = atomic_load_explicit(&lp_engine.page, memory_order_acquire);
    const uint64_t generation = page ? __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE) : 0;

    if (page && generation != atomic_load_explicit(&lp_engine.page_seen, memory_order_relaxed)) {
        atomic_store_explicit(&lp_engine.page_seen, generation, memory_order_relaxed);
        lp_engine_page();
    }
}

static uint64_t work(void) {
    const uint64_t now = lp_now_ns();
    uint64_t next = lp_channel_work(now);

    look_at_page();
    const uint64_t lanes = lp_lanes_look(now, look_at);
    lp_keys_work();
    const uint64_t fed = lp_shared_work_all(now);
    next = fed < next ? fed : next;
    return lanes < next ? lanes : next;
}

static nfds_t watch(struct pollfd *fds) {
    nfds_t count = 0;

    fds[count++] = (struct pollfd){.fd = atomic_load(&lp_engine.wake_fd), .events = POLLIN};
    fds[count++] = (struct pollfd){.fd = lp_channel_fd(),
                                   .events = (short)(POLLIN | (lp_channel_writing() ? POLLOUT : 0))};
    for (struct lp_nic *nic = lp_nic_first(); nic && count + 2 <= KEEPER_FDS; nic = nic->next) {
        fds[count++] = (struct pollfd){.fd = nic->channel->fd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = nic->context->async_fd, .events = POLLIN};
    }
    return count;
}

static void serve(const struct pollfd *fds, nfds_t count) {
    nfds_t at = 2;
    uint64_t wakes;

    if (fds[0].revents)
        (void)!read(fds[0].fd, &wakes, sizeof(wakes));
    atomic_store_explicit(&lp_engine.woken, false, memory_order_release);
    if (fds[1].revents)
        lp_channel_readable();
    for (struct lp_nic *nic = lp_nic_first(); nic && at + 2 <= count; nic = nic->next, at += 2) {
        if (fds[at].revents)
            lp_nic_events(nic);
        if (fds[at + 1].revents)
            lp_nic_async(nic);
    }
}

static void *keep(void *arg) {
    struct pollfd fds[KEEPER_FDS];

    (void)prctl(PR_SET_NAME, "linkpass"); /* as top -H and perf show it */
    (void)lp_enter();                     /* nothing that happens below is the job's */
    for (;;) {
        pthread_mutex_lock(&lp_engine.lock);
        const uint64_t next = work();
        const nfds_t count = watch(fds);
        pthread_mutex_unlock(&lp_engine.lock);
        const struct timespec wait = {.tv_sec = (time_t)(next / 1000000000),
                                      .tv_nsec = (long)(next % 1000000000)};
        if (ppoll(fds, count, next == UINT64_MAX ? NULL : &wait, NULL) < 0)
            for (nfds_t i = 0; i < count; i++)
                fds[i].revents = 0;
        pthread_mutex_lock(&lp_engine.lock);
        serve(fds, count);
        pthread_mutex_unlock(&lp_engine.lock);
    }
    return arg;
}

/* All signals blocked: they are the job's. */
void lp_engine_start(void) {
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;

    if (atomic_exchange(&lp_engine.running, true))
        return;
    if (!lp_channel_likely()) {
        atomic_store(&lp_engine.running, false);
        return;
    }
    lp_engine.covers = true;
    atomic_store(&lp_engine.wake_fd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (atomic_load(&lp_engine.wake_fd) < 0 || pthread_create(&thread, &attr, keep, NULL))
        lp_engine.covers = false;
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
