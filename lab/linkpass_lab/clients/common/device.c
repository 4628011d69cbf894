#include "device.h"

#include "verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static int fail(char *why, size_t room, int code, const char *what) {
    snprintf(why, room, "%s: %s", what, strerror(code));
    return code ? code : EIO;
}

static enum ibv_mtu mtu_code(uint32_t bytes) {
    enum ibv_mtu code = IBV_MTU_256;
    for (uint32_t size = 256; size < bytes && code < IBV_MTU_4096; size *= 2)
        code++;
    return code;
}

static struct ibv_context *open_named(const char *wanted, char *name, size_t room, bool *any) {
    int count = 0;
    struct ibv_context *context = NULL;
    struct ibv_device **list = ibv_get_device_list(&count);
    *any = list && count > 0;
    for (int i = 0; list && i < count && !context; i++) {
        if (wanted && strcmp(wanted, ibv_get_device_name(list[i])) != 0)
            continue;
        snprintf(name, room, "%s", ibv_get_device_name(list[i]));
        context = ibv_open_device(list[i]);
    }
    if (list)
        ibv_free_device_list(list);
    return context;
}

static int pick_gid(struct device *d, const struct settings *s) {
    static const unsigned char V4_PREFIX[12] = {[10] = 0xff, [11] = 0xff};
    d->gid_index = s->gid_index;
    for (int i = 0; d->gid_index < 0 && i < d->port.gid_tbl_len; i++) {
        union ibv_gid gid;
        if (ibv_query_gid(d->context, (uint8_t)s->ib_port, i, &gid) == 0 &&
            memcmp(gid.raw, V4_PREFIX, 12) == 0)
            d->gid_index = i;
    }
    if (d->gid_index < 0)
        d->gid_index = 0;
    return ibv_query_gid(d->context, (uint8_t)s->ib_port, d->gid_index, &d->gid);
}

int device_open(struct device *d, const struct settings *s, char *why, size_t room) {
    bool any;
    memset(d, 0, sizeof(*d));
    d->context = open_named(s->device, d->name, sizeof(d->name), &any);
    if (!d->context) {
        snprintf(why, room, "no RDMA device%s%s; %s", s->device ? " named " : "", s->device ? s->device : "",
                 any ? "ibv_devices lists those there are"
                     : "is the driver loaded (for Soft-RoCE: rdma_rxe)?");
        return ENODEV;
    }
    int rc = ibv_query_port(d->context, (uint8_t)s->ib_port, &d->port);
    if (rc)
        return fail(why, room, rc, "cannot query the port");
    if (pick_gid(d, s) != 0)
        return fail(why, room, errno, "cannot read the GID at this index");
    fcntl(d->context->async_fd, F_SETFL, fcntl(d->context->async_fd, F_GETFL) | O_NONBLOCK);
    return 0;
}

void device_close(struct device *d) {
    if (d->context)
        ibv_close_device(d->context);
    d->context = NULL;
}

struct endpoint endpoint_of(const struct device *d, const struct settings *s, const struct ibv_qp *qp,
                            uint32_t psn) {
    uint32_t mtu = 128u << d->port.active_mtu;
    return (struct endpoint){.qpn = qp->qp_num,
                             .psn = psn & 0xffffff,
                             .lid = d->port.lid,
                             .mtu = s->mtu && s->mtu < mtu ? s->mtu : mtu,
                             .gid = d->gid};
}

void endpoint_pack(const struct endpoint *e, uint64_t words[ENDPOINT_WORDS]) {
    words[0] = e->qpn;
    words[1] = e->psn;
    words[2] = e->lid;
    words[3] = e->mtu;
    memcpy(&words[4], e->gid.raw, 8);
    memcpy(&words[5], e->gid.raw + 8, 8);
}

struct endpoint endpoint_unpack(const uint64_t words[ENDPOINT_WORDS]) {
    struct endpoint e = {.qpn = (uint32_t)words[0],
                         .psn = (uint32_t)words[1],
                         .lid = (uint32_t)words[2],
                         .mtu = (uint32_t)words[3]};
    memcpy(e.gid.raw, &words[4], 8);
    memcpy(e.gid.raw + 8, &words[5], 8);
    return e;
}

int qp_to_init(struct ibv_qp *qp, const struct settings *s, int more_access, char *why, size_t room) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = (uint8_t)s->ib_port,
        .qp_access_flags = (unsigned int)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                          IBV_ACCESS_REMOTE_READ | more_access),
    };
    int rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return rc ? fail(why, room, rc, "cannot move the queue pair to INIT") : 0;
}

static int to_rtr(struct ibv_qp *qp, const struct device *d, const struct settings *s,
                  const struct endpoint *own, const struct endpoint *peer) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu_code(own->mtu < peer->mtu ? own->mtu : peer->mtu),
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = (uint8_t)s->rd_atomic,
        .min_rnr_timer = (uint8_t)s->min_rnr,
        .ah_attr = {.is_global = 1,
                    .dlid = (uint16_t)peer->lid,
                    .port_num = (uint8_t)s->ib_port,
                    .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)d->gid_index, .hop_limit = 64}},
    };
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int qp_to_ready(struct ibv_qp *qp, const struct device *d, const struct settings *s,
                const struct endpoint *own, const struct endpoint *peer, char *why, size_t room) {
    int rc = to_rtr(qp, d, s, own, peer);
    if (rc)
        return fail(why, room, rc, "cannot move the queue pair to RTR");
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)s->timeout,
        .retry_cnt = (uint8_t)s->retry,
        .rnr_retry = (uint8_t)s->rnr_retry,
        .sq_psn = own->psn,
        .max_rd_atomic = (uint8_t)s->rd_atomic,
    };
    rc = ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC);
    return rc ? fail(why, room, rc, "cannot move the queue pair to RTS") : 0;
}

bool device_async_event(struct device *d, struct verdict *v, uint64_t at_ns) {
    struct ibv_async_event event;
    if (ibv_get_async_event(d->context, &event) != 0)
        return false;
    bool of_port = event.event_type == IBV_EVENT_PORT_ACTIVE || event.event_type == IBV_EVENT_PORT_ERR ||
                   event.event_type == IBV_EVENT_LID_CHANGE || event.event_type == IBV_EVENT_PKEY_CHANGE ||
                   event.event_type == IBV_EVENT_SM_CHANGE || event.event_type == IBV_EVENT_GID_CHANGE;
    verdict_async(v, at_ns, ibv_event_type_str(event.event_type),
                  of_port ? (uint32_t)event.element.port_num : 0);
    ibv_ack_async_event(&event);
    return true;
}
