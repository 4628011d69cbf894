/* The job's memory on spare NICs: regions registered there too, and what their keys are called. */
#ifndef LP_KEYS_H
#define LP_KEYS_H

#include "engine.h"

enum { LP_RESERVES = 8 /* spare NICs of one protection domain */, LP_KEY_ROOM = 4096 /* regions */ };

struct lp_nic; /* spare.h */

struct lp_region {
    struct lp_mr *mr;
    struct lp_domain *domain;
    int dmabuf_fd; /* our own, or -1 */
    struct ibv_mr *on[LP_RESERVES];
    bool refused[LP_RESERVES];
    struct lp_region *next, *previous;
};

struct lp_domain {
    struct lp_pd *pd;
    pthread_mutex_t lock; /* regions and tables */
    struct lp_region *regions;
    struct lp_reserve *reserves[LP_RESERVES];
    uint32_t forks;
};

struct lp_reserve {
    struct lp_domain *domain;
    struct lp_nic *nic;
    struct ibv_pd *pd;
    uint32_t index;
    struct lp_map lkeys; /* the job's lkey + 1 -> lkey here + 1 */
    struct lp_key_table *table;
    struct ibv_mr *table_mr;
    uint32_t halves;
    _Atomic bool behind; /* regions wait to be registered */
};

#define LP_KEY_ENTRIES(table) ((struct lp_key_entry *)(void *)((table) + 1))

void lp_keys_pd_created(struct lp_pd *pd);
void lp_keys_pd_destroying(struct lp_pd *pd);
void lp_keys_mr_created(struct lp_mr *mr);
void lp_keys_mr_destroying(struct lp_mr *mr);

/* The reserve of a domain on that NIC, made if need be; NULL when it can't be.  engine.lock held. */
struct lp_reserve *lp_keys_reserve(struct lp_domain *domain, struct lp_nic *nic);
/* Registers what is missing.  False: something couldn't be. */
bool lp_keys_catch_up(struct lp_reserve *reserve);
/* All domains that are behind.  engine.lock held. */
void lp_keys_work(void);
/* Regions wait to be registered there: lp_keys_work() is to see to it, when the keeper is woken. */
void lp_keys_behind(struct lp_reserve *reserve);

/* The key there of a region of the job's. */
static inline bool lp_keys_local(struct lp_reserve *reserve, uint32_t lkey, uint32_t *there) {
    uintptr_t found = (uintptr_t)lp_map_get(&reserve->lkeys, (uintptr_t)lkey + 1);
    *there = (uint32_t)(found - 1);
    return found != 0;
}

/* The peer's key for that memory on the spare, from what was read of its table. */
bool lp_keys_remote(const struct lp_half *half, uint32_t rkey, uint64_t addr, uint64_t length,
                    uint32_t *there);
/* Starts or goes on reading the peer's table.  lane->lock held. */
void lp_keys_read(struct lp_half *half);
void lp_keys_read_done(struct lp_half *half);

#endif
