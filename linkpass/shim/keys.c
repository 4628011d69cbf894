#include "keys.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spare.h"

/* Of some reserve: lp_keys_work() has something to do. */
static _Atomic bool any_behind;

void lp_keys_pd_created(struct lp_pd *pd) {
    struct lp_domain *domain = calloc(1, sizeof(*domain));

    if (!domain)
        return;
    domain->pd = pd;
    domain->forks = atomic_load(&lp_engine.forks);
    pthread_mutex_init(&domain->lock, NULL);
    pd->extra = domain;
}

static void drop_reserve(struct lp_reserve *reserve) {
    (void)LP_REAL(ibv_dereg_mr)(reserve->table_mr);
    (void)LP_REAL(ibv_dealloc_pd)(reserve->pd);
    lp_map_clear(&reserve->lkeys);
    free(reserve->table);
    free(reserve);
}

/* With anything left in it the provider refuses, and all stays. */
void lp_keys_pd_destroying(struct lp_pd *pd) {
    struct lp_domain *domain = pd->extra;

    if (!domain || domain->forks != atomic_load(&lp_engine.forks))
        return;
    pthread_mutex_lock(&lp_engine.lock);
    bool used = domain->regions != NULL;
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next)
        used = used || lane->domain == domain;
    if (!used) {
        for (uint32_t i = 0; i < LP_RESERVES; i++)
            if (domain->reserves[i])
                drop_reserve(domain->reserves[i]);
        pd->extra = NULL;
        free(domain);
    }
    pthread_mutex_unlock(&lp_engine.lock);
}

/* ---- the table that peers read
 * -------------------------------------------------------------------------- */

