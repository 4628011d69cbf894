#include "engine_why.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic uint64_t counted[LP_WHYS];

void lp_why_count(enum lp_why why) {
    atomic_fetch_add_explicit(&counted[why], 1, memory_order_relaxed);
}

uint64_t lp_why_counted(enum lp_why why) {
    return atomic_load_explicit(&counted[why], memory_order_relaxed);
}

const char *lp_why_text(enum lp_why why) {
    static const char *const texts[LP_WHYS] = {
        [LP_WHY_NOT] = "recorded",
        [LP_WHY_NO_AGENT] = "unprotected: no agent",
        [LP_WHY_KIND] = "unprotected: not a plain RC queue pair",
        [LP_WHY_OPERATIONS] = "unprotected: made for operations that can't be followed (atomic write, flush)",
        [LP_WHY_SRQ] = "unprotected: its shared receive queue has a limit, or isn't for plain receives",
        [LP_WHY_TIMESTAMPS] = "unprotected: its completion queue carries timestamps, tags or VLANs",
        [LP_WHY_CHANNEL] = "unprotected: its completion channel can't be rung",
        [LP_WHY_UNKNOWN_OBJECT] = "unprotected: its completion queue or protection domain was made unseen",
        [LP_WHY_MEMORY] = "unprotected: no memory",
        [LP_WHY_NO_GID] = "unprotected: connected without a GID",
        [LP_WHY_TO_ITSELF] = "unprotected: connected to itself",
        [LP_WHY_DIRECT] = "unprotected: used past libibverbs (mlx5dv_init_obj, mlx4dv_init_obj)",
        [LP_WHY_WINDOWS] = "unprotected: there are memory windows in its protection domain",
    };

    return why < LP_WHYS ? texts[why] : "impossible";
}

void lp_why_dump(void) {
    for (int why = 0; why < LP_WHYS; why++)
        if (lp_why_counted(why))
            fprintf(stderr, "linkpass: queue pairs %s: %" PRIu64 "\n", lp_why_text(why), lp_why_counted(why));
}
