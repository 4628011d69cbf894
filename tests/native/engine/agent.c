#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

enum {
    LP_CONN_FENCED = 5 /* LP_FENCED of migrate.h */,
    CLIENTS = 8,
    CONNS = 4096,
    TICK_MS = 20,
    FULL_MS = 10000,
    HELD = 64
};

struct conn {
    int client; /* index, -1: free */
    uint64_t id;
    struct lp_identity who;
    uint32_t host, rail; /* of the job's own queue pair */
    uint32_t spare;      /* in use, or LP_SPARES */
    uint32_t migrations;
    struct agent_times times; /* of the last move */
    bool failed, fenced;
    struct conn *peer;
    uint32_t round[LP_SPARES];
    bool here[LP_SPARES]; /* told of its half of this round */
    bool proven[LP_SPARES];
};

struct held {
    int client;
    uint32_t length;
    uint8_t bytes[LP_FRAME_MAX];
};

static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    bool running;
    int listener, wake[2];
    int clients[CLIENTS];
    struct conn conns[CONNS];
    uint32_t conn_count;
    struct agent_manners manners;
    struct lp_page *page;
    int page_fd;
    uint64_t random, failures, gone_migrations, malformed, lost;
    struct held held[HELD];
    uint32_t held_count;
    char path[108];
} agent = {.lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1};

static uint32_t chance(void) {
    agent.random = agent.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(agent.random >> 33);
}

static bool percent(uint32_t of) {
    return of && chance() % 100 < of;
}

/* ---- frames
 * --------------------------------------------------------------------------------------------- */

static void send_now(int client, const void *bytes, uint32_t length) {
    struct pollfd room = {.fd = client >= 0 ? agent.clients[client] : -1, .events = POLLOUT};

    /* The socket holds some 200 frames: fewer than a move of many connections takes. */
    while (room.fd >= 0 && send(room.fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno != EAGAIN)
            return; /* gone: read_all() will see it */
        if (poll(&room, 1, FULL_MS) <= 0) {
            agent.lost++;
            return;
        }
    }
}

static void lie(int client) {
    static const uint16_t kinds[] = {LP_WELCOME,    LP_SPARE_WANT, LP_SPARE_PEER,
                                     LP_SPARE_DROP, LP_ORDER,      LP_RELAY};
    uint8_t bytes[LP_FRAME_MAX];
    const uint32_t length = (uint32_t)sizeof(struct lp_head) + chance() % 200;
    struct lp_head head = {
        .magic = LP_FRAME_MAGIC, .version = LP_ABI_VERSION, .kind = kinds[chance() % 6], .length = length};

    for (uint32_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(chance() % 4 ? 0 : chance());
    memcpy(bytes, &head, sizeof(head));
    send_now(client, bytes, length);
}

/* By the manners of the test: perhaps not at all, twice, later, or with a lie along. */
static void say(int client, void *bytes, uint16_t kind, uint32_t length) {
    const struct lp_head head = {
        .magic = LP_FRAME_MAGIC, .version = LP_ABI_VERSION, .kind = kind, .length = length};

    memcpy(bytes, &head, sizeof(head));
    if (percent(agent.manners.lie_percent))
        lie(client);
    if (kind != LP_WELCOME && percent(agent.manners.drop_percent))
        return;
    if (kind != LP_WELCOME && agent.held_count < HELD && percent(agent.manners.shuffle_percent)) {
        struct held *held = &agent.held[agent.held_count++];
        held->client = client;
        held->length = length;
        memcpy(held->bytes, bytes, length);
        return;
    }
    send_now(client, bytes, length);
    if (percent(agent.manners.repeat_percent))
        send_now(client, bytes, length);
}

static void say_held(void) {
    while (agent.held_count) {
        const uint32_t at = chance() % agent.held_count;
        const struct held held = agent.held[at];
        agent.held[at] = agent.held[--agent.held_count];
        send_now(held.client, held.bytes, held.length);
    }
}

static void welcome(int client) {
    struct lp_welcome frame = {.head = {.magic = LP_FRAME_MAGIC,
                                        .version = LP_ABI_VERSION,
                                        .kind = LP_WELCOME,
                                        .length = sizeof(frame)},
                               .give_up_ms = agent.manners.give_up_ms,
                               .attempt_ms = agent.manners.attempt_ms};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = &frame, .iov_len = sizeof(frame)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    memset(&control, 0, sizeof(control));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.head), &agent.page_fd, sizeof(int));
    (void)!sendmsg(agent.clients[client], &message, MSG_NOSIGNAL);
}

/* ---- connections
 * ---------------------------------------------------------------------------------------- */

static struct conn *find(int client, uint64_t id) {
    for (uint32_t i = 0; i < agent.conn_count; i++)
        if (agent.conns[i].client == client && agent.conns[i].id == id)
            return &agent.conns[i];
    return NULL;
}

