/* Shared receive queues: what the job has posted, and what completes. */
#include "srq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "deliver.h"
#include "engine_why.h"
#include "srq_inner.h"

static struct lp_map shareds; /* real shared receive queue -> struct lp_shared */

static struct lp_shared *of_shadow(const struct lp_srq *srq) {
    struct lp_shared *shared = srq->extra;

    return shared && shared->forks == atomic_load_explicit(&lp_engine.forks, memory_order_relaxed) ? shared
                                                                                                   : NULL;
}

struct lp_shared *lp_shared_of(const struct ibv_srq *real) {
    struct lp_shared *shared = real ? lp_map_get(&shareds, LP_KEY(real)) : NULL;

    return shared && shared->forks == atomic_load_explicit(&lp_engine.forks, memory_order_relaxed) ? shared
                                                                                                   : NULL;
}

/* ---- slots.  shared->lock held
 * -------------------------------------------------------------------------- */

static bool make_slots(struct lp_shared *shared, uint32_t slots, uint32_t max_sge) {
    shared->receives = calloc(slots, sizeof(*shared->receives));
    shared->sges = calloc((size_t)slots * (max_sge ? max_sge : 1), sizeof(*shared->sges));
    if (!shared->receives || !shared->sges)
        return false;
    shared->slots = slots;
    shared->max_sge = max_sge;
    for (uint32_t i = 0; i < slots; i++)
        shared->receives[i].next = i + 1 < slots ? i + 1 : LP_NO_SLOT;
    shared->free = 0;
    shared->held_first = shared->held_last = LP_NO_SLOT;
    return true;
}

static void release(struct lp_shared *shared, uint32_t slot) {
    struct lp_receive *receive = &shared->receives[slot];

    receive->used = false;
    receive->place = NULL;
    receive->next = shared->free;
    shared->free = slot;
    shared->used--;
}

void lp_shared_hold(struct lp_shared *shared, uint32_t slot) {
    struct lp_receive *receive = &shared->receives[slot];

    receive->place = NULL;
    receive->next = LP_NO_SLOT;
    if (shared->held_last == LP_NO_SLOT)
        shared->held_first = slot;
    else
        shared->receives[shared->held_last].next = slot;
    shared->held_last = slot;
    shared->held++;
    atomic_store_explicit(&shared->hungry, true, memory_order_relaxed);
}

/* ---- the way down
 * --------------------------------------------------------------------------------------- */

int lp_shared_put(struct lp_place *place, uint32_t slot) {
    struct lp_shared *shared = place->shared;
    struct lp_receive *receive = &shared->receives[slot];
    struct lp_sge *from = &shared->sges[(size_t)slot * shared->max_sge];
    struct ibv_sge there[LP_SRQ_SGES];
    struct ibv_recv_wr *bad,
        wr = {.wr_id = LP_WR_ID(LP_KIND_RECV, slot), .num_sge = (int)receive->sge_count, .sg_list = there};

    for (uint32_t i = 0; i < receive->sge_count; i++) {
        there[i] = (struct ibv_sge){.addr = from[i].addr, .length = from[i].length, .lkey = from[i].lkey};
        if (place->reserve && from[i].length &&
            !lp_keys_local(place->reserve, from[i].lkey, &there[i].lkey)) {
            lp_keys_behind(place->reserve);
            return EAGAIN;
        }
    }
    const int result = place->reserve ? ibv_post_srq_recv(place->real, &wr, &bad)
                                      : shared->context->ops.post_srq_recv(place->real, &wr, &bad);
    if (!result) {
        receive->place = place;
        place->posted++;
        place->given = ++shared->posts;
    }
    return result;
}

static int post_one(struct lp_shared *shared, const struct ibv_recv_wr *wr) {
    const uint32_t slot = shared->free;

    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > shared->max_sge)
        return EINVAL;
    if (slot == LP_NO_SLOT)
        return ENOMEM;
    struct lp_receive *receive = &shared->receives[slot];
    shared->free = receive->next;
    *receive = (struct lp_receive){
        .wr_id = wr->wr_id, .sge_count = (uint32_t)wr->num_sge, .next = LP_NO_SLOT, .used = true};
    if (wr->num_sge)
        memcpy(&shared->sges[(size_t)slot * shared->max_sge], wr->sg_list,
               (size_t)wr->num_sge * sizeof(struct lp_sge));
    shared->used++;
    struct lp_place *place = shared->spread ? lp_shared_neediest(shared) : shared->home;
    const int result = place ? lp_shared_put(place, slot) : EAGAIN;
    if (result && !shared->spread)
        release(shared, slot);
    else if (result)
        lp_shared_hold(shared, slot);
    return shared->spread ? 0 : result;
}

