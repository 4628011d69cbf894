#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "spare.h"

enum {
    OUT_FRAMES = 8192, /* more waiting than this: the agent doesn't read, start anew */
    READS_AT_ONCE = 256
};
#define FIRST_WAIT_NS UINT64_C(50000000)
#define LAST_WAIT_NS UINT64_C(5000000000)

struct frame {
    struct frame *next;
    uint32_t length;
    uint8_t bytes[];
};

static struct {
    int fd; /* 0: none (so that it needs no initialiser; no socket of ours is 0) */
    bool connected, welcome, refused;
    uint32_t seq, waiting;
    uint64_t next_try, wait;
    struct frame *first, **last;
    const struct lp_page *mapped;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
} channel;

/* LINKPASS_SOCKET is also how `linkpassctl` finds the agent's other socket: the longer name wins. */
static const char *named_path(void) {
    static const char *const names[] = {"LINKPASS_JOBS_SOCKET", "LINKPASS_SOCKET"};

    for (int i = 0; i < 2; i++) {
        const char *path = secure_getenv(names[i]);
        if (path && *path)
            return path;
    }
    return NULL;
}

/* Read once, in a thread of the job's and at its own call: the keeper must not read an environment that the
 * job may be changing. */
bool lp_channel_likely(void) {
    const char *named = named_path();
    const char *path = named ? named : "/run/linkpass/jobs.sock";

    channel.path[0] = 0;
    if (strlen(path) < sizeof(channel.path))
        memcpy(channel.path, path, strlen(path) + 1);
    return named || access(path, F_OK) == 0;
}

int lp_channel_fd(void) {
    return channel.connected ? channel.fd : -1;
}

bool lp_channel_writing(void) {
    return channel.connected && channel.first != NULL;
}

bool lp_channel_welcome(void) {
    return channel.welcome;
}

static void forget_frames(void) {
    while (channel.first) {
        struct frame *frame = channel.first;
        channel.first = frame->next;
        free(frame);
    }
    channel.last = &channel.first;
    channel.waiting = 0;
}

void lp_channel_close(void) {
    if (channel.connected)
        (void)close(channel.fd);
    channel.connected = channel.welcome = false;
    forget_frames();
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next)
        lane->announced = false;
}

/* ---- out
 * ------------------------------------------------------------------------------------------------ */

static void flush(void) {
    while (channel.first) {
        struct frame *frame = channel.first;
        const ssize_t sent = send(channel.fd, frame->bytes, frame->length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS))
            return;
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            lp_channel_close();
            return;
        }
        channel.first = frame->next;
        if (!channel.first)
            channel.last = &channel.first;
        channel.waiting--;
        free(frame);
    }
}

static void queue_frame(void *bytes, uint16_t kind, uint32_t length) {
    const struct lp_head head = {.magic = LP_FRAME_MAGIC,
                                 .version = LP_ABI_VERSION,
                                 .kind = kind,
                                 .length = length,
                                 .seq = channel.seq++};
    struct frame *frame = channel.connected ? malloc(sizeof(*frame) + length) : NULL;

    if (!frame)
        return;
    if (channel.waiting == OUT_FRAMES) {
        free(frame);
        lp_channel_close();
        return;
    }
    frame->next = NULL;
    frame->length = length;
    memcpy(frame->bytes, bytes, length);
    memcpy(frame->bytes, &head, sizeof(head));
    *channel.last = frame;
    channel.last = &frame->next;
    channel.waiting++;
    lp_engine_wake();
}

static void name_device(uint8_t *to, size_t room, const char *name) {
    memset(to, 0, room);
    memcpy(to, name, strnlen(name, room - 1));
}

void lp_channel_up(struct lp_lane *lane) {
    struct lp_conn_up up = {.conn = lane->id,
                            .who = lane->who,
                            .port = lane->attr.port_num,
                            .mtu = (uint8_t)lane->attr.path_mtu,
                            .max_send_wr = lane->qp->cap.max_send_wr,
                            .max_recv_wr = lane->qp->cap.max_recv_wr};

    if (lane->attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC)
        up.flags |= LP_CONN_ATOMICS;
    if (!lane->conn.psn_trusted)
        up.flags |= LP_CONN_PSN_UNTRUSTED;
    if (!lane->up) {
        up.flags |= LP_CONN_PASSIVE;
        up.who.local_psn = 0; /* also if an agent before this one told us: its end says who it is alike */
    }
    name_device(up.device, sizeof(up.device), lane->qp->context->name);
    queue_frame(&up, LP_CONN_UP, sizeof(up));
    lane->told_state = LP_ACTIVE;
    lane->told_epoch = lane->conn.mig.epoch;
    lp_channel_state(lane);
}

