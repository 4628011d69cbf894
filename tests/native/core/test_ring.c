/* Rings: bounds, order, inline copies, wrapping tokens, settled entries. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ring.h"

static struct lp_send_ring *sends(uint32_t max_wr, uint32_t max_sge, uint32_t max_inline) {
    void *block = aligned_alloc(64, lp_send_ring_bytes(max_wr, max_sge, max_inline));
    struct lp_send_ring *ring = lp_send_ring_init(block, max_wr, max_sge, max_inline);
    lp_send_ring_epoch(ring, 0xfffffe, 1024, 0);
    return ring;
}

static struct lp_send write_of(uint64_t wr_id, const struct lp_sge *sge) {
    return (struct lp_send){
        .wr_id = wr_id, .sges = sge, .sge_count = 1, .op = LP_OP_WRITE, .flags = LP_SEND_SIGNALED};
}

static void ring_refuses_more_than_was_granted(void) {
    struct lp_send_ring *ring = sends(3, 2, 16); /* 4 slots, 3 granted */
    struct lp_sge list[3] = {{.length = 10}, {.length = 20}, {.length = 30}};
    struct lp_send send = write_of(1, list);
    uint32_t token;
    for (int i = 0; i < 3; i++) {
        CHECK(lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_OK && token == (uint32_t)i);
    }
    CHECK(lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_FULL);
    free(ring);
    ring = sends(3, 2, 16);
    send.sge_count = 3;
    CHECK(lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_TOO_BIG);
    send = write_of(1, list);
    send.flags |= LP_SEND_INLINE;
    list[0].length = 17;
    CHECK(lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_TOO_BIG);
    free(ring);
}

static void inline_data_survives_the_jobs_buffer(void) {
    struct lp_send_ring *ring = sends(2, 2, 16);
    char hello[] = "hello", world[] = "world";
    struct lp_sge list[2] = {{.addr = (uintptr_t)hello, .length = 5},
                             {.addr = (uintptr_t)world, .length = 5}};
    struct lp_send send = write_of(1, list);
    uint32_t token;
    send.sge_count = 2;
    send.flags |= LP_SEND_INLINE;
    CHECK(lp_send_ring_push(ring, &send, false, &token) == LP_PUSH_OK);
    memset(hello, 'x', 5);
    CHECK(memcmp(lp_send_ring_payload(ring, token), "helloworld", 10) == 0);
    CHECK(lp_send_ring_at(ring, token)->length == 10 && lp_send_ring_at(ring, token)->sge_count == 0);
    free(ring);
}

static void one_completion_proves_all_before_it(void) {
    struct lp_send_ring *ring = sends(4, 1, 0);
    struct lp_sge sge = {.length = 3000}; /* 3 packets */
    struct lp_send_entry entry;
    uint32_t token;
    for (uint64_t i = 0; i < 4; i++) {
        struct lp_send send = write_of(i, &sge);
        CHECK(lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_OK);
    }
    CHECK(ring->posted == 12 && lp_send_ring_at(ring, 2)->first == 6 && lp_send_ring_at(ring, 2)->end == 9);
    CHECK(!lp_send_ring_pop(ring, &entry));
    CHECK(lp_send_ring_complete(ring, 2) && ring->acked == 9);
    CHECK(!lp_send_ring_complete(ring, 1)); /* known already: a provider's fault */
    CHECK(!lp_send_ring_complete(ring, 7)); /* never posted */
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(lp_send_ring_pop(ring, &entry) && entry.wr_id == i);
    }
    CHECK(!lp_send_ring_pop(ring, &entry) && lp_send_ring_count(ring) == 1);
    free(ring);
}

static void a_million_requests_wrap_slots_and_packet_numbers(void) {
    struct lp_send_ring *ring = sends(8, 1, 0);
    atomic_store(&ring->head, UINT32_MAX - 5); /* tokens wrap too */
    atomic_store(&ring->tail, UINT32_MAX - 5);
    ring->undone = ring->next = UINT32_MAX - 5;
    struct lp_sge sge = {.length = 20 * 1024};
    uint64_t seen = 0;
    bool right = true;
    for (uint64_t i = 0; i < 1000000; i++) {
        struct lp_send send = write_of(i, &sge);
        struct lp_send_entry entry;
        uint32_t token;
        right = right && lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_OK;
        right = right && lp_send_ring_complete(ring, token) && lp_send_ring_pop(ring, &entry) &&
                entry.wr_id == seen++;
    }
    CHECK(right && ring->posted == 20000000 && ring->acked == 20000000); /* 20 M packets: past 2^24 */
    struct lp_send send = write_of(7, &sge);
    struct lp_mark mark = {.psn = lp_psn_add(0xfffffe, 20000020), .flags = LP_MARK_PSN};
    uint32_t token, executed;
    CHECK(lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_OK);
    CHECK(lp_send_ring_settle(ring, &mark, true, &executed) == LP_SETTLE_FINE && executed == 1);
    free(ring);
}

