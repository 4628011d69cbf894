#include "migrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What both ends do alike once a connection is being moved: the three ways out. */
#define WAYS_OUT                                                                                             \
    [LP_EV_TIMEOUT] = {LP_FAILED, LP_DO_TELL_ABORT | LP_DO_FAIL | LP_DO_CLOSE},                              \
    [LP_EV_ABORT] = {LP_FAILED, LP_DO_FAIL | LP_DO_CLOSE},                                                   \
    [LP_EV_APP_ERROR] = {LP_FAILED, LP_DO_TELL_ABORT | LP_DO_FAIL | LP_DO_CLOSE},                            \
    [LP_EV_DESTROY] = {LP_DEAD, LP_DO_TELL_ABORT | LP_DO_CLOSE}

/* The same while requests flow, or could flow again: a late deadline and the peer's word change nothing. */
#define FLOWING(state)                                                                                       \
    [LP_EV_TIMEOUT] = {state, 0}, [LP_EV_ABORT] = {state, 0},                                                \
    [LP_EV_APP_ERROR] = {LP_FAILED, LP_DO_TELL_ABORT | LP_DO_FAIL | LP_DO_CLOSE},                            \
    [LP_EV_DESTROY] = {LP_DEAD, LP_DO_TELL_ABORT | LP_DO_CLOSE}

#define START_FENCE (LP_DO_HOLD | LP_DO_ARM | LP_DO_FENCE)
#define GIVE_UP (LP_DO_TELL_ABORT | LP_DO_FAIL | LP_DO_CLOSE)

/* The one place. A row that isn't written reads as LP_NOWHERE: impossible. clang-format off for a row a line.
 */
