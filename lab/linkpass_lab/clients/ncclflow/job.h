/* The job of ncclflow as a value that both ends share, and its plan: what request k of a connection asks for
 * and gets. A request is a group of 1 to 8 receives, announced by one clear-to-send and answered together. */
#ifndef NCCLFLOW_JOB_H
#define NCCLFLOW_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GROUP_MAX 8 /* receives in a group: NCCL's limit */
#define LANES_MAX 4 /* queue pairs of a connection */
#define CONNECTIONS_MAX 64
#define STRIPE_ALIGN 128 /* stripes are multiples of this, so that NCCL's LL128 lines stay whole */

struct job {
    uint64_t seed, iterations, duration_ms; /* iterations: requests per connection; 0: duration */
    uint64_t connections, lanes, max_requests, group, size_low, size_high;
    uint64_t bidirectional, flush,
        adaptive_over; /* adaptive_over: larger messages are a WRITE and an empty IMM */
    uint64_t mtu, timeout, retry, rnr_retry, min_rnr, rd_atomic;
};
#define JOB_WORDS (sizeof(struct job) / sizeof(uint64_t))

struct group {
    uint64_t number;
    uint32_t count;
    uint32_t tag[GROUP_MAX];
    uint32_t room[GROUP_MAX]; /* what the receiver offers */
    uint32_t size[GROUP_MAX]; /* what the sender sends: no more than room */
};

const char *job_fault(const struct job *j); /* NULL when it is sound */
uint64_t job_slots(const struct job *j);    /* fifo slots: twice the requests under way */
uint64_t job_stride(const struct job *j);   /* bytes between buffers */
struct group plan_group(const struct job *j, uint64_t key, uint64_t number);
/* Pattern sequence of receive r of a group. */
uint64_t payload_seq(uint64_t group, uint32_t r);

/* Bytes [*from, *from + length) of a message go over this lane; returns the length. */
uint32_t stripe(uint32_t size, uint64_t lanes, uint64_t lane, uint32_t *from);
/* Is the data written first, and announced by an IMM of its own? */
bool group_splits(const struct job *j, const struct group *g);
/* The immediate value: the size of a single receive, else a bit per receive that got data. */
uint32_t group_imm(const struct group *g);
/* Bytes that the WRITE_WITH_IMM itself carries on this lane. */
uint32_t group_imm_bytes(const struct job *j, const struct group *g, uint64_t lane);

#endif