static bool mirrors(const struct lp_identity *a, const struct lp_identity *b) {
    return !memcmp(a->local_gid, b->remote_gid, 16) && !memcmp(a->remote_gid, b->local_gid, 16) &&
           a->local_qpn == b->remote_qpn && a->remote_qpn == b->local_qpn;
}

static void want(struct conn *conn, uint32_t rail) {
    struct lp_spare_want frame = {
        .conn = conn->id, .port = 1, .id = (uint8_t)rail, .round = conn->round[rail]};

    snprintf((char *)frame.device, sizeof(frame.device), "fake_h%ur%u", conn->host, rail);
    say(conn->client, &frame, LP_SPARE_WANT, sizeof(frame));
}

/* Both ends under the same round. */
static void want_pair(struct conn *conn, uint32_t rail) {
    struct conn *peer = conn->peer;
    const uint32_t round = conn->round[rail] > peer->round[rail] ? conn->round[rail] : peer->round[rail];

    conn->round[rail] = peer->round[rail] = round;
    if (!conn->proven[rail])
        want(conn, rail);
    if (!peer->proven[rail])
        want(peer, rail);
}

static uint32_t rail_of(const struct conn *conn) {
    return conn->spare < LP_SPARES ? conn->spare : conn->rail;
}

/* Every rail but the one in use shall have a spare. */
static void look_after(struct conn *conn) {
    if (conn->client < 0 || !conn->peer || conn->failed || conn->peer->failed ||
        (conn->spare != conn->peer->spare && !conn->fenced))
        return;
    for (uint32_t rail = 0; rail < agent.manners.rails && rail < LP_SPARES; rail++)
        if (rail != rail_of(conn) || (conn->fenced && conn->peer->fenced))
            want_pair(conn, rail);
}

static void came_up(int client, const struct lp_conn_up *up) {
    struct conn *conn = find(client, up->conn);

    for (uint32_t i = 0; !conn && i < agent.conn_count; i++)
        if (agent.conns[i].client < 0)
            conn = &agent.conns[i];
    if (!conn && agent.conn_count < CONNS)
        conn = &agent.conns[agent.conn_count++];
    if (!conn)
        return;
    *conn = (struct conn){.client = client, .id = up->conn, .who = up->who, .spare = LP_SPARES};
    if (sscanf((const char *)up->device, "fake_h%ur%u", &conn->host, &conn->rail) != 2)
        conn->failed = true;
    for (uint32_t i = 0; i < agent.conn_count; i++) {
        struct conn *other = &agent.conns[i];
        if (other->client >= 0 && other != conn && mirrors(&other->who, &conn->who)) {
            conn->peer = other;
            other->peer = conn;
            for (uint32_t id = 0; id < LP_SPARES; id++)
                conn->round[id] = other->round[id];
        }
    }
    look_after(conn);
}

static void went_down(struct conn *conn, uint32_t reason) {
    if (reason == LP_DOWN_FAILED) {
        conn->failed = true;
        agent.failures++;
    }
    agent.gone_migrations += conn->migrations;
    conn->migrations = 0;
    if (conn->peer)
        conn->peer->peer = NULL;
    conn->peer = NULL;
    conn->client = -1;
}

/* That pair is used up: anew. */
static void spend(struct conn *conn, uint32_t id) {
    if (id >= LP_SPARES)
        return;
    conn->here[id] = conn->proven[id] = false;
    conn->round[id]++;
    if (conn->peer)
        conn->peer->here[id] = conn->peer->proven[id] = false;
}

static void told_state(struct conn *conn, const struct lp_conn_state *state) {
    const uint32_t before = conn->spare;
    const bool was_fenced = conn->fenced;

    conn->migrations = state->migrations;
    if (state->migrations)
        conn->times = (struct agent_times){state->fence_ns, state->settle_ns, state->gap_ns};
    conn->fenced = state->state == LP_CONN_FENCED;
    conn->spare = state->spare;
    if (before != state->spare)
        spend(conn, before);
    if (conn->fenced && !was_fenced)
        spend(conn, state->spare);
    look_after(conn);
}

/* A passive end doesn't know all of who it is: its peer does. */
static struct lp_identity full(const struct conn *conn, const struct lp_identity *said) {
    const struct lp_identity *theirs = &conn->peer->who;
    struct lp_identity who = *said;

    if (!who.local_psn && theirs->remote_psn)
        who.local_psn = theirs->remote_psn;
    return who;
}

