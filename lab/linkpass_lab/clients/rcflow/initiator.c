#include "initiator.h"

#include "../common/pattern.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ibv_wc_opcode of each operation's completion at the requester. */
enum { WC_SEND = 0, WC_RDMA_WRITE = 1, WC_RDMA_READ = 2, WC_COMP_SWAP = 3, WC_FETCH_ADD = 4 };
static const int WC_OPCODE[OP_KINDS] = {WC_RDMA_WRITE, WC_RDMA_WRITE, WC_SEND,     WC_SEND,
                                        WC_RDMA_READ,  WC_FETCH_ADD,  WC_COMP_SWAP};

int initiator_create(struct initiator *i, const struct workload *w, const struct memory *own,
                     const struct memory *peer, struct verdict *verdict, uint32_t qp, uint32_t direction) {
    memset(i, 0, sizeof(*i));
    i->w = w;
    i->own = own;
    i->peer = peer;
    i->verdict = verdict;
    i->qp = qp;
    i->key = pattern_key(w->seed, qp, direction);
    i->limit = w->window;
    chain_start(&i->chain, i->key);
    i->ring = calloc(w->depth, sizeof(*i->ring));
    return i->ring ? 0 : ENOMEM;
}

void initiator_destroy(struct initiator *i) {
    free(i->ring);
    i->ring = NULL;
}

uint64_t initiator_room(const struct initiator *i, uint64_t target) {
    uint64_t end = atomic_load_explicit(&i->limit, memory_order_acquire);
    uint64_t queue_end = atomic_load_explicit(&i->completed, memory_order_acquire) + i->w->depth;
    if (queue_end < end)
        end = queue_end;
    if (target < end)
        end = target;
    return end > i->built ? end - i->built : 0;
}

static bool is_signaled(const struct initiator *i, uint64_t seq, bool force) {
    /* The queue's last place and the last one with credit are signaled too: else nothing would free them. */
    return force || i->w->sq_sig_all || (seq + 1) % i->w->signal_every == 0 ||
           seq + 1 - i->last_signaled >= i->w->depth || seq + 1 == atomic_load(&i->limit);
}

static void place(const struct initiator *i, struct outgoing *o) {
    const struct request *r = &o->request;
    o->source_at = source_offset(i->own, i->qp, r->seq);
    if (op_is_atomic(r->op)) {
        o->remote_at = word_offset(i->peer, i->qp, r->op);
        o->pieces[0] = (struct piece){(uint32_t)(r->seq % i->own->mrs), 0, 8};
        o->piece_count = 1;
        return;
    }
    o->piece_count = cut_pieces(r->size, i->w->sges, i->own->mrs, r->seq, o->pieces);
    if (r->op == OP_READ)
        o->remote_at = readable_offset(i->peer, i->qp, r->seq, &o->remote_mr);
    else if (r->op == OP_WRITE || r->op == OP_WRITE_IMM)
        o->remote_at = target_offset(i->peer, i->qp, r->seq, &o->remote_mr);
}

static bool brings_data(enum op op) {
    return op == OP_READ || op_is_atomic(op);
}

struct outgoing *initiator_build(struct initiator *i, bool force_signal) {
    struct outgoing *o = &i->ring[i->built % i->w->depth];
    memset(o, 0, sizeof(*o));
    o->request = plan_request(i->w, i->key, i->built);
    if (op_is_atomic(o->request.op))
        o->values = chain_step(&i->chain, i->key, &o->request);
    place(i, o);
    if (!brings_data(o->request.op)) {
        pieces_fill(i->own, o->source_at, o->pieces, o->piece_count, i->key, i->built);
        o->is_inline = i->w->inline_max && o->request.size <= i->w->inline_max;
    }
    o->fenced = i->w->fence && i->after_read;
    i->after_read = brings_data(o->request.op);
    o->solicited = i->w->solicited && op_consumes_receive(o->request.op);
    o->is_signaled = is_signaled(i, i->built, force_signal);
    i->built++;
    if (o->is_signaled)
        i->last_signaled = i->built;
    i->counts.posted[o->request.op]++;
    return o;
}

void initiator_publish(struct initiator *i, uint64_t count) {
    atomic_store_explicit(&i->posted, atomic_load(&i->posted) + count, memory_order_release);
}

void initiator_posted(struct initiator *i, uint64_t from, uint64_t count) {
    /* An inline request's place can't be reused before its completion frees it, and only this thread reuses
     * it. */
    for (uint64_t seq = from; i->w->inline_max && seq < from + count; seq++) {
        struct request r = plan_request(i->w, i->key, seq);
        struct piece pieces[SGES_MAX];
        if (brings_data(r.op) || r.size > i->w->inline_max)
            continue;
        size_t n = cut_pieces(r.size, i->w->sges, i->own->mrs, seq, pieces);
        pieces_poison(i->own, source_offset(i->own, i->qp, seq), pieces, n);
    }
}

uint64_t own_wr_id(uint32_t qp, uint64_t seq) {
    return (uint64_t)qp << 40 | (seq & SEQ_MASK);
}

/* Of a request that brings data: is its whole buffer still as it was when the request was posted? */
static bool nothing_came(const struct initiator *i, const struct outgoing *o) {
    uint32_t mr;
    uint64_t at;
    return o->request.size &&
           pieces_rest_is_poison(i->own, o->source_at, o->pieces, o->piece_count, 0, &mr, &at);
}

