/* Where receives of a shared receive queue lie, and how they get to where they are needed. */
#include <stdlib.h>
#include <string.h>

#include "deliver.h"
#include "spare.h"
#include "srq_inner.h"

enum { RECALLED_AT_ONCE = 64, LOOPS_TRIED = 2 };
static const uint64_t HUNGRY_NS = 1000000, LOOP_AGAIN_NS = 50000000;

/* ---- places.  engine.lock held
 * -------------------------------------------------------------------------- */

struct lp_place *lp_place_new(struct lp_shared *shared, struct lp_reserve *reserve, struct ibv_srq *real) {
    struct lp_place *place = calloc(1, sizeof(*place));

    if (!place)
        return NULL;
    place->shared = shared;
    place->reserve = reserve;
    place->real = real;
    pthread_mutex_lock(&shared->lock);
    place->next = shared->places;
    shared->places = place;
    pthread_mutex_unlock(&shared->lock);
    return place;
}

static struct ibv_srq *make_real(struct lp_shared *shared, struct ibv_pd *pd) {
    struct ibv_srq_init_attr init = {
        .srq_context = shared->srq->real->srq_context,
        .attr = {.max_wr = shared->slots, .max_sge = shared->max_sge ? shared->max_sge : 1}};

    return LP_REAL(ibv_create_srq)(pd, &init);
}

static struct lp_place *make_place(struct lp_shared *shared, struct lp_reserve *reserve, struct ibv_pd *pd) {
    struct ibv_srq *real = make_real(shared, pd);
    struct lp_place *place = real ? lp_place_new(shared, reserve, real) : NULL;

    if (place)
        place->ours = true;
    else if (real)
        (void)LP_REAL(ibv_destroy_srq)(real);
    return place;
}

struct lp_place *lp_place_on(struct lp_shared *shared, struct lp_reserve *reserve) {
    for (struct lp_place *place = shared->places; place; place = place->next)
        if (place->reserve == reserve && !place->dead)
            return place;
    return make_place(shared, reserve, reserve->pd);
}

struct lp_place *lp_place_of(struct lp_shared *shared, const struct ibv_srq *real) {
    pthread_mutex_lock(&shared->lock);
    struct lp_place *place = shared->places;
    while (place && place->real != real)
        place = place->next;
    pthread_mutex_unlock(&shared->lock);
    return place;
}

struct ibv_srq *lp_srq_for_new_qp(struct ibv_srq *real) {
    struct lp_shared *shared = lp_shared_of(real);
    struct ibv_srq *use = real;

    if (!shared)
        return real;
    pthread_mutex_lock(&lp_engine.lock);
    if (shared->home->dead) {
        struct lp_place *home = make_place(shared, NULL, shared->srq->real->pd);
        if (home) {
            lp_shared_known_as(shared, home->real, true);
            pthread_mutex_lock(&shared->lock);
            shared->home = home;
            pthread_mutex_unlock(&shared->lock);
        }
    }
    use = shared->home->dead ? NULL : shared->home->real;
    if (use)
        lp_place_enter(shared->home);
    pthread_mutex_unlock(&lp_engine.lock);
    return use;
}

void lp_srq_new_qp_over(struct ibv_srq *used) {
    struct lp_shared *shared = lp_shared_of(used);

    if (shared)
        lp_place_leave(lp_place_of(shared, used));
}

/* True when it is gone. */
static bool destroy_place(struct lp_place *place) {
    lp_recall_end(place);
    if (place->ours && LP_REAL(ibv_destroy_srq)(place->real))
        return false;
    free(place);
    return true;
}

void lp_places_free(struct lp_shared *shared) {
    while (shared->places) {
        struct lp_place *place = shared->places;
        shared->places = place->next;
        (void)destroy_place(place);
    }
}

void lp_shared_forget(struct lp_shared *shared) {
    for (struct lp_place *place = shared->places; place; place = place->next)
        if (!place->reserve)
            lp_shared_known_as(shared, place->real, false);
}

bool lp_shared_attached(const struct lp_shared *shared) {
    uint32_t halves = 0;

    for (const struct lp_place *place = shared->places; place; place = place->next)
        halves += place->halves;
    return halves != 0;
}

void lp_place_attach(struct lp_place *place) {
    place->halves++;
}

void lp_place_detach(struct lp_place *place) {
    place->halves--;
}

void lp_place_enter(struct lp_place *place) {
    struct lp_shared *shared = place->shared;

    pthread_mutex_lock(&shared->lock);
    place->users++;
    shared->spread = shared->spread || place != shared->home;
    if (shared->spread)
        atomic_store(&shared->hungry, true);
    pthread_mutex_unlock(&shared->lock);
}

void lp_place_leave(struct lp_place *place) {
    struct lp_shared *shared = place->shared;

    pthread_mutex_lock(&shared->lock);
    place->users--;
    if (shared->spread)
        atomic_store(&shared->hungry, true);
    pthread_mutex_unlock(&shared->lock);
}

void lp_place_found(struct lp_place *place, uint8_t port, uint8_t sgid_index) {
    place->port = port;
    place->sgid_index = sgid_index;
}

/* ---- who gets what.  shared->lock held
 * ------------------------------------------------------------------ */

/* Has `a` fewer for each queue pair, or as few and waited longer? */
static bool needs_more(const struct lp_place *a, const struct lp_place *b) {
    const uint64_t left = (uint64_t)a->posted * b->users, right = (uint64_t)b->posted * a->users;

    return left < right || (left == right && a->given < b->given);
}

