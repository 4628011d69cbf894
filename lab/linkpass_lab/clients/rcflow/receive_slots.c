#include "receive_slots.h"

#include "initiator.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define SLOT_BITS 27 /* 1024 queue pairs x 65536 receives, with one bit to spare */

int receive_slots_create(struct receive_slots *r, const struct workload *w) {
    *r = (struct receive_slots){.count = w->qps * w->rx_depth, .per_qp = w->rx_depth, .shared = w->srq};
    r->generation = calloc(r->count, sizeof(*r->generation));
    r->posted = calloc(r->count, sizeof(*r->posted));
    r->taken = calloc(w->qps, sizeof(*r->taken));
    return r->generation && r->posted && r->taken ? 0 : ENOMEM;
}

void receive_slots_destroy(struct receive_slots *r) {
    free(r->generation);
    free(r->posted);
    free(r->taken);
    *r = (struct receive_slots){0};
}

uint64_t receive_slots_post(struct receive_slots *r, uint64_t slot) {
    r->posted[slot] = true;
    r->generation[slot]++;
    return RECEIVE_TAG | (uint64_t)r->generation[slot] << SLOT_BITS | slot;
}

bool receive_slots_take(struct receive_slots *r, struct verdict *v, const struct completion *c, uint32_t qp,
                        uint64_t *slot) {
    uint64_t at = c->wr_id & ((1u << SLOT_BITS) - 1);
    uint32_t generation = (uint32_t)((c->wr_id & ~RECEIVE_TAG) >> SLOT_BITS);
    if (at >= r->count || generation == 0 || generation > r->generation[at]) {
        verdict_violation(v, UNEXPECTED, qp, at, "completion %#" PRIx64 " of a receive never posted",
                          c->wr_id);
        return false;
    }
    if (!r->posted[at] || generation < r->generation[at]) {
        verdict_violation(v, DUPLICATE, qp, at, "receive slot %" PRIu64 " completed a second time", at);
        return false;
    }
    uint64_t oldest = qp * r->per_qp + r->taken[qp] % r->per_qp;
    if (!r->shared && at != oldest)
        verdict_violation(v, at / r->per_qp == qp ? REORDERED : WRONG_QP, qp, at,
                          "receive slot %" PRIu64 " completed before slot %" PRIu64 ", posted earlier", at,
                          oldest);
    r->taken[qp]++;
    r->posted[at] = false;
    *slot = at;
    return true;
}