static void told_spare(struct conn *conn, struct lp_spare_here *here) {
    const uint32_t id = here->spare.id;

    if (here->spare.mtu < 1 || here->spare.mtu > 5 || (here->spare.qpn | here->spare.psn) >> 24)
        agent.malformed++;
    if (id >= LP_SPARES || here->spare.round != conn->round[id])
        return;
    conn->here[id] = here->spare.qpn != 0;
    conn->proven[id] = conn->here[id] && (here->spare.flags & LP_SPARE_PROVEN);
    if (!conn->peer)
        return;
    if (here->spare.qpn == 0) {
        conn->round[id]++;
        conn->proven[id] = conn->peer->here[id] = conn->peer->proven[id] = false;
        return; /* the tick asks anew */
    }
    here->conn = conn->peer->id;
    here->who = full(conn, &here->who);
    say(conn->peer->client, here, LP_SPARE_PEER, sizeof(*here));
}

static void take(int client, uint8_t *bytes, size_t length) {
    struct lp_head head;
    uint64_t id;

    if (length < sizeof(head) + sizeof(id))
        return;
    memcpy(&head, bytes, sizeof(head));
    memcpy(&id, bytes + sizeof(head), sizeof(id));
    if (head.kind == LP_HELLO) {
        welcome(client);
        return;
    }
    if (head.kind == LP_CONN_UP) {
        struct lp_conn_up up;
        memcpy(&up, bytes, sizeof(up));
        came_up(client, &up);
        return;
    }
    struct conn *conn = find(client, id);
    if (!conn)
        return;
    if (head.kind == LP_CONN_DOWN) {
        struct lp_conn_down down;
        memcpy(&down, bytes, sizeof(down));
        went_down(conn, down.reason);
    } else if (head.kind == LP_CONN_STATE) {
        struct lp_conn_state state;
        memcpy(&state, bytes, sizeof(state));
        told_state(conn, &state);
    } else if (head.kind == LP_SPARE_HERE) {
        struct lp_spare_here here;
        memcpy(&here, bytes, sizeof(here));
        told_spare(conn, &here);
    } else if (head.kind == LP_RELAY && conn->peer) {
        struct lp_relay relay;
        memcpy(&relay, bytes, sizeof(relay));
        relay.conn = conn->peer->id;
        relay.who = full(conn, &relay.who);
        say(conn->peer->client, &relay, LP_RELAY, sizeof(relay));
    }
}

/* ---- the thread
 * ----------------------------------------------------------------------------------------- */

static void hang_up(int client) {
    close(agent.clients[client]);
    agent.clients[client] = -1;
    for (uint32_t i = 0; i < agent.conn_count; i++)
        if (agent.conns[i].client == client)
            went_down(&agent.conns[i], LP_DOWN_DESTROYED);
}

static void read_all(int client) {
    uint8_t bytes[LP_FRAME_MAX];

    for (;;) {
        const ssize_t length = recv(agent.clients[client], bytes, sizeof(bytes), MSG_DONTWAIT);
        if (length > 0) {
            take(client, bytes, (size_t)length);
        } else {
            if (length == 0 || (errno != EAGAIN && errno != EINTR))
                hang_up(client);
            return;
        }
    }
}

