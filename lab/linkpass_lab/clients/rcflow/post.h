/* Handing requests and receives to queue pairs: ibv_post_send or ibv_wr_*, ibv_post_recv or SRQ. */
#ifndef RCFLOW_POST_H
#define RCFLOW_POST_H

#include "objects.h"
#include "receive_slots.h"

/* What the peer told about its memory regions. */
struct remote_regions {
    uint64_t base[MRS_MAX];
    uint32_t rkey[MRS_MAX];
};

/* Post `count` requests built from number `from` on. 0 or the errno value of the call. */
int post_requests(struct objects *x, struct initiator *i, const struct remote_regions *remote, uint64_t from,
                  uint64_t count);
int post_receive(struct objects *x, struct receive_slots *slots, const struct workload *w,
                 const struct memory *m, uint64_t slot, uint32_t qp);

#endif
