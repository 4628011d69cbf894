/* The answering end of one queue pair: proves that every request of the peer was executed exactly once, in
 * order, with every byte right. No verbs calls.
 *
 * WRITEs are checked when a later receive completion or the peer's report says that they are complete. A slot
 * that was checked is poisoned and stays unused for a whole window: a write that comes late or twice shows
 * there, before the peer may use the slot again. */
#ifndef RCFLOW_RESPONDER_H
#define RCFLOW_RESPONDER_H

#include "../common/completion.h"
#include "initiator.h"

#define MISSING_KEPT 64

struct responder {
    const struct workload *w;
    const struct memory *own;
    struct verdict *verdict;
    uint32_t qp;
    uint64_t key;
    uint64_t received; /* requests up to here are executed, by receive completions */
    uint64_t reported; /* and complete at the peer, by its word */
    uint64_t verified; /* requests up to here are checked */
    uint64_t granted;  /* the peer may post up to here */
    struct chain chain;
    uint64_t missing[MISSING_KEPT]; /* skipped requests: lost, unless they turn up late */
    size_t missing_count;
    uint64_t verified_count[OP_KINDS], bytes;
};

void responder_create(struct responder *r, const struct workload *w, const struct memory *own,
                      struct verdict *verdict, uint32_t qp, uint32_t direction);
/* One receive completed with success on this queue pair, in receive slot `slot`. The slot is poison again
 * afterwards and may be posted. */
void responder_on_receive(struct responder *r, const struct completion *c, uint64_t slot);
/* The peer says that its requests up to `completed` are complete. */
void responder_on_report(struct responder *r, uint64_t completed);
/* How far the peer may post now; slots to be used again are checked and made ready first. */
uint64_t responder_grant(struct responder *r);
/* The peer has posted `posted` requests, `completed` of them are complete, and none is under way: everything
 * up to `completed` must be verified; when both are equal also the atomic words and that nothing else was
 * written. */
void responder_finish(struct responder *r, uint64_t posted, uint64_t completed);

#endif
