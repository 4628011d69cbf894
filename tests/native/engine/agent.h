/*
 * A small agent for tests, as a thread of the test's own process: listens at LINKPASS_SOCKET, pairs the ends
 * of connections by their identities, asks for a spare on every other rail, relays, keeps a page.
 *
 * Devices are those of the fake verbs library: "fake_h<host>r<rail>".  The id of a spare is its rail.
 */
#ifndef ENGINE_AGENT_H
#define ENGINE_AGENT_H

#include <stdbool.h>
#include <stdint.h>

struct agent_manners {
    uint32_t rails;
    uint32_t give_up_ms, attempt_ms;
    uint32_t drop_percent;    /* of relayed frames */
    uint32_t repeat_percent;  /* said twice */
    uint32_t lie_percent;     /* a frame of random content, sent along */
    uint32_t shuffle_percent; /* held back, said later */
    uint64_t seed;
};

/* Listens at `path` (removed first); false with a message. */
bool agent_start(const char *path, const struct agent_manners *manners);
void agent_stop(void);                                /* closes every connection: as if it were killed */
void agent_page_state(const char *device, int state); /* enum lp_nic_state */
/* Orders all connections of that device away; why: enum lp_order_why. */
void agent_order(const char *device, uint32_t why);
/* Every connection has a spare that both ends have proven. */
bool agent_all_ready(void);
uint64_t agent_migrations(void); /* sum of what the ends said */
/* The slowest connection's times of its last move, ns from the trigger: fenced, settled, replayed. */
struct agent_times {
    uint64_t fence, settle, gap;
};
struct agent_times agent_slowest(void);
uint64_t agent_failures(void);  /* CONN_DOWN with LP_DOWN_FAILED */
uint64_t agent_malformed(void); /* frames for which the real agent would end the session */
/* Frames that were never sent, as the client didn't read for long. */
uint64_t agent_lost(void);

#endif
