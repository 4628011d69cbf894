/* The two ends of a job over the fake verbs library, each with a copy of the shim as a host of its own:
 * flow.c. */
#ifndef ENGINE_FLOW_H
#define ENGINE_FLOW_H

#include <stdint.h>

#include "fake.h"

#undef ibv_reg_mr

enum { BYTES = 64 /* of a request */ };

/* What is called by name, taken from each shim; the rest goes through context->ops. */
struct verbs {
    struct ibv_device **(*get_device_list)(int *);
    struct ibv_context *(*open_device)(struct ibv_device *);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
    struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
    struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
    int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
    int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
};

/* One end of a queue pair: requests out, messages in.  Memory: `depth` slots to send from, 2 x `depth` to
 * receive in, `depth` that the other end writes to. */
struct end {
    struct ibv_qp *qp;
    uint8_t *memory;
    uint64_t posted, done, heard; /* requests; `heard`: number of the next SEND to come */
    uint64_t recvs;
    uint64_t marked, last_ns, longest_ns; /* of the measurement */
};

struct side {
    struct verbs verbs;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *send_cq, *recv_cq;
    union ibv_gid gid;
    uint8_t *memory;
    struct end *ends;
};

/* Of the whole program. */
extern uint32_t pairs, depth;
void fail(const char *what, uint64_t detail) __attribute__((noreturn));

/* Loads a shim and opens host `host`'s NIC on rail 0 with it.  The shim keeps the socket that the environment
 * names when its first device is opened: this one. */
void side_attach(struct side *side, const char *shim, const char *socket, int host);
void side_make(struct side *side); /* memory, queues, queue pairs */
/* From INIT to RTS.  Retries go on for minutes: what moves a connection is what agents say, not an error. */
void side_connect(struct side *side, const struct side *peer, uint32_t i, uint32_t psn, uint32_t peer_psn);

#endif
