/*
 * For tests of the doers: two hosts in this process, the fake verbs library moving by the real clock, a small
 * agent, and one promise after the other, each in a process of its own.
 */
#ifndef ENGINE_PROMISE_H
#define ENGINE_PROMISE_H

#include "abi.h"
#include "agent.h"
#include "pair.h"

extern const struct agent_manners manners; /* the usual ones */

void nap_ms(unsigned int ms);
bool within(bool (*is_so)(void), unsigned int ms);
/* Starts the agent; returns its argument. */
const struct agent_manners *behave(const struct agent_manners *how);
/* A pair whose two ends have a proven spare. */
struct pair *covered_pair(const struct pair_options *options);
/* Destroys all of it, each step checked, and stops the agent. */
void done(struct pair *pair);
/* The next completion within ten seconds. */
void wait_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status);
void cut_rail_0(bool cut);
void fail_the_rail(void); /* of host 0, seen by the agent at once */
bool has_moved(void);     /* one connection, both ends */

/* Runs those whose name contains argv[1] (all without), prints "N passed, N failed"; the exit code. */
int run_promises(const struct test *tests, size_t count, int argc, char **argv);

#endif
