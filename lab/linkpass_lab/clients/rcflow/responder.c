#include "responder.h"

#include "../common/pattern.h"

#include <inttypes.h>
#include <string.h>

/* ibv_wc_opcode of receives. */
enum { WC_RECV = 128, WC_RECV_RDMA_WITH_IMM = 129 };

static void make_readable(struct responder *r, uint64_t seq) {
    struct request q = plan_request(r->w, r->key, seq);
    if (q.op != OP_READ)
        return;
    uint32_t mr;
    uint64_t at = readable_offset(r->own, r->qp, seq, &mr);
    pattern_fill(r->key, seq, 0, r->own->base[mr] + at, q.size);
}

void responder_create(struct responder *r, const struct workload *w, const struct memory *own,
                      struct verdict *verdict, uint32_t qp, uint32_t direction) {
    memset(r, 0, sizeof(*r));
    r->w = w;
    r->own = own;
    r->verdict = verdict;
    r->qp = qp;
    r->key = pattern_key(w->seed, qp, direction);
    r->granted = w->window;
    chain_start(&r->chain, r->key);
    for (uint64_t seq = 0; workload_uses(w, OP_READ) && seq < w->window; seq++)
        make_readable(r, seq);
    if (workload_atomics(w)) {
        memcpy(own->base[0] + word_offset(own, qp, OP_FETCH_ADD), &r->chain.sum, 8);
        memcpy(own->base[0] + word_offset(own, qp, OP_CMP_SWP), &r->chain.token, 8);
    }
}

/* Say which request a wrong payload belongs to, where it can be told. */
static void mismatch(struct responder *r, const struct request *q, const unsigned char *payload,
                     uint64_t at) {
    uint64_t other;
    if (poison_check(payload, q->size) == q->size && q->size)
        verdict_violation(r->verdict, LOST, r->qp, q->seq,
                          "%s of %u bytes said to be done, but nothing was written", op_name(q->op), q->size);
    else if (pattern_owner(r->key, payload, q->size, &other) && other != q->seq)
        verdict_violation(r->verdict, other < q->seq ? DUPLICATE : REORDERED, r->qp, q->seq,
                          "%s: the payload is that of %" PRIu64, op_name(q->op), other);
    else
        verdict_violation(r->verdict, DATA_MISMATCH, r->qp, q->seq,
                          "%s of %u bytes: byte %" PRIu64 " is %#04x", op_name(q->op), q->size, at,
                          payload[at]);
}

static bool check_target(struct responder *r, const struct request *q) {
    uint32_t mr;
    uint64_t slot_at = target_offset(r->own, r->qp, q->seq, &mr);
    unsigned char *slot = r->own->base[mr] + slot_at;
    uint64_t right = pattern_check(r->key, q->seq, 0, slot, q->size);
    bool good = right == q->size;
    if (!good)
        mismatch(r, q, slot, right);
    uint64_t rest = r->own->stride - q->size;
    uint64_t clean = poison_check(slot + q->size, rest);
    if (clean < rest) {
        verdict_violation(r->verdict, OVERWRITTEN, r->qp, q->seq,
                          "%s of %u bytes: byte %" PRIu64 " of its slot was written too", op_name(q->op),
                          q->size, q->size + clean);
        poison_fill(slot, r->own->stride);
        return false;
    }
    poison_fill(slot, q->size);
    return good;
}

static void verify_one(struct responder *r, const struct request *q) {
    bool good = true;
    if (q->op == OP_WRITE || q->op == OP_WRITE_IMM)
        good = check_target(r, q);
    else if (op_is_atomic(q->op))
        chain_step(&r->chain, r->key, q);
    /* READs and atomics are verified by the side that gets their result, SENDs when they are received. */
    if (good && !op_is_atomic(q->op) && q->op != OP_READ && q->op != OP_SEND && q->op != OP_SEND_IMM)
        r->verified_count[q->op]++;
    r->bytes += q->size;
}

static void verify_up_to(struct responder *r, uint64_t end) {
    while (r->verified < end) {
        struct request q = plan_request(r->w, r->key, r->verified);
        if (op_consumes_receive(q.op) && r->verified >= r->received)
            return; /* its receive completion wasn't polled yet */
        verify_one(r, &q);
        r->verified++;
    }
}

