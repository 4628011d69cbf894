#include "control.h"

#include "clock.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER 8

static void lose(struct control *c, const char *why) {
    if (!c->lost)
        snprintf(c->why, sizeof(c->why), "%s", why);
    c->lost = true;
}

static void set_number(int fd, int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
}

static void adopt(struct control *c, int fd, uint32_t peer_timeout_s) {
    *c = (struct control){.fd = fd};
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
    set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set_number(fd, IPPROTO_TCP, TCP_KEEPCNT, peer_timeout_s > 4 ? (int)(peer_timeout_s / 2) : 2);
    set_number(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)peer_timeout_s * 1000);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int wait_for(int fd, short events, uint64_t until) {
    uint64_t now = now_ns();
    struct pollfd p = {.fd = fd, .events = events};
    int ms = now >= until ? 0 : (int)((until - now) / NS_PER_MS + 1);
    int n = poll(&p, 1, ms);
    if (n < 0)
        return errno == EINTR ? 0 : errno;
    return n == 0 && now_ns() >= until ? ETIMEDOUT : 0;
}

int control_accept(struct control *c, uint16_t port, uint64_t timeout_ns, uint32_t peer_timeout_s) {
    uint64_t until = now_ns() + timeout_ns;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool v4_only = fd < 0;
    if (v4_only)
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    set_number(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (!v4_only)
        set_number(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    int rc = v4_only ? bind(fd, (struct sockaddr *)&four, sizeof(four)) : bind(fd, (void *)&six, sizeof(six));
    if (rc != 0 || listen(fd, 1) != 0) {
        rc = errno;
        close(fd);
        return rc;
    }
    for (;;) {
        rc = wait_for(fd, POLLIN, until);
        if (rc)
            break;
        int conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (conn >= 0) {
            adopt(c, conn, peer_timeout_s);
            break;
        }
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
    close(fd);
    return rc;
}

static int connect_once(const struct addrinfo *to, uint64_t until, int *out) {
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int rc = connect(fd, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
    if (rc == EINPROGRESS) {
        rc = wait_for(fd, POLLOUT, until);
        socklen_t len = sizeof(rc);
        if (rc == 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &rc, &len);
    }
    if (rc) {
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

int control_connect(struct control *c, const char *host, uint16_t port, uint64_t timeout_ns,
                    uint32_t peer_timeout_s) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[8];
    uint64_t until = now_ns() + timeout_ns;
    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return EADDRNOTAVAIL;
    int rc = EADDRNOTAVAIL, fd = -1;
    for (;;) {
        for (const struct addrinfo *to = found; to; to = to->ai_next)
            if ((rc = connect_once(to, until, &fd)) == 0)
                break;
        if (fd >= 0 || now_ns() >= until)
            break;
        poll(NULL, 0, 50);
    }
    freeaddrinfo(found);
    if (fd < 0)
        return rc;
    adopt(c, fd, peer_timeout_s);
    return 0;
}

static bool reserve(struct buffer *b, size_t more) {
    if (b->used + more <= b->room)
        return true;
    size_t room = (b->used + more) * 2;
    unsigned char *data = realloc(b->data, room);
    if (!data)
        return false;
    b->data = data;
    b->room = room;
    return true;
}

static void drop_front(struct buffer *b, size_t n) {
    b->used -= n;
    memmove(b->data, b->data + n, b->used);
}

static void flush(struct control *c) {
    while (!c->lost && c->out.used) {
        ssize_t n = send(c->fd, c->out.data, c->out.used, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            lose(c, strerror(errno));
            return;
        }
        drop_front(&c->out, (size_t)n);
    }
}

void control_send(struct control *c, uint32_t type, const uint64_t *words, uint32_t count) {
    if (c->lost || count > CONTROL_WORDS_MAX || !reserve(&c->out, HEADER + count * 8ul)) {
        lose(c, "no memory for a control message");
        return;
    }
    uint32_t head[2] = {htobe32(type), htobe32(count)};
    memcpy(c->out.data + c->out.used, head, HEADER);
    c->out.used += HEADER;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t word = htobe64(words[i]);
        memcpy(c->out.data + c->out.used, &word, 8);
        c->out.used += 8;
    }
    flush(c);
}

void control_pump(struct control *c) {
    flush(c);
    while (!c->lost) {
        if (!reserve(&c->in, 65536)) {
            lose(c, "no memory for control messages");
            return;
        }
        ssize_t n = recv(c->fd, c->in.data + c->in.used, c->in.room - c->in.used, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            lose(c, n == 0 ? "the peer closed the control connection" : strerror(errno));
            return;
        }
        c->in.used += (size_t)n;
    }
}

bool control_next(struct control *c, struct message *m) {
    uint32_t head[2];
    if (c->in.used < HEADER)
        return false;
    memcpy(head, c->in.data, HEADER);
    m->type = be32toh(head[0]);
    m->count = be32toh(head[1]);
    if (m->count > CONTROL_WORDS_MAX) {
        lose(c, "the peer speaks another language");
        return false;
    }
    if (c->in.used < HEADER + m->count * 8ul)
        return false;
    for (uint32_t i = 0; i < m->count; i++) {
        memcpy(&m->words[i], c->in.data + HEADER + i * 8ul, 8);
        m->words[i] = be64toh(m->words[i]);
    }
    drop_front(&c->in, HEADER + m->count * 8ul);
    return true;
}

bool control_expect(struct control *c, uint32_t type, struct message *m, uint64_t timeout_ns) {
    uint64_t until = now_ns() + timeout_ns;
    for (;;) {
        control_pump(c);
        if (control_next(c, m)) {
            if (m->type == type)
                return true;
            lose(c, "the peer answered with another message than expected");
            return false;
        }
        if (c->lost)
            return false;
        if (wait_for(c->fd, c->out.used ? POLLIN | POLLOUT : POLLIN, until) == ETIMEDOUT) {
            lose(c, "the peer did not answer in time");
            return false;
        }
    }
}

void control_finish(struct control *c, uint64_t timeout_ns) {
    uint64_t until = now_ns() + timeout_ns;
    bool closed = false;
    while (!c->lost && now_ns() < until) {
        control_pump(c);
        if (!c->out.used && !closed) {
            shutdown(c->fd, SHUT_WR);
            closed = true;
        }
        c->in.used = 0;
        if (c->lost || wait_for(c->fd, closed ? POLLIN : POLLIN | POLLOUT, until) == ETIMEDOUT)
            break;
    }
    close(c->fd);
    c->fd = -1;
    free(c->in.data);
    free(c->out.data);
    c->in = c->out = (struct buffer){0};
}
