/*
 * A provider that does nothing, as fast as possible: each request completes at once, each poll gives what was
 * posted. Stands under the bench, so that what is measured is the shim.  A thread must have its completion
 * queue to itself.
 */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

struct null_cq {
    struct ibv_cq ibv;
    uint64_t posted, polled;
    uint64_t wr_ids[256];
    uint32_t qp_num;
};

static struct ibv_device device = {
    .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "null0", .dev_name = "uverbs0"};

API struct ibv_device **ibv_get_device_list(int *count) {
    struct ibv_device **list = calloc(2, sizeof(*list));

    if (list)
        list[0] = &device;
    if (count)
        *count = list ? 1 : 0;
    return list;
}

API void ibv_free_device_list(struct ibv_device **list) {
    free(list);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct null_cq *cq = (struct null_cq *)qp->send_cq;

    (void)bad;
    for (; wr; wr = wr->next)
        cq->wr_ids[cq->posted++ % 256] = wr->wr_id;
    cq->qp_num = qp->qp_num;
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)qp;
    (void)wr;
    (void)bad;
    return 0;
}

static int poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc) {
    struct null_cq *cq = (struct null_cq *)ibv;
    int taken = 0;

    for (; taken < count && cq->polled != cq->posted; taken++) {
        wc[taken].wr_id = cq->wr_ids[cq->polled++ % 256];
        wc[taken].status = IBV_WC_SUCCESS;
        wc[taken].opcode = IBV_WC_RDMA_WRITE;
        wc[taken].qp_num = cq->qp_num;
    }
    return taken;
}

API struct ibv_context *ibv_open_device(struct ibv_device *opened) {
    struct ibv_context *context = calloc(1, sizeof(*context));

    if (!context)
        return NULL;
    context->device = opened;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.poll_cq = poll_cq;
    context->cmd_fd = context->async_fd = -1;
    return context;
}

API int ibv_close_device(struct ibv_context *context) {
    free(context);
    return 0;
}

API struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof(*pd));

    if (pd)
        pd->context = context;
    return pd;
}

API int ibv_dealloc_pd(struct ibv_pd *pd) {
    free(pd);
    return 0;
}

API struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                 struct ibv_comp_channel *channel, int vector) {
    struct null_cq *cq = calloc(1, sizeof(*cq));

    (void)vector;
    if (!cq)
        return NULL;
    cq->ibv.context = context;
    cq->ibv.cqe = cqe;
    cq->ibv.cq_context = cq_context;
    cq->ibv.channel = channel;
    return &cq->ibv;
}

API int ibv_destroy_cq(struct ibv_cq *cq) {
    free(cq);
    return 0;
}

API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    static uint32_t number = 100;
    struct ibv_qp *qp = calloc(1, sizeof(*qp));

    if (!qp)
        return NULL;
    qp->context = pd->context;
    qp->pd = pd;
    qp->send_cq = init->send_cq;
    qp->recv_cq = init->recv_cq;
    qp->qp_type = init->qp_type;
    qp->qp_num = number++;
    return qp;
}

API int ibv_destroy_qp(struct ibv_qp *qp) {
    free(qp);
    return 0;
}

API int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    if (mask & IBV_QP_STATE)
        qp->state = attr->qp_state;
    return 0;
}

API int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    (void)context;
    (void)port;
    (void)index;
    *gid = (union ibv_gid){.raw = {0xfe, 0x80, [15] = 1}};
    return 0;
}
