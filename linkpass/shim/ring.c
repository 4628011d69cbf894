#include <string.h>

#include "mutant.h"
#include "ring_inner.h"

/* ---- sends
 * --------------------------------------------------------------------------------------------------- */

static char *send_entries(const struct lp_send_ring *ring) {
    return (char *)ring + aligned(sizeof(*ring));
}

static char *send_payloads(const struct lp_send_ring *ring) {
    return send_entries(ring) + aligned((size_t)ring->slots * sizeof(struct lp_send_entry));
}

static uint8_t *send_verdicts(const struct lp_send_ring *ring) {
    return (uint8_t *)send_payloads(ring) + aligned((size_t)ring->slots * ring->stride);
}

size_t lp_send_ring_bytes(uint32_t max_wr, uint32_t max_sge, uint32_t max_inline) {
    size_t slots = slots_for(max_wr);
    return aligned(sizeof(struct lp_send_ring)) + aligned(slots * sizeof(struct lp_send_entry)) +
           aligned(slots * stride_for(max_sge, max_inline)) + aligned(slots);
}

struct lp_send_ring *lp_send_ring_init(void *block, uint32_t max_wr, uint32_t max_sge, uint32_t max_inline) {
    struct lp_send_ring *ring = block;
    memset(block, 0, lp_send_ring_bytes(max_wr, max_sge, max_inline));
    ring->slots = slots_for(max_wr);
    ring->max_wr = max_wr;
    ring->max_sge = max_sge;
    ring->max_inline = max_inline;
    ring->stride = stride_for(max_sge, max_inline);
    ring->path_mtu = 256;
    ring->mtu_shift = 8;
    return ring;
}

void lp_send_ring_epoch(struct lp_send_ring *ring, uint32_t first_psn, uint32_t path_mtu, uint32_t mails) {
    ring->first_psn = first_psn & LP_PSN_MASK;
    ring->path_mtu = path_mtu;
    ring->mtu_shift = log2_of(path_mtu);
    ring->posted = LP_MUTANT(LP_M_MAILS_FORGOTTEN) ? 0 : mails;
    ring->acked = 0;
    ring->taken = 0;
}

struct lp_send_entry *lp_send_ring_at(struct lp_send_ring *ring, uint32_t token) {
    return (struct lp_send_entry *)(void *)send_entries(ring) + (token & (ring->slots - 1));
}

void *lp_send_ring_payload(struct lp_send_ring *ring, uint32_t token) {
    return send_payloads(ring) + (size_t)(token & (ring->slots - 1)) * ring->stride;
}

uint32_t lp_send_ring_count(const struct lp_send_ring *ring) {
    return load(&ring->tail) - load(&ring->head);
}

bool lp_send_ring_has_posted(struct lp_send_ring *ring) {
    for (uint32_t at = ring->undone; at != ring->next; at++) {
        if (lp_send_ring_at(ring, at)->state == LP_POSTED) {
            return true;
        }
    }
    return false;
}

/* `next` never rests on a settled entry, so that popping can't leave it behind. */
static void skip_done(struct lp_send_ring *ring) {
    const uint32_t tail = peek(&ring->tail);
    while (ring->next != tail && lp_send_ring_at(ring, ring->next)->state == LP_DONE) {
        ring->next++;
    }
}

static bool is_fragile(const struct lp_send_entry *entry) {
    return entry->op == LP_OP_ATOMIC || entry->op == LP_OP_OPAQUE || entry->op == LP_OP_LOCAL;
}

/* Copies the data of an inline request: the job may reuse its buffer as soon as the post returns. */
static void copy_inline(char *to, const struct lp_send *send) {
    for (uint32_t i = 0; i < send->sge_count; i++) {
        if (send->sges[i].length != 0) {
            memcpy(to, (const void *)(uintptr_t)send->sges[i].addr, send->sges[i].length);
        }
        to += send->sges[i].length;
    }
}

static bool is_right_size(const struct lp_send_ring *ring, const struct lp_send *send, uint64_t *length) {
    *length = 0;
    for (uint32_t i = 0; i < send->sge_count; i++) {
        *length += send->sges[i].length;
    }
    return *length <= (UINT64_C(1) << 31) &&
           (send->flags & LP_SEND_INLINE ? *length <= ring->max_inline : send->sge_count <= ring->max_sge);
}

