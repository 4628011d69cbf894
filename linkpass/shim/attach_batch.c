/*
 * Arrays grow by doubling and are kept from batch to batch, so a program in its steady state allocates
 * nothing here. Until lp_batch_link(), addresses inside the arrays are kept as offsets, since growing moves
 * them.
 */
#include "attach_batch.h"

#include <stdlib.h>
#include <string.h>

static bool lp_grow(void **array, size_t *capacity, size_t needed, size_t size) {
    if (needed <= *capacity)
        return true;
    size_t larger = *capacity ? *capacity : 16;
    while (larger < needed)
        larger *= 2;
    void *moved = realloc(*array, larger * size);
    if (!moved)
        return false;
    *array = moved;
    *capacity = larger;
    return true;
}

void lp_batch_reset(struct lp_wr_batch *batch) {
    batch->count = 0;
    batch->recorded = 0;
    batch->sge_count = 0;
    batch->inline_used = 0;
    batch->opaque = false;
}

struct ibv_send_wr *lp_batch_request(struct lp_wr_batch *batch, const struct ibv_qp_ex *ex,
                                     enum ibv_wr_opcode opcode) {
    batch->count++;
    if (batch->opaque ||
        !lp_grow((void **)&batch->wrs, &batch->wr_capacity, batch->recorded + 1, sizeof(batch->wrs[0]))) {
        batch->opaque = true;
        return NULL;
    }
    struct ibv_send_wr *wr = &batch->wrs[batch->recorded++];
    memset(wr, 0, sizeof(*wr));
    wr->wr_id = ex->wr_id;
    wr->send_flags = ex->wr_flags;
    wr->opcode = opcode;
    wr->sg_list = (struct ibv_sge *)(uintptr_t)batch->sge_count;
    return wr;
}

void lp_batch_sges(struct lp_wr_batch *batch, size_t count, const struct ibv_sge *sges) {
    if (batch->opaque || !batch->recorded)
        return;
    if (!lp_grow((void **)&batch->sges, &batch->sge_capacity, batch->sge_count + count,
                 sizeof(batch->sges[0]))) {
        batch->opaque = true;
        return;
    }
    if (count)
        memcpy(&batch->sges[batch->sge_count], sges, count * sizeof(sges[0]));
    batch->sge_count += count;
    batch->wrs[batch->recorded - 1].num_sge += (int)count;
}

/* Inline data becomes one scatter element that points into the batch's copy. */
void lp_batch_inline(struct lp_wr_batch *batch, size_t count, const struct ibv_data_buf *parts) {
    struct ibv_sge sge = {.addr = batch->inline_used};
    size_t length = 0;

    for (size_t i = 0; i < count; i++)
        length += parts[i].length;
    if (batch->opaque || !batch->recorded)
        return;
    if (!lp_grow((void **)&batch->inline_data, &batch->inline_capacity, batch->inline_used + length, 1)) {
        batch->opaque = true;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].length)
            memcpy(batch->inline_data + batch->inline_used, parts[i].addr, parts[i].length);
        batch->inline_used += parts[i].length;
    }
    sge.length = (uint32_t)length;
    lp_batch_sges(batch, 1, &sge);
    if (!batch->opaque)
        batch->wrs[batch->recorded - 1].send_flags |= IBV_SEND_INLINE;
}

void lp_batch_link(struct lp_wr_batch *batch) {
    for (size_t i = 0; i < batch->recorded; i++) {
        struct ibv_send_wr *wr = &batch->wrs[i];
        const uintptr_t first = (uintptr_t)wr->sg_list;

        wr->next = i + 1 < batch->recorded ? wr + 1 : NULL;
        wr->sg_list = wr->num_sge ? &batch->sges[first] : NULL;
        if (wr->send_flags & IBV_SEND_INLINE)
            for (int s = 0; s < wr->num_sge; s++)
                wr->sg_list[s].addr += (uintptr_t)batch->inline_data;
    }
}

void lp_batch_free(struct lp_wr_batch *batch) {
    if (!batch)
        return;
    free(batch->wrs);
    free(batch->sges);
    free(batch->inline_data);
    free(batch);
}
