#include "clear_to_send.h"

#include <inttypes.h>
#include <stdatomic.h>

uint64_t buffer_offset(const struct job *j, uint64_t group, uint32_t r) {
    return (group % j->max_requests * j->group + r) * job_stride(j);
}

static bool entry_is_right(const volatile struct cts_entry *e, const struct job *j, const struct group *g,
                           uint32_t r, uint64_t buffers_at, uint32_t rkey) {
    return e->addr == buffers_at + buffer_offset(j, g->number, r) && e->size == g->room[r] &&
           e->rkey == rkey && e->count == g->count && e->tag == g->tag[r];
}

enum cts_state cts_check(const volatile struct cts_entry *slot, const struct job *j, const struct group *g,
                         uint64_t buffers_at, uint32_t rkey, struct verdict *v, uint32_t connection) {
    uint64_t want = g->number + 1;
    for (uint32_t r = 0; r < g->count; r++) {
        uint64_t index = slot[r].index;
        if (index == 0)
            return CTS_NOT_YET;
        if (index == want)
            continue;
        verdict_violation(v, index < want ? DUPLICATE : REORDERED, connection, g->number,
                          "clear-to-send of group %" PRIu64 " in the slot where this one belongs", index - 1);
        return CTS_WRONG;
    }
    atomic_thread_fence(memory_order_acquire);
    for (uint32_t r = 0; r < g->count; r++) {
        if (entry_is_right(&slot[r], j, g, r, buffers_at, rkey))
            continue;
        verdict_violation(v, DATA_MISMATCH, connection, g->number,
                          "clear-to-send entry %u is wrong: address %#" PRIx64 ", size %" PRIu64 ", tag %#x",
                          r, slot[r].addr, slot[r].size, slot[r].tag);
        return CTS_WRONG;
    }
    return CTS_READY;
}

uint64_t cts_leftovers(const volatile struct cts_entry *fifo, const struct job *j) {
    uint64_t left = 0;
    for (uint64_t i = 0; i < job_slots(j) * GROUP_MAX; i++)
        left += fifo[i].index != 0;
    return left;
}
