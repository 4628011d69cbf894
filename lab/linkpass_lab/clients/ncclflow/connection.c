#include "connection.h"

#include "../common/clock.h"
#include "../common/names.h"
#include "../common/pattern.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uint64_t wr_id_of(enum wr_kind kind, uint64_t lane, uint64_t number) {
    return (uint64_t)kind << 56 | lane << 48 | number;
}

static int fail(char *why, size_t room, const char *what) {
    int code = errno ? errno : EIO;
    snprintf(why, room, "cannot create %s: %s", what, strerror(code));
    return code;
}

/* Buffers first (both ends alike), then the fifo with the sizes (the sender's copies, the receiver's
 * originals). */
static int map_memory(struct connection *c, struct ibv_pd *pd, char *why, size_t room) {
    const struct job *j = c->job;
    uint64_t slots = job_slots(j);
    c->fifo_at = j->max_requests * j->group * job_stride(j);
    c->sizes_at = c->fifo_at + slots * GROUP_MAX * sizeof(struct cts_entry);
    c->flush_at = c->sizes_at + slots * GROUP_MAX * sizeof(uint32_t);
    c->bytes = (c->flush_at + j->max_requests + 4095) / 4096 * 4096;
    c->memory = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->memory == MAP_FAILED) {
        c->memory = NULL;
        return fail(why, room, "the buffers (fewer or smaller messages?)");
    }
    poison_fill(c->memory, c->fifo_at);
    c->mr = ibv_reg_mr(pd, c->memory, c->bytes,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    return c->mr ? 0 : fail(why, room, "a memory region (is the memlock limit high enough?)");
}

static int create_flush_pair(struct connection *c, const struct device *d, struct ibv_pd *pd,
                             const struct settings *s, char *why, size_t room) {
    struct ibv_qp_init_attr attr = {.send_cq = c->cq,
                                    .recv_cq = c->cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = (uint32_t)c->job->max_requests,
                                            .max_recv_wr = 1,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1}};
    c->flush_qp = ibv_create_qp(pd, &attr);
    if (!c->flush_qp)
        return fail(why, room, "the flush queue pair");
    struct endpoint self = endpoint_of(d, s, c->flush_qp, 0);
    int rc = qp_to_init(c->flush_qp, s, 0, why, room);
    return rc ? rc : qp_to_ready(c->flush_qp, d, s, &self, &self, why, room);
}

int connection_create(struct connection *c, const struct device *d, struct ibv_pd *pd,
                      const struct options *o, char *why, size_t room) {
    const struct job *j = c->job;
    uint64_t sends = c->is_sender ? j->max_requests * (j->group + 1) : 2 * job_slots(j);
    int rc = map_memory(c, pd, why, room);
    if (rc)
        return rc;
    c->pending = calloc(j->max_requests, sizeof(*c->pending));
    c->cq = ibv_create_cq(d->context, (int)(j->lanes * (sends + j->max_requests) + j->max_requests), NULL,
                          NULL, 0);
    if (!c->cq || !c->pending)
        return fail(why, room, "a completion queue");
    for (uint64_t l = 0; l < j->lanes; l++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = c->cq,
            .recv_cq = c->cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = (uint32_t)sends,
                    .max_recv_wr = (uint32_t)j->max_requests,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = o->inline_cts && !c->is_sender
                                           ? (uint32_t)(j->group * sizeof(struct cts_entry))
                                           : 0}};
        c->lanes[l] = ibv_create_qp(pd, &attr);
        if (!c->lanes[l])
            return fail(why, room, "a queue pair (try --no-inline, or fewer --max-requests)");
        if ((rc = qp_to_init(c->lanes[l], &o->settings, 0, why, room)))
            return rc;
        c->ends[l] = endpoint_of(d, &o->settings, c->lanes[l], (uint32_t)mix64(c->key + l));
        c->order[l].step = 1;
    }
    c->cts_order.step = job_slots(j);
    c->flush_order.step = 1;
    return j->flush && !c->is_sender ? create_flush_pair(c, d, pd, &o->settings, why, room) : 0;
}

