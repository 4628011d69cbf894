/*
 * The agent's socket and page.  Only the keeper reads and writes them; nothing here waits.
 *
 * Beyond abi.h: LP_SPARE_HERE with spare.qpn 0 says that our half of that (id, round) is gone, so the agent
 * may want it anew under the next round.
 */
#ifndef LP_CHANNEL_H
#define LP_CHANNEL_H

#include "engine.h"

/* True when an agent's socket is there, or the environment names one.  From then on it is that socket. */
bool lp_channel_likely(void);

/* Keeper's loop: connects when due; returns ns to the next try, or UINT64_MAX.  engine.lock held. */
uint64_t lp_channel_work(uint64_t now);
int lp_channel_fd(void);        /* -1: not connected */
bool lp_channel_writing(void);  /* frames wait for room */
void lp_channel_readable(void); /* reads frames and acts.  engine.lock held */
void lp_channel_close(void);
bool lp_channel_welcome(void);

/* Frames out; lost without a connection (a new one registers everything again). */
void lp_channel_up(struct lp_lane *lane);
void lp_channel_down(struct lp_lane *lane, uint32_t reason, uint32_t detail);
void lp_channel_state(struct lp_lane *lane);
void lp_channel_spare(struct lp_lane *lane, const struct lp_spare *spare);
void lp_channel_tell(struct lp_lane *lane, const struct lp_tell *tell);

/* channel_frame.c, without side effects: what of untrusted bytes may be used. */
bool lp_frame_sound(const void *bytes, size_t length, uint16_t *kind);
bool lp_text_sound(const uint8_t *text, size_t room);
/* Maps and checks the page behind a descriptor (which it closes); NULL with a reason. */
const struct lp_page *lp_page_map(int fd, const char **why);
/* State of that port; LP_NIC_UNKNOWN when the page doesn't say. */
enum lp_nic_state lp_page_state(const struct lp_page *page, const char *name, uint8_t port);

#endif