struct lp_place *lp_shared_neediest(struct lp_shared *shared) {
    struct lp_place *best = NULL;

    for (struct lp_place *place = shared->places; place; place = place->next)
        if (place->users && !place->dead && (!best || needs_more(place, best)))
            best = place;
    return best;
}

static void hand_out(struct lp_shared *shared) {
    uint32_t left = shared->held;

    while (left--) {
        struct lp_place *place = lp_shared_neediest(shared);
        const uint32_t slot = shared->held_first;
        if (!place || lp_shared_put(place, slot))
            return;
        shared->held_first = shared->receives[slot].next;
        if (shared->held_first == LP_NO_SLOT)
            shared->held_last = LP_NO_SLOT;
        shared->held--;
    }
}

static bool in_use(const struct lp_shared *shared) {
    for (const struct lp_place *place = shared->places; place; place = place->next)
        if (place->users)
            return true;
    return false;
}

/* Nobody can take a receive there any more, whatever arrives. */
static void bury(struct lp_shared *shared) {
    bool some = false;

    for (struct lp_place *place = shared->places; place; place = place->next) {
        if (place->users || place->dead || !place->posted)
            continue;
        place->dead = some = true;
        place->posted = 0;
    }
    for (uint32_t slot = 0; some && slot < shared->slots; slot++) {
        const struct lp_receive *receive = &shared->receives[slot];
        if (receive->used && receive->place && receive->place->dead)
            lp_shared_hold(shared, slot);
    }
}

void lp_shared_settle(struct lp_shared *shared) {
    pthread_mutex_lock(&shared->lock);
    if (shared->spread && in_use(shared))
        bury(shared);
    hand_out(shared);
    pthread_mutex_unlock(&shared->lock);
}

bool lp_place_fed(struct lp_place *place) {
    pthread_mutex_lock(&place->shared->lock);
    const bool fed = place->posted || !place->shared->used;
    pthread_mutex_unlock(&place->shared->lock);
    return fed;
}

/* The place that has most to spare for one that has none, and how much. */
static struct lp_place *giver(struct lp_shared *shared, uint32_t *count) {
    struct lp_place *most = NULL;
    uint32_t users = 0, starving = 0;

    pthread_mutex_lock(&shared->lock);
    for (struct lp_place *place = shared->places; place; place = place->next) {
        if (!place->users)
            continue;
        users += place->users;
        if (!place->posted)
            starving += place->users;
        else if (!most || place->posted > most->posted)
            most = place;
    }
    if (most && starving) {
        const uint64_t share = (uint64_t)most->posted * starving / users;
        *count = share ? (share < RECALLED_AT_ONCE ? (uint32_t)share : RECALLED_AT_ONCE) : 1;
    }
    pthread_mutex_unlock(&shared->lock);
    return starving ? most : NULL;
}

/* A NIC that can't even reach itself: what is connected through it is as good as lost, and holds on to
 * receives that others wait for. */
static void give_up(struct lp_place *place) {
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        lp_lock(&lane->lock);
        if (lane->now->place == place && lane->covered && !lane->plain && !lane->failing)
            lp_engine_act(lane, lp_conn_fatal(&lane->conn, lane->now->epoch));
        lp_unlock(&lane->lock);
    }
}

static void sweep(struct lp_shared *shared) {
    struct lp_place **at = &shared->places;

    while (*at) {
        struct lp_place *place = *at;
        if (!place->dead || place->halves || !place->ours) {
            at = &place->next;
            continue;
        }
        pthread_mutex_lock(&shared->lock);
        *at = place->next;
        pthread_mutex_unlock(&shared->lock);
        if (!place->reserve)
            lp_shared_known_as(shared, place->real, false);
        if (!destroy_place(place)) { /* not yet: the job is about to destroy its queue pair */
            place->next = shared->places;
            pthread_mutex_lock(&shared->lock);
            shared->places = place;
            pthread_mutex_unlock(&shared->lock);
            return;
        }
    }
}

static uint64_t work(struct lp_shared *shared, uint64_t now) {
    uint32_t count = 0;

    if (!atomic_exchange(&shared->hungry, false))
        return UINT64_MAX;
    bool more = false;
    for (struct lp_place *place = shared->places; place; place = place->next)
        more = lp_recall_rest(place) || more;
    lp_shared_settle(shared);
    sweep(shared);
    struct lp_place *from = giver(shared, &count);
    pthread_mutex_lock(&shared->lock);
    const bool held = shared->held && in_use(shared);
    pthread_mutex_unlock(&shared->lock);
    if (!from && !held && !more)
        return UINT64_MAX;
    atomic_store(&shared->hungry, true);
    if (from && shared->recall_at <= now) {
        const bool reached = lp_recall(from, count);
        from->loop_failures = reached ? 0 : from->loop_failures + 1;
        if (from->loop_failures >= LOOPS_TRIED)
            give_up(from);
        shared->recall_at = lp_now_ns() + (reached ? HUNGRY_NS : LOOP_AGAIN_NS);
        lp_shared_settle(shared);
    }
    return HUNGRY_NS;
}

uint64_t lp_shared_work_all(uint64_t now) {
    const struct lp_shared *before = NULL;
    uint64_t next = UINT64_MAX;

    for (struct lp_lane *lane = lp_engine.sharing ? lp_engine.lanes : NULL; lane; lane = lane->next) {
        if (!lane->shared || lane->shared == before)
            continue;
        before = lane->shared;
        const uint64_t due = work(lane->shared, now);
        next = due < next ? due : next;
    }
    return next;
}
