/* The monotonic clock, in nanoseconds. Only the outer loops read it; checkers take times as values. */
#ifndef CLIENTS_CLOCK_H
#define CLIENTS_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_S 1000000000ULL
#define NS_PER_MS 1000000ULL

static inline uint64_t clock_read(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) {
    return clock_read(CLOCK_MONOTONIC);
}

static inline uint64_t unix_ns(void) {
    return clock_read(CLOCK_REALTIME);
}

#endif
