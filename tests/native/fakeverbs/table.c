/* Which queue pair has a number, which may have something to do, whose timer is first: no step looks at all
 * of them. Numbers are given in ascending order, so "newest first" is the order of descending numbers. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>

enum { WORD_BITS = 64, FIRST_CAPACITY = 1024 };

/* What `fake.table` points to, grown to twice as many numbers as `number` needs. */
static bool grow(uint32_t number) {
    struct table *table = &fake.table;
    uint32_t capacity = table->capacity ? table->capacity : FIRST_CAPACITY;

    while (capacity <= number)
        capacity *= 2;
    if (capacity == table->capacity)
        return true;
    struct qp **qps = realloc(table->qps, capacity * sizeof(struct qp *));
    if (!qps)
        return false;
    table->qps = qps;
    struct qp **timers = realloc(table->timers, capacity * sizeof(struct qp *));
    if (!timers)
        return false;
    table->timers = timers;
    for (int mark = 0; mark < MARKS; mark++) {
        const size_t had = table->capacity / WORD_BITS, wants = capacity / WORD_BITS;
        uint64_t *words = realloc(table->marked[mark], wants * sizeof(*words));
        if (!words)
            return false;
        memset(words + had, 0, (wants - had) * sizeof(*words));
        table->marked[mark] = words;
    }
    table->capacity = capacity;
    return true;
}

bool table_add(struct qp *qp) {
    if (qp->ibv.qp_num > PSN_MASK || !grow(qp->ibv.qp_num)) {
        errno = ENOMEM;
        return false;
    }
    fake.table.qps[qp->ibv.qp_num] = qp;
    mark_set(EXISTS, qp);
    return true;
}

void table_remove(struct qp *qp) {
    timer_set(qp, 0);
    for (int mark = 0; mark < MARKS; mark++)
        mark_clear(mark, qp);
}

void mark_set(enum mark mark, const struct qp *qp) {
    fake.table.marked[mark][qp->ibv.qp_num / WORD_BITS] |= UINT64_C(1) << qp->ibv.qp_num % WORD_BITS;
}

void mark_clear(enum mark mark, const struct qp *qp) {
    fake.table.marked[mark][qp->ibv.qp_num / WORD_BITS] &= ~(UINT64_C(1) << qp->ibv.qp_num % WORD_BITS);
}

struct qp *marked_below(enum mark mark, uint32_t end) {
    const struct table *table = &fake.table;

    if (end > table->capacity)
        end = table->capacity;
    while (end) {
        const uint32_t word = (end - 1) / WORD_BITS, bits = end - word * WORD_BITS;
        const uint64_t set = table->marked[mark][word] & (UINT64_MAX >> (WORD_BITS - bits));
        if (set)
            return table->qps[word * WORD_BITS + WORD_BITS - 1 - (uint32_t)__builtin_clzll(set)];
        end = word * WORD_BITS;
    }
    return NULL;
}

struct qp *qp_find(const struct nic *nic, uint32_t qpn) {
    struct qp *qp = marked_below(EXISTS, qpn + 1);

    return qp && qp->ibv.qp_num == qpn && qp->nic == nic ? qp : NULL;
}

/* ---- timers: a binary heap, the first to expire on top; of two at one time the newer queue pair's
 * ----------------- */

static bool earlier(const struct qp *a, const struct qp *b) {
    return a->timer != b->timer ? a->timer < b->timer : a->ibv.qp_num > b->ibv.qp_num;
}

static void put(uint32_t slot, struct qp *qp) {
    fake.table.timers[slot] = qp;
    qp->timer_slot = slot;
}

static void sift(struct qp *qp) {
    struct qp **timers = fake.table.timers;
    uint32_t slot = qp->timer_slot;

    for (; slot && earlier(qp, timers[(slot - 1) / 2]); slot = (slot - 1) / 2)
        put(slot, timers[(slot - 1) / 2]);
    for (uint32_t child; (child = 2 * slot + 1) < fake.table.timer_count; slot = child) {
        if (child + 1 < fake.table.timer_count && earlier(timers[child + 1], timers[child]))
            child++;
        if (!earlier(timers[child], qp))
            break;
        put(slot, timers[child]);
    }
    put(slot, qp);
}

void timer_set(struct qp *qp, uint64_t at) {
    const bool had = qp->timer != 0;

    qp->timer = at;
    if (at) {
        if (!had)
            put(fake.table.timer_count++, qp);
        sift(qp);
    } else if (had) {
        struct qp *last = fake.table.timers[--fake.table.timer_count];
        if (last != qp) {
            put(qp->timer_slot, last);
            sift(last);
        }
    }
}

struct qp *timer_first(void) {
    return fake.table.timer_count ? fake.table.timers[0] : NULL;
}