static uint64_t next_consumer(const struct responder *r, uint64_t from, struct request *q) {
    do
        *q = plan_request(r->w, r->key, from++);
    while (!op_consumes_receive(q->op));
    return q->seq;
}

static bool was_missing(struct responder *r, uint64_t seq) {
    for (size_t i = 0; i < r->missing_count; i++)
        if (r->missing[i] == seq)
            return true;
    return false;
}

static void skip_to(struct responder *r, uint64_t from, uint64_t seq) {
    struct request q;
    for (uint64_t at = next_consumer(r, from, &q); at < seq; at = next_consumer(r, at + 1, &q)) {
        verdict_violation(r->verdict, LOST, r->qp, at, "%s never came: %" PRIu64 " came in its place",
                          op_name(q.op), seq);
        if (r->missing_count < MISSING_KEPT)
            r->missing[r->missing_count++] = at;
    }
}

/* Which request does this receive belong to? By its immediate value, or by its payload; else the expected
 * one. */
static uint64_t identify(const struct responder *r, const struct completion *c, const unsigned char *first,
                         uint64_t first_len, uint64_t expected) {
    uint64_t seq = expected;
    if (c->has_imm) {
        seq = seq_from_imm(c->imm, expected);
        if (plan_request(r->w, r->key, seq).imm != c->imm)
            return expected;
    } else if (!pattern_owner(r->key, first, first_len, &seq)) {
        return expected;
    }
    return op_consumes_receive(plan_request(r->w, r->key, seq).op) ? seq : expected;
}

static bool check_receive_fields(struct responder *r, const struct completion *c, const struct request *q) {
    uint64_t before = r->verdict->violation_count;
    int opcode = q->op == OP_WRITE_IMM ? WC_RECV_RDMA_WITH_IMM : WC_RECV;
    if (c->opcode != opcode)
        verdict_violation(r->verdict, WRONG_OPCODE, r->qp, q->seq, "receive of %s has opcode %d, not %d",
                          op_name(q->op), c->opcode, opcode);
    if (c->byte_len != q->size)
        verdict_violation(r->verdict, WRONG_LENGTH, r->qp, q->seq, "receive of %s says %u bytes, not %u",
                          op_name(q->op), c->byte_len, q->size);
    if (c->has_imm != op_has_imm(q->op) || (c->has_imm && c->imm != q->imm))
        verdict_violation(r->verdict, WRONG_IMM, r->qp, q->seq,
                          "receive of %s: immediate value %s%#x, not %s%#x", op_name(q->op),
                          c->has_imm ? "" : "absent, ", c->imm, op_has_imm(q->op) ? "" : "absent, ", q->imm);
    return r->verdict->violation_count == before;
}

static bool check_receive_memory(struct responder *r, const struct request *q, uint64_t slot) {
    struct piece pieces[SGES_MAX];
    size_t n = cut_pieces(workload_max_size(r->w), r->w->sges, r->own->mrs, slot, pieces);
    uint64_t slot_at = receive_offset(r->own, slot), at;
    uint32_t mr;
    bool good = true, is_send = q->op != OP_WRITE_IMM;
    uint64_t landed = is_send ? q->size : 0; /* WRITE_WITH_IMM uses a receive up, but not its memory */
    uint64_t right = is_send ? pieces_check(r->own, slot_at, pieces, n, q->size, r->key, q->seq) : 0;
    if (right < landed) {
        good = false;
        verdict_violation(r->verdict, DATA_MISMATCH, r->qp, q->seq,
                          "%s of %u bytes: byte %" PRIu64 " is wrong", op_name(q->op), q->size, right);
    }
    /* A message that came in part had a receive of a shared queue, which another may take since. */
    if (!r->w->srq && !pieces_rest_is_poison(r->own, slot_at, pieces, n, landed, &mr, &at)) {
        good = false;
        verdict_violation(r->verdict, OVERWRITTEN, r->qp, q->seq,
                          "receive of %s: region %u, byte %" PRIu64 " of its slot was written too",
                          op_name(q->op), mr, at);
        for (mr = 0; mr < r->own->mrs; mr++)
            poison_fill(r->own->base[mr] + slot_at, r->own->stride);
    }
    pieces_poison(r->own, slot_at, pieces, n);
    return good;
}

