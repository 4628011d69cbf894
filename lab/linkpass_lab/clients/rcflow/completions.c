/* Completions as they come off the queues: dispatched to the checkers, logged, timed. */
#include "../common/clock.h"
#include "../common/names.h"
#include "flow.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void failed(struct flow *f, const struct completion *c, uint32_t qp, const char *what, uint64_t seq,
                   uint64_t now) {
    if (f->verdict.error.set || f->fin_known) {
        f->verdict.flushed++;
        if (f->fin_known && !f->verdict.error.set && c->status == IBV_WC_WR_FLUSH_ERR)
            return;
    }
    verdict_error(&f->verdict, false, c->status, status_name(c->status), now,
                  "%s (%d), vendor %#x: queue pair %u, %s %" PRIu64,
                  ibv_wc_status_str((enum ibv_wc_status)c->status), c->status, c->vendor_err, qp, what, seq);
}

static void take_receive(struct flow *f, const struct completion *c, uint64_t now) {
    int qp = objects_qp_index(&f->objects, c->qp_num);
    uint64_t slot;
    if (qp < 0 || !f->responds) {
        verdict_violation(&f->verdict, WRONG_QP, 0, 0, "a receive completed on unknown queue pair %#x",
                          c->qp_num);
        return;
    }
    struct responder *r = &f->responders[qp];
    uint64_t seq = r->received;
    if (!receive_slots_take(&f->slots, &f->verdict, c, (uint32_t)qp, &slot))
        return;
    if (c->status != IBV_WC_SUCCESS) {
        failed(f, c, (uint32_t)qp, "receive slot", slot, now);
        completion_log_add(&f->log, now, slot, (uint32_t)qp, 0, 1, 255, c->status);
        return;
    }
    uint64_t before = r->bytes;
    responder_on_receive(r, c, slot);
    stats_received(&f->stats, now, r->bytes - before);
    enum op op = plan_request(&f->workload, r->key, r->received - (r->received > seq)).op;
    completion_log_add(&f->log, now, r->received - (r->received > seq), (uint32_t)qp, c->byte_len, 1, op, 0);
    int rc = post_receive(&f->objects, &f->slots, &f->workload, &f->own, slot, (uint32_t)qp);
    if (rc)
        verdict_error(&f->verdict, false, 0, "POST_FAILED", now,
                      "queue pair %d: posting a receive failed: %s", qp, strerror(rc));
}

static void take_own(struct flow *f, const struct completion *c, uint64_t now) {
    uint64_t qp = c->wr_id >> 40, bytes;
    if (!f->initiates || qp >= f->workload.qps) {
        verdict_violation(&f->verdict, UNEXPECTED, 0, 0, "completion %#" PRIx64 " of a request never posted",
                          c->wr_id);
        return;
    }
    struct initiator *i = &f->initiators[qp];
    uint64_t seq = c->wr_id & SEQ_MASK;
    initiator_on_completion(i, c, &bytes);
    stats_sent(&f->stats, now, bytes);
    struct request r = plan_request(&f->workload, i->key, seq);
    completion_log_add(&f->log, now, seq, (uint32_t)qp, r.size, 0, r.op, c->status);
    if (c->status != IBV_WC_SUCCESS)
        failed(f, c, (uint32_t)qp, op_name(r.op), seq, now);
}

int completions_take(struct flow *f) {
    struct completion batch[CQ_BATCH];
    int total = 0;
    for (int q = 0; q < f->objects.queue_count; q++) {
        int n = queue_drain(&f->objects.queues[q], batch, CQ_BATCH);
        if (n < 0) {
            verdict_error(&f->verdict, false, 0, "POLL_FAILED", now_ns(),
                          "polling a completion queue failed");
            return -1;
        }
        uint64_t now = n ? now_ns() : 0;
        for (int k = 0; k < n; k++) {
            stats_completion(&f->stats, now);
            if (batch[k].wr_id & RECEIVE_TAG)
                take_receive(f, &batch[k], now);
            else
                take_own(f, &batch[k], now);
        }
        total += n;
    }
    return total;
}

/* Report early enough that the peer can grant before the window is used up, and whenever nothing is under
 * way. */
static bool report_due(const struct flow *f, const struct initiator *i, uint64_t last) {
    uint64_t completed = i->completed;
    return completed > last && (completed - last >= (f->workload.window + 3) / 4 || completed == i->posted);
}

static void send_pairs(struct flow *f, uint32_t type, uint64_t *words, uint32_t *count) {
    if (*count)
        control_send(&f->control, type, words, *count);
    *count = 0;
}

static void send_reports(struct flow *f) {
    uint64_t words[2 * QPS_MAX];
    uint32_t count = 0;
    for (uint64_t q = 0; q < f->workload.qps; q++) {
        if (!report_due(f, &f->initiators[q], f->last_report[q]))
            continue;
        words[count++] = q;
        words[count++] = f->last_report[q] = f->initiators[q].completed;
    }
    send_pairs(f, MSG_REPORT, words, &count);
}

static void send_grants(struct flow *f) {
    uint64_t words[2 * QPS_MAX];
    uint32_t count = 0;
    for (uint64_t q = 0; q < f->workload.qps; q++) {
        struct responder *r = &f->responders[q];
        uint64_t limit = responder_grant(r);
        bool caught_up = r->verified >= r->reported;
        if (limit == f->last_grant[q] ||
            (!caught_up && limit - f->last_grant[q] < (f->workload.window + 3) / 4))
            continue;
        words[count++] = q;
        words[count++] = f->last_grant[q] = limit;
    }
    send_pairs(f, MSG_GRANT, words, &count);
}

void completions_flow_control(struct flow *f) {
    if (f->fin_sent && f->result_sent)
        return;
    if (f->initiates && !f->fin_sent)
        send_reports(f);
    if (f->responds && !f->result_sent)
        send_grants(f);
}

int completions_post_receives(struct flow *f) {
    for (uint64_t slot = 0; slot < f->slots.count; slot++) {
        int rc = post_receive(&f->objects, &f->slots, &f->workload, &f->own, slot,
                              (uint32_t)(slot / f->workload.rx_depth));
        if (rc)
            return rc;
    }
    return 0;
}