enum lp_push lp_send_ring_fits(const struct lp_send_ring *ring, const struct lp_send *send, uint32_t before) {
    uint64_t length;
    if (peek(&ring->tail) - load(&ring->head) + before >= ring->max_wr) {
        return LP_PUSH_FULL;
    }
    return is_right_size(ring, send, &length) ? LP_PUSH_OK : LP_PUSH_TOO_BIG;
}

enum lp_push lp_send_ring_push(struct lp_send_ring *ring, const struct lp_send *send, bool post,
                               uint32_t *token) {
    const uint32_t tail = peek(&ring->tail);
    if (tail - load(&ring->head) >= ring->max_wr) {
        return LP_PUSH_FULL;
    }
    uint64_t length;
    const bool is_inline = send->flags & LP_SEND_INLINE;
    if (!is_right_size(ring, send, &length)) {
        return LP_PUSH_TOO_BIG;
    }
    struct lp_send_entry *entry = lp_send_ring_at(ring, tail);
    entry->wr_id = send->wr_id;
    entry->first = entry->end = 0;
    entry->remote_addr = send->remote_addr;
    entry->compare_add = send->compare_add;
    entry->swap = send->swap;
    entry->rkey = send->rkey;
    entry->imm = send->imm;
    entry->length = (uint32_t)length;
    entry->sge_count = is_inline ? 0 : send->sge_count;
    entry->op = send->op;
    entry->opcode = send->opcode;
    entry->flags = send->flags;
    entry->state = LP_HELD;
    entry->replays = 0;
    if (is_inline) {
        copy_inline(lp_send_ring_payload(ring, tail), send);
    } else {
        struct lp_sge *sges = lp_send_ring_payload(ring, tail);
        for (uint32_t i = 0; i < send->sge_count; i++) {
            sges[i] = send->sges[i];
        }
    }
    if (post) {
        lp_send_ring_posted(ring, tail);
    }
    *token = tail;
    store(&ring->tail, tail + 1);
    return LP_PUSH_OK;
}

static void leave_posted(struct lp_send_ring *ring, const struct lp_send_entry *entry) {
    if (is_fragile(entry)) {
        atomic_fetch_sub_explicit(&ring->fragile, 1, memory_order_relaxed);
    }
}

void lp_send_ring_unpush(struct lp_send_ring *ring, uint32_t token) {
    struct lp_send_entry *entry = lp_send_ring_at(ring, token);
    if (entry->state == LP_POSTED) {
        leave_posted(ring, entry);
        ring->posted = entry->first;
        ring->next = token;
    }
    store(&ring->tail, token);
}

bool lp_send_ring_next(struct lp_send_ring *ring, uint32_t *token) {
    *token = ring->next;
    return ring->next != peek(&ring->tail);
}

void lp_send_ring_posted(struct lp_send_ring *ring, uint32_t token) {
    struct lp_send_entry *entry = lp_send_ring_at(ring, token);
    entry->first = ring->posted;
    entry->end = entry->first + lp_packets_log2(entry->op, entry->length, ring->mtu_shift);
    if (LP_MUTANT(LP_M_RETRANSMITS) && entry->replays != 0) {
        entry->end += entry->end - entry->first;
    }
    ring->posted = entry->end;
    entry->state = LP_POSTED;
    if (is_fragile(entry)) {
        atomic_fetch_add_explicit(&ring->fragile, 1, memory_order_relaxed);
    }
    ring->next = token + 1;
    if (token != peek(&ring->tail)) { /* a replay: settled entries may lie behind it */
        skip_done(ring);
    }
}

bool lp_send_ring_complete(struct lp_send_ring *ring, uint32_t token) {
    if (token - ring->undone >= load(&ring->tail) - ring->undone ||
        lp_send_ring_at(ring, token)->state != LP_POSTED) {
        return false;
    }
    for (uint32_t at = ring->undone; at != token + 1; at++) {
        struct lp_send_entry *entry = lp_send_ring_at(ring, at);
        if (entry->state == LP_POSTED) {
            ring->acked = entry->end;
            ring->taken += lp_op_takes_receive(entry->op);
            leave_posted(ring, entry);
            entry->state = LP_DONE;
        }
    }
    ring->undone = token + 1;
    return true;
}

