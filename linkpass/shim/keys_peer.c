/*
 * The peer's key table, read over the spare itself: its head, then as many entries as that says, then the
 * head again.  Each READ takes packets of the spare's sequence, so each is told to the core as a mail.
 */
#include "keys.h"

#include <stdlib.h>
#include <string.h>

enum { HEADS = 2 * sizeof(struct lp_key_table) };

static struct lp_key_table *head(const struct lp_half *half, int which) {
    return (struct lp_key_table *)(void *)half->keys_block + which;
}

static struct lp_key_entry *entries(const struct lp_half *half) {
    return (struct lp_key_entry *)(void *)(half->keys_block + HEADS);
}

bool lp_keys_remote(const struct lp_half *half, uint32_t rkey, uint64_t addr, uint64_t length,
                    uint32_t *there) {
    uint32_t low = 0, high = half->keys_count;

    if (half->keys != LP_KEYS_READ)
        return false;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const struct lp_key_entry *entry = &entries(half)[middle];
        if (entry->rkey == rkey) {
            *there = entry->spare_rkey;
            return addr >= entry->addr && length <= entry->length &&
                   addr - entry->addr <= entry->length - length;
        }
        if (entry->rkey < rkey)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

static bool read_part(struct lp_half *half, void *to, uint64_t offset, uint32_t length, bool signaled) {
    struct lp_conn *conn = &half->lane->conn;
    const uint32_t lkey = half->keys_mr ? half->keys_mr->lkey : half->block_mr->lkey;
    struct ibv_sge sge = {.addr = (uintptr_t)to, .length = length, .lkey = lkey};
    struct ibv_send_wr *bad = NULL, wr = {.wr_id = LP_WR_ID(LP_KIND_KEYS, 0),
                                          .sg_list = &sge,
                                          .num_sge = 1,
                                          .opcode = IBV_WR_RDMA_READ,
                                          .send_flags = signaled ? IBV_SEND_SIGNALED : 0};

    wr.wr.rdma.remote_addr = half->peer.keys_addr + offset;
    wr.wr.rdma.rkey = half->peer.keys_rkey;
    if (ibv_post_send(half->qp, &wr, &bad))
        return false;
    for (uint64_t n = lp_packets(LP_OP_READ, length, conn->spares[half->id].mtu); n; n--)
        lp_conn_mail_sent(conn, half->id);
    return true;
}

static bool make_room(struct lp_half *half, uint32_t count) {
    const size_t bytes = HEADS + (size_t)(count + 64) * sizeof(struct lp_key_entry);
    void *larger = NULL;

    if (count <= half->keys_room)
        return true;
    if (count > LP_KEY_ROOM || posix_memalign(&larger, 4096, bytes))
        return false;
    struct ibv_mr *mr = LP_REAL(ibv_reg_mr)(half->reserve->pd, larger, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!mr) {
        free(larger);
        return false;
    }
    memcpy(larger, half->keys_block, HEADS);
    if (half->keys_mr) {
        (void)LP_REAL(ibv_dereg_mr)(half->keys_mr);
        free(half->keys_block);
    }
    half->keys_mr = mr;
    half->keys_block = larger;
    half->keys_room = count + 64;
    return true;
}

static void start(struct lp_half *half) {
    half->keys_fresh = false;
    half->keys_wanted = false;
    half->keys =
        read_part(half, head(half, 0), 0, sizeof(struct lp_key_table), true) ? LP_KEYS_HEAD : LP_KEYS_NONE;
    half->keys_wanted = half->keys == LP_KEYS_NONE;
}

void lp_keys_read(struct lp_half *half) {
    if (half->stage != LP_STAGE_USABLE && half->stage != LP_STAGE_OPEN)
        return;
    if (half->keys == LP_KEYS_NONE || (half->keys == LP_KEYS_READ && half->keys_wanted))
        start(half);
}

/* A READ has completed: go on. */
void lp_keys_read_done(struct lp_half *half) {
    const uint64_t size = sizeof(struct lp_key_table);

    if (!half->keys_fresh)
        return;
    half->keys_fresh = false;
    if (half->keys == LP_KEYS_HEAD) {
        const uint32_t count = head(half, 0)->count;
        if ((head(half, 0)->version & 1) || !make_room(half, count)) {
            half->keys = LP_KEYS_NONE;
            half->keys_wanted = true;
            return;
        }
        const bool asked = (!count || read_part(half, entries(half), size,
                                                count * (uint32_t)sizeof(struct lp_key_entry), false)) &&
                           read_part(half, head(half, 1), 0, (uint32_t)size, true);
        half->keys = asked ? LP_KEYS_BODY : LP_KEYS_NONE;
        half->keys_wanted = !asked;
        return;
    }
    if (half->keys != LP_KEYS_BODY)
        return;
    if (head(half, 1)->version != head(half, 0)->version) {
        start(half);
        return;
    }
    half->keys_count = head(half, 0)->count;
    half->keys_version = head(half, 0)->version;
    half->keys = LP_KEYS_READ;
}