void responder_on_receive(struct responder *r, const struct completion *c, uint64_t slot) {
    struct request q;
    struct piece pieces[SGES_MAX];
    uint64_t expected = next_consumer(r, r->received, &q);
    size_t n = cut_pieces(workload_max_size(r->w), r->w->sges, r->own->mrs, slot, pieces);
    const unsigned char *first = n ? r->own->base[pieces[0].mr] + receive_offset(r->own, slot) : NULL;
    uint64_t first_len = n ? pieces[0].len : 0;
    uint64_t seq = identify(r, c, first, first_len < c->byte_len ? first_len : c->byte_len, expected);
    if (seq < expected) {
        bool late = was_missing(r, seq);
        verdict_violation(r->verdict, late ? REORDERED : DUPLICATE, r->qp, seq,
                          late ? "came after a later one (expected %" PRIu64 ")"
                               : "was received a second time (expected %" PRIu64 ")",
                          expected);
        pieces_poison(r->own, receive_offset(r->own, slot), pieces, n);
        return;
    }
    if (seq > expected)
        skip_to(r, r->received, seq);
    q = plan_request(r->w, r->key, seq);
    bool good = check_receive_fields(r, c, &q);
    good &= check_receive_memory(r, &q, slot);
    r->received = seq + 1;
    verify_up_to(r, r->received); /* a receive completion proves the requests before it */
    if (good && q.op != OP_WRITE_IMM)
        r->verified_count[q.op]++;
}

void responder_on_report(struct responder *r, uint64_t completed) {
    if (completed > r->granted || completed < r->reported) {
        verdict_violation(r->verdict, UNEXPECTED, r->qp, completed,
                          "the peer reports %" PRIu64 " complete; %" PRIu64 " were before, %" PRIu64
                          " are granted",
                          completed, r->reported, r->granted);
        return;
    }
    r->reported = completed;
    verify_up_to(r, completed);
}

static void check_quarantine(struct responder *r, uint64_t seq) {
    uint32_t mr;
    uint64_t at = target_offset(r->own, r->qp, seq, &mr);
    unsigned char *slot = r->own->base[mr] + at;
    uint64_t clean = poison_check(slot, r->own->stride), other;
    if (clean == r->own->stride)
        return;
    bool known = pattern_owner(r->key, slot, r->own->stride, &other);
    verdict_violation(r->verdict, OVERWRITTEN, r->qp, known ? other : seq,
                      "byte %" PRIu64 " of an idle slot was written%s", clean,
                      known ? ": this request was executed again" : "");
    poison_fill(slot, r->own->stride);
}

uint64_t responder_grant(struct responder *r) {
    uint64_t done = r->verified < r->reported ? r->verified : r->reported;
    for (; r->granted < done + r->w->window; r->granted++) {
        if (workload_writes(r->w))
            check_quarantine(r, r->granted);
        if (workload_uses(r->w, OP_READ))
            make_readable(r, r->granted);
    }
    return r->granted;
}

static void check_word(struct responder *r, enum op op, uint64_t want) {
    uint64_t value;
    memcpy(&value, r->own->base[0] + word_offset(r->own, r->qp, op), 8);
    if (value != want)
        verdict_violation(r->verdict, WRONG_ATOMIC, r->qp, r->verified,
                          "the %s word ends as %016" PRIx64 ", not %016" PRIx64, op_name(op), value, want);
}

void responder_finish(struct responder *r, uint64_t posted, uint64_t completed) {
    responder_on_report(r, completed);
    if (r->verified < completed) {
        struct request q = plan_request(r->w, r->key, r->verified);
        verdict_violation(r->verdict, LOST, r->qp, r->verified,
                          "%s never came, but the peer saw %" PRIu64 " requests complete", op_name(q.op),
                          completed);
        return;
    }
    if (posted != completed)
        return; /* the rest may or may not have been executed: nobody said so */
    if (workload_atomics(r->w)) {
        check_word(r, OP_FETCH_ADD, r->chain.sum);
        check_word(r, OP_CMP_SWP, r->chain.token);
    }
    for (uint64_t seq = completed; workload_writes(r->w) && seq < completed + 2 * r->w->window; seq++)
        check_quarantine(r, seq);
}