bool lp_send_ring_retire(struct lp_send_ring *ring, uint32_t token, uint64_t *wr_id) {
    const uint32_t head = peek(&ring->head);
    const struct lp_send_entry *last = lp_send_ring_at(ring, token);
    if (ring->undone != head || token - head >= load(&ring->tail) - head || last->state != LP_POSTED ||
        !(last->flags & LP_SEND_SIGNALED)) {
        return false;
    }
    for (uint32_t at = head; at != token; at++) {
        const struct lp_send_entry *before = lp_send_ring_at(ring, at);
        if (before->state != LP_POSTED || (before->flags & LP_SEND_SIGNALED)) {
            return false;
        }
    }
    for (uint32_t at = head; at != token + 1; at++) {
        const struct lp_send_entry *entry = lp_send_ring_at(ring, at);
        ring->taken += lp_op_takes_receive(entry->op);
        leave_posted(ring, entry);
    }
    *wr_id = last->wr_id; /* before the slot is the poster's again */
    ring->acked = last->end;
    ring->undone = token + 1;
    store(&ring->head, token + 1);
    return true;
}

bool lp_send_ring_pop(struct lp_send_ring *ring, struct lp_send_entry *entry) {
    const uint32_t head = peek(&ring->head);
    if (head == load(&ring->tail)) {
        return false;
    }
    struct lp_send_entry *oldest = lp_send_ring_at(ring, head);
    if (LP_MUTANT(LP_M_OVERTAKE) && oldest->state == LP_HELD && load(&ring->tail) - head > 1) {
        struct lp_send_entry first = *oldest;
        *oldest = *lp_send_ring_at(ring, head + 1);
        *lp_send_ring_at(ring, head + 1) = first;
    }
    if (oldest->state != LP_DONE) {
        return false;
    }
    *entry = *oldest;
    store(&ring->head, head + 1);
    if (ring->undone == head) {
        ring->undone = head + 1;
    }
    return true;
}

bool lp_send_ring_discard(struct lp_send_ring *ring, struct lp_send_entry *entry) {
    const uint32_t head = peek(&ring->head);
    if (head == load(&ring->tail)) {
        return false;
    }
    struct lp_send_entry *oldest = lp_send_ring_at(ring, head);
    *entry = *oldest;
    if (oldest->state == LP_POSTED) {
        leave_posted(ring, oldest);
    }
    store(&ring->head, head + 1);
    if (ring->undone == head) {
        ring->undone = head + 1;
    }
    if (ring->next == head) {
        ring->next = head + 1;
    }
    return true;
}

static struct lp_span span_of(const void *requests, uint32_t at) {
    struct lp_send_ring *ring = (struct lp_send_ring *)(uintptr_t)requests;
    const struct lp_send_entry *entry = lp_send_ring_at(ring, ring->undone + at);
    return (struct lp_span){.first = entry->first,
                            .end = entry->end,
                            .op = entry->op,
                            .fence = entry->flags & LP_SEND_FENCE,
                            .done = entry->state == LP_DONE};
}

enum lp_settle_fault lp_send_ring_settle(struct lp_send_ring *ring, const struct lp_mark *mark, bool commit,
                                         uint32_t *executed) {
    uint32_t bad = 0;
    uint8_t *verdicts = send_verdicts(ring);
    /* Requests behind `next` were never posted on this path; before it, all are POSTED or DONE. */
    const struct lp_settle_in in = {.requests = ring,
                                    .span = span_of,
                                    .count = ring->next - ring->undone,
                                    .acked = ring->acked,
                                    .posted = ring->posted,
                                    .first_psn = ring->first_psn,
                                    .taken = ring->taken,
                                    .mark = *mark};
    *executed = 0;
    enum lp_settle_fault fault = lp_settle(&in, verdicts, &bad);
    if (fault != LP_SETTLE_FINE || !commit) {
        return fault;
    }
    for (uint32_t i = 0; i < in.count; i++) {
        struct lp_send_entry *entry = lp_send_ring_at(ring, ring->undone + i);
        if (entry->state == LP_DONE) {
            continue;
        }
        leave_posted(ring, entry);
        if (verdicts[i] == LP_EXECUTED && !LP_MUTANT(LP_M_REPLAY_ALL)) {
            *executed += 1;
            entry->state = LP_DONE;
        } else {
            entry->state = LP_HELD;
            entry->replays++;
        }
    }
    ring->next = ring->undone;
    skip_done(ring);
    return fault;
}