static void settled_entries_wait_for_a_read_that_runs_again(void) {
    struct lp_send_ring *ring = sends(4, 1, 0);
    struct lp_sge sge = {.length = 2048};
    struct lp_send_entry entry;
    uint32_t token, executed;
    for (uint64_t i = 0; i < 3; i++) {
        struct lp_send send = write_of(i, &sge);
        send.op = i == 0 ? LP_OP_READ : LP_OP_WRITE;
        CHECK(lp_send_ring_push(ring, &send, true, &token) == LP_PUSH_OK);
    }
    struct lp_mark mark = {.psn = lp_psn_add(0xfffffe, 4), .flags = LP_MARK_PSN}; /* READ and first WRITE */
    CHECK(lp_send_ring_settle(ring, &mark, false, &executed) == LP_SETTLE_FINE);
    CHECK(lp_send_ring_at(ring, 1)->state == LP_POSTED); /* only looked at */
    CHECK(lp_send_ring_settle(ring, &mark, true, &executed) == LP_SETTLE_FINE && executed == 1);
    CHECK(!lp_send_ring_pop(ring, &entry)); /* the WRITE's success doesn't overtake the READ */
    lp_send_ring_epoch(ring, 10, 1024, 1);
    CHECK(lp_send_ring_next(ring, &token) && token == 0);
    CHECK(lp_send_must_signal(lp_send_ring_at(ring, 0)));
    lp_send_ring_posted(ring, token);
    CHECK(lp_send_ring_at(ring, 0)->first == 1); /* behind one mail */
    CHECK(lp_send_ring_next(ring, &token) && token == 2);
    CHECK(lp_send_ring_complete(ring, 0));
    CHECK(lp_send_ring_pop(ring, &entry) && entry.wr_id == 0);
    CHECK(lp_send_ring_pop(ring, &entry) && entry.wr_id == 1);
    CHECK(!lp_send_ring_pop(ring, &entry));
    free(ring);
}

static void receives_are_consumed_in_order_and_posted_again(void) {
    void *block = aligned_alloc(64, lp_recv_ring_bytes(3, 2));
    struct lp_recv_ring *ring = lp_recv_ring_init(block, 3, 2);
    struct lp_sge list[3] = {{.addr = 1, .length = 2, .lkey = 3}};
    struct lp_recv_entry entry;
    uint32_t token;
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(lp_recv_ring_push(ring, i, list, 1, true, &token) == LP_PUSH_OK);
    }
    CHECK(lp_recv_ring_push(ring, 3, list, 1, true, &token) == LP_PUSH_FULL);
    CHECK(!lp_recv_ring_consume(ring, 1, &entry)); /* not the oldest */
    CHECK(lp_recv_ring_consume(ring, 0, &entry) && entry.wr_id == 0);
    CHECK(lp_recv_ring_push(ring, 3, list, 3, true, &token) == LP_PUSH_TOO_BIG);
    lp_recv_ring_epoch(ring);
    CHECK(!lp_recv_ring_consume(ring, 1, &entry)); /* held, not posted here */
    CHECK(lp_recv_ring_next(ring, &token) && token == 1);
    lp_recv_ring_posted(ring, token);
    CHECK(lp_recv_ring_consume(ring, 1, &entry) && entry.wr_id == 1);
    CHECK(lp_recv_ring_sges(ring, 2)->lkey == 3);
    free(block);
}

int main(void) {
    ring_refuses_more_than_was_granted();
    inline_data_survives_the_jobs_buffer();
    one_completion_proves_all_before_it();
    a_million_requests_wrap_slots_and_packet_numbers();
    settled_entries_wait_for_a_read_that_runs_again();
    receives_are_consumed_in_order_and_posted_again();
    return check_end();
}
