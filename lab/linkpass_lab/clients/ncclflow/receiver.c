/* The receiving end: empty receives, clear-to-send by WRITE, sizes by IMM, flush by loopback READ, and the
 * check. */
#include "../common/clock.h"
#include "../common/pattern.h"
#include "connection.h"

#include <inttypes.h>
#include <string.h>

static int post_receives(struct connection *c) {
    for (uint64_t l = 0; l < c->job->lanes; l++) {
        struct ibv_recv_wr wr = {.wr_id = wr_id_of(WR_RECEIVE, l, c->next)}, *bad;
        int rc = ibv_post_recv(c->lanes[l], &wr, &bad);
        if (rc)
            return rc;
        c->order[l].posted = c->next + 1;
    }
    return 0;
}

static uint32_t *sizes_of(const struct connection *c, uint64_t number) {
    return (uint32_t *)(void *)(c->memory + c->sizes_at) + number % job_slots(c->job) * GROUP_MAX;
}

/* The local image of the fifo is as large as the fifo, so an entry stays untouched while its WRITE is under
 * way. */
static int post_clear_to_send(struct connection *c, const struct group *g, bool inline_cts) {
    uint64_t slot = g->number % job_slots(c->job);
    uint64_t at = c->fifo_at + slot * GROUP_MAX * sizeof(struct cts_entry);
    struct cts_entry *entries = (struct cts_entry *)(void *)(c->memory + at);
    for (uint32_t r = 0; r < g->count; r++)
        entries[r] = (struct cts_entry){.addr = (uintptr_t)c->memory + buffer_offset(c->job, g->number, r),
                                        .size = g->room[r],
                                        .rkey = c->mr->rkey,
                                        .count = g->count,
                                        .tag = g->tag[r],
                                        .index = g->number + 1};
    struct ibv_sge sge = {(uintptr_t)entries, g->count * (uint32_t)sizeof(*entries), c->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id_of(WR_CTS, 0, g->number),
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = inline_cts ? IBV_SEND_INLINE : 0,
                             .wr.rdma = {.remote_addr = c->peer_memory + at, .rkey = c->peer_rkey}},
                       *bad;
    if (slot == 0)
        wr.send_flags |= IBV_SEND_SIGNALED; /* once round the fifo, so that the send queue is freed */
    c->cts_order.posted = g->number + 1;
    c->counters.cts++;
    return ibv_post_send(c->lanes[0], &wr, &bad);
}

int receiver_post(struct connection *c, bool stop, bool inline_cts) {
    int posted = 0;
    while (!stop && c->next - c->done < c->job->max_requests &&
           (c->job->iterations == 0 || c->next < c->job->iterations)) {
        struct pending *p = &c->pending[c->next % c->job->max_requests];
        *p = (struct pending){
            .group = plan_group(c->job, c->key, c->next), .events = (uint32_t)c->job->lanes, .active = true};
        memset(sizes_of(c, c->next), 0, GROUP_MAX * sizeof(uint32_t));
        int rc = post_receives(c);
        if (rc == 0)
            rc = post_clear_to_send(c, &p->group, inline_cts);
        if (rc) {
            verdict_error(c->verdict, false, 0, "POST_FAILED", now_ns(),
                          "connection %u, group %" PRIu64 ": %s", c->index, c->next, strerror(rc));
            return -1;
        }
        c->next++;
        posted++;
    }
    return posted;
}

static void check_sizes(struct connection *c, const struct group *g) {
    const volatile uint32_t *sizes = sizes_of(c, g->number);
    for (uint32_t r = 0; g->count > 1 && r < g->count; r++)
        if (sizes[r] != g->size[r])
            verdict_violation(c->verdict, WRONG_LENGTH, c->index, g->number,
                              "receive %u: size %u was written, not %u", r, sizes[r], g->size[r]);
}

static void check_payload(struct connection *c, const struct group *g, uint32_t r) {
    unsigned char *buffer = c->memory + buffer_offset(c->job, g->number, r);
    uint64_t stride = job_stride(c->job), other;
    uint64_t right = pattern_check(c->key, payload_seq(g->number, r), 0, buffer, g->size[r]);
    uint64_t clean = poison_check(buffer + g->size[r], stride - g->size[r]);
    c->counters.checksum ^= mix64(checksum_bytes(payload_seq(g->number, r), buffer, g->size[r]));
    if (right < g->size[r] && pattern_owner(c->key, buffer, g->size[r], &other) &&
        other != payload_seq(g->number, r))
        verdict_violation(c->verdict, DUPLICATE, c->index, g->number,
                          "receive %u holds the data of group %" PRIu64, r, other / GROUP_MAX);
    else if (right < g->size[r])
        verdict_violation(c->verdict, DATA_MISMATCH, c->index, g->number,
                          "receive %u of %u bytes: byte %" PRIu64 " is wrong", r, g->size[r], right);
    if (clean < stride - g->size[r])
        verdict_violation(c->verdict, OVERWRITTEN, c->index, g->number,
                          "receive %u of %u bytes: byte %" PRIu64 " was written too", r, g->size[r],
                          g->size[r] + clean);
    poison_fill(buffer, stride);
    c->counters.messages++;
    c->counters.bytes += g->size[r];
}

