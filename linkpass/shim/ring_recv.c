#include <string.h>

#include "mutant.h"
#include "ring_inner.h"

/* ---- receives
 * ------------------------------------------------------------------------------------------------ */

static char *recv_entries(const struct lp_recv_ring *ring) {
    return (char *)ring + aligned(sizeof(*ring));
}

size_t lp_recv_ring_bytes(uint32_t max_wr, uint32_t max_sge) {
    size_t slots = slots_for(max_wr);
    return aligned(sizeof(struct lp_recv_ring)) + aligned(slots * sizeof(struct lp_recv_entry)) +
           aligned(slots * max_sge * sizeof(struct lp_sge));
}

struct lp_recv_ring *lp_recv_ring_init(void *block, uint32_t max_wr, uint32_t max_sge) {
    struct lp_recv_ring *ring = block;
    memset(block, 0, lp_recv_ring_bytes(max_wr, max_sge));
    ring->slots = slots_for(max_wr);
    ring->max_wr = max_wr;
    ring->max_sge = max_sge;
    return ring;
}

void lp_recv_ring_epoch(struct lp_recv_ring *ring) {
    uint32_t head = peek(&ring->head);
    if (LP_MUTANT(LP_M_RECV_TWICE) && head != 0) {
        head -= 1;
        store(&ring->head, head);
    }
    ring->next = head;
    for (uint32_t at = head; at != load(&ring->tail); at++) {
        lp_recv_ring_at(ring, at)->state = LP_HELD;
    }
}

struct lp_recv_entry *lp_recv_ring_at(struct lp_recv_ring *ring, uint32_t token) {
    return (struct lp_recv_entry *)(void *)recv_entries(ring) + (token & (ring->slots - 1));
}

struct lp_sge *lp_recv_ring_sges(struct lp_recv_ring *ring, uint32_t token) {
    char *base = recv_entries(ring) + aligned((size_t)ring->slots * sizeof(struct lp_recv_entry));
    return (struct lp_sge *)(void *)base + (size_t)(token & (ring->slots - 1)) * ring->max_sge;
}

uint32_t lp_recv_ring_count(const struct lp_recv_ring *ring) {
    return load(&ring->tail) - load(&ring->head);
}

enum lp_push lp_recv_ring_push(struct lp_recv_ring *ring, uint64_t wr_id, const struct lp_sge *sges,
                               uint32_t count, bool post, uint32_t *token) {
    const uint32_t tail = peek(&ring->tail);
    if (tail - load(&ring->head) >= ring->max_wr) {
        return LP_PUSH_FULL;
    }
    if (count > ring->max_sge) {
        return LP_PUSH_TOO_BIG;
    }
    struct lp_recv_entry *entry = lp_recv_ring_at(ring, tail);
    entry->wr_id = wr_id;
    entry->sge_count = count;
    entry->state = LP_HELD;
    if (count != 0) {
        memcpy(lp_recv_ring_sges(ring, tail), sges, count * sizeof(*sges));
    }
    if (post) {
        lp_recv_ring_posted(ring, tail);
    }
    *token = tail;
    store(&ring->tail, tail + 1);
    return LP_PUSH_OK;
}

void lp_recv_ring_unpush(struct lp_recv_ring *ring, uint32_t token) {
    if (ring->next == token + 1) {
        ring->next = token;
    }
    store(&ring->tail, token);
}

bool lp_recv_ring_next(struct lp_recv_ring *ring, uint32_t *token) {
    *token = ring->next;
    return ring->next != peek(&ring->tail);
}

void lp_recv_ring_posted(struct lp_recv_ring *ring, uint32_t token) {
    lp_recv_ring_at(ring, token)->state = LP_POSTED;
    ring->next = token + 1;
}

bool lp_recv_ring_consume(struct lp_recv_ring *ring, uint32_t token, struct lp_recv_entry *entry) {
    const uint32_t head = peek(&ring->head);
    if (head == load(&ring->tail) || token != head || lp_recv_ring_at(ring, head)->state != LP_POSTED) {
        return false;
    }
    *entry = *lp_recv_ring_at(ring, head);
    store(&ring->head, head + 1);
    return true;
}

bool lp_recv_ring_discard(struct lp_recv_ring *ring, struct lp_recv_entry *entry) {
    const uint32_t head = peek(&ring->head);
    if (head == load(&ring->tail)) {
        return false;
    }
    *entry = *lp_recv_ring_at(ring, head);
    store(&ring->head, head + 1);
    if (ring->next == head) {
        ring->next = head + 1;
    }
    return true;
}
