/* The devices that spares are made on, and what they say of themselves. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deliver.h"
#include "keys.h"
#include "spare.h"

static struct lp_nic *nics;

struct lp_nic *lp_nic_first(void) {
    return nics;
}

void lp_spare_forget_all(void) {
    nics = NULL;
}

static void not_waiting(int fd) {
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static struct ibv_context *open_by_name(const char *name) {
    struct ibv_device **list = LP_REAL(ibv_get_device_list)(NULL);
    struct ibv_context *context = NULL;

    for (struct ibv_device **at = list; at && *at && !context; at++)
        if (!strcmp((*at)->name, name))
            context = LP_REAL(ibv_open_device)(*at);
    if (list)
        LP_REAL(ibv_free_device_list)(list);
    return context;
}

struct lp_nic *lp_nic_of(const char *name) {
    for (struct lp_nic *nic = nics; nic; nic = nic->next)
        if (!strcmp(nic->name, name))
            return nic;
    struct lp_nic *nic = calloc(1, sizeof(*nic));
    if (!nic)
        return NULL;
    snprintf(nic->name, sizeof(nic->name), "%s", name);
    nic->context = open_by_name(name);
    nic->channel = nic->context ? LP_REAL(ibv_create_comp_channel)(nic->context) : NULL;
    if (!nic->channel) {
        if (nic->context)
            (void)LP_REAL(ibv_close_device)(nic->context);
        free(nic);
        return NULL;
    }
    not_waiting(nic->channel->fd);
    not_waiting(nic->context->async_fd);
    nic->next = nics;
    nics = nic;
    return nic;
}

/* Mails and errors wake the keeper at any time; other completions only for a job that asked to be woken. */
static void arm(struct lp_source *source) {
    const int armed = atomic_load_explicit(&source->queue->armed, memory_order_acquire);

    (void)ibv_req_notify_cq(source->cq, !(armed == 1 && source->open));
}

void lp_nic_events(struct lp_nic *nic) {
    struct ibv_cq *cq;
    void *context;

    while (!LP_REAL(ibv_get_cq_event)(nic->channel, &cq, &context)) {
        struct lp_source *source = context;
        LP_REAL(ibv_ack_cq_events)(cq, 1);
        lp_deliver_pump(source->queue);
        if (source->open) /* the job may have polled it already, and is owed the event all the same */
            lp_deliver_wake(source->queue);
        arm(source);
        lp_deliver_pump(source->queue);
    }
}

static void broke(const struct ibv_qp *qp) {
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        for (uint32_t id = 0; id < LP_SPARES; id++) {
            struct lp_half *half = lane->spares[id];
            if (!half || (half->qp != qp && half->mail_qp != qp))
                continue;
            lp_lock(&lane->lock);
            if (half->stage != LP_STAGE_OPEN)
                half->stage = LP_STAGE_BROKEN;
            else
                lp_engine_act(lane, lp_conn_fatal(&lane->conn, half->epoch));
            lp_unlock(&lane->lock);
            lp_lane_dirty(lane);
            return;
        }
    }
}

static void overran(const struct ibv_cq *cq) {
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        for (uint32_t id = 0; id < LP_SPARES; id++) {
            struct lp_half *half = lane->spares[id];
            if (half && half->send_source && (half->send_source->cq == cq || half->recv_source->cq == cq)) {
                half->overrun = true;
                broke(half->qp);
            }
        }
    }
}

static bool has_gid(const struct lp_nic *nic, uint8_t port, int index, const uint8_t *wanted) {
    union ibv_gid gid;

    return !LP_REAL(ibv_query_gid)(nic->context, port, index, &gid) && !memcmp(gid.raw, wanted, sizeof(gid));
}

/* A queue pair whose GID was taken away stays broken, also when the address comes back; one that only answers
 * would never be told.  The entry isn't given to another while it is used, so its absence can't be missed. */
static void look_at_gids(const struct lp_nic *nic) {
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        lp_lock(&lane->lock);
        for (uint32_t id = 0; id < LP_SPARES; id++) {
            struct lp_half *half = lane->spares[id];
            if (half && half != lane->now && half->stage != LP_STAGE_OPEN && half->reserve->nic == nic &&
                !has_gid(nic, half->port, half->sgid_index, half->mine.gid))
                half->stage = LP_STAGE_BROKEN;
        }
        const bool own = lane->now == &lane->own;
        const uint8_t *gid = own ? lane->who.local_gid : lane->now->mine.gid;
        const int index = own ? lane->attr.ah_attr.grh.sgid_index : lane->now->sgid_index;
        uint8_t port;
        if (lane->covered && !lane->plain && !lane->failing &&
            !strcmp(lp_lane_device(lane, &port), nic->name) && !has_gid(nic, port, index, gid))
            lp_engine_act(lane, lp_conn_fatal(&lane->conn, lane->now->epoch));
        lp_unlock(&lane->lock);
        lp_lane_dirty(lane);
    }
}

void lp_nic_async(struct lp_nic *nic) {
    struct ibv_async_event event;

    while (!LP_REAL(ibv_get_async_event)(nic->context, &event)) {
        const struct ibv_async_event seen = event;
        LP_REAL(ibv_ack_async_event)(&event);
        if (seen.event_type == IBV_EVENT_QP_FATAL)
            broke(seen.element.qp);
        else if (seen.event_type == IBV_EVENT_CQ_ERR)
            overran(seen.element.cq);
        else if (seen.event_type == IBV_EVENT_GID_CHANGE)
            look_at_gids(nic);
    }
}

static bool file_says(const char *device, const char *file, const char *wanted) {
    char path[160], text[64] = "";

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/%s", device, file);
    FILE *stream = fopen(path, "re");
    if (!stream)
        return false;
    const bool read = fgets(text, sizeof(text), stream) != NULL;
    (void)fclose(stream);
    return read && !strncmp(text, wanted, strlen(wanted));
}

static bool driver_is(const char *device, const char *driver) {
    char path[160], target[256];

    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/driver", device);
    const ssize_t length = readlink(path, target, sizeof(target) - 1);
    if (length <= 0)
        return false;
    target[length] = 0;
    const char *last = strrchr(target, '/');
    return last && !strcmp(last + 1, driver);
}

/* Drivers whose rq_psn was compared with what arrived (docs/shim.md), or reads it from the hardware's queue
 * pair. LINKPASS_PSN=trust or doubt overrules, for tests and for new drivers. */
bool lp_spare_psn_trusted(const struct ibv_context *context) {
    const char *wish = secure_getenv("LINKPASS_PSN"), *name = context->device->name;

    if (wish && !strcmp(wish, "trust"))
        return true;
    if (wish && !strcmp(wish, "doubt"))
        return false;
    return file_says(name, "node_desc", "rxe") || driver_is(name, "mlx5_core");
}

enum ibv_mtu lp_spare_active_mtu(struct ibv_context *context, uint8_t port) {
    struct ibv_port_attr attr;

    memset(&attr, 0, sizeof(attr));
    if (LP_REAL(ibv_query_port)(context, port, (struct _compat_ibv_port_attr *)(void *)&attr) ||
        attr.active_mtu < IBV_MTU_256 || attr.active_mtu > IBV_MTU_4096)
        return IBV_MTU_1024;
    return attr.active_mtu;
}
