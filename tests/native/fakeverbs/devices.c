/* The fleet: NICs, their ports and names, opening and closing, asynchronous events. */
#include "fake_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

static pthread_once_t started = PTHREAD_ONCE_INIT;

struct fake_config fake_default_config(void) {
    return (struct fake_config){
        .hosts = 2, .rails = 2, .active_mtu = IBV_MTU_4096, .window = 128, .retry_7_forever = true};
}

static void make_wires(void) {
    for (int i = 0; i < FAKE_MAX_NICS; i++) {
        for (int j = 0; j < FAKE_MAX_NICS; j++) {
            struct wire *wire = &fake.wires[i][j];
            while (wire->count)
                fake_lose_locked(wire, wire->count);
            *wire = (struct wire){.tail = &wire->head};
        }
    }
}

static void make_fleet(const struct fake_config *config) {
    fake.config = *config;
    fake.nic_count = config->hosts * config->rails;
    fake.next_qpn = 0x11 + config->first_qpn;
    fake.next_key = FAKE_FIRST_KEY;
    fake.now = 0;
    fake.filter = NULL;
    make_wires();
    for (int i = 0; i < fake.nic_count; i++) {
        struct nic *nic = &fake.nics[i];
        *nic = (struct nic){.index = i, .host = i / config->rails, .rail = i % config->rails, .up = true};
        nic->device.node_type = IBV_NODE_CA;
        nic->device.transport_type = IBV_TRANSPORT_IB;
        snprintf(nic->device.name, sizeof(nic->device.name), "fake_h%dr%d", nic->host, nic->rail);
        snprintf(nic->device.dev_name, sizeof(nic->device.dev_name), "uverbs%d", i);
        snprintf(nic->device.ibdev_path, sizeof(nic->device.ibdev_path), "/sys/class/infiniband/%s",
                 nic->device.name);
    }
}

static int number_from(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    int number = text ? atoi(text) : otherwise;

    return number > 0 && number <= 8 ? number : otherwise;
}

static void start_once(void) {
    struct fake_config config = fake_default_config();
    const char *automatic = getenv("FAKEVERBS_AUTO");

    config.hosts = number_from("FAKEVERBS_HOSTS", config.hosts);
    config.rails = number_from("FAKEVERBS_RAILS", config.rails);
    make_fleet(&config);
    if (automatic && !strcmp(automatic, "1"))
        fake_auto_start_locked();
}

void fake_lock(void) {
    pthread_mutex_lock(&fake.lock);
    (void)pthread_once(&started, start_once);
}

void fake_unlock(void) {
    pthread_mutex_unlock(&fake.lock);
}

bool fake_start(const struct fake_config *config) {
    bool open = false;

    fake_lock();
    for (int i = 0; i < fake.nic_count; i++)
        open |= fake.nics[i].objects != 0;
    if (!open && config->hosts > 0 && config->rails > 0 && config->hosts * config->rails <= FAKE_MAX_NICS)
        make_fleet(config);
    else
        open = true;
    fake_unlock();
    return !open;
}

void fake_tune(const struct fake_config *config) {
    fake_lock();
    fake.config.window = config->window;
    fake.config.flush_at_once = config->flush_at_once;
    fake.config.free_on_poll = config->free_on_poll;
    fake.config.retry_7_forever = config->retry_7_forever;
    fake.config.lying_psn = config->lying_psn;
    fake.config.unseen_receives = config->unseen_receives;
    for (struct qp *qp = qp_newest(); qp; qp = qp_older(qp))
        mark_set(MAY_SEND, qp); /* the window may have grown */
    fake_unlock();
}

bool fake_refuse(struct nic *nic) {
    if (!nic->fail_error)
        return false;
    if (nic->fail_after) {
        nic->fail_after--;
        return false;
    }
    errno = nic->fail_error;
    return true;
}

struct nic *fake_nic_of_context(const struct ibv_context *context) {
    return CONTAINER(context, struct context, verbs.context)->nic;
}

static void make_gid(const struct nic *nic, int index, union ibv_gid *gid) {
    memset(gid, 0, sizeof(*gid));
    if (index == 0) {
        gid->raw[0] = 0xfe;
        gid->raw[1] = 0x80;
        gid->raw[8] = 0x02;
        gid->raw[14] = (uint8_t)(nic->host + 1);
        gid->raw[15] = (uint8_t)nic->rail;
    } else {
        gid->raw[10] = gid->raw[11] = 0xff;
        gid->raw[12] = 10;
        gid->raw[13] = (uint8_t)(fake.config.first_subnet + nic->rail);
        gid->raw[15] = (uint8_t)(nic->host + 1);
    }
}

