/* Exported functions that every libibverbs has and that need no state. */
#include "fake_internal.h"

#include <errno.h>

struct ibv_context *fake_open(int nic) {
    fake_lock();
    struct ibv_device *device = nic >= 0 && nic < fake.nic_count ? &fake.nics[nic].device : NULL;
    fake_unlock();
    return device ? ibv_open_device(device) : NULL;
}

FAKE_API int ibv_fork_init(void) {
    return 0;
}

FAKE_API enum ibv_fork_status ibv_is_fork_initialized(void) {
    return IBV_FORK_UNNEEDED;
}

FAKE_API const char *ibv_wc_status_str(enum ibv_wc_status status) {
    static const char *const texts[] = {
        [IBV_WC_SUCCESS] = "success",
        [IBV_WC_LOC_LEN_ERR] = "local length error",
        [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
        [IBV_WC_LOC_PROT_ERR] = "local protection error",
        [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
        [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
        [IBV_WC_REM_ACCESS_ERR] = "remote access error",
        [IBV_WC_REM_OP_ERR] = "remote operation error",
        [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
    };

    return (size_t)status < sizeof(texts) / sizeof(texts[0]) && texts[status] ? texts[status] : "unknown";
}

FAKE_API const char *ibv_node_type_str(enum ibv_node_type type) {
    return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}

FAKE_API const char *ibv_port_state_str(enum ibv_port_state state) {
    return state == IBV_PORT_ACTIVE ? "active" : state == IBV_PORT_DOWN ? "down" : "unknown";
}

FAKE_API const char *ibv_event_type_str(enum ibv_event_type event) {
    return event == IBV_EVENT_PORT_ERR      ? "port error"
           : event == IBV_EVENT_PORT_ACTIVE ? "port active"
           : event == IBV_EVENT_QP_FATAL    ? "local work queue catastrophic error"
                                            : "other event";
}

FAKE_API int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    (void)qp;
    *ece = (struct ibv_ece){0};
    return EOPNOTSUPP;
}

FAKE_API int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
    (void)qp;
    (void)ece;
    return EOPNOTSUPP;
}

FAKE_API int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    (void)qp;
    (void)gid;
    (void)lid;
    return EOPNOTSUPP;
}

FAKE_API int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
    (void)qp;
    (void)gid;
    (void)lid;
    return EOPNOTSUPP;
}