void connection_destroy(struct connection *c) {
    for (int l = 0; l < LANES_MAX; l++)
        if (c->lanes[l])
            ibv_destroy_qp(c->lanes[l]);
    if (c->flush_qp)
        ibv_destroy_qp(c->flush_qp);
    if (c->cq)
        ibv_destroy_cq(c->cq);
    if (c->mr)
        ibv_dereg_mr(c->mr);
    if (c->memory)
        munmap(c->memory, c->bytes);
    free(c->pending);
}

bool connection_idle(const struct connection *c) {
    return c->done == c->next;
}

void connection_failed(struct connection *c, const struct completion *w, uint64_t now) {
    static const char *const KINDS[] = {"?", "data", "receive", "clear-to-send", "flush"};
    uint64_t kind = w->wr_id >> 56;
    if (c->verdict->error.set)
        c->verdict->flushed++;
    verdict_error(c->verdict, false, w->status, status_name(w->status), now,
                  "%s (%d), vendor %#x: connection %u, %s of group %" PRIu64 ", queue pair %u",
                  ibv_wc_status_str((enum ibv_wc_status)w->status), w->status, w->vendor_err, c->index,
                  KINDS[kind <= WR_FLUSH ? kind : 0], (uint64_t)(w->wr_id & WR_NUMBER_MASK),
                  (unsigned)(w->wr_id >> 48 & 0xff));
}

void connection_retire(struct connection *c) {
    while (c->done < c->next && !c->pending[c->done % c->job->max_requests].active)
        c->done++;
}

static bool names_something(const struct connection *c, const struct completion *w) {
    uint64_t kind = w->wr_id >> 56, lane = w->wr_id >> 48 & 0xff;
    bool known = c->is_sender ? kind == WR_DATA : kind == WR_RECEIVE || kind == WR_CTS || kind == WR_FLUSH;
    if (known && lane < c->job->lanes) {
        const struct ibv_qp *qp = kind == WR_FLUSH ? c->flush_qp : c->lanes[lane];
        if (qp->qp_num == w->qp_num)
            return true;
        verdict_violation(c->verdict, WRONG_QP, c->index, w->wr_id & WR_NUMBER_MASK,
                          "completion names queue pair %#x, not %#x", w->qp_num, qp->qp_num);
        return false;
    }
    verdict_violation(c->verdict, UNEXPECTED, c->index, 0,
                      "completion %#" PRIx64 " of nothing that was posted", w->wr_id);
    return false;
}

int connection_poll(struct connection *c) {
    struct ibv_wc wc[4]; /* NCCL takes four at a time */
    int n = ibv_poll_cq(c->cq, 4, wc);
    uint64_t now = n > 0 ? now_ns() : 0;
    for (int i = 0; i < n; i++) {
        bool imm = wc[i].wc_flags & IBV_WC_WITH_IMM;
        struct completion w = {.wr_id = wc[i].wr_id,
                               .status = (int)wc[i].status,
                               .opcode = (int)wc[i].opcode,
                               .byte_len = wc[i].byte_len,
                               .imm = imm ? be32toh(wc[i].imm_data) : 0,
                               .has_imm = imm,
                               .qp_num = wc[i].qp_num,
                               .vendor_err = wc[i].vendor_err};
        stats_completion(c->stats, now);
        completion_log_add(c->log, now, w.wr_id & WR_NUMBER_MASK, c->index, w.status ? 0 : w.byte_len,
                           w.wr_id >> 56 == WR_RECEIVE, (int)(w.wr_id >> 56), w.status);
        if (!names_something(c, &w))
            continue;
        if (c->is_sender)
            sender_completion(c, &w, now);
        else
            receiver_completion(c, &w, now);
    }
    if (n < 0)
        verdict_error(c->verdict, false, 0, "POLL_FAILED", now_ns(), "connection %u: polling failed",
                      c->index);
    return n;
}
