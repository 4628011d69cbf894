/* Extended completion queues: polled through functions in the object itself (ibv_start_poll, ... are inline).
 */
#include "attach.h"

#include <errno.h>

static struct lp_cq *lp_cq_of_ex(struct ibv_cq_ex *real) {
    return lp_cq_of(ibv_cq_ex_to_cq(real));
}

static int lp_start_poll(struct ibv_cq_ex *real, struct ibv_poll_cq_attr *attr) {
    struct lp_cq *cq = lp_cq_of_ex(real);

    if (!cq)
        return EINVAL;
    int result = lp_hooks->start_poll ? lp_hooks->start_poll(cq, attr) : cq->start_poll(real, attr);
    if (!result)
        lp_count(&cq->counts.complete, 1);
    return result;
}

static int lp_next_poll(struct ibv_cq_ex *real) {
    struct lp_cq *cq = lp_cq_of_ex(real);

    if (!cq)
        return EINVAL;
    int result = lp_hooks->next_poll ? lp_hooks->next_poll(cq) : cq->next_poll(real);
    if (!result)
        lp_count(&cq->counts.complete, 1);
    return result;
}

static void lp_end_poll(struct ibv_cq_ex *real) {
    struct lp_cq *cq = lp_cq_of_ex(real);

    if (cq && lp_hooks->end_poll)
        lp_hooks->end_poll(cq);
    else if (cq)
        cq->end_poll(real);
}

void lp_patch_cq_ex(struct lp_cq *cq) {
    struct ibv_cq_ex *real = (struct ibv_cq_ex *)cq->real;

    cq->start_poll = real->start_poll;
    cq->next_poll = real->next_poll;
    cq->end_poll = real->end_poll;
    if (cq->start_poll)
        real->start_poll = lp_start_poll;
    if (cq->next_poll)
        real->next_poll = lp_next_poll;
    if (cq->end_poll)
        real->end_poll = lp_end_poll;
}
