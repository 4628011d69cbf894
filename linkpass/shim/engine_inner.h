/* What engine_lane.c and engine_state.c share. */
#ifndef LP_ENGINE_INNER_H
#define LP_ENGINE_INNER_H

#include "engine.h"

/* The job's own queue pair carries the lane, as at its birth. */
void lp_lane_own_half(struct lp_lane *lane);
void lp_half_enters_place(struct lp_half *half);
/* Ends the connection of a lane, as for its peer and its agent.  engine.lock held. */
void lp_lane_disconnect(struct lp_lane *lane);

#endif
