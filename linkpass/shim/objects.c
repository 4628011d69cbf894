/* The maps and pools of objects.h. */
#include "objects.h"

#include <stdlib.h>
#include <string.h>

struct lp_map lp_contexts, lp_pds, lp_mrs, lp_channels, lp_cqs, lp_srqs, lp_qps;

static pthread_mutex_t lp_pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct lp_qp *lp_pool;

void lp_pool_lock(void) {
    pthread_mutex_lock(&lp_pool_mutex);
}

void lp_pool_unlock(void) {
    pthread_mutex_unlock(&lp_pool_mutex);
}

struct lp_qp *lp_qp_alloc(void) {
    pthread_mutex_lock(&lp_pool_mutex);
    struct lp_qp *qp = lp_pool;
    if (qp)
        lp_pool = qp->next_free;
    pthread_mutex_unlock(&lp_pool_mutex);
    if (!qp)
        return calloc(1, sizeof(*qp));
    void *extra = qp->extra;
    memset(qp, 0, sizeof(*qp));
    qp->extra = extra;
    return qp;
}

void lp_qp_free(struct lp_qp *qp) {
    qp->real = NULL;
    pthread_mutex_lock(&lp_pool_mutex);
    qp->next_free = lp_pool;
    lp_pool = qp;
    pthread_mutex_unlock(&lp_pool_mutex);
}

bool lp_qp_publish(struct lp_qp *qp) {
    if (!lp_map_put(&qp->context->qp_numbers, (uintptr_t)qp->qp_num + 1, qp))
        return false;
    if (lp_map_put(&lp_qps, LP_KEY(qp->real), qp))
        return true;
    lp_map_take(&qp->context->qp_numbers, (uintptr_t)qp->qp_num + 1);
    return false;
}

struct lp_qp *lp_qp_withdraw(const struct ibv_qp *real) {
    struct lp_qp *qp = lp_map_take(&lp_qps, LP_KEY(real));

    if (qp)
        lp_map_take(&qp->context->qp_numbers, (uintptr_t)qp->qp_num + 1);
    return qp;
}

static void lp_fold(_Atomic uint64_t *into, const _Atomic uint64_t *from) {
    lp_count(into, atomic_load_explicit(from, memory_order_relaxed));
}

void lp_counts_fold(struct lp_counts *into, const struct lp_counts *from) {
    lp_fold(&into->send, &from->send);
    lp_fold(&into->recv, &from->recv);
    lp_fold(&into->complete, &from->complete);
    lp_fold(&into->refused, &from->refused);
}
