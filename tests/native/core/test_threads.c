/* One thread posts, another completes: the rings' promise, for ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "check.h"
#include "ring.h"

#define REQUESTS 50000u

struct shared {
    struct lp_send_ring *sends;
    struct lp_recv_ring *recvs;
    _Atomic uint32_t send_doorbell; /* what a NIC would have been told */
    _Atomic uint32_t recv_doorbell;
};

static void *post(void *argument) {
    struct shared *shared = argument;
    struct lp_sge sge = {.length = 5000};
    uint32_t token;
    for (uint32_t sent = 0, received = 0; sent < REQUESTS || received < REQUESTS;) {
        bool idle = true;
        struct lp_send send = {.wr_id = sent,
                               .sges = &sge,
                               .sge_count = 1,
                               .op = sent % 7 ? LP_OP_SEND : LP_OP_ATOMIC,
                               .flags = LP_SEND_SIGNALED};
        if (sent < REQUESTS && lp_send_ring_push(shared->sends, &send, true, &token) == LP_PUSH_OK) {
            atomic_store_explicit(&shared->send_doorbell, ++sent, memory_order_relaxed);
            idle = false;
        }
        if (received < REQUESTS &&
            lp_recv_ring_push(shared->recvs, received, &sge, 1, true, &token) == LP_PUSH_OK) {
            atomic_store_explicit(&shared->recv_doorbell, ++received, memory_order_relaxed);
            idle = false;
        }
        if (idle) {
            (void)sched_yield();
        }
    }
    return NULL;
}

int main(void) {
    void *blocks[2] = {aligned_alloc(64, lp_send_ring_bytes(8, 1, 0)),
                       aligned_alloc(64, lp_recv_ring_bytes(8, 1))};
    struct shared shared = {.sends = lp_send_ring_init(blocks[0], 8, 1, 0),
                            .recvs = lp_recv_ring_init(blocks[1], 8, 1)};
    pthread_t poster;
    uint32_t sent = 0, received = 0, popped = 0;
    bool right = true;
    lp_send_ring_epoch(shared.sends, 0, 1024, 0);
    if (pthread_create(&poster, NULL, post, &shared) != 0) {
        return 2;
    }
    while (popped < REQUESTS || received < REQUESTS) {
        struct lp_send_entry send;
        struct lp_recv_entry recv;
        uint32_t rung = atomic_load_explicit(&shared.send_doorbell, memory_order_relaxed);
        if (rung != sent) { /* one completion for all that were posted */
            right = right && lp_send_ring_complete(shared.sends, rung - 1);
            sent = rung;
        }
        while (lp_send_ring_pop(shared.sends, &send)) {
            right = right && send.wr_id == popped++;
        }
        if (atomic_load_explicit(&shared.recv_doorbell, memory_order_relaxed) != received) {
            right = right && lp_recv_ring_consume(shared.recvs, received, &recv) && recv.wr_id == received;
            received++;
        } else if (rung == sent) {
            (void)sched_yield();
        }
    }
    CHECK(pthread_join(poster, NULL) == 0);
    CHECK(right && shared.sends->acked == shared.sends->posted && atomic_load(&shared.sends->fragile) == 0);
    free(blocks[0]);
    free(blocks[1]);
    return check_end();
}
