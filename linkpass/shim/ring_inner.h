/* What the two rings share. */
#ifndef LINKPASS_RING_INNER_H
#define LINKPASS_RING_INNER_H

#include "ring.h"

#define LINE 64u /* a cache line: entries and payloads start on one */

static inline size_t aligned(size_t bytes) {
    return (bytes + LINE - 1) & ~(size_t)(LINE - 1);
}

static inline uint32_t slots_for(uint32_t max_wr) {
    uint32_t slots = 1;
    while (slots < max_wr && slots < (1u << 31)) {
        slots <<= 1;
    }
    return slots;
}

static inline uint32_t stride_for(uint32_t max_sge, uint32_t max_inline) {
    size_t sges = (size_t)max_sge * sizeof(struct lp_sge);
    size_t need = sges > max_inline ? sges : max_inline;
    return (uint32_t)((need + 15) & ~(size_t)15);
}

static inline uint32_t log2_of(uint32_t power) {
    uint32_t shift = 0;
    while ((UINT32_C(1) << shift) < power && shift < 31) {
        shift++;
    }
    return shift;
}

static inline uint32_t load(const _Atomic uint32_t *value) {
    return atomic_load_explicit(value, memory_order_acquire);
}

static inline void store(_Atomic uint32_t *value, uint32_t next) {
    atomic_store_explicit(value, next, memory_order_release);
}

static inline uint32_t peek(const _Atomic uint32_t *value) {
    return atomic_load_explicit(value, memory_order_relaxed);
}

#endif
