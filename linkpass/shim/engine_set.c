/* The set of lanes: found by the number that the agent knows, and by what the keeper has to look at.  Lanes
 * stand on shelves of 64, so that a look costs what has happened and not what there is. */
#include <stdlib.h>

#include "engine.h"

enum { SHELF_LANES = 64 };

/* Never freed: a lane may be called dirty by a thread that saw it before it was taken out. */
struct lp_shelf {
    struct lp_shelf *next;
    _Atomic uint64_t dirty; /* bits of lanes to look at at once */
    uint64_t taken;         /* bits of places with a lane */
    uint64_t due;           /* ns: no lane here is to be looked at earlier for its time's sake */
    struct lp_lane *lanes[SHELF_LANES];
};

static struct lp_shelf *shelves;
static struct lp_map by_id;

static bool find_room(struct lp_lane *lane) {
    struct lp_shelf *shelf;

    for (shelf = shelves; shelf && shelf->taken == UINT64_MAX;)
        shelf = shelf->next;
    if (!shelf) {
        if (!(shelf = calloc(1, sizeof(*shelf))))
            return false;
        shelf->due = UINT64_MAX;
        shelf->next = shelves;
        shelves = shelf;
    }
    lane->shelf = shelf;
    lane->shelf_at = (uint8_t)__builtin_ctzll(~shelf->taken);
    return true;
}

bool lp_lanes_add(struct lp_lane *lane) {
    if (!find_room(lane) || !lp_map_put(&by_id, (uintptr_t)(lp_engine.next_id + 1), lane))
        return false;
    lane->id = ++lp_engine.next_id;
    lane->shelf->lanes[lane->shelf_at] = lane;
    lane->shelf->taken |= UINT64_C(1) << lane->shelf_at;
    lane->next = lp_engine.lanes;
    if (lane->next)
        lane->next->previous = lane;
    lp_engine.lanes = lane;
    lp_engine.sharing += lane->shared != NULL;
    return true;
}

void lp_lanes_remove(struct lp_lane *lane) {
    (void)lp_map_take(&by_id, (uintptr_t)lane->id);
    lane->shelf->lanes[lane->shelf_at] = NULL;
    lane->shelf->taken &= ~(UINT64_C(1) << lane->shelf_at);
    lp_engine.sharing -= lane->shared != NULL;
    if (lane->previous)
        lane->previous->next = lane->next;
    else
        lp_engine.lanes = lane->next;
    if (lane->next)
        lane->next->previous = lane->previous;
}

void lp_lanes_renumber(struct lp_lane *lane) {
    (void)lp_map_take(&by_id, (uintptr_t)lane->id);
    lane->id = ++lp_engine.next_id;
    /* Without memory the agent can't speak of it any more: then it has no spares, and runs on. */
    (void)lp_map_put(&by_id, (uintptr_t)lane->id, lane);
}

void lp_lanes_forget_all(void) {
    lp_engine.lanes = NULL;
    lp_engine.sharing = 0;
    shelves = NULL;
    lp_map_clear(&by_id);
}

struct lp_lane *lp_lane_by_id(uint64_t id) {
    return id && id <= lp_engine.next_id ? lp_map_get(&by_id, (uintptr_t)id) : NULL;
}

void lp_lane_dirty(struct lp_lane *lane) {
    atomic_fetch_or_explicit(&lane->shelf->dirty, UINT64_C(1) << lane->shelf_at, memory_order_release);
    lp_engine_wake();
}

static void look_at(struct lp_shelf *shelf, uint64_t now,
                    uint64_t (*look)(struct lp_lane *lane, uint64_t now)) {
    const uint64_t dirty = atomic_exchange_explicit(&shelf->dirty, 0, memory_order_acq_rel);

    shelf->due = UINT64_MAX;
    for (uint32_t at = 0; at < SHELF_LANES; at++) {
        struct lp_lane *lane = shelf->lanes[at];
        if (!lane)
            continue;
        if ((dirty >> at & 1) || lane->look_at <= now) {
            const uint64_t wait = look(lane, now);
            lane->look_at = wait == UINT64_MAX ? UINT64_MAX : now + wait;
        }
        shelf->due = lane->look_at < shelf->due ? lane->look_at : shelf->due;
    }
}

uint64_t lp_lanes_look(uint64_t now, uint64_t (*look)(struct lp_lane *lane, uint64_t now)) {
    uint64_t due = UINT64_MAX;

    lp_engine.looks++;
    for (struct lp_shelf *shelf = shelves; shelf; shelf = shelf->next) {
        if (atomic_load_explicit(&shelf->dirty, memory_order_relaxed) || shelf->due <= now)
            look_at(shelf, now, look);
        due = shelf->due < due ? shelf->due : due;
    }
    return due == UINT64_MAX ? UINT64_MAX : due > now ? due - now : 0;
}
