/* What srq*.c share among themselves. */
#ifndef LP_SRQ_INNER_H
#define LP_SRQ_INNER_H

#include "keys.h"
#include "srq.h"

enum { LP_SRQ_SGES = 32 };

/* shared->lock held. */
void lp_shared_hold(struct lp_shared *shared, uint32_t slot);
/* Posts a receive there.  EAGAIN: its memory isn't known there yet; else what the provider says. */
int lp_shared_put(struct lp_place *place, uint32_t slot);
/* The place with the fewest receives for its queue pairs; NULL: none is in use. */
struct lp_place *lp_shared_neediest(struct lp_shared *shared);

struct lp_place *lp_place_new(struct lp_shared *shared, struct lp_reserve *reserve, struct ibv_srq *real);
void lp_places_free(struct lp_shared *shared);
void lp_shared_free(struct lp_shared *shared);
void lp_shared_forget(struct lp_shared *shared); /* by every real queue that it is known as */
bool lp_shared_attached(const struct lp_shared *shared);
void lp_shared_known_as(struct lp_shared *shared, const struct ibv_srq *real, bool known);

#endif
