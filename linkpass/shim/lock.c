/* Waiting for a lock that is taken. */
#include "lock.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 64, NAP_NS = 20000 }; /* tries: about a microsecond */

static inline void breathe(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

void lp_lock_wait(struct lp_lock *lock) {
    const struct timespec nap = {.tv_nsec = NAP_NS};
    const int error = errno;

    for (;;) {
        for (int i = 0; i < TRIES; i++) {
            if (!atomic_load_explicit(&lock->taken, memory_order_relaxed) && lp_try_lock(lock)) {
                errno = error;
                return;
            }
            breathe();
        }
        (void)syscall(SYS_nanosleep, &nap,
                      NULL); /* nanosleep() is a cancellation point: other locks are held */
    }
}