static uint32_t place_of(const struct lp_key_table *table, uint32_t rkey) {
    uint32_t low = 0, high = table->count;

    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (LP_KEY_ENTRIES(table)[middle].rkey < rkey)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Entries and version in the order in which they are written, as a reader over RDMA sees them. */
static void in_order(void) {
#ifndef __SANITIZE_THREAD__ /* which knows no fences */
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static void change_begins(struct lp_key_table *table) {
    __atomic_store_n(&table->version, table->version + 1, __ATOMIC_SEQ_CST);
    in_order();
}

static void change_ends(struct lp_key_table *table) {
    in_order();
    __atomic_store_n(&table->version, table->version + 1, __ATOMIC_SEQ_CST);
}

static bool table_add(struct lp_key_table *table, const struct lp_key_entry *entry) {
    const uint32_t at = place_of(table, entry->rkey);
    struct lp_key_entry *entries = LP_KEY_ENTRIES(table);

    if (table->count == table->capacity)
        return false;
    change_begins(table);
    memmove(&entries[at + 1], &entries[at], (table->count - at) * sizeof(*entries));
    entries[at] = *entry;
    table->count++;
    change_ends(table);
    return true;
}

static void table_remove(struct lp_key_table *table, uint32_t rkey) {
    const uint32_t at = place_of(table, rkey);
    struct lp_key_entry *entries = LP_KEY_ENTRIES(table);

    if (at == table->count || entries[at].rkey != rkey)
        return;
    change_begins(table);
    memmove(&entries[at], &entries[at + 1], (table->count - at - 1) * sizeof(*entries));
    table->count--;
    change_ends(table);
}

/* ---- regions
 * -------------------------------------------------------------------------------------------- */

static struct ibv_mr *register_there(const struct lp_region *region, struct ibv_pd *pd) {
    const struct lp_mr *mr = region->mr;
    const struct ibv_mr *real = mr->real;

    if (mr->dmabuf_fd >= 0)
        return region->dmabuf_fd < 0 ? NULL
                                     : LP_REAL(ibv_reg_dmabuf_mr)(pd, mr->memory_offset, real->length,
                                                                  mr->iova, region->dmabuf_fd, mr->access);
    if (mr->dmabuf_fd != LP_HOST_MEMORY || !real->addr || !real->length)
        return NULL;
    if (mr->iova != (uintptr_t)real->addr)
        return LP_REAL(ibv_reg_mr_iova)(pd, real->addr, real->length, mr->iova, mr->access);
    return LP_REAL(ibv_reg_mr)(pd, real->addr, real->length, mr->access);
}

/* domain->lock held. */
static bool catch_up_one(struct lp_reserve *reserve, struct lp_region *region) {
    const struct ibv_mr *real = region->mr->real;
    struct ibv_mr *there = register_there(region, reserve->pd);
    struct lp_key_entry entry = {.addr = region->mr->iova, .length = real->length, .rkey = real->rkey};

    if (!there) {
        region->refused[reserve->index] = true;
        return false;
    }
    entry.spare_rkey = there->rkey;
    if (!lp_map_put(&reserve->lkeys, (uintptr_t)real->lkey + 1, (void *)((uintptr_t)there->lkey + 1)) ||
        !table_add(reserve->table, &entry)) {
        (void)lp_map_take(&reserve->lkeys, (uintptr_t)real->lkey + 1);
        (void)LP_REAL(ibv_dereg_mr)(there);
        region->refused[reserve->index] = true;
        return false;
    }
    region->on[reserve->index] = there;
    return true;
}

bool lp_keys_catch_up(struct lp_reserve *reserve) {
    struct lp_domain *domain = reserve->domain;
    bool whole = true;

    pthread_mutex_lock(&domain->lock);
    atomic_store(&reserve->behind, false);
    for (struct lp_region *region = domain->regions; region; region = region->next)
        if (!region->on[reserve->index])
            whole = !region->refused[reserve->index] && catch_up_one(reserve, region) && whole;
    pthread_mutex_unlock(&domain->lock);
    return whole;
}

void lp_keys_mr_created(struct lp_mr *mr) {
    struct lp_pd *pd = lp_pd_of(mr->pd);
    struct lp_domain *domain = pd ? pd->extra : NULL;
    struct lp_region *region =
        domain && domain->forks == atomic_load(&lp_engine.forks) ? calloc(1, sizeof(*region)) : NULL;
    bool wake = false;

    mr->extra = region;
    if (!region)
        return;
    region->mr = mr;
    region->domain = domain;
    region->dmabuf_fd = mr->dmabuf_fd >= 0 ? fcntl(mr->dmabuf_fd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_lock(&domain->lock);
    region->next = domain->regions;
    if (region->next)
        region->next->previous = region;
    domain->regions = region;
    for (uint32_t i = 0; i < LP_RESERVES; i++) {
        if (domain->reserves[i]) {
            lp_keys_behind(domain->reserves[i]);
            wake = true;
        }
    }
    pthread_mutex_unlock(&domain->lock);
    if (wake)
        lp_engine_wake();
}

/* The spares let go of the memory before the job's own region does. */
void lp_keys_mr_destroying(struct lp_mr *mr) {
    struct lp_region *region = mr->extra;

    if (!region || region->domain->forks != atomic_load(&lp_engine.forks))
        return;
    struct lp_domain *domain = region->domain;
    pthread_mutex_lock(&domain->lock);
    if (region->previous)
        region->previous->next = region->next;
    else
        domain->regions = region->next;
    if (region->next)
        region->next->previous = region->previous;
    for (uint32_t i = 0; i < LP_RESERVES; i++) {
        struct lp_reserve *reserve = domain->reserves[i];
        if (!reserve || !region->on[i])
            continue;
        table_remove(reserve->table, mr->real->rkey);
        (void)lp_map_take(&reserve->lkeys, (uintptr_t)mr->real->lkey + 1);
        (void)LP_REAL(ibv_dereg_mr)(region->on[i]);
    }
    pthread_mutex_unlock(&domain->lock);
    if (region->dmabuf_fd >= 0)
        (void)close(region->dmabuf_fd);
    mr->extra = NULL;
    free(region);
}

/* ---- reserves
 * ------------------------------------------------------------------------------------------- */

static struct lp_reserve *make_reserve(struct lp_domain *domain, struct lp_nic *nic, uint32_t index) {
    const size_t bytes = sizeof(struct lp_key_table) + LP_KEY_ROOM * sizeof(struct lp_key_entry);
    struct lp_reserve *reserve = calloc(1, sizeof(*reserve));
    void *table = NULL;

    if (!reserve || posix_memalign(&table, 4096, bytes)) {
        free(reserve);
        return NULL;
    }
    memset(table, 0, bytes);
    reserve->domain = domain;
    reserve->nic = nic;
    reserve->index = index;
    reserve->table = table;
    reserve->table->capacity = LP_KEY_ROOM;
    reserve->pd = LP_REAL(ibv_alloc_pd)(nic->context);
    if (reserve->pd)
        reserve->table_mr =
            LP_REAL(ibv_reg_mr)(reserve->pd, table, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    if (!reserve->table_mr) {
        if (reserve->pd)
            (void)LP_REAL(ibv_dealloc_pd)(reserve->pd);
        free(table);
        free(reserve);
        return NULL;
    }
    return reserve;
}

struct lp_reserve *lp_keys_reserve(struct lp_domain *domain, struct lp_nic *nic) {
    uint32_t at = 0;

    while (at < LP_RESERVES && domain->reserves[at] && domain->reserves[at]->nic != nic)
        at++;
    if (at == LP_RESERVES)
        return NULL;
    if (!domain->reserves[at]) {
        struct lp_reserve *reserve = make_reserve(domain, nic, at);
        pthread_mutex_lock(&domain->lock);
        domain->reserves[at] = reserve;
        pthread_mutex_unlock(&domain->lock);
    } else if (atomic_load(&domain->reserves[at]->behind)) { /* as no lane used it */
        atomic_store(&any_behind, true);
    }
    return domain->reserves[at];
}

void lp_keys_behind(struct lp_reserve *reserve) {
    atomic_store(&reserve->behind, true);
    atomic_store(&any_behind, true);
}

void lp_keys_work(void) {
    if (!atomic_exchange(&any_behind, false))
        return;
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        for (uint32_t i = 0; lane->domain && i < LP_RESERVES; i++) {
            struct lp_reserve *reserve = lane->domain->reserves[i];
            if (reserve && atomic_load_explicit(&reserve->behind, memory_order_relaxed))
                (void)lp_keys_catch_up(reserve);
        }
    }
}