/* clang-format off */
static const struct lp_row TABLE[LP_ROLES][LP_STATES][LP_EVENTS] = {
    [LP_LEADER] = {
        [LP_ACTIVE] = {
            FLOWING(LP_ACTIVE),
            [LP_EV_ORDER] = {LP_HOLD, LP_DO_HOLD | LP_DO_MARK | LP_DO_ATTEMPT},
            [LP_EV_ORDER_FREE] = {LP_FENCING, START_FENCE},
            [LP_EV_ERROR] = {LP_FENCING, START_FENCE},
            [LP_EV_NEED] = {LP_FENCING, START_FENCE},
            [LP_EV_ATTEMPT] = {LP_ACTIVE, 0},
        },
        [LP_HOLD] = {
            FLOWING(LP_HOLD),
            [LP_EV_ORDER] = {LP_HOLD, 0},
            [LP_EV_ORDER_FREE] = {LP_HOLD, 0},
            [LP_EV_QUIET] = {LP_PREP, LP_DO_TELL_PREP | LP_DO_ATTEMPT},
            [LP_EV_ERROR] = {LP_FENCING, START_FENCE},
            [LP_EV_NEED] = {LP_FENCING, START_FENCE},
            /* What is waited for may never end, or only when more is sent: the job mustn't be held for advice. */
            [LP_EV_ATTEMPT] = {LP_ACTIVE, LP_DO_RESUME},
        },
        [LP_PREP] = {
            FLOWING(LP_PREP),
            [LP_EV_ORDER] = {LP_PREP, 0},
            [LP_EV_ORDER_FREE] = {LP_PREP, 0},
            [LP_EV_ERROR] = {LP_FENCING, START_FENCE},
            [LP_EV_NEED] = {LP_FENCING, START_FENCE},
            /* No answer: the order was only advice. If the follower did fence, ERROR or NEED follows. */
            [LP_EV_ATTEMPT] = {LP_ACTIVE, LP_DO_RESUME},
        },
        [LP_FENCING] = {
            WAYS_OUT,
            [LP_EV_DRAINED] = {LP_FENCED, 0},
            [LP_EV_UNFENCED] = {LP_FAILED, GIVE_UP},
            [LP_EV_ORDER] = {LP_FENCING, 0},
            [LP_EV_ORDER_FREE] = {LP_FENCING, 0},
            [LP_EV_ERROR] = {LP_FENCING, 0},
            [LP_EV_NEED] = {LP_FENCING, 0},
            [LP_EV_ATTEMPT] = {LP_FENCING, 0},
        },
        [LP_FENCED] = {
            WAYS_OUT,
            [LP_EV_SPARE] = {LP_OPENING, LP_DO_OPEN},
            [LP_EV_EXHAUSTED] = {LP_FAILED, GIVE_UP},
            [LP_EV_ORDER] = {LP_FENCED, 0},
            [LP_EV_ORDER_FREE] = {LP_FENCED, 0},
            [LP_EV_NEED] = {LP_FENCED, 0},
            [LP_EV_ATTEMPT] = {LP_FENCED, 0},
        },
        [LP_OPENING] = {
            WAYS_OUT,
            [LP_EV_OPENED] = {LP_OFFERED, LP_DO_OFFER | LP_DO_ATTEMPT},
            [LP_EV_UNOPENED] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_ERROR] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_NEED] = {LP_OPENING, 0},
            /* forged: the follower can't know this epoch yet */
            [LP_EV_ORDER] = {LP_OPENING, 0},
            [LP_EV_ORDER_FREE] = {LP_OPENING, 0},
            [LP_EV_ATTEMPT] = {LP_OPENING, 0},
        },
        [LP_OFFERED] = {
            WAYS_OUT,
            [LP_EV_ACCEPT] = {LP_REPLAYING, LP_DO_SETTLE | LP_DO_REPLAY},
            [LP_EV_ACCEPT_BAD] = {LP_FAILED, GIVE_UP},
            [LP_EV_ERROR] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_NEED] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_ATTEMPT] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_ORDER] = {LP_OFFERED, 0},
            [LP_EV_ORDER_FREE] = {LP_OFFERED, 0},
        },
        [LP_REPLAYING] = {
            FLOWING(LP_REPLAYING),
            [LP_EV_REPLAYED] = {LP_ACTIVE, LP_DO_RESUME},
            [LP_EV_ERROR] = {LP_FENCING, LP_DO_ARM | LP_DO_FENCE},
            [LP_EV_NEED] = {LP_FENCING, LP_DO_ARM | LP_DO_FENCE},
            [LP_EV_ORDER] = {LP_REPLAYING, 0},
            [LP_EV_ORDER_FREE] = {LP_REPLAYING, 0},
            [LP_EV_ATTEMPT] = {LP_REPLAYING, 0},
        },
        [LP_FAILED] = {
            [LP_EV_NEED] = {LP_FAILED, LP_DO_TELL_ABORT},
            [LP_EV_ACCEPT] = {LP_FAILED, LP_DO_TELL_ABORT},
            [LP_EV_ACCEPT_BAD] = {LP_FAILED, LP_DO_TELL_ABORT},
        },
    },
    [LP_FOLLOWER] = {
        [LP_ACTIVE] = {
            FLOWING(LP_ACTIVE),
            [LP_EV_ORDER] = {LP_ACTIVE, LP_DO_TELL_WISH},
            [LP_EV_ORDER_FREE] = {LP_ACTIVE, LP_DO_TELL_WISH},
            [LP_EV_ERROR] = {LP_FENCING, START_FENCE | LP_DO_TELL_NEED},
            [LP_EV_PREP] = {LP_HOLD, LP_DO_HOLD | LP_DO_MARK | LP_DO_ATTEMPT},
            [LP_EV_OFFER] = {LP_FENCING, START_FENCE},
            [LP_EV_ATTEMPT] = {LP_ACTIVE, 0},
        },
        [LP_HOLD] = {
            FLOWING(LP_HOLD),
            [LP_EV_ORDER] = {LP_HOLD, 0},
            [LP_EV_ORDER_FREE] = {LP_HOLD, 0},
            [LP_EV_PREP] = {LP_HOLD, 0},
            [LP_EV_QUIET] = {LP_FENCING, START_FENCE},
            [LP_EV_ERROR] = {LP_FENCING, START_FENCE | LP_DO_TELL_NEED},
            [LP_EV_OFFER] = {LP_FENCING, START_FENCE},
            /* What is waited for may never end, or only when more is sent: the job mustn't be held for advice. */
            [LP_EV_ATTEMPT] = {LP_ACTIVE, LP_DO_RESUME},
        },
        [LP_FENCING] = {
            WAYS_OUT,
            [LP_EV_DRAINED] = {LP_FENCED, LP_DO_TELL_NEED | LP_DO_ATTEMPT},
            [LP_EV_UNFENCED] = {LP_FAILED, GIVE_UP},
            [LP_EV_ORDER] = {LP_FENCING, 0},
            [LP_EV_ORDER_FREE] = {LP_FENCING, 0},
            [LP_EV_ERROR] = {LP_FENCING, 0},
            [LP_EV_PREP] = {LP_FENCING, 0},
            [LP_EV_OFFER] = {LP_FENCING, 0},
            [LP_EV_ATTEMPT] = {LP_FENCING, LP_DO_TELL_NEED},
        },
        [LP_FENCED] = {
            WAYS_OUT,
            [LP_EV_OFFER] = {LP_OPENING, LP_DO_SETTLE | LP_DO_OPEN},
            [LP_EV_OFFER_BAD] = {LP_FAILED, GIVE_UP},
            [LP_EV_ORDER] = {LP_FENCED, 0},
            [LP_EV_ORDER_FREE] = {LP_FENCED, 0},
            [LP_EV_PREP] = {LP_FENCED, LP_DO_TELL_NEED},
            [LP_EV_ATTEMPT] = {LP_FENCED, LP_DO_TELL_NEED | LP_DO_ATTEMPT},
        },
        [LP_OPENING] = {
            WAYS_OUT,
            [LP_EV_OPENED] = {LP_REPLAYING, LP_DO_ACCEPT | LP_DO_REPLAY},
            [LP_EV_UNOPENED] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_ERROR] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_OFFER] = {LP_FENCING, LP_DO_FENCE},
            [LP_EV_ORDER] = {LP_OPENING, 0},
            [LP_EV_ORDER_FREE] = {LP_OPENING, 0},
            [LP_EV_PREP] = {LP_OPENING, 0},
            [LP_EV_ATTEMPT] = {LP_OPENING, 0},
        },
        [LP_REPLAYING] = {
            FLOWING(LP_REPLAYING),
            [LP_EV_REPLAYED] = {LP_ACTIVE, LP_DO_RESUME},
            [LP_EV_ERROR] = {LP_FENCING, LP_DO_ARM | LP_DO_FENCE | LP_DO_TELL_NEED},
            [LP_EV_OFFER] = {LP_FENCING, LP_DO_ARM | LP_DO_FENCE},
            [LP_EV_ORDER] = {LP_REPLAYING, 0},
            [LP_EV_ORDER_FREE] = {LP_REPLAYING, 0},
            [LP_EV_PREP] = {LP_REPLAYING, 0},
            [LP_EV_ATTEMPT] = {LP_REPLAYING, 0},
        },
        [LP_FAILED] = {
            [LP_EV_PREP] = {LP_FAILED, LP_DO_TELL_ABORT},
            [LP_EV_OFFER] = {LP_FAILED, LP_DO_TELL_ABORT},
            [LP_EV_OFFER_BAD] = {LP_FAILED, LP_DO_TELL_ABORT},
        },
    },
};
/* clang-format on */

