/* A device that is closed: forget the context, and what the job left open in it. */
#include "attach_life.h"

struct lp_leftover {
    const struct lp_context *context;
    struct lp_map *from;
    void *first; /* one that belongs to the context */
};

/* Every shadow but that of a context begins with the real object and its context. */
struct lp_any {
    void *real;
    struct lp_context *context;
};

_Static_assert(offsetof(struct lp_pd, context) == offsetof(struct lp_any, context), "lp_pd");
_Static_assert(offsetof(struct lp_mr, context) == offsetof(struct lp_any, context), "lp_mr");
_Static_assert(offsetof(struct lp_channel, context) == offsetof(struct lp_any, context), "lp_channel");
_Static_assert(offsetof(struct lp_cq, context) == offsetof(struct lp_any, context), "lp_cq");
_Static_assert(offsetof(struct lp_srq, context) == offsetof(struct lp_any, context), "lp_srq");
_Static_assert(offsetof(struct lp_qp, context) == offsetof(struct lp_any, context), "lp_qp");

static void lp_look(uintptr_t key, void *value, void *arg) {
    struct lp_leftover *leftover = arg;

    (void)key;
    if (((struct lp_any *)value)->context == leftover->context)
        leftover->first = value;
}

static void *lp_next_left(struct lp_map *map, const struct lp_context *context) {
    struct lp_leftover leftover = {.context = context, .from = map};

    lp_map_each(map, lp_look, &leftover);
    return leftover.first;
}

static void lp_forget_all(struct lp_map *map, struct lp_context *context) {
    struct lp_any *shadow;

    while ((shadow = lp_next_left(map, context))) {
        lp_map_take(map, LP_KEY(shadow->real));
        free(shadow);
    }
}

/* What was counted on devices that are closed. */
struct lp_counts lp_closed_counts;

void lp_context_gone(struct lp_context *context) {
    struct lp_qp *qp;
    struct lp_any *shadow;

    while ((qp = lp_next_left(&lp_qps, context))) {
        lp_qp_withdraw(qp->real);
        lp_counts_fold(&context->counts, &qp->counts);
        lp_unpatch_qp_ex(qp);
        lp_qp_free(qp);
    }
    while ((shadow = lp_next_left(&lp_cqs, context))) {
        lp_counts_fold(&context->counts, &((struct lp_cq *)shadow)->counts);
        free(lp_map_take(&lp_cqs, LP_KEY(shadow->real)));
    }
    while ((shadow = lp_next_left(&lp_srqs, context))) {
        lp_counts_fold(&context->counts, &((struct lp_srq *)shadow)->counts);
        free(lp_map_take(&lp_srqs, LP_KEY(shadow->real)));
    }
    lp_forget_all(&lp_pds, context);
    lp_forget_all(&lp_mrs, context);
    lp_forget_all(&lp_channels, context);
    lp_counts_fold(&lp_closed_counts, &context->counts);
    lp_map_clear(&context->qp_numbers);
    free(context);
}
