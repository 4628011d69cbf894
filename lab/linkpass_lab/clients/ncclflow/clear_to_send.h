/* The clear-to-send entry that a receiver writes into its sender's fifo, and its check. No verbs calls.
 * The index comes last: the sender polls it, and what lies before it has then arrived too. */
#ifndef NCCLFLOW_CLEAR_TO_SEND_H
#define NCCLFLOW_CLEAR_TO_SEND_H

#include "../common/verdict.h"
#include "job.h"

struct cts_entry {
    uint64_t addr;
    uint64_t size;
    uint32_t rkey, count, tag, zero[7];
    uint64_t index; /* number of the group + 1; 0: empty */
};
_Static_assert(sizeof(struct cts_entry) == 64, "one entry is one cache line");

enum cts_state { CTS_NOT_YET, CTS_READY, CTS_WRONG };

/* Have all entries of the expected group arrived, and are they right? `addr_of`, `rkey`: where the receiver's
 * buffers are known to lie. Anything else than an empty slot or the expected group is a violation. */
enum cts_state cts_check(const volatile struct cts_entry *slot, const struct job *j,
                         const struct group *expected, uint64_t buffers_at, uint32_t rkey, struct verdict *v,
                         uint32_t connection);
/* Number of fifo entries that aren't empty; none may be left when all is answered. */
uint64_t cts_leftovers(const volatile struct cts_entry *fifo, const struct job *j);
/* Offset of receive r of a group among the receiver's (and the sender's) buffers. */
uint64_t buffer_offset(const struct job *j, uint64_t group, uint32_t r);

#endif
