#include "fabric.h"

#include "check.h"
#include "common/pattern.h"

#define QP_NUM 0x55
static const int SENT[OP_KINDS] = {1, 1, 0, 0, 2, 4, 3}; /* ibv_wc_opcode, by hand from verbs.h */

struct workload fabric_workload(void) {
    struct workload w = {.seed = 3,
                         .iterations = 1u << 30,
                         .qps = 1,
                         .depth = 8,
                         .window = 16,
                         .rx_depth = 16,
                         .sges = 1,
                         .mrs = 1,
                         .signal_every = 1,
                         .post_list = 1,
                         .size_count = 0,
                         .sizes = {0, 200}};
    for (int op = 0; op < OP_KINDS; op++)
        w.weights[op] = 1;
    return w;
}

static void post_slot(struct fabric *f, uint64_t slot) {
    f->wr_ids[f->newest++ % 4096] = receive_slots_post(&f->slots, slot);
}

void fabric_open(struct fabric *f, struct workload w) {
    memset(f, 0, sizeof(*f));
    f->w = w;
    CHECK(workload_fault(&f->w) == NULL);
    verdict_init(&f->verdict);
    memory_layout(&f->own, &f->w, true, false);
    memory_layout(&f->peer_layout, &f->w, false, true);
    memory_layout(&f->answering, &f->w, false, true);
    CHECK(memory_map(&f->own) == 0 && memory_map(&f->answering) == 0);
    CHECK(initiator_create(&f->initiator, &f->w, &f->own, &f->peer_layout, &f->verdict, 0, 0) == 0);
    f->initiator.qp_num = QP_NUM;
    responder_create(&f->responder, &f->w, &f->answering, &f->verdict, 0, 0);
    CHECK(receive_slots_create(&f->slots, &f->w) == 0);
    for (uint64_t s = 0; s < f->w.rx_depth; s++)
        post_slot(f, s);
}

void fabric_close(struct fabric *f) {
    initiator_destroy(&f->initiator);
    receive_slots_destroy(&f->slots);
    memory_destroy(&f->own);
    memory_destroy(&f->answering);
}

static unsigned char *remote(struct fabric *f, const struct outgoing *o) {
    return f->answering.base[o->remote_mr] + o->remote_at;
}

static void move(struct fabric *f, const struct outgoing *o, unsigned char *to, bool out) {
    for (size_t i = 0; i < o->piece_count; i++) {
        unsigned char *mine = f->own.base[o->pieces[i].mr] + o->source_at + o->pieces[i].offset;
        unsigned char *yours = to + o->pieces[i].offset;
        memcpy(out ? yours : mine, out ? mine : yours, o->pieces[i].len);
    }
}

static void execute_atomic(struct fabric *f, const struct outgoing *o) {
    uint64_t word;
    memcpy(&word, remote(f, o), 8);
    memcpy(f->own.base[o->pieces[0].mr] + o->source_at, &word, 8);
    if (o->request.op == OP_FETCH_ADD)
        word += o->values.compare_add;
    else if (word == o->values.compare_add)
        word = o->values.swap;
    memcpy(remote(f, o), &word, 8);
}

static void scatter(struct fabric *f, const struct outgoing *o, uint64_t slot) {
    unsigned char flat[65536];
    struct piece p[SGES_MAX];
    size_t n = cut_pieces(workload_max_size(&f->w), f->w.sges, f->w.mrs, slot, p);
    move(f, o, flat, true);
    for (size_t i = 0; i < n && p[i].offset < o->request.size; i++) {
        uint32_t len = o->request.size - p[i].offset < p[i].len ? o->request.size - p[i].offset : p[i].len;
        memcpy(f->answering.base[p[i].mr] + receive_offset(&f->answering, slot) + p[i].offset,
               flat + p[i].offset, len);
    }
}

bool fabric_execute(struct fabric *f, const struct outgoing *o, struct completion *c) {
    enum op op = o->request.op;
    f->executed++;
    if (op_is_atomic(op))
        execute_atomic(f, o);
    else if (op == OP_READ)
        move(f, o, remote(f, o), false);
    else if (op == OP_WRITE || op == OP_WRITE_IMM)
        move(f, o, remote(f, o), true);
    if (!op_consumes_receive(op))
        return false;
    CHECK(f->oldest < f->newest);
    uint64_t wr_id = f->wr_ids[f->oldest++ % 4096];
    if (op != OP_WRITE_IMM)
        scatter(f, o, wr_id & 0x7ffffff);
    *c = (struct completion){.wr_id = wr_id,
                             .opcode = op == OP_WRITE_IMM ? 129 : 128,
                             .byte_len = o->request.size,
                             .has_imm = op_has_imm(op),
                             .imm = o->request.imm,
                             .qp_num = QP_NUM};
    return true;
}

void fabric_receive(struct fabric *f, const struct completion *c) {
    uint64_t slot;
    if (!receive_slots_take(&f->slots, &f->verdict, c, 0, &slot))
        return;
    responder_on_receive(&f->responder, c, slot);
    post_slot(f, slot);
}

struct completion fabric_done(const struct fabric *f, const struct outgoing *o) {
    return (struct completion){.wr_id = own_wr_id(0, o->request.seq),
                               .opcode = SENT[o->request.op],
                               .byte_len = o->request.size,
                               .qp_num = f->initiator.qp_num};
}

uint64_t fabric_complete(struct fabric *f, const struct completion *c) {
    uint64_t bytes;
    return initiator_on_completion(&f->initiator, c, &bytes);
}

void fabric_credit(struct fabric *f) {
    if (f->initiator.completed > f->responder.reported)
        responder_on_report(&f->responder, f->initiator.completed);
    f->initiator.limit = responder_grant(&f->responder);
}

struct outgoing *fabric_post(struct fabric *f) {
    CHECK(initiator_room(&f->initiator, SEQ_MASK) > 0);
    uint64_t seq = f->initiator.built;
    struct outgoing *o = initiator_build(&f->initiator, false);
    initiator_publish(&f->initiator, 1);
    initiator_posted(&f->initiator, seq, 1);
    return o;
}

static void one(struct fabric *f) {
    struct completion c;
    struct outgoing *o = fabric_post(f);
    if (fabric_execute(f, o, &c))
        fabric_receive(f, &c);
    if (o->is_signaled) {
        c = fabric_done(f, o);
        fabric_complete(f, &c);
    }
    fabric_credit(f);
}

void fabric_run(struct fabric *f, uint64_t target) {
    while (f->initiator.built < target)
        one(f);
}

struct outgoing *fabric_run_to(struct fabric *f, enum op op, uint32_t least_size) {
    for (;;) {
        struct request r = plan_request(&f->w, f->initiator.key, f->initiator.built);
        if (r.op == op && r.size >= least_size && f->initiator.built > 3 * f->w.window)
            return fabric_post(f);
        one(f);
    }
}

unsigned char *fabric_target(struct fabric *f, uint64_t seq) {
    uint32_t mr;
    uint64_t at = target_offset(&f->answering, 0, seq, &mr);
    return f->answering.base[mr] + at;
}

bool fabric_saw(const struct fabric *f, enum violation_kind kind) {
    for (uint64_t i = 0; i < f->verdict.violation_count && i < VIOLATIONS_KEPT; i++)
        if (f->verdict.violations[i].kind != kind) {
            fprintf(stderr, "saw %s: %s\n", violation_name(f->verdict.violations[i].kind),
                    f->verdict.violations[i].detail);
            return false;
        }
    return f->verdict.violation_count > 0;
}
