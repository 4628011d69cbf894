/*
 * A map from a word (a pointer, a queue pair number) to a pointer, for many readers and rare writers.
 *
 * lp_map_get() takes no lock, writes nothing and makes no call: it is meant for the hot path.  A reader that
 * meets a change tries again (a sequence lock); writers of all maps share one mutex, held over fork(). Tables
 * that grew out of use are kept, since a reader may still be in one: together they are never larger than the
 * table in use.
 */
#ifndef LP_OBJECTS_MAP_H
#define LP_OBJECTS_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lp_map_slot {
    _Atomic uintptr_t key;
    _Atomic uintptr_t value;
};

struct lp_map_table {
    struct lp_map_table *older;
    uint32_t bits;
    uint32_t used; /* slots with a key or a tombstone */
    uint32_t live;
    struct lp_map_slot slots[];
};

struct lp_map {
    _Atomic(struct lp_map_table *) table;
    _Atomic uint32_t sequence;
};

/* An empty map is all zeros.  Keys 0 and UINTPTR_MAX are not allowed. */
enum { LP_MAP_MIN_BITS = 6 };

static inline uint32_t lp_map_home(uintptr_t key, uint32_t bits) {
    return (uint32_t)(((uint64_t)key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - bits));
}

static inline void *lp_map_get(struct lp_map *map, uintptr_t key) {
    for (;;) {
        uint32_t before = atomic_load_explicit(&map->sequence, memory_order_acquire);
        struct lp_map_table *table = atomic_load_explicit(&map->table, memory_order_acquire);
        uintptr_t value = 0;

        if (!table)
            return NULL;
        const uint32_t mask = (1U << table->bits) - 1;
        uint32_t at = lp_map_home(key, table->bits);
        for (uint32_t left = mask + 1; left; left--, at = (at + 1) & mask) {
            uintptr_t found = atomic_load_explicit(&table->slots[at].key, memory_order_acquire);
            if (found == key)
                value = atomic_load_explicit(&table->slots[at].value, memory_order_acquire);
            if (found == key || !found)
                break;
        }
        if (!(before & 1) && atomic_load_explicit(&map->sequence, memory_order_relaxed) == before)
            return (void *)value;
    }
}

/* Set or replace; false when there is no memory (the map is as before). */
bool lp_map_put(struct lp_map *map, uintptr_t key, void *value);

/* Remove; returns what was there, or NULL. */
void *lp_map_take(struct lp_map *map, uintptr_t key);

/* Call each() for every entry, under the writers' mutex: each() may not change a map. */
void lp_map_each(struct lp_map *map, void (*each)(uintptr_t key, void *value, void *arg), void *arg);

/* For pthread_atfork(): no map is half-changed in the child. */
void lp_map_lock(void);
void lp_map_unlock(void);

/* Free all tables.  No reader may be left. */
void lp_map_clear(struct lp_map *map);

#endif
