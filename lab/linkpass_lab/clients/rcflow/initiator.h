/* The requesting end of one queue pair: builds requests, checks their completions. No verbs calls.
 *
 * A poster (build, publish) and a poller (on_completion, credit) may be different threads: `posted`,
 * `completed` and `limit` are the only values that both touch. */
#ifndef RCFLOW_INITIATOR_H
#define RCFLOW_INITIATOR_H

#include "../common/completion.h"
#include "../common/verdict.h"
#include "memory.h"

#include <stdatomic.h>

#define RECEIVE_TAG (1ull << 63) /* in the wr_id of receives */
#define SEQ_MASK ((1ull << 40) - 1)

struct outgoing {
    struct request request;
    struct atomic_values values;
    bool is_signaled, is_inline, fenced, solicited;
    size_t piece_count;
    struct piece pieces[SGES_MAX];
    uint64_t source_at, remote_at; /* offsets in regions */
    uint32_t remote_mr;
};

struct op_counts {
    uint64_t posted[OP_KINDS], completed[OP_KINDS], verified[OP_KINDS];
};

struct initiator {
    const struct workload *w;
    const struct memory *own, *peer; /* peer: its layout only, never its bases */
    struct verdict *verdict;
    uint32_t qp, qp_num;
    uint64_t key;
    struct outgoing *ring; /* depth entries */
    struct chain chain;
    uint64_t built, last_signaled; /* poster's; last_signaled: one past it */
    bool after_read;
    _Atomic uint64_t posted, completed, limit;
    bool failed;             /* a completion said so: all that follow must too */
    struct op_counts counts; /* posted[]: poster's; the others: poller's */
};

/* 0 or ENOMEM. */
int initiator_create(struct initiator *i, const struct workload *w, const struct memory *own,
                     const struct memory *peer, struct verdict *verdict, uint32_t qp, uint32_t direction);
void initiator_destroy(struct initiator *i);

/* Requests that may be built now: by credit, queue depth and target. */
uint64_t initiator_room(const struct initiator *i, uint64_t target);
/* Build the next request, payload filled in. `force_signal`: nothing will follow it soon. */
struct outgoing *initiator_build(struct initiator *i, bool force_signal);
/* Make `count` built requests visible to the poller; before they are given to the queue pair. */
void initiator_publish(struct initiator *i, uint64_t count);
/* After the post call: inline payloads were copied by it, so their source is spoilt on purpose. */
void initiator_posted(struct initiator *i, uint64_t from, uint64_t count);

uint64_t own_wr_id(uint32_t qp, uint64_t seq);
/* Check one completion of an own request; *bytes is what it and the unsignaled ones before it moved.
 * Returns the number of requests newly complete. A status other than success is the caller's business. */
uint64_t initiator_on_completion(struct initiator *i, const struct completion *c, uint64_t *bytes);

#endif
