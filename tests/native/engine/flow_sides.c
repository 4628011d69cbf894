/* Setting up the two ends of flow.c. */
#include "flow.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MORE_CQE = 64 };

static size_t end_bytes(void) {
    return (size_t)depth * 4 * BYTES;
}

static void *named(void *library, const char *name) {
    void *found = dlsym(library, name);

    if (!found)
        fail(name, 0);
    return found;
}

void side_attach(struct side *side, const char *shim, const char *socket, int host) {
    char device[28];
    int count;

    setenv("LINKPASS_JOBS_SOCKET", socket, 1);
    void *library = dlopen(shim, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail(dlerror(), 0);
    side->verbs = (struct verbs){.get_device_list = named(library, "ibv_get_device_list"),
                                 .open_device = named(library, "ibv_open_device"),
                                 .alloc_pd = named(library, "ibv_alloc_pd"),
                                 .reg_mr = named(library, "ibv_reg_mr"),
                                 .create_cq = named(library, "ibv_create_cq"),
                                 .create_qp = named(library, "ibv_create_qp"),
                                 .modify_qp = named(library, "ibv_modify_qp"),
                                 .query_gid = named(library, "ibv_query_gid")};
    snprintf(device, sizeof(device), "fake_h%dr0", host);
    struct ibv_device **list = side->verbs.get_device_list(&count);
    for (int i = 0; i < count; i++)
        if (!strcmp(list[i]->name, device))
            side->context = side->verbs.open_device(list[i]);
    if (!side->context || side->verbs.query_gid(side->context, 1, 1, &side->gid))
        fail("no device", (uint64_t)host);
}

void side_make(struct side *side) {
    const size_t bytes = pairs * end_bytes();
    const int cqe = (int)(pairs * depth * 2 + MORE_CQE);

    side->memory = calloc(1, bytes);
    side->ends = calloc(pairs, sizeof(struct end));
    side->pd = side->verbs.alloc_pd(side->context);
    side->mr = side->pd ? side->verbs.reg_mr(side->pd, side->memory, bytes,
                                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
                        : NULL;
    side->send_cq = side->verbs.create_cq(side->context, cqe, NULL, NULL, 0);
    side->recv_cq = side->verbs.create_cq(side->context, cqe, NULL, NULL, 0);
    if (!side->ends || !side->mr || !side->send_cq || !side->recv_cq)
        fail("no objects", 0);
    struct ibv_qp_init_attr init = {
        .send_cq = side->send_cq,
        .recv_cq = side->recv_cq,
        .cap = {.max_send_wr = depth, .max_recv_wr = 2 * depth, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    for (uint32_t i = 0; i < pairs; i++) {
        side->ends[i].memory = side->memory + i * end_bytes();
        side->ends[i].qp = side->verbs.create_qp(side->pd, &init);
        if (!side->ends[i].qp)
            fail("no queue pair", i);
    }
}

void side_connect(struct side *side, const struct side *peer, uint32_t i, uint32_t psn, uint32_t peer_psn) {
    struct ibv_qp *qp = side->ends[i].qp;
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->ends[i].qp->qp_num,
        .rq_psn = peer_psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = 1}}};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                              .timeout = 18,
                              .retry_cnt = 7,
                              .rnr_retry = 7,
                              .sq_psn = psn,
                              .max_rd_atomic = 1};

    if (side->verbs.modify_qp(qp, &init,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
        side->verbs.modify_qp(qp, &rtr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
        side->verbs.modify_qp(qp, &rts,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
        fail("can't connect", i);
}
