/* The writers' side of objects_map.h. */
#include "objects_map.h"

#include <pthread.h>
#include <stdlib.h>

#define LP_TOMB UINTPTR_MAX

static pthread_mutex_t lp_writers = PTHREAD_MUTEX_INITIALIZER;

void lp_map_lock(void) {
    pthread_mutex_lock(&lp_writers);
}

void lp_map_unlock(void) {
    pthread_mutex_unlock(&lp_writers);
}

/* Slots are stored with release order, so that a reader who sees one of them also sees the odd sequence. */
static void lp_odd(struct lp_map *map) {
    atomic_fetch_add_explicit(&map->sequence, 1, memory_order_acq_rel);
}

static void lp_even(struct lp_map *map) {
    atomic_fetch_add_explicit(&map->sequence, 1, memory_order_release);
}

static void lp_fill(struct lp_map_table *table, uintptr_t key, uintptr_t value) {
    const uint32_t mask = (1U << table->bits) - 1;
    uint32_t at = lp_map_home(key, table->bits);

    while (atomic_load_explicit(&table->slots[at].key, memory_order_relaxed))
        at = (at + 1) & mask;
    atomic_store_explicit(&table->slots[at].value, value, memory_order_release);
    atomic_store_explicit(&table->slots[at].key, key, memory_order_release);
    table->used++;
    table->live++;
}

static struct lp_map_table *lp_new_table(uint32_t bits) {
    struct lp_map_table *table = calloc(1, sizeof(*table) + ((size_t)1 << bits) * sizeof(table->slots[0]));

    if (table)
        table->bits = bits;
    return table;
}

/* Copies the live entries to `to`, which no reader sees yet. */
static void lp_copy(const struct lp_map_table *from, struct lp_map_table *to) {
    for (uint32_t i = 0; i < 1U << from->bits; i++) {
        uintptr_t key = atomic_load_explicit(&from->slots[i].key, memory_order_relaxed);
        if (key && key != LP_TOMB)
            lp_fill(to, key, atomic_load_explicit(&from->slots[i].value, memory_order_relaxed));
    }
}

/* Empties tombstones of a table that readers see, without a new table each time: churn must not cost memory.
 */
static bool lp_sweep(struct lp_map *map, struct lp_map_table *table) {
    struct lp_map_table *fresh = lp_new_table(table->bits);

    if (!fresh)
        return false;
    lp_copy(table, fresh);
    lp_odd(map);
    for (uint32_t i = 0; i < 1U << table->bits; i++) {
        atomic_store_explicit(&table->slots[i].value,
                              atomic_load_explicit(&fresh->slots[i].value, memory_order_relaxed),
                              memory_order_release);
        atomic_store_explicit(&table->slots[i].key,
                              atomic_load_explicit(&fresh->slots[i].key, memory_order_relaxed),
                              memory_order_release);
    }
    table->used = table->live = fresh->live;
    lp_even(map);
    free(fresh);
    return true;
}

/* Makes room for one more entry: at most half of the slots are ever used, so probes stay short. */
static struct lp_map_table *lp_room(struct lp_map *map) {
    struct lp_map_table *table = atomic_load_explicit(&map->table, memory_order_relaxed);

    if (table && (table->used + 1) * 2 <= 1U << table->bits)
        return table;
    if (table && (table->live + 1) * 4 <= 1U << table->bits)
        return lp_sweep(map, table) ? table : NULL;
    struct lp_map_table *larger = lp_new_table(table ? table->bits + 1 : LP_MAP_MIN_BITS);
    if (!larger)
        return NULL;
    if (table)
        lp_copy(table, larger);
    larger->older = table;
    atomic_store_explicit(&map->table, larger, memory_order_release);
    return larger;
}

static struct lp_map_slot *lp_slot(struct lp_map *map, uintptr_t key) {
    struct lp_map_table *table = atomic_load_explicit(&map->table, memory_order_relaxed);

    if (!table)
        return NULL;
    const uint32_t mask = (1U << table->bits) - 1;
    uint32_t at = lp_map_home(key, table->bits);
    for (;; at = (at + 1) & mask) {
        uintptr_t found = atomic_load_explicit(&table->slots[at].key, memory_order_relaxed);
        if (found == key)
            return &table->slots[at];
        if (!found)
            return NULL;
    }
}

bool lp_map_put(struct lp_map *map, uintptr_t key, void *value) {
    bool done = true;

    lp_map_lock();
    struct lp_map_slot *slot = lp_slot(map, key);
    if (slot) {
        lp_odd(map);
        atomic_store_explicit(&slot->value, (uintptr_t)value, memory_order_release);
        lp_even(map);
    } else {
        struct lp_map_table *table = lp_room(map);
        done = table != NULL;
        if (done) {
            lp_odd(map);
            lp_fill(table, key, (uintptr_t)value);
            lp_even(map);
        }
    }
    lp_map_unlock();
    return done;
}

void *lp_map_take(struct lp_map *map, uintptr_t key) {
    void *value = NULL;

    lp_map_lock();
    struct lp_map_slot *slot = lp_slot(map, key);
    if (slot) {
        value = (void *)atomic_load_explicit(&slot->value, memory_order_relaxed);
        lp_odd(map);
        atomic_store_explicit(&slot->key, LP_TOMB, memory_order_release);
        atomic_store_explicit(&slot->value, 0, memory_order_release);
        lp_even(map);
        atomic_load_explicit(&map->table, memory_order_relaxed)->live--;
    }
    lp_map_unlock();
    return value;
}

void lp_map_each(struct lp_map *map, void (*each)(uintptr_t key, void *value, void *arg), void *arg) {
    lp_map_lock();
    struct lp_map_table *table = atomic_load_explicit(&map->table, memory_order_relaxed);
    for (uint32_t i = 0; table && i < 1U << table->bits; i++) {
        uintptr_t key = atomic_load_explicit(&table->slots[i].key, memory_order_relaxed);
        if (key && key != LP_TOMB)
            each(key, (void *)atomic_load_explicit(&table->slots[i].value, memory_order_relaxed), arg);
    }
    lp_map_unlock();
}

void lp_map_clear(struct lp_map *map) {
    struct lp_map_table *table = atomic_exchange(&map->table, NULL);

    while (table) {
        struct lp_map_table *older = table->older;
        free(table);
        table = older;
    }
}