void lp_channel_down(struct lp_lane *lane, uint32_t reason, uint32_t detail) {
    struct lp_conn_down down = {.conn = lane->id, .reason = reason, .detail = detail};

    queue_frame(&down, LP_CONN_DOWN, sizeof(down));
}

void lp_channel_state(struct lp_lane *lane) {
    struct lp_conn_state state = {.conn = lane->id,
                                  .state = lane->conn.mig.state,
                                  .epoch = lane->conn.mig.epoch,
                                  .migrations = lane->conn.migrations,
                                  .spare = lane->conn.mig.spare,
                                  .gap_ns = lane->gap_ns,
                                  .fence_ns = lane->fence_ns,
                                  .settle_ns = lane->settle_ns,
                                  .replay_ns = lane->replay_ns,
                                  .trigger_ns = lane->last_trigger_ns,
                                  .replayed_bytes = lane->replayed_bytes,
                                  .replayed = lane->conn.replayed,
                                  .executed = lane->conn.executed};

    if (lane->announced)
        queue_frame(&state, LP_CONN_STATE, sizeof(state));
}

void lp_channel_spare(struct lp_lane *lane, const struct lp_spare *spare) {
    struct lp_spare_here here = {.conn = lane->id, .who = lane->who, .spare = *spare};

    queue_frame(&here, LP_SPARE_HERE, sizeof(here));
}

void lp_channel_tell(struct lp_lane *lane, const struct lp_tell *tell) {
    struct lp_relay relay = {.conn = lane->id, .who = lane->who, .tell = *tell};

    queue_frame(&relay, LP_RELAY, sizeof(relay));
}

/* ---- in
 * ------------------------------------------------------------------------------------------------- */

static void take_page(int fd) {
    const char *why;
    const struct lp_page *page = lp_page_map(fd, &why);

    if (!page) {
        fprintf(stderr, "linkpass: %s; the agent's page is not used\n", why);
        return;
    }
    atomic_store(&lp_engine.page_seen, page->generation - 1);
    atomic_store(&lp_engine.page, page);
    /* The one before stays mapped: a poll may be reading it. It is a page for each life of the agent. */
    channel.mapped = page;
}

static void take_order(const struct lp_order *order) {
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next) {
        uint8_t port;
        if (order->conn && lane->id != order->conn)
            continue;
        lp_lock(&lane->lock);
        const bool here = order->conn || (!strcmp(lp_lane_device(lane, &port), (const char *)order->device) &&
                                          port == order->port);
        if (here && lane->covered && !lane->plain && !lane->failing && lp_lane_may_hold(lane))
            lp_engine_act(lane, lp_conn_order(&lane->conn, order->spare));
        lp_unlock(&lane->lock);
    }
}

static void take_relay(const struct lp_relay *relay) {
    struct lp_lane *lane = lp_lane_by_id(relay->conn);

    if (!lane)
        return;
    lp_lock(&lane->lock);
    const bool advice =
        relay->tell.kind == LP_TELL_PREP || (relay->tell.kind == LP_TELL_NEED && !relay->tell.hard);
    if (lane->covered && !lane->plain && !(advice && !lp_lane_may_hold(lane)))
        lp_engine_act(lane, lp_conn_tell(&lane->conn, &relay->who, &relay->tell));
    lp_unlock(&lane->lock);
}

static void take_welcome(const struct lp_welcome *welcome, int fd) {
    channel.welcome = true;
    channel.wait = FIRST_WAIT_NS;
    lp_engine.give_up_ns = welcome->give_up_ms * 1000000;
    lp_engine.attempt_ns = welcome->attempt_ms * 1000000;
    if (fd >= 0)
        take_page(fd);
    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next)
        lp_lane_dirty(lane);
}

