/* What a polling loop does when nothing came: spins at first, then naps. Emulated guests have one processor,
 * and a loop that never sleeps takes it from the driver's own work. */
#ifndef CLIENTS_NAP_H
#define CLIENTS_NAP_H

#include "clock.h"

#include <poll.h>
#include <sched.h>
#include <stdbool.h>

#define NAP_AFTER_NS NS_PER_MS
#define NAP_NS 100000L

/* idle_since: when the last completion or message was handled; control_fd wakes a napper at once, -1: none.
 */
static inline void nap(uint64_t idle_since, uint64_t now, bool never, int control_fd) {
    struct timespec t = {.tv_nsec = NAP_NS};
    struct pollfd p = {.fd = control_fd, .events = POLLIN};
    if (never || now - idle_since < NAP_AFTER_NS)
        sched_yield();
    else
        ppoll(&p, 1, &t, NULL);
}

#endif
