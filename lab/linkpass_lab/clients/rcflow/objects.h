/* The verbs objects of one end: protection domain, memory regions, queues, queue pairs. */
#ifndef RCFLOW_OBJECTS_H
#define RCFLOW_OBJECTS_H

#include "../common/completion.h"
#include "../common/device.h"
#include "initiator.h"
#include "options.h"

#define CQ_BATCH 32

struct queue {
    struct ibv_cq *cq;
    struct ibv_cq_ex *ex; /* the same queue, when it is polled by start_poll */
    bool batch;           /* with next_poll */
    unsigned events_taken;
};

struct objects {
    struct device device;
    struct ibv_pd *pd;
    struct ibv_mr *mrs[MRS_MAX];
    uint32_t lkeys[MRS_MAX];
    struct ibv_comp_channel *channel;
    struct queue queues[2]; /* [1] only with --split-cq: receives */
    int queue_count;
    struct ibv_srq *srq;
    struct ibv_qp **qps;
    struct ibv_qp_ex **qps_ex;
    uint64_t qp_count;
};

/* 0, or an errno value with a sentence in `why`. Queue pairs end in INIT. */
int objects_create(struct objects *x, const struct options *o, const struct workload *w,
                   const struct memory *m, char *why, size_t room);
void objects_destroy(struct objects *x);

/* Take up to `max` completions. -1: the queue itself failed. */
int queue_drain(struct queue *q, struct completion *out, int max);
int queues_arm(struct objects *x, bool solicited);
/* Take all pending channel events; the number taken, or -1. */
int queues_take_events(struct objects *x);
/* Index of the queue pair with this number, or -1. */
int objects_qp_index(const struct objects *x, uint32_t qp_num);

#endif
