#include "workload.h"

#include "../common/pattern.h"

#define SALT_OP 0x6f70
#define SALT_SIZE 0x73697a65
#define SALT_IMM 0x696d6d
#define SALT_ATOMIC 0x61746f

static const char *const NAMES[OP_KINDS] = {"WRITE", "WRITE_WITH_IMM", "SEND",   "SEND_WITH_IMM",
                                            "READ",  "FETCH_ADD",      "CMP_SWP"};

const char *op_name(enum op op) {
    return NAMES[op];
}

uint64_t workload_max_size(const struct workload *w) {
    if (w->size_count == 0)
        return w->sizes[1];
    uint64_t max = 0;
    for (uint64_t i = 0; i < w->size_count; i++)
        max = w->sizes[i] > max ? w->sizes[i] : max;
    return max;
}

uint64_t workload_stride(const struct workload *w) {
    uint64_t size = workload_max_size(w);
    if (size < 8)
        size = 8; /* atomics return 8 bytes */
    return (size + GUARD + 63) / 64 * 64;
}

bool workload_uses(const struct workload *w, enum op op) {
    return w->weights[op] != 0;
}

bool workload_writes(const struct workload *w) {
    return workload_uses(w, OP_WRITE) || workload_uses(w, OP_WRITE_IMM);
}

bool workload_receives(const struct workload *w) {
    return workload_uses(w, OP_WRITE_IMM) || workload_uses(w, OP_SEND) || workload_uses(w, OP_SEND_IMM);
}

bool workload_atomics(const struct workload *w) {
    return workload_uses(w, OP_FETCH_ADD) || workload_uses(w, OP_CMP_SWP);
}

const char *workload_fault(const struct workload *w) {
    uint64_t total = 0;
    for (int i = 0; i < OP_KINDS; i++) {
        if (w->weights[i] > 1000)
            return "a weight in the mix may be at most 1000";
        total += w->weights[i];
    }
    if (total == 0)
        return "the mix has no operation";
    if (w->qps < 1 || w->qps > QPS_MAX)
        return "queue pairs: 1 to 1024";
    if (w->depth < 1 || w->depth > 16384)
        return "depth: 1 to 16384";
    if (w->window < w->depth || w->window > 65536)
        return "window: from the depth to 65536";
    if (w->rx_depth < 1 || w->rx_depth > 65536)
        return "receive depth: 1 to 65536";
    if (w->sges < 1 || w->sges > SGES_MAX)
        return "SGEs: 1 to 16";
    if (w->mrs < 1 || w->mrs > MRS_MAX)
        return "memory regions: 1 to 16";
    if (w->post_list < 1 || w->post_list > w->depth)
        return "post list: 1 to the depth";
    if (w->signal_every < 1)
        return "signal every: at least 1";
    if (w->size_count > SIZES_MAX)
        return "at most 16 sizes";
    if (w->size_count == 0 && w->sizes[0] > w->sizes[1])
        return "a range of sizes starts with the smaller one";
    if (workload_max_size(w) > 1u << 30)
        return "size: at most 1 GiB";
    if (w->iterations == 0 && w->duration_ms == 0)
        return "neither a number of iterations nor a duration";
    if (w->timeout > 31 || w->retry > 7 || w->rnr_retry > 7 || w->min_rnr > 31 || w->rd_atomic > 128 ||
        w->mtu > 4096)
        return "a connection attribute out of range";
    return NULL;
}

static uint64_t draw(uint64_t key, uint64_t seq, uint64_t salt) {
    return mix64(key ^ mix64(seq * 0x9E3779B97F4A7C15ULL + salt));
}

static enum op draw_op(const struct workload *w, uint64_t hash) {
    uint64_t total = 0;
    for (int i = 0; i < OP_KINDS; i++)
        total += w->weights[i];
    uint64_t at = hash % total;
    int op = 0;
    while (at >= w->weights[op])
        at -= w->weights[op++];
    return (enum op)op;
}

static uint32_t draw_size(const struct workload *w, uint64_t hash) {
    if (w->size_count)
        return (uint32_t)w->sizes[hash % w->size_count];
    return (uint32_t)(w->sizes[0] + hash % (w->sizes[1] - w->sizes[0] + 1));
}

struct request plan_request(const struct workload *w, uint64_t key, uint64_t seq) {
    struct request r = {.seq = seq, .op = draw_op(w, draw(key, seq, SALT_OP))};
    if (op_is_atomic(r.op)) {
        uint64_t hash = draw(key, seq, SALT_ATOMIC);
        r.size = 8;
        r.add = 1 + (hash & 0xffff);
        r.swap_fails = hash >> 32 & 1 && hash >> 33 & 1 && hash >> 34 & 1; /* one in eight */
    } else {
        r.size = draw_size(w, draw(key, seq, SALT_SIZE));
        r.imm = op_has_imm(r.op) ? (uint32_t)((draw(key, seq, SALT_IMM) & 0xff) << 24 | (seq & 0xffffff)) : 0;
    }
    return r;
}

bool op_consumes_receive(enum op op) {
    return op == OP_WRITE_IMM || op == OP_SEND || op == OP_SEND_IMM;
}

bool op_has_imm(enum op op) {
    return op == OP_WRITE_IMM || op == OP_SEND_IMM;
}

bool op_is_atomic(enum op op) {
    return op == OP_FETCH_ADD || op == OP_CMP_SWP;
}

uint64_t seq_from_imm(uint32_t imm, uint64_t near) {
    int64_t step = (int64_t)((imm - near) & 0xffffff);
    if (step >= 1 << 23)
        step -= 1 << 24;
    return near + (uint64_t)step;
}

void chain_start(struct chain *c, uint64_t key) {
    c->sum = mix64(key + 1);
    c->token = mix64(key + 2);
}

struct atomic_values chain_step(struct chain *c, uint64_t key, const struct request *r) {
    struct atomic_values v = {0};
    if (r->op == OP_FETCH_ADD) {
        v.compare_add = r->add;
        v.original = c->sum;
        c->sum += r->add;
    } else if (r->op == OP_CMP_SWP) {
        v.original = c->token;
        v.compare_add = r->swap_fails ? ~c->token : c->token;
        v.swap = mix64(key ^ mix64(r->seq + 3));
        if (!r->swap_fails)
            c->token = v.swap;
    }
    return v;
}

size_t cut_pieces(uint64_t total, uint64_t sges, uint64_t mrs, uint64_t salt, struct piece out[SGES_MAX]) {
    size_t n = 0;
    uint64_t from = 0;
    for (uint64_t j = 0; j < sges; j++) {
        /* Even cuts, shifted by up to 7 bytes so that they don't all fall on words. */
        uint64_t to = j + 1 == sges ? total : total * (j + 1) / sges + (salt * 7 + j * 3) % 8;
        if (to > total)
            to = total;
        if (to <= from)
            continue;
        out[n++] = (struct piece){(uint32_t)((salt + j) % mrs), (uint32_t)from, (uint32_t)(to - from)};
        from = to;
    }
    return n;
}
