/* What conn*.c share among themselves. */
#ifndef LINKPASS_CONN_INNER_H
#define LINKPASS_CONN_INNER_H

#include "conn.h"

/* Runs one event, then what follows from what is already known. Returns the caller's part of the actions. */
uint32_t lp_conn_step(struct lp_conn *conn, enum lp_event event);
/* Only the latter. */
uint32_t lp_conn_pump(struct lp_conn *conn);
/* Settles our requests against the mail's mark of our base epoch. */
enum lp_settle_fault lp_conn_settle(struct lp_conn *conn, const struct lp_mail *mail);
/* Our own marks of epochs before this one are no longer needed by the peer. */
void lp_conn_forget_marks(struct lp_mig *mig, uint32_t epoch);
/* The epoch's path is ours to send requests on: their packets count from here. */
void lp_conn_rebase(struct lp_conn *conn);
/* Would a fence now leave a request of ours that can't be settled? */
bool lp_conn_at_risk(const struct lp_conn *conn);
/* The usable spare that should be next, or LP_SPARES. */
uint32_t lp_conn_pick_spare(const struct lp_conn *conn);
/* May this epoch's queue pair still say something? */
bool lp_conn_is_open(const struct lp_conn *conn, uint32_t epoch);

#endif
