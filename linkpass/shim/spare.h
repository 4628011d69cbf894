/* Spare queue pairs: made, joined to the peer's, probed, opened, dropped. */
#ifndef LP_SPARE_H
#define LP_SPARE_H

#include "engine.h"

/* A device that spares are made on: opened once, closed never (until a fork or the end). */
struct lp_nic {
    char name[64];
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    struct lp_nic *next;
};

/* All with engine.lock held, the lane's lock not. */
struct lp_nic *lp_nic_of(const char *name);
struct lp_nic *lp_nic_first(void);
void lp_spare_want(struct lp_lane *lane, const struct lp_spare_want *want);
void lp_spare_peer(struct lp_lane *lane, const struct lp_spare_here *peer);
void lp_spare_drop(struct lp_lane *lane, uint32_t id);
void lp_spare_drop_all(struct lp_lane *lane, bool open_too);
/* Mails that have come, halves that broke. */
void lp_spare_look(struct lp_lane *lane);
/* Something happened on that NIC's completion queues. */
void lp_nic_events(struct lp_nic *nic);
void lp_nic_async(struct lp_nic *nic);
/* lane->lock held: write a mail into the peer's box. */
bool lp_spare_mail(struct lp_half *half, const struct lp_mail *mail);
/* True when this driver's rq_psn is to be believed. */
bool lp_spare_psn_trusted(const struct ibv_context *context);
void lp_spare_forget_all(void); /* in the child of a fork */
enum ibv_mtu lp_spare_active_mtu(struct ibv_context *context, uint8_t port);

#endif
