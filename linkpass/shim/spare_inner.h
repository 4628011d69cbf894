/* What spare*.c share among themselves. */
#ifndef LP_SPARE_INNER_H
#define LP_SPARE_INNER_H

#include "spare.h"

/* A half's memory: boxes that the peer writes, boxes that ours are written from, what was read of its keys.
 */
enum { BOX = 256, OUT_AT = 4 * BOX, KEYS_AT = 8 * BOX, BLOCK = 8192 };
_Static_assert(LP_MAIL_BYTES == BOX, "box");

/* The queue pair that mails come and go over. */
struct ibv_qp *lp_half_mail_qp(const struct lp_half *half);
/* Takes a half out of sight and destroys it. */
void lp_half_drop(struct lp_half *half);
void lp_half_tell_gone(struct lp_lane *lane, const struct lp_half *half);

#endif
