/* The migration's state machine: one table, no verbs, no clock, no memory of its own beyond struct lp_mig.
 *
 * A connection has two ends. One is the LEADER (by lp_role_of, from the connection's identity): only it
 * numbers epochs and picks spares, so two ends that fail at once can't disagree. Either may start a
 * migration.
 *
 * An epoch is one pair of queue pairs. Epoch 0 is the job's own. At most one epoch is unfenced at an end.
 *
 *     leader                                    follower
 *     trigger -> FENCE old                      trigger -> FENCE old, tell NEED
 *     post receives on the spare
 *     OFFER (epoch, my marks)  ==spare==>       FENCE old, settle my sends against the leader's mark,
 *                                               post receives on the spare
 *     settle against its mark  <==spare==       ACCEPT (epoch, my marks)
 *     replay                                    replay
 *
 * OFFER and ACCEPT travel over the spare itself. What travels through agents (NEED, PREP, ABORT) is advice.
 */
#ifndef LINKPASS_MIGRATE_H
#define LINKPASS_MIGRATE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

enum lp_role { LP_LEADER = 0, LP_FOLLOWER, LP_ROLES };

enum lp_state {
    LP_NOWHERE = 0, /* not a state: where impossible steps lead */
    LP_ACTIVE,      /* requests flow on `epoch` */
    LP_HOLD, /* a voluntary move: new sends wait until nothing of ours is in flight that couldn't be settled
              */
    LP_PREP, /* leader: the same, and the follower was asked to do so and fence */
    LP_FENCING,   /* `epoch`'s queue pair is on its way to ERR and is being drained */
    LP_FENCED,    /* own mark is final. Leader: looks for a spare. Follower: waits for an offer */
    LP_OPENING,   /* receives are being posted on the spare; `epoch` is the new one */
    LP_OFFERED,   /* leader: the offer is out */
    LP_REPLAYING, /* settled; the replay is being posted */
    LP_FAILED,    /* the job has its original errors; final but for DESTROY */
    LP_DEAD,      /* destroyed; final */
    LP_STATES
};

/* Events as the table knows them: already checked against epochs, roles and marks (see lp_mig_event). */
enum lp_event {
    LP_EV_ORDER = 0,  /* advice to leave; requests that can't be settled may be in flight at either end */
    LP_EV_ORDER_FREE, /* advice to leave; all that can be in flight can be settled */
    LP_EV_ERROR,      /* a path error completion or a queue pair fatal event of `epoch` */
    LP_EV_NEED,       /* leader: the follower is dead or fenced on `epoch` */
    LP_EV_PREP,       /* follower: the leader wants to leave `epoch` */
    LP_EV_QUIET,      /* nothing of ours is in flight that couldn't be settled */
    LP_EV_DRAINED,    /* `epoch` is in ERR, every completion was taken, the mark was read */
    LP_EV_UNFENCED,   /* `epoch` couldn't be fenced: nothing can be known */
    LP_EV_SPARE,      /* leader: a spare that was proven to carry data is there */
    LP_EV_EXHAUSTED,  /* leader: LP_MARKS epochs are unsettled: no further offer could tell them all */
    LP_EV_OFFER, /* follower: an offer of a newer epoch that settles exactly (or can't be looked at yet) */
    LP_EV_OFFER_BAD, /* follower: it can't be settled exactly */
    LP_EV_OPENED,    /* all receives stand on the spare */
    LP_EV_UNOPENED,  /* the spare refused */
    LP_EV_ACCEPT,    /* leader: the answer to this offer, settles exactly */
    LP_EV_ACCEPT_BAD,
    LP_EV_REPLAYED,  /* every request to replay was handed to the spare */
    LP_EV_ATTEMPT,   /* patience with this step is over */
    LP_EV_TIMEOUT,   /* the give-up deadline has passed */
    LP_EV_ABORT,     /* the peer gave up */
    LP_EV_APP_ERROR, /* an error of the job's own making: it would be there without any link failure */
    LP_EV_DESTROY,
    LP_EVENTS
};

/* What to do, in the order of the bits. */
enum lp_action {
    LP_DO_HOLD = 1u << 0,      /* from now on post_send only records (post_recv: from FENCE to OPENED) */
    LP_DO_ARM = 1u << 1,       /* start the give-up deadline unless it runs */
    LP_DO_TELL_NEED = 1u << 2, /* through the agents */
    LP_DO_TELL_WISH = 1u << 3, /* a NEED that isn't hard: "order me away, please" */
    LP_DO_TELL_PREP = 1u << 4,
    LP_DO_TELL_ABORT = 1u << 5,
    LP_DO_FENCE =
        1u << 6, /* `epoch`'s queue pair to ERR, drain, read the mark: answers DRAINED or UNFENCED */
    LP_DO_SETTLE = 1u << 7, /* write the verdicts into the ring */
    LP_DO_OPEN = 1u << 8,   /* post the receives on `spare`: answers OPENED or UNOPENED */
    LP_DO_OFFER = 1u << 9,  /* write the mail */
    LP_DO_ACCEPT = 1u << 10,
    LP_DO_REPLAY = 1u << 11,  /* answers REPLAYED */
    LP_DO_ATTEMPT = 1u << 12, /* start the patience of this step */
    LP_DO_RESUME = 1u << 13,  /* post what was held, then let requests flow; stop the deadline on progress */
    LP_DO_FAIL = 1u << 14,    /* deliver the original errors */
    LP_DO_MARK = 1u << 15,    /* post a signaled empty WRITE: unsignaled requests before it get known by it */
    LP_DO_CLOSE = 1u << 16    /* drop spares, stop timers */
};

struct lp_mig {
    uint8_t role;  /* enum lp_role */
    uint8_t state; /* enum lp_state */
    uint8_t spare; /* of `epoch`; LP_SPARES: the job's own queue pair */
    uint8_t pending_spare;
    uint32_t epoch;      /* newest epoch opened here */
    uint32_t base;       /* epoch whose packets our posted requests bear (they flowed there) */
    uint32_t pending;    /* follower: newest offer not yet taken up, 0: none */
    uint32_t last_epoch; /* leader: newest number ever given */
    uint32_t mark_count;
    struct lp_mark marks[LP_MARKS]; /* own marks, oldest first, from the peer's base on */
};

/* What came of an event. */
struct lp_outcome {
    uint32_t actions;
    bool legal; /* false: the table has no such step (a bug). The connection has failed closed. */
};

void lp_mig_init(struct lp_mig *mig, enum lp_role role);

/* One step by the table. Debug builds abort when it isn't there; release builds go to FAILED. */
struct lp_outcome lp_mig_event(struct lp_mig *mig, enum lp_event event);

/* The leader is the end with the smaller (GID, queue pair number). Equal ends (a queue pair connected to
 * itself) can't be protected: false. */
bool lp_role_of(const struct lp_identity *who, enum lp_role *role);

/* Is traffic on `epoch` fenced here for ever? */
bool lp_mig_is_fenced(const struct lp_mig *mig);
/* Own mark of an epoch, or NULL. */
const struct lp_mark *lp_mig_mark(const struct lp_mig *mig, uint32_t epoch);

const char *lp_state_text(enum lp_state state);
const char *lp_event_text(enum lp_event event);

/* The table, for tests and for docs/shim.md. next == LP_NOWHERE: impossible. */
struct lp_row {
    uint8_t next; /* enum lp_state */
    uint32_t actions;
};
const struct lp_row *lp_mig_row(enum lp_role role, enum lp_state state, enum lp_event event);

#endif
