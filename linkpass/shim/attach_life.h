/* The pattern that creation and destruction of every kind of object follow; for attach_*.c only. */
#ifndef LP_ATTACH_LIFE_H
#define LP_ATTACH_LIFE_H

#include <errno.h>
#include <stdlib.h>

#include "attach.h"

/*
 * Define int lp_hook_FUNCTION(struct TYPE *real): after FIRST(shadow), the shadow can't be found any more
 * before the real object goes (its address may be used again at once by another thread), and is put back when
 * the provider refuses.
 */
#define LP_DEFINE_DESTROY_AFTER(first, kind, type, function)                                                 \
    int lp_hook_##function(struct type *real) {                                                              \
        const bool outermost = lp_enter();                                                                   \
        struct lp_##kind *shadow = outermost ? lp_##kind##_of(real) : NULL;                                  \
        if (shadow)                                                                                          \
            first(shadow);                                                                                   \
        shadow = outermost ? lp_map_take(&lp_##kind##s, LP_KEY(real)) : NULL;                                \
        if (shadow)                                                                                          \
            LP_RUN(kind##_destroying, shadow);                                                               \
        int result = LP_REAL(function)(real);                                                                \
        const int error = errno;                                                                             \
        lp_leave();                                                                                          \
        if (shadow && result && lp_map_put(&lp_##kind##s, LP_KEY(real), shadow)) {                           \
            LP_RUN(kind##_kept, shadow);                                                                     \
        } else if (shadow) {                                                                                 \
            lp_fold_##kind(shadow);                                                                          \
            free(shadow);                                                                                    \
        }                                                                                                    \
        errno = error;                                                                                       \
        return result;                                                                                       \
    }

#define LP_FIRST_NOTHING(shadow) (void)(shadow)
#define LP_DEFINE_DESTROY(kind, type, function)                                                              \
    LP_DEFINE_DESTROY_AFTER(LP_FIRST_NOTHING, kind, type, function)

/* The shared receive queue for a new queue pair of the job, and the end of its making; NULL is passed on. */
static inline struct ibv_srq *lp_srq_instead(struct ibv_srq *asked, bool outermost) {
    return asked && outermost && lp_hooks->srq_for_new_qp ? lp_hooks->srq_for_new_qp(asked) : asked;
}

static inline void lp_srq_over(struct ibv_srq *used, bool outermost) {
    if (used && outermost && lp_hooks->srq_new_qp_over)
        lp_hooks->srq_new_qp_over(used);
}

/* Make a zeroed shadow and publish it; NULL without memory, or when the context isn't attached. */
#define LP_NEW_SHADOW(kind, object)                                                                          \
    ({                                                                                                       \
        struct lp_context *context_ = (object) ? lp_adopt((object)->context) : NULL;                         \
        struct lp_##kind *shadow_ = context_ ? calloc(1, sizeof(*shadow_)) : NULL;                           \
        if (shadow_) {                                                                                       \
            shadow_->real = (object);                                                                        \
            shadow_->context = context_;                                                                     \
        }                                                                                                    \
        shadow_;                                                                                             \
    })

/* A shadow of an object that went away unseen may stand at this address: it goes. */
#define LP_PUBLISH(kind, shadow)                                                                             \
    ({                                                                                                       \
        free(lp_map_take(&lp_##kind##s, LP_KEY((shadow)->real)));                                            \
        bool put_ = lp_map_put(&lp_##kind##s, LP_KEY((shadow)->real), (shadow));                             \
        if (put_)                                                                                            \
            LP_RUN(kind##_created, (shadow));                                                                \
        else                                                                                                 \
            free(shadow);                                                                                    \
        put_;                                                                                                \
    })

#endif