static void answer_door(void) {
    const int fd = accept4(agent.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    for (int i = 0; fd >= 0 && i < CLIENTS; i++) {
        if (agent.clients[i] < 0) {
            agent.clients[i] = fd;
            return;
        }
    }
    if (fd >= 0)
        close(fd);
}

static void *run(void *arg) {
    struct pollfd fds[CLIENTS + 2];

    (void)prctl(PR_SET_NAME, "small agent");
    pthread_mutex_lock(&agent.lock);
    while (agent.running) {
        fds[0] = (struct pollfd){.fd = agent.wake[0], .events = POLLIN};
        fds[1] = (struct pollfd){.fd = agent.listener, .events = POLLIN};
        for (int i = 0; i < CLIENTS; i++)
            fds[i + 2] = (struct pollfd){.fd = agent.clients[i], .events = POLLIN};
        pthread_mutex_unlock(&agent.lock);
        const int ready = poll(fds, CLIENTS + 2, TICK_MS);
        pthread_mutex_lock(&agent.lock);
        if (!agent.running)
            break;
        if (fds[1].revents)
            answer_door();
        for (int i = 0; i < CLIENTS; i++)
            if (fds[i + 2].revents && agent.clients[i] >= 0)
                read_all(i);
        if (ready == 0) {
            say_held();
            for (uint32_t i = 0; i < agent.conn_count; i++)
                look_after(&agent.conns[i]);
        }
    }
    pthread_mutex_unlock(&agent.lock);
    return arg;
}

static bool make_page(void) {
    agent.page_fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (agent.page_fd < 0 || ftruncate(agent.page_fd, LP_PAGE_BYTES) ||
        fcntl(agent.page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return false;
    agent.page = mmap(NULL, LP_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, agent.page_fd, 0);
    if (agent.page == MAP_FAILED)
        return false;
    agent.page->magic = LP_PAGE_MAGIC;
    agent.page->version = LP_ABI_VERSION;
    return true;
}

bool agent_start(const char *path, const struct agent_manners *manners) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)unlink(path);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    snprintf(agent.path, sizeof(agent.path), "%s", path);
    agent.manners = *manners;
    agent.random = manners->seed * 2 + 1;
    agent.conn_count = agent.held_count = 0;
    for (int i = 0; i < CLIENTS; i++)
        agent.clients[i] = -1;
    agent.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (agent.listener < 0 || bind(agent.listener, (struct sockaddr *)&address, sizeof(address)) ||
        listen(agent.listener, 8) || pipe2(agent.wake, O_CLOEXEC) || !make_page()) {
        perror(path);
        return false;
    }
    agent.running = true;
    return pthread_create(&agent.thread, NULL, run, NULL) == 0;
}

void agent_stop(void) {
    pthread_mutex_lock(&agent.lock);
    agent.running = false;
    (void)!write(agent.wake[1], "", 1);
    pthread_mutex_unlock(&agent.lock);
    pthread_join(agent.thread, NULL);
    for (int i = 0; i < CLIENTS; i++)
        if (agent.clients[i] >= 0)
            hang_up(i);
    close(agent.listener);
    close(agent.wake[0]);
    close(agent.wake[1]);
    close(agent.page_fd);
    munmap(agent.page, LP_PAGE_BYTES);
}

/* ---- asked and told by the test
 * ------------------------------------------------------------------------- */

void agent_page_state(const char *device, int state) {
    pthread_mutex_lock(&agent.lock);
    uint16_t at = 0;
    while (at < agent.page->nic_count && strcmp((char *)agent.page->nics[at].name, device) != 0)
        at++;
    struct lp_page_nic *nic = &agent.page->nics[at];
    snprintf((char *)nic->name, sizeof(nic->name), "%s", device);
    nic->port = 1;
    __atomic_store_n(&nic->state, (uint8_t)state, __ATOMIC_RELAXED);
    nic->changes++;
    if (at == agent.page->nic_count)
        __atomic_store_n(&agent.page->nic_count, (uint16_t)(at + 1), __ATOMIC_RELEASE);
    __atomic_store_n(&agent.page->generation, agent.page->generation + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&agent.lock);
}

void agent_order(const char *device, uint32_t why) {
    struct lp_order order = {.why = why, .spare = LP_SPARES, .port = 1};

    snprintf((char *)order.device, sizeof(order.device), "%s", device);
    pthread_mutex_lock(&agent.lock);
    for (int i = 0; i < CLIENTS; i++)
        if (agent.clients[i] >= 0)
            say(i, &order, LP_ORDER, sizeof(order));
    pthread_mutex_unlock(&agent.lock);
}

bool agent_all_ready(void) {
    uint32_t conns = 0;
    bool all = true;

    pthread_mutex_lock(&agent.lock);
    for (uint32_t i = 0; i < agent.conn_count; i++) {
        const struct conn *conn = &agent.conns[i];
        bool ready = false;
        for (uint32_t id = 0; conn->client >= 0 && conn->peer && id < LP_SPARES; id++)
            ready = ready ||
                    (conn->here[id] && conn->proven[id] && conn->peer->here[id] && conn->peer->proven[id]);
        conns += conn->client >= 0;
        all = all && (ready || conn->client < 0);
    }
    pthread_mutex_unlock(&agent.lock);
    return all && conns;
}

uint64_t agent_migrations(void) {
    pthread_mutex_lock(&agent.lock);
    uint64_t sum = agent.gone_migrations;
    for (uint32_t i = 0; i < agent.conn_count; i++)
        sum += agent.conns[i].migrations;
    pthread_mutex_unlock(&agent.lock);
    return sum;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

struct agent_times agent_slowest(void) {
    struct agent_times worst = {0};

    pthread_mutex_lock(&agent.lock);
    for (uint32_t i = 0; i < agent.conn_count; i++) {
        const struct agent_times *times = &agent.conns[i].times;
        worst.fence = larger(worst.fence, times->fence);
        worst.settle = larger(worst.settle, times->settle);
        worst.gap = larger(worst.gap, times->gap);
    }
    pthread_mutex_unlock(&agent.lock);
    return worst;
}

uint64_t agent_failures(void) {
    pthread_mutex_lock(&agent.lock);
    const uint64_t failures = agent.failures;
    pthread_mutex_unlock(&agent.lock);
    return failures;
}

uint64_t agent_malformed(void) {
    pthread_mutex_lock(&agent.lock);
    const uint64_t failures = agent.malformed;
    pthread_mutex_unlock(&agent.lock);
    return failures;
}

uint64_t agent_lost(void) {
    pthread_mutex_lock(&agent.lock);
    const uint64_t lost = agent.lost;
    pthread_mutex_unlock(&agent.lock);
    return lost;
}