static void finish_group(struct connection *c, struct pending *p, uint64_t now) {
    uint64_t before = c->counters.bytes;
    for (uint32_t r = 0; r < p->group.count; r++)
        check_payload(c, &p->group, r);
    for (uint32_t r = p->group.count; r < c->job->group; r++)
        if (poison_check(c->memory + buffer_offset(c->job, p->group.number, r), job_stride(c->job)) <
            job_stride(c->job))
            verdict_violation(c->verdict, OVERWRITTEN, c->index, p->group.number,
                              "unused buffer %u was written", r);
    stats_received(c->stats, now, c->counters.bytes - before);
    c->counters.groups++;
    p->active = false;
    connection_retire(c);
}

/* NCCL reads one byte of the last receive that got data: the answer comes after all writes are visible. */
static bool start_flush(struct connection *c, struct pending *p, uint64_t now) {
    const struct group *g = &p->group;
    int last = -1;
    for (uint32_t r = 0; r < g->count; r++)
        if (g->size[r])
            last = (int)r;
    if (!c->flush_qp || last < 0)
        return false;
    unsigned char *to = c->memory + c->flush_at + g->number % c->job->max_requests;
    *to = (unsigned char)~pattern_word(c->key, payload_seq(g->number, (uint32_t)last), 0);
    struct ibv_sge sge = {(uintptr_t)to, 1, c->mr->lkey};
    /* Flushes are numbered by themselves: groups without data have none. */
    struct ibv_send_wr wr = {.wr_id = wr_id_of(WR_FLUSH, (uint64_t)0, c->flush_order.posted),
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = (uintptr_t)c->memory +
                                                        buffer_offset(c->job, g->number, (uint32_t)last),
                                         .rkey = c->mr->rkey}},
                       *bad;
    p->flushing = true;
    p->flush_number = c->flush_order.posted++;
    p->flush_last = (uint32_t)last;
    int rc = ibv_post_send(c->flush_qp, &wr, &bad);
    if (rc)
        verdict_error(c->verdict, false, 0, "POST_FAILED", now, "connection %u: flush: %s", c->index,
                      strerror(rc));
    return true;
}

static void flush_done(struct connection *c, uint64_t number, uint64_t now) {
    for (uint64_t i = 0; i < c->job->max_requests; i++) {
        struct pending *p = &c->pending[i];
        if (!p->active || !p->flushing || p->flush_number != number)
            continue;
        unsigned char got = c->memory[c->flush_at + p->group.number % c->job->max_requests];
        unsigned char want =
            (unsigned char)pattern_word(c->key, payload_seq(p->group.number, p->flush_last), 0);
        if (got != want)
            verdict_violation(c->verdict, DATA_MISMATCH, c->index, p->group.number, "flush read %#x, not %#x",
                              got, want);
        c->counters.flushes++;
        finish_group(c, p, now);
        return;
    }
    verdict_violation(c->verdict, UNEXPECTED, c->index, number, "flush completed for no group");
}

static void receive_done(struct connection *c, const struct completion *w, uint64_t lane, uint64_t number,
                         uint64_t now) {
    struct pending *p = &c->pending[number % c->job->max_requests];
    const struct group *g = &p->group;
    uint32_t bytes = group_imm_bytes(c->job, g, lane);
    if (!p->active || g->number != number || p->events == 0) {
        verdict_violation(c->verdict, UNEXPECTED, c->index, number,
                          "receive completed for a group that is done");
        return;
    }
    if (w->opcode != IBV_WC_RECV_RDMA_WITH_IMM)
        verdict_violation(c->verdict, WRONG_OPCODE, c->index, number, "receive has opcode %d", w->opcode);
    if (!w->has_imm || w->imm != group_imm(g))
        verdict_violation(c->verdict, WRONG_IMM, c->index, number, "immediate value %#x, not %#x", w->imm,
                          group_imm(g));
    if (w->byte_len != bytes)
        verdict_violation(c->verdict, WRONG_LENGTH, c->index, number,
                          "lane %" PRIu64 ": %u bytes came with the IMM, not %u", lane, w->byte_len, bytes);
    c->counters.imms++;
    if (--p->events > 0)
        return;
    check_sizes(c, g);
    if (!start_flush(c, p, now))
        finish_group(c, p, now);
}

void receiver_completion(struct connection *c, const struct completion *w, uint64_t now) {
    uint64_t kind = w->wr_id >> 56, lane = w->wr_id >> 48 & 0xff, number = w->wr_id & WR_NUMBER_MASK;
    struct lane_order *order = kind == WR_RECEIVE ? &c->order[lane]
                               : kind == WR_CTS   ? &c->cts_order
                                                  : &c->flush_order;
    const char *what = kind == WR_RECEIVE ? "receive" : kind == WR_CTS ? "clear-to-send" : "flush";
    if (w->status != 0)
        connection_failed(c, w, now);
    /* An unsignaled clear-to-send completes only to say that it failed. */
    if (kind == WR_CTS && w->status != 0) {
        order->failed = true;
        return;
    }
    if (!lane_order_take(order, number, w->status, what, c->index, c->verdict))
        return;
    if (kind == WR_RECEIVE)
        receive_done(c, w, lane, number, now);
    else if (kind == WR_FLUSH)
        flush_done(c, number, now);
    if ((kind == WR_CTS && w->opcode != IBV_WC_RDMA_WRITE) ||
        (kind == WR_FLUSH && w->opcode != IBV_WC_RDMA_READ))
        verdict_violation(c->verdict, WRONG_OPCODE, c->index, number, "%s completed with opcode %d", what,
                          w->opcode);
}