int fake_gid_to_nic(const union ibv_gid *gid) {
    for (int i = 0; i < fake.nic_count; i++) {
        for (int index = 0; index < 2; index++) {
            union ibv_gid own;
            make_gid(&fake.nics[i], index, &own);
            if (!memcmp(&own, gid, sizeof(own)))
                return i;
        }
    }
    return -1;
}

/* ---- devices
 * ------------------------------------------------------------------------------------------------ */

FAKE_API struct ibv_device **ibv_get_device_list(int *count) {
    fake_lock();
    struct ibv_device **list = calloc((size_t)fake.nic_count + 1, sizeof(struct ibv_device *));
    for (int i = 0; list && i < fake.nic_count; i++)
        list[i] = &fake.nics[i].device;
    if (count)
        *count = list ? fake.nic_count : 0;
    fake_unlock();
    return list;
}

FAKE_API void ibv_free_device_list(struct ibv_device **list) {
    free(list);
}

FAKE_API const char *ibv_get_device_name(struct ibv_device *device) {
    return device->name;
}

FAKE_API __be64 ibv_get_device_guid(struct ibv_device *device) {
    const struct nic *nic = CONTAINER(device, struct nic, device);
    return htobe64(UINT64_C(0x0200000000000000) | (uint64_t)nic->index);
}

FAKE_API int ibv_get_device_index(struct ibv_device *device) {
    return CONTAINER(device, struct nic, device)->index;
}

/* What is told about a port by either form of ibv_query_port. */
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size) {
    struct nic *nic = fake_nic_of_context(context);
    struct ibv_port_attr full = {.max_mtu = IBV_MTU_4096,
                                 .gid_tbl_len = 2,
                                 .max_msg_sz = 1u << 30,
                                 .pkey_tbl_len = 1,
                                 .max_vl_num = 1,
                                 .active_width = 2,
                                 .active_speed = 32,
                                 .link_layer = IBV_LINK_LAYER_ETHERNET};

    if (port != 1)
        return EINVAL;
    fake_lock();
    full.state = nic->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    full.phys_state = nic->up ? 5 : 3;
    full.active_mtu = fake.config.active_mtu;
    fake_unlock();
    memcpy(attr, &full, size < sizeof(full) ? size : sizeof(full));
    return 0;
}

/* The exported function's struct is the old, shorter one. */
#undef ibv_query_port
FAKE_API int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr) {
    return query_port(context, port, (struct ibv_port_attr *)(void *)attr,
                      offsetof(struct ibv_port_attr, port_cap_flags2));
}

FAKE_API int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    (void)context;
    *attr = (struct ibv_device_attr){.fw_ver = "fake",
                                     .max_mr_size = UINT64_MAX,
                                     .page_size_cap = 4096,
                                     .max_qp = 65536,
                                     .max_qp_wr = 16384,
                                     .max_sge = FAKE_MAX_SGE,
                                     .max_sge_rd = FAKE_MAX_SGE,
                                     .max_cq = 65536,
                                     .max_cqe = 1 << 20,
                                     .max_mr = 1 << 20,
                                     .max_pd = 65536,
                                     .max_qp_rd_atom = SAVED_ATOMICS,
                                     .max_qp_init_rd_atom = SAVED_ATOMICS,
                                     .atomic_cap = IBV_ATOMIC_HCA,
                                     .max_ah = 1024,
                                     .max_srq = 1024,
                                     .max_srq_wr = 16384,
                                     .max_srq_sge = FAKE_MAX_SGE,
                                     .max_pkeys = 1,
                                     .phys_port_cnt = 1};
    return 0;
}

FAKE_API int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    if (port != 1 || index < 0 || index > (fake_nic_of_context(context)->twin_gid ? 2 : 1)) {
        errno = EINVAL;
        return -1;
    }
    if (index >= 1 && fake_nic_of_context(context)->no_gid) {
        errno = ENODATA;
        return -1;
    }
    make_gid(fake_nic_of_context(context), index, gid);
    return 0;
}

FAKE_API int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                               struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
    const bool v1 = index == 1 && fake_nic_of_context(context)->twin_gid;
    struct ibv_gid_entry full = {
        .gid_index = index, .port_num = port, .gid_type = v1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2};

    if (flags || ibv_query_gid(context, (uint8_t)port, (int)index, &full.gid))
        return EINVAL;
    memcpy(entry, &full, size < sizeof(full) ? size : sizeof(full));
    return 0;
}

