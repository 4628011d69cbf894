/* The sending end: polls its fifo, matches tags, answers with WRITEs and one WRITE_WITH_IMM on every queue
 * pair. */
#include "../common/clock.h"
#include "../common/pattern.h"
#include "connection.h"

#include <inttypes.h>
#include <string.h>

static volatile struct cts_entry *slot_of(const struct connection *c, uint64_t number) {
    return (volatile struct cts_entry *)(void *)(c->memory + c->fifo_at) +
           number % job_slots(c->job) * GROUP_MAX;
}

/* The application's sends come in an order of their own; each finds its receive by its tag. */
static bool match_tags(struct connection *c, const struct group *g, uint32_t order[GROUP_MAX]) {
    const volatile struct cts_entry *slot = slot_of(c, g->number);
    for (uint32_t s = 0; s < g->count; s++) {
        uint32_t send = (s + (uint32_t)g->number) % g->count, r = 0;
        while (r < g->count && slot[r].tag != g->tag[send])
            r++;
        if (r == g->count)
            return false;
        order[s] = r;
    }
    return true;
}

static void fill_payload(struct connection *c, const struct group *g) {
    uint32_t order[GROUP_MAX];
    if (!match_tags(c, g, order)) {
        verdict_violation(c->verdict, DATA_MISMATCH, c->index, g->number,
                          "a send finds no receive with its tag");
        return;
    }
    for (uint32_t s = 0; s < g->count; s++) {
        uint32_t r = order[s];
        unsigned char *buffer = c->memory + buffer_offset(c->job, g->number, r);
        pattern_fill(c->key, payload_seq(g->number, r), 0, buffer, g->size[r]);
        c->counters.checksum ^= mix64(checksum_bytes(payload_seq(g->number, r), buffer, g->size[r]));
        c->counters.messages++;
        c->counters.bytes += g->size[r];
    }
}

struct batch {
    struct ibv_send_wr wrs[GROUP_MAX + 1];
    struct ibv_sge sges[GROUP_MAX + 1];
    uint32_t count;
};

static void set_payload(struct connection *c, struct batch *b, uint64_t from, uint64_t to, uint32_t len) {
    struct ibv_send_wr *wr = &b->wrs[b->count];
    b->sges[b->count] = (struct ibv_sge){(uintptr_t)c->memory + from, len, c->mr->lkey};
    *wr = (struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE,
                               .sg_list = len ? &b->sges[b->count] : NULL,
                               .num_sge = len ? 1 : 0,
                               .next = wr + 1,
                               .wr.rdma = {.remote_addr = to, .rkey = c->peer_rkey}};
    b->count++;
}

static int post_lane(struct connection *c, const struct group *g, uint64_t lane) {
    struct batch b = {.count = 0};
    struct ibv_send_wr *bad;
    for (uint32_t r = 0; r < g->count; r++) {
        uint32_t from, len = stripe(g->size[r], c->job->lanes, lane, &from);
        uint64_t at = buffer_offset(c->job, g->number, r) + from;
        set_payload(c, &b, at, slot_of(c, g->number)[r].addr + from, len);
        b.wrs[r].wr_id = wr_id_of(WR_DATA, lane, g->number);
    }
    if (group_splits(c->job, g)) {
        uint64_t sizes = c->sizes_at + g->number % job_slots(c->job) * GROUP_MAX * sizeof(uint32_t);
        uint32_t bytes = group_imm_bytes(c->job, g, lane);
        set_payload(c, &b, sizes, c->peer_memory + sizes, bytes);
        c->counters.writes += g->count;
    }
    struct ibv_send_wr *last = &b.wrs[b.count - 1];
    last->wr_id = wr_id_of(WR_DATA, lane, g->number);
    last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    last->send_flags = IBV_SEND_SIGNALED;
    last->imm_data = htobe32(group_imm(g));
    last->next = NULL;
    c->counters.imms++;
    c->order[lane].posted = g->number + 1;
    return ibv_post_send(c->lanes[lane], b.wrs, &bad);
}

static int answer(struct connection *c, const struct group *g) {
    struct pending *p = &c->pending[g->number % c->job->max_requests];
    uint32_t *sizes =
        (uint32_t *)(void *)(c->memory + c->sizes_at) + g->number % job_slots(c->job) * GROUP_MAX;
    *p = (struct pending){.group = *g, .events = (uint32_t)c->job->lanes, .active = true};
    memcpy(sizes, g->size, g->count * sizeof(uint32_t));
    fill_payload(c, g);
    for (uint64_t lane = 0; lane < c->job->lanes; lane++) {
        int rc = post_lane(c, g, lane);
        if (rc) {
            verdict_error(c->verdict, false, 0, "POST_FAILED", now_ns(),
                          "connection %u, group %" PRIu64 ": %s", c->index, g->number, strerror(rc));
            return -1;
        }
    }
    memset((void *)(uintptr_t)slot_of(c, g->number), 0, g->count * sizeof(struct cts_entry));
    c->next++;
    return 0;
}

int sender_answer(struct connection *c) {
    int answered = 0;
    while (c->next - c->done < c->job->max_requests) {
        struct group g = plan_group(c->job, c->key, c->next);
        enum cts_state state =
            cts_check(slot_of(c, c->next), c->job, &g, c->peer_memory, c->peer_rkey, c->verdict, c->index);
        if (state == CTS_NOT_YET)
            break;
        if (state == CTS_WRONG || answer(c, &g))
            return -1;
        answered++;
    }
    return answered;
}

void sender_completion(struct connection *c, const struct completion *w, uint64_t now) {
    uint64_t lane = w->wr_id >> 48 & 0xff, number = w->wr_id & WR_NUMBER_MASK;
    if (w->status != 0)
        connection_failed(c, w, now);
    if (!lane_order_take(&c->order[lane], number, w->status, "data", c->index, c->verdict))
        return;
    struct pending *p = &c->pending[number % c->job->max_requests];
    if (w->opcode != IBV_WC_RDMA_WRITE)
        verdict_violation(c->verdict, WRONG_OPCODE, c->index, number, "data completed with opcode %d",
                          w->opcode);
    if (!p->active || p->group.number != number || p->events == 0) {
        verdict_violation(c->verdict, UNEXPECTED, c->index, number,
                          "data completed for a group that is done");
        return;
    }
    if (--p->events > 0)
        return;
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < p->group.count; r++) {
        /* The application has its buffer back: what is sent from it now would be wrong, and seen. */
        poison_fill(c->memory + buffer_offset(c->job, number, r), p->group.size[r]);
        bytes += p->group.size[r];
    }
    stats_sent(c->stats, now, bytes);
    c->counters.groups++;
    p->active = false;
    connection_retire(c);
}