/* The wrong result of a request that brings data, put into words. */
static void wrong_result(struct initiator *i, const struct outgoing *o, uint64_t value, uint64_t at) {
    const struct request *r = &o->request;
    if (nothing_came(i, o))
        verdict_violation(i->verdict, LOST, i->qp, r->seq, "%s completed well, but no result was written",
                          op_name(r->op));
    else if (op_is_atomic(r->op))
        verdict_violation(i->verdict, WRONG_ATOMIC, i->qp, r->seq,
                          "%s returned %016" PRIx64 ", not %016" PRIx64 ": one was lost or executed twice",
                          op_name(r->op), value, o->values.original);
    else
        verdict_violation(i->verdict, DATA_MISMATCH, i->qp, r->seq,
                          "READ of %u bytes: byte %" PRIu64 " is wrong", r->size, at);
}

static void check_fetched(struct initiator *i, const struct outgoing *o) {
    const struct request *r = &o->request;
    uint64_t value = 0, at = 0;
    uint32_t mr;
    bool right;
    if (op_is_atomic(r->op)) {
        memcpy(&value, i->own->base[o->pieces[0].mr] + o->source_at, 8);
        right = value == o->values.original;
    } else {
        at = pieces_check(i->own, o->source_at, o->pieces, o->piece_count, r->size, i->key, r->seq);
        right = at == r->size;
    }
    if (!right)
        wrong_result(i, o, value, at);
    if (!pieces_rest_is_poison(i->own, o->source_at, o->pieces, o->piece_count, r->size, &mr, &at)) {
        right = false;
        verdict_violation(i->verdict, OVERWRITTEN, i->qp, r->seq,
                          "%s wrote outside of its buffer: region %u, byte %" PRIu64 " of the slot",
                          op_name(r->op), mr, at);
    }
    i->counts.verified[r->op] += right;
}

static uint64_t retire(struct initiator *i, uint64_t from, uint64_t to) {
    uint64_t bytes = 0;
    for (uint64_t seq = from; seq < to; seq++) {
        struct outgoing *o = &i->ring[seq % i->w->depth];
        if (brings_data(o->request.op))
            check_fetched(i, o);
        if (!o->is_inline)
            pieces_poison(i->own, o->source_at, o->pieces, o->piece_count);
        i->counts.completed[o->request.op]++;
        bytes += o->request.size;
    }
    atomic_store_explicit(&i->completed, to, memory_order_release);
    return bytes;
}

static void check_fields(struct initiator *i, const struct completion *c, const struct outgoing *o) {
    const struct request *r = &o->request;
    if (c->opcode != WC_OPCODE[r->op])
        verdict_violation(i->verdict, WRONG_OPCODE, i->qp, r->seq, "completion of %s has opcode %d, not %d",
                          op_name(r->op), c->opcode, WC_OPCODE[r->op]);
    if (c->qp_num != i->qp_num)
        verdict_violation(i->verdict, WRONG_QP, i->qp, r->seq, "completion names queue pair %#x, not %#x",
                          c->qp_num, i->qp_num);
    /* byte_len of an own request is defined for those that bring data only. */
    if (brings_data(r->op) && c->byte_len != r->size)
        verdict_violation(i->verdict, WRONG_LENGTH, i->qp, r->seq, "completion of %s says %u bytes, not %u",
                          op_name(r->op), c->byte_len, r->size);
}

/* The completion to come next: the first signaled request not yet complete. */
static uint64_t next_signaled(const struct initiator *i, uint64_t posted) {
    uint64_t seq = i->completed;
    while (seq < posted && !i->ring[seq % i->w->depth].is_signaled)
        seq++;
    return seq;
}

uint64_t initiator_on_completion(struct initiator *i, const struct completion *c, uint64_t *bytes) {
    uint64_t done = i->completed;
    uint64_t posted = atomic_load_explicit(&i->posted, memory_order_acquire);
    uint64_t seq = done + (((c->wr_id & SEQ_MASK) - done) & SEQ_MASK);
    if (seq - done > SEQ_MASK / 2)
        seq = done - ((done - c->wr_id) & SEQ_MASK);
    *bytes = 0;
    if (c->wr_id != own_wr_id(i->qp, seq) || (seq >= posted && seq >= done)) {
        verdict_violation(i->verdict, UNEXPECTED, i->qp, seq,
                          "completion %#" PRIx64 " of a request never posted", c->wr_id);
        return 0;
    }
    if (seq < done) {
        verdict_violation(i->verdict, DUPLICATE, i->qp, seq,
                          "completed again, or after a later one (%" PRIu64 ")", done - 1);
        return 0;
    }
    struct outgoing *o = &i->ring[seq % i->w->depth];
    if (c->status != 0) {
        i->failed = true;
        return 0;
    }
    if (i->failed)
        verdict_violation(i->verdict, UNEXPECTED, i->qp, seq,
                          "completed well after an earlier one had failed");
    if (!o->is_signaled)
        verdict_violation(i->verdict, UNEXPECTED, i->qp, seq, "completion of an unsignaled request");
    uint64_t expected = next_signaled(i, posted);
    if (expected < seq)
        verdict_violation(i->verdict, LOST, i->qp, expected,
                          "no completion of this one before that of %" PRIu64 ": lost or out of order", seq);
    check_fields(i, c, o);
    *bytes = retire(i, done, seq + 1);
    return seq + 1 - done;
}