int lp_srq_post(struct lp_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct lp_shared *shared = of_shadow(srq);
    int result = 0;

    if (!shared)
        return srq->context->ops.post_srq_recv(srq->real, wr, bad);
    pthread_mutex_lock(&shared->lock);
    for (; wr && !result; wr = wr->next) {
        result = post_one(shared, wr);
        if (result)
            *bad = wr;
    }
    pthread_mutex_unlock(&shared->lock);
    if (atomic_load_explicit(&shared->hungry, memory_order_relaxed))
        lp_engine_wake();
    return result;
}

/* ---- the way up
 * ----------------------------------------------------------------------------------------- */

/* The receive leaves its place.  False: no receive lies there under that number. */
static bool taken(struct lp_shared *shared, uint32_t slot) {
    struct lp_receive *receive = slot < shared->slots ? &shared->receives[slot] : NULL;
    struct lp_place *place = receive ? receive->place : NULL;

    if (!place || !receive->used)
        return false;
    receive->place = NULL;
    place->posted--;
    if (!place->posted && shared->spread && place->users)
        atomic_store_explicit(&shared->hungry, true, memory_order_relaxed);
    return true;
}

bool lp_shared_done(struct lp_shared *shared, uint32_t slot, uint64_t *wr_id) {
    pthread_mutex_lock(&shared->lock);
    const bool known = taken(shared, slot);
    if (known) {
        *wr_id = shared->receives[slot].wr_id;
        release(shared, slot);
    }
    pthread_mutex_unlock(&shared->lock);
    if (atomic_load_explicit(&shared->hungry, memory_order_relaxed))
        lp_engine_wake();
    return known;
}

void lp_shared_return(struct lp_shared *shared, uint32_t slot) {
    pthread_mutex_lock(&shared->lock);
    if (taken(shared, slot))
        lp_shared_hold(shared, slot);
    pthread_mutex_unlock(&shared->lock);
    lp_engine_wake();
}

/* ---- life
 * ----------------------------------------------------------------------------------------------- */

void lp_srq_created(struct lp_srq *srq) {
    struct lp_pd *pd = lp_pd_of(srq->real->pd);
    /* What a NIC has done with is free there before it is polled, so a job may have more of them open. */
    const uint32_t slots = srq->max_wr < UINT32_MAX / 4 ? srq->max_wr * 2 : 0;
    struct lp_shared *shared =
        lp_engine.covers && srq->simple && slots && srq->max_sge <= LP_SRQ_SGES && pd && pd->extra
            ? calloc(1, sizeof(*shared))
            : NULL;

    srq->extra = NULL;
    if (!shared)
        return;
    shared->srq = srq;
    shared->context = srq->context;
    shared->domain = pd->extra;
    shared->forks = atomic_load(&lp_engine.forks);
    shared->stranger.shared = shared->gone.shared = shared;
    pthread_mutex_init(&shared->lock, NULL);
    shared->home = make_slots(shared, slots, srq->max_sge) ? lp_place_new(shared, NULL, srq->real) : NULL;
    if (!shared->home || !lp_map_put(&shareds, LP_KEY(srq->real), shared)) {
        lp_shared_free(shared);
        return;
    }
    srq->extra = shared;
}

void lp_shared_free(struct lp_shared *shared) {
    lp_places_free(shared);
    pthread_mutex_destroy(&shared->lock);
    free(shared->receives);
    free(shared->sges);
    free(shared);
}

/* With queue pairs left the provider refuses, and all stays. */
void lp_srq_destroying(struct lp_srq *srq) {
    struct lp_shared *shared = of_shadow(srq);

    if (!shared)
        return;
    pthread_mutex_lock(&lp_engine.lock);
    if (!lp_shared_attached(shared)) {
        srq->extra = NULL;
        lp_shared_forget(shared);
        lp_shared_free(shared);
    }
    pthread_mutex_unlock(&lp_engine.lock);
}

void lp_shared_known_as(struct lp_shared *shared, const struct ibv_srq *real, bool known) {
    if (known)
        (void)lp_map_put(&shareds, LP_KEY(real), shared);
    else
        (void)lp_map_take(&shareds, LP_KEY(real));
}

/* A limit counts the receives of one real queue, and its event is of that queue: no other place can raise it.
 */
int lp_srq_modify(struct lp_srq *srq, struct ibv_srq_attr *attr, int mask) {
    struct lp_shared *shared = of_shadow(srq);

    if (shared && (mask & IBV_SRQ_LIMIT) && attr->srq_limit)
        lp_lanes_leave((struct lp_leaving){.shared = shared}, LP_WHY_SRQ);
    return LP_REAL(ibv_modify_srq)(srq->real, attr, mask);
}
