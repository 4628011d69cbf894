#include "lane_order.h"

#include <inttypes.h>

bool lane_order_take(struct lane_order *o, uint64_t number, int status, const char *what, uint32_t connection,
                     struct verdict *v) {
    if (number >= o->posted || number % o->step) {
        verdict_violation(v, UNEXPECTED, connection, number, "%s: completion of one never posted", what);
        return false;
    }
    if (number < o->completed) {
        verdict_violation(v, DUPLICATE, connection, number, "%s: completed again", what);
        return false;
    }
    if (status != 0) {
        o->failed = true;
        return false;
    }
    if (o->failed)
        verdict_violation(v, UNEXPECTED, connection, number,
                          "%s: completed well after an earlier one had failed", what);
    if (number > o->completed)
        verdict_violation(v, LOST, connection, o->completed, "%s: no completion before that of %" PRIu64,
                          what, number);
    o->completed = number + o->step;
    return true;
}
