/* Requests of one ibv_wr_* batch, written down as struct ibv_send_wr (see struct lp_wr_batch in attach.h). */
#ifndef LP_ATTACH_BATCH_H
#define LP_ATTACH_BATCH_H

#include "attach.h"

/* Forget what was written down; memory is kept. */
void lp_batch_reset(struct lp_wr_batch *batch);

/* A new request with wr_id and flags of the queue pair; NULL (and the batch opaque) without memory. */
struct ibv_send_wr *lp_batch_request(struct lp_wr_batch *batch, const struct ibv_qp_ex *ex,
                                     enum ibv_wr_opcode opcode);

/* Data of the newest request. */
void lp_batch_sges(struct lp_wr_batch *batch, size_t count, const struct ibv_sge *sges);
void lp_batch_inline(struct lp_wr_batch *batch, size_t count, const struct ibv_data_buf *parts);

/* Set ->next and ->sg_list of all requests; after it nothing may be added. */
void lp_batch_link(struct lp_wr_batch *batch);

void lp_batch_free(struct lp_wr_batch *batch);

#endif
