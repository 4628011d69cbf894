/* Completions of one kind on one queue pair come in the order of posting, each once. No verbs calls. */
#ifndef NCCLFLOW_LANE_ORDER_H
#define NCCLFLOW_LANE_ORDER_H

#include "../common/completion.h"
#include "../common/verdict.h"

struct lane_order {
    uint64_t posted, completed, step; /* numbers 0, step, 2 step, ... are completed */
    bool failed;
};

/* True when `number` is the next to complete; else a violation is noted. A bad status only marks the lane. */
bool lane_order_take(struct lane_order *o, uint64_t number, int status, const char *what, uint32_t connection,
                     struct verdict *v);

#endif