/* FAILED and DEAD are final: whatever still arrives was on its way. */
const struct lp_row *lp_mig_row(enum lp_role role, enum lp_state state, enum lp_event event) {
    static const struct lp_row stays_failed = {LP_FAILED, 0};
    static const struct lp_row stays_dead = {LP_DEAD, 0};
    static const struct lp_row dies = {LP_DEAD, LP_DO_CLOSE};
    const struct lp_row *row = &TABLE[role][state][event];
    if (row->next != LP_NOWHERE) {
        return row;
    }
    if (state == LP_DEAD) {
        return &stays_dead;
    }
    if (state == LP_FAILED) {
        return event == LP_EV_DESTROY ? &dies : &stays_failed;
    }
    return row;
}

void lp_mig_init(struct lp_mig *mig, enum lp_role role) {
    memset(mig, 0, sizeof(*mig));
    mig->role = (uint8_t)role;
    mig->state = LP_ACTIVE;
    mig->spare = LP_SPARES;
    mig->pending_spare = LP_SPARES;
}

struct lp_outcome lp_mig_event(struct lp_mig *mig, enum lp_event event) {
    const struct lp_row *row = lp_mig_row(mig->role, mig->state, event);
    if (row->next == LP_NOWHERE) {
#ifndef NDEBUG
        (void)fprintf(stderr, "linkpass: impossible step: %s, %s, %s\n",
                      mig->role == LP_LEADER ? "leader" : "follower", lp_state_text(mig->state),
                      lp_event_text(event));
        abort();
#else
        mig->state = LP_FAILED;
        return (struct lp_outcome){.actions = GIVE_UP, .legal = false};
#endif
    }
    mig->state = row->next;
    return (struct lp_outcome){.actions = row->actions, .legal = true};
}

bool lp_role_of(const struct lp_identity *who, enum lp_role *role) {
    int order = memcmp(who->local_gid, who->remote_gid, sizeof(who->local_gid));
    if (order == 0) {
        order = (who->local_qpn > who->remote_qpn) - (who->local_qpn < who->remote_qpn);
    }
    *role = order < 0 ? LP_LEADER : LP_FOLLOWER;
    return order != 0;
}

bool lp_mig_is_fenced(const struct lp_mig *mig) {
    return mig->state == LP_FENCED || mig->state == LP_DEAD;
}

const struct lp_mark *lp_mig_mark(const struct lp_mig *mig, uint32_t epoch) {
    for (uint32_t i = 0; i < mig->mark_count; i++) {
        if (mig->marks[i].epoch == epoch) {
            return &mig->marks[i];
        }
    }
    return NULL;
}

const char *lp_state_text(enum lp_state state) {
    static const char *const names[LP_STATES] = {"nowhere",   "active", "hold",    "prep",
                                                 "fencing",   "fenced", "opening", "offered",
                                                 "replaying", "failed", "dead"};
    return state < LP_STATES ? names[state] : "impossible";
}

const char *lp_event_text(enum lp_event event) {
    static const char *const names[LP_EVENTS] = {
        "order",    "order-free", "error",   "need",      "prep",      "quiet",    "drained", "unfenced",
        "spare",    "exhausted",  "offer",   "offer-bad", "opened",    "unopened", "accept",  "accept-bad",
        "replayed", "attempt",    "timeout", "abort",     "app-error", "destroy"};
    return event < LP_EVENTS ? names[event] : "impossible";
}