static void take_spare(const uint8_t *bytes, uint16_t kind) {
    struct lp_spare_want want;
    struct lp_spare_here peer;

    if (kind == LP_SPARE_PEER) {
        memcpy(&peer, bytes, sizeof(peer));
        struct lp_lane *lane = lp_lane_by_id(peer.conn);
        if (lane && lane->connected)
            lp_spare_peer(lane, &peer);
        return;
    }
    memcpy(&want, bytes, sizeof(want));
    struct lp_lane *lane = lp_lane_by_id(want.conn);
    if (lane && lane->connected && kind == LP_SPARE_WANT)
        lp_spare_want(lane, &want);
    else if (lane && lane->connected)
        lp_spare_drop(lane, want.id);
}

static void take_frame(const uint8_t *bytes, size_t length, int *fd) {
    struct lp_welcome welcome;
    struct lp_order order;
    struct lp_relay relay;
    uint16_t kind;

    if (!lp_frame_sound(bytes, length, &kind) ||
        (kind != LP_WELCOME && kind != LP_REFUSED && !channel.welcome))
        return;
    switch (kind) {
    case LP_WELCOME:
        memcpy(&welcome, bytes, sizeof(welcome));
        if (!channel.welcome)
            take_welcome(&welcome, *fd);
        else
            break;
        *fd = -1;
        break;
    case LP_REFUSED:
        channel.refused = true;
        lp_channel_close();
        break;
    case LP_ORDER:
        memcpy(&order, bytes, sizeof(order));
        take_order(&order);
        break;
    case LP_RELAY:
        memcpy(&relay, bytes, sizeof(relay));
        take_relay(&relay);
        break;
    default:
        take_spare(bytes, kind);
    }
}

/* One datagram; its descriptors beyond the first are closed.  False: nothing more now. */
static bool read_one(void) {
    uint8_t bytes[LP_FRAME_MAX + 1];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int fd = -1;

    const ssize_t length = recvmsg(channel.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length <= 0) {
        if (length == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            lp_channel_close();
        return false;
    }
    for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int passed;
            memcpy(&passed, CMSG_DATA(at) + i * sizeof(int), sizeof(passed));
            if (fd < 0)
                fd = passed;
            else
                (void)close(passed);
        }
    }
    if (!(message.msg_flags & MSG_TRUNC))
        take_frame(bytes, (size_t)length, &fd);
    if (fd >= 0)
        (void)close(fd);
    return channel.connected;
}

void lp_channel_readable(void) {
    for (int i = 0; channel.connected && i < READS_AT_ONCE && read_one(); i++)
        continue;
}

/* ---- the connection
 * ------------------------------------------------------------------------------------- */

static void say_hello(void) {
    struct lp_hello hello = {.capabilities = 0};
    const char *job = secure_getenv("LINKPASS_JOB");
    FILE *comm = job ? NULL : fopen("/proc/self/comm", "re");

    memcpy(hello.shim_version, "1", 2);
    if (job)
        memcpy(hello.job, job, strnlen(job, sizeof(hello.job) - 1));
    if (comm) {
        if (fgets((char *)hello.job, sizeof(hello.job), comm))
            hello.job[strcspn((char *)hello.job, "\n")] = 0;
        (void)fclose(comm);
    }
    queue_frame(&hello, LP_HELLO, sizeof(hello));
}

static void try_connect(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || !channel.path[0]) { /* none: its name was too long for a socket */
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    memcpy(address.sun_path, channel.path, sizeof(address.sun_path));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
        (void)close(fd);
        return;
    }
    channel.fd = fd;
    channel.connected = true;
    channel.last = &channel.first;
    say_hello();
}

uint64_t lp_channel_work(uint64_t now) {
    if (channel.refused)
        return UINT64_MAX;
    if (!channel.connected && now >= channel.next_try) {
        channel.wait = channel.wait ? channel.wait * 2 : FIRST_WAIT_NS;
        channel.wait = channel.wait < LAST_WAIT_NS ? channel.wait : LAST_WAIT_NS;
        channel.next_try = now + channel.wait;
        try_connect();
    }
    if (channel.connected) {
        flush();
        return channel.connected ? UINT64_MAX : channel.wait;
    }
    return channel.next_try - now;
}
