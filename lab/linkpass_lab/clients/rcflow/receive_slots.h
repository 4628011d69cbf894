/* Which receives are posted, and whether a completion names one that is: no verbs calls.
 * A slot's wr_id carries a generation, so that a receive completed twice is told from one posted again. */
#ifndef RCFLOW_RECEIVE_SLOTS_H
#define RCFLOW_RECEIVE_SLOTS_H

#include "../common/completion.h"
#include "../common/verdict.h"
#include "workload.h"

struct receive_slots {
    uint64_t count, per_qp; /* slots in all; a queue pair's share */
    bool shared;            /* SRQ: any slot may serve any queue pair, in any order */
    uint32_t *generation;
    bool *posted;
    uint64_t *taken; /* per queue pair: receives completed */
};

int receive_slots_create(struct receive_slots *r, const struct workload *w);
void receive_slots_destroy(struct receive_slots *r);
/* The wr_id to post this slot with; marks it posted. */
uint64_t receive_slots_post(struct receive_slots *r, uint64_t slot);
/* True and *slot when the completion is that of a posted receive, the oldest of its queue pair. */
bool receive_slots_take(struct receive_slots *r, struct verdict *v, const struct completion *c, uint32_t qp,
                        uint64_t *slot);

#endif
