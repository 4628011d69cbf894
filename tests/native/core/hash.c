/* Two worlds with the same hash behave the same from here on: what can't matter any more is left out. */
#include <string.h>

#include "world.h"

static void mix(uint64_t *hash, uint64_t value) {
    uint64_t x = *hash ^ value;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    *hash = x ^ (x >> 29);
}

static void mix_bytes(uint64_t *hash, const void *bytes, size_t count) {
    const uint8_t *at = bytes;
    uint64_t word;
    for (; count >= sizeof(word); count -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        mix(hash, word);
    }
    word = 0;
    memcpy(&word, at, count);
    mix(hash, word);
}

static uint64_t pack(uint32_t a, uint32_t b) {
    return (uint64_t)a << 32 | b;
}

static void mix_sends(uint64_t *hash, struct lp_send_ring *ring) {
    uint32_t head = ring->head;
    uint32_t tail = ring->tail;
    mix(hash, pack(head << 16 | tail, ring->undone << 16 | ring->next));
    mix(hash, pack((uint32_t)ring->posted << 16 | (uint32_t)ring->acked, ring->taken << 8 | ring->fragile));
    mix(hash, ring->first_psn);
    for (uint32_t token = head; token != tail; token++) {
        const struct lp_send_entry *entry = lp_send_ring_at(ring, token);
        mix(hash, pack((uint32_t)entry->wr_id << 8 | entry->state,
                       (uint32_t)entry->first << 16 | (uint32_t)entry->end));
        mix(hash, LP_MUTANT(LP_M_RETRANSMITS) ? entry->replays : entry->replays != 0);
    }
}

static void mix_recvs(uint64_t *hash, struct lp_recv_ring *ring) {
    uint32_t head = ring->head;
    uint32_t tail = ring->tail;
    mix(hash, pack(head << 16 | tail, ring->next));
    for (uint32_t token = head; token != tail; token++) {
        mix(hash, pack((uint32_t)lp_recv_ring_at(ring, token)->wr_id, lp_recv_ring_at(ring, token)->state));
    }
}

static void mix_end(uint64_t *hash, struct end *end) {
    struct lp_conn *conn = &end->conn;
    mix_bytes(hash, &conn->mig, sizeof(conn->mig));
    for (unsigned spare = 0; spare < PATHS - 1; spare++) {
        mix(hash, pack(conn->spares[spare].mails, conn->spares[spare].usable));
    }
    mix(hash, conn->mig.pending != 0 ? conn->offer.sum : 0);
    mix(hash, pack(conn->error, conn->consumed << 8 | conn->prep_waits));
    mix(hash, pack((uint32_t)conn->holding << 16 | (uint32_t)conn->holding_recvs << 8 | conn->failing,
                   (uint32_t)conn->first_error_out << 8 | conn->prefer));
    mix_sends(hash, conn->sends);
    mix_recvs(hash, conn->recvs);
    mix_bytes(hash, &end->job, sizeof(end->job));
    mix_bytes(hash, end->inbox.item, end->inbox.count * sizeof(end->inbox.item[0]));
    mix(hash, pack(end->inbox.count, end->spare_known));
}

static void mix_qp(uint64_t *hash, const struct qp *qp) {
    mix_bytes(hash, qp, offsetof(struct qp, cq_head));
    mix(hash, pack(qp->cq_count, (uint32_t)qp->mail_unread << 8 | qp->mail_known));
    for (unsigned i = 0; i < qp->sq_count; i++) {
        mix_bytes(hash, &qp->sq[i], sizeof(qp->sq[i]));
    }
    mix_bytes(hash, qp->rq, qp->rq_count * sizeof(qp->rq[0]));
    for (unsigned i = 0; i < qp->cq_count; i++) {
        mix_bytes(hash, &qp->cq[(qp->cq_head + i) % CQES], sizeof(struct cqe));
    }
    mix(hash, qp->sent.sum);
}

uint64_t world_hash(struct world *world) {
    uint64_t hash = 0;
    for (unsigned end = 0; end < 2; end++) {
        mix_end(&hash, &world->ends[end]);
        for (unsigned path = 0; path < world->paths; path++) {
            mix_qp(&hash, &world->qps[path][end]);
        }
    }
    mix_bytes(&hash, &world->left, sizeof(world->left));
    mix(&hash, world->excuse);
    return hash;
}
