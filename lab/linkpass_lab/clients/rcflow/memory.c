#include "memory.h"

#include "../common/pattern.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#define PAGE 4096ull

void memory_layout(struct memory *m, const struct workload *w, bool initiates, bool responds) {
    *m = (struct memory){
        .mrs = w->mrs, .stride = workload_stride(w), .slots = 2 * w->window, .depth = w->depth};
    uint64_t per_region = (m->slots + w->mrs - 1) / w->mrs * w->qps * m->stride;
    m->receive_slots = responds && workload_receives(w) ? w->qps * w->rx_depth : 0;
    m->receives_at = initiates ? w->qps * w->depth * m->stride : 0;
    m->targets_at = m->receives_at + m->receive_slots * m->stride;
    m->readable_at = m->targets_at + (responds && workload_writes(w) ? per_region : 0);
    m->words_at = m->readable_at + (responds && workload_uses(w, OP_READ) ? per_region : 0);
    m->bytes = m->words_at + (responds && workload_atomics(w) ? w->qps * 2 * 64 : 0);
    m->bytes = (m->bytes + PAGE) / PAGE * PAGE;
}

int memory_map(struct memory *m) {
    for (uint64_t i = 0; i < m->mrs; i++) {
        void *got = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED) {
            int code = errno;
            memory_destroy(m);
            return code;
        }
        m->base[i] = got;
        poison_fill(got, m->bytes);
    }
    return 0;
}

void memory_destroy(struct memory *m) {
    for (uint64_t i = 0; i < m->mrs; i++) {
        if (m->base[i])
            munmap(m->base[i], m->bytes);
        m->base[i] = NULL;
    }
}

uint64_t source_offset(const struct memory *m, uint32_t qp, uint64_t seq) {
    return (qp * m->depth + seq % m->depth) * m->stride;
}

uint64_t receive_offset(const struct memory *m, uint64_t slot) {
    return m->receives_at + slot * m->stride;
}

static uint64_t spread(const struct memory *m, uint32_t qp, uint64_t seq, uint32_t *mr) {
    uint64_t slot = seq % m->slots;
    *mr = (uint32_t)(slot % m->mrs);
    return (qp * ((m->slots + m->mrs - 1) / m->mrs) + slot / m->mrs) * m->stride;
}

uint64_t target_offset(const struct memory *m, uint32_t qp, uint64_t seq, uint32_t *mr) {
    return m->targets_at + spread(m, qp, seq, mr);
}

uint64_t readable_offset(const struct memory *m, uint32_t qp, uint64_t seq, uint32_t *mr) {
    return m->readable_at + spread(m, qp, seq, mr);
}

uint64_t word_offset(const struct memory *m, uint32_t qp, enum op op) {
    return m->words_at + (qp * 2ull + (op == OP_CMP_SWP)) * 64;
}

void pieces_fill(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n, uint64_t key,
                 uint64_t seq) {
    for (size_t i = 0; i < n; i++)
        pattern_fill(key, seq, p[i].offset, m->base[p[i].mr] + slot_at + p[i].offset, p[i].len);
}

void pieces_poison(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        poison_fill(m->base[p[i].mr] + slot_at + p[i].offset, p[i].len);
}

static uint64_t clipped(const struct piece *p, uint64_t size) {
    if (p->offset >= size)
        return 0;
    return size - p->offset < p->len ? size - p->offset : p->len;
}

uint64_t pieces_check(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n,
                      uint64_t size, uint64_t key, uint64_t seq) {
    for (size_t i = 0; i < n; i++) {
        uint64_t len = clipped(&p[i], size);
        uint64_t right = pattern_check(key, seq, p[i].offset, m->base[p[i].mr] + slot_at + p[i].offset, len);
        if (right < len)
            return p[i].offset + right;
    }
    return size;
}

bool pieces_rest_is_poison(const struct memory *m, uint64_t slot_at, const struct piece *p, size_t n,
                           uint64_t size, uint32_t *mr, uint64_t *at) {
    for (uint32_t region = 0; region < m->mrs; region++) {
        uint64_t from = 0;
        for (size_t i = 0; i <= n; i++) {
            if (i < n && p[i].mr != region)
                continue;
            uint64_t to = i < n ? p[i].offset : m->stride;
            uint64_t right = poison_check(m->base[region] + slot_at + from, to - from);
            if (right < to - from) {
                *mr = region;
                *at = from + right;
                return false;
            }
            if (i < n)
                from = p[i].offset + clipped(&p[i], size);
        }
    }
    return true;
}
