/* The memory of one end: `mrs` regions, each laid out alike; every part is an array of slots of one stride.
 *
 *   sources   qps x depth      where own requests take their payload from, and READs and atomics put results
 *   receives  receive slots    what SENDs land in
 *   targets   qps x 2 windows  what WRITEs land in        (slot s in region s % mrs, place s / mrs)
 *   readable  qps x 2 windows  what READs are served from (likewise)
 *   words     qps x 2          the atomic words, 64 bytes apart, in region 0
 * A slot of sources or receives spans all regions: a message's pieces lie at its own offsets in any of them.
 */
#ifndef RCFLOW_MEMORY_H
#define RCFLOW_MEMORY_H

#include "workload.h"

struct memory {
    uint64_t mrs, stride, slots; /* slots: 2 windows, targets per queue pair */
    uint64_t depth, receive_slots;
    uint64_t receives_at, targets_at, readable_at, words_at, bytes; /* offsets in a region; its size */
    unsigned char *base[MRS_MAX];
};

/* Offsets only; `initiates`, `responds`: the roles of that end. */
void memory_layout(struct memory *m, const struct workload *w, bool initiates, bool responds);
/* Map the regions, all poison. 0 or an errno value. */
int memory_map(struct memory *m);
void memory_destroy(struct memory *m);

/* Offsets in region; where a slot lies in one region only, *mr says which. */
uint64_t source_offset(const struct memory *m, uint32_t qp, uint64_t seq);
uint64_t receive_offset(const struct memory *m, uint64_t slot);
uint64_t target_offset(const struct memory *m, uint32_t qp, uint64_t seq, uint32_t *mr);
uint64_t readable_offset(const struct memory *m, uint32_t qp, uint64_t seq, uint32_t *mr);
uint64_t word_offset(const struct memory *m, uint32_t qp, enum op op); /* region 0 */

void pieces_fill(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n, uint64_t key,
                 uint64_t seq);
void pieces_poison(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n);
/* Where the first `size` bytes of the message differ; size when right. */
uint64_t pieces_check(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n,
                      uint64_t size, uint64_t key, uint64_t seq);
/* True when everything else in the slot (all regions) is poison; *mr and *at say where it isn't. */
bool pieces_rest_is_poison(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n,
                           uint64_t size, uint32_t *mr, uint64_t *at);

#endif
