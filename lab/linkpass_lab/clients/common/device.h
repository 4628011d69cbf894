/* The RDMA device, its port and GID; and RC queue pairs brought from RESET to RTS. */
#ifndef CLIENTS_DEVICE_H
#define CLIENTS_DEVICE_H

#include "settings.h"

#include <infiniband/verbs.h>
#include <stdint.h>

struct device {
    struct ibv_context *context;
    struct ibv_port_attr port;
    union ibv_gid gid;
    int gid_index;
    char name[64];
};

/* What a peer has to know about one end of a queue pair: 6 words on the control connection. */
struct endpoint {
    uint32_t qpn, psn, lid, mtu; /* mtu in bytes */
    union ibv_gid gid;
};
#define ENDPOINT_WORDS 6

/* All of these: 0, or an errno value with a sentence in `why`. */
int device_open(struct device *d, const struct settings *s, char *why, size_t room);
/* `more_access`: what the peer may do beside READ and WRITE. */
int qp_to_init(struct ibv_qp *qp, const struct settings *s, int more_access, char *why, size_t room);
int qp_to_ready(struct ibv_qp *qp, const struct device *d, const struct settings *s,
                const struct endpoint *own, const struct endpoint *peer, char *why, size_t room);
void device_close(struct device *d);

/* This end's value for a queue pair; psn is the first packet number that this end will send. */
struct endpoint endpoint_of(const struct device *d, const struct settings *s, const struct ibv_qp *qp,
                            uint32_t psn);
void endpoint_pack(const struct endpoint *e, uint64_t words[ENDPOINT_WORDS]);
struct endpoint endpoint_unpack(const uint64_t words[ENDPOINT_WORDS]);

/* Take one async event if there is one; true when it did. The descriptor must be non-blocking. */
struct verdict;
bool device_async_event(struct device *d, struct verdict *v, uint64_t at_ns);

#endif