FAKE_API ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                      size_t count, uint32_t flags, size_t size) {
    for (uint32_t i = 0; i < 2 && i < count; i++)
        if (_ibv_query_gid_ex(context, 1, i, (void *)((char *)entries + i * size), flags, size))
            return -EINVAL;
    return count < 2 ? (ssize_t)count : 2;
}

FAKE_API int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
    (void)context;
    if (port != 1 || index != 0)
        return -1;
    *pkey = 0xffff;
    return 0;
}

FAKE_API int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey) {
    (void)context;
    return port == 1 && pkey == 0xffff ? 0 : -1;
}

/* ---- contexts
 * ----------------------------------------------------------------------------------------------- */

FAKE_API struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct nic *nic = CONTAINER(device, struct nic, device);
    struct context *context = calloc(1, sizeof(*context));

    if (!context)
        return NULL;
    fake_lock();
    if (fake_refuse(nic) || !events_open(&context->events)) {
        fake_unlock();
        free(context);
        return NULL;
    }
    struct ibv_context *ibv = &context->verbs.context;
    ibv->device = device;
    ibv->cmd_fd = -1;
    ibv->async_fd = context->events.fd;
    ibv->num_comp_vectors = 1;
    pthread_mutex_init(&ibv->mutex, NULL);
    ibv->abi_compat = __VERBS_ABI_IS_EXTENDED;
    ibv->ops.poll_cq = fake_poll_cq;
    ibv->ops.req_notify_cq = fake_req_notify_cq;
    ibv->ops.post_send = fake_post_send;
    ibv->ops.post_recv = fake_post_recv;
    ibv->ops.post_srq_recv = fake_post_srq_recv;
    ibv->ops.alloc_mw = fake_alloc_mw;
    ibv->ops.dealloc_mw = fake_dealloc_mw;
    context->verbs.sz = sizeof(context->verbs);
    context->verbs.query_port = query_port;
    context->verbs.create_qp_ex = fake_create_qp_ex;
    context->verbs.create_cq_ex = fake_create_cq_ex;
    context->nic = nic;
    context->next = nic->contexts;
    nic->contexts = context;
    nic->objects++;
    fake_unlock();
    return ibv;
}

FAKE_API int ibv_close_device(struct ibv_context *ibv) {
    struct context *context = CONTAINER(ibv, struct context, verbs.context);

    fake_lock();
    for (struct context **at = &context->nic->contexts; *at; at = &(*at)->next) {
        if (*at == context) {
            *at = context->next;
            break;
        }
    }
    context->nic->objects--;
    events_close(&context->events);
    fake_unlock();
    pthread_mutex_destroy(&ibv->mutex);
    free(context);
    return 0;
}

static bool is_qp_event(enum ibv_event_type type) {
    return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR ||
           type == IBV_EVENT_SQ_DRAINED || type == IBV_EVENT_COMM_EST ||
           type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

void fake_async(struct nic *nic, struct ibv_context *only, enum ibv_event_type type, void *element) {
    struct ibv_async_event event = {.event_type = type};

    if (element)
        event.element.qp = element;
    else
        event.element.port_num = 1;
    if (is_qp_event(type))
        ((struct qp *)element)->async_made++;
    for (struct context *context = nic->contexts; context; context = context->next)
        if (!only || only == &context->verbs.context)
            (void)events_push(&context->events, element, &event);
}

FAKE_API int ibv_get_async_event(struct ibv_context *ibv, struct ibv_async_event *async) {
    struct event event;

    if (!events_pop(&CONTAINER(ibv, struct context, verbs.context)->events, &event))
        return -1;
    *async = event.async;
    return 0;
}

FAKE_API void ibv_ack_async_event(struct ibv_async_event *event) {
    struct ibv_qp *qp = event->element.qp;
    struct ibv_cq *cq = event->element.cq;

    if (is_qp_event(event->event_type)) {
        pthread_mutex_lock(&qp->mutex);
        qp->events_completed++;
        pthread_cond_signal(&qp->cond);
        pthread_mutex_unlock(&qp->mutex);
    } else if (event->event_type == IBV_EVENT_CQ_ERR) {
        pthread_mutex_lock(&cq->mutex);
        cq->async_events_completed++;
        pthread_cond_signal(&cq->cond);
        pthread_mutex_unlock(&cq->mutex);
    }
}
