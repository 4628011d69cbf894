/* Event lists behind real file descriptors: an eventfd in semaphore mode counts what is on the list. */
#include "fake_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool events_open(struct events *events) {
    events->head = NULL;
    events->tail = &events->head;
    events->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    return events->fd >= 0;
}

void events_close(struct events *events) {
    close(events->fd);
    while (events->head) {
        struct event *event = events->head;
        events->head = event->next;
        free(event);
    }
}

bool events_push(struct events *events, void *about, const struct ibv_async_event *async) {
    const uint64_t one = 1;
    struct event *event = calloc(1, sizeof(*event));

    if (!event)
        return false;
    event->about = about;
    if (async)
        event->async = *async;
    *events->tail = event;
    events->tail = &event->next;
    return write(events->fd, &one, sizeof(one)) == sizeof(one);
}

bool events_pop(struct events *events, struct event *out) {
    uint64_t one;

    for (;;) {
        if (read(events->fd, &one, sizeof(one)) != sizeof(one))
            return false; /* EAGAIN or EINTR, as with the real descriptor */
        fake_lock();
        struct event *event = events->head;
        if (event) {
            events->head = event->next;
            if (!events->head)
                events->tail = &events->head;
        }
        fake_unlock();
        if (event) { /* none: it was forgotten between the read and the lock */
            *out = *event;
            free(event);
            return true;
        }
    }
}

void events_forget(struct events *events, const void *about) {
    struct event **at = &events->head;
    uint64_t one;

    while (*at) {
        struct event *event = *at;
        if (event->about != about) {
            at = &event->next;
            continue;
        }
        *at = event->next;
        free(event);
        /* Take its count back, unless someone has read it and waits for the lock. */
        if (poll(&(struct pollfd){.fd = events->fd, .events = POLLIN}, 1, 0) == 1)
            (void)!read(events->fd, &one, sizeof(one));
    }
    events->tail = at;
}
