/* Spares made and dropped, with what they need on their NIC. */
#include "spare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "deliver.h"
#include "keys.h"
#include "spare_inner.h"
#include "srq.h"

enum { GIDS = 64 }; /* entries looked through for one to use; drivers have 16 to 256, ours come first */

/* ---- making
 * --------------------------------------------------------------------------------------------- */

static uint32_t random_bits(void) {
    static uint64_t state;

    state = (state + lp_now_ns()) * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33);
}

static int gid_kind(const uint8_t *gid) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const uint8_t nothing[16];

    if (!memcmp(gid, nothing, 16))
        return 0;
    if (!memcmp(gid, mapped, sizeof(mapped)))
        return 1;
    return gid[0] == 0xfe && gid[1] == 0x80 ? 2 : 3;
}

/* IB, RoCE v1 or v2 (enum ibv_gid_type); -1 where the library can't tell. Drivers of both versions have each
 * address once of each type, and where an entry stands tells neither. */
static int gid_type(struct ibv_context *context, uint8_t port, uint32_t index) {
    struct ibv_gid_entry entry;

    memset(&entry, 0, sizeof(entry));
    return LP_REAL(_ibv_query_gid_ex)(context, port, index, &entry, 0, sizeof(entry)) ? -1
                                                                                      : (int)entry.gid_type;
}

/* A GID of the kind and type that the job itself uses, at the same place if it is there. */
static bool find_gid(struct lp_lane *lane, struct ibv_context *context, uint8_t port, union ibv_gid *gid,
                     uint8_t *index) {
    const int kind = gid_kind(lane->who.local_gid);
    const uint8_t same = lane->attr.ah_attr.grh.sgid_index;
    const int type = gid_type(lane->own.qp->context, lane->attr.port_num, same);

    for (int at = -1; at < GIDS; at++) {
        const uint8_t place = at < 0 ? same : (uint8_t)at;
        if (!LP_REAL(ibv_query_gid)(context, port, place, gid) && gid_kind(gid->raw) == kind &&
            gid_type(context, port, place) == type) {
            *index = place;
            return true;
        }
    }
    return false;
}

/* `shared`: of receives, whose completions may all come through any of its queue pairs; a source has room for
 * one such queue, once. */
static struct lp_source *find_source(struct lp_queue *queue, struct lp_reserve *reserve, uint32_t need,
                                     const struct lp_shared *shared) {
    const uint32_t count = queue->source_count, common = shared ? shared->slots : 0;
    uint32_t room = LP_SOURCE_CQE + common;

    for (uint32_t i = 0; i < count; i++) {
        struct lp_source *source = queue->sources[i];
        if (source->reserve == reserve && source->shared == shared && source->room - source->used >= need)
            return source;
        room = source->room < LP_SOURCE_CQE * 8 && !shared ? source->room * 2 : room;
    }
    struct lp_source *source = count < LP_SOURCES ? calloc(1, sizeof(*source)) : NULL;
    if (!source)
        return NULL;
    source->queue = queue;
    source->reserve = reserve;
    source->shared = shared;
    source->used = common;
    source->room = room > need ? room : need;
    source->cq =
        LP_REAL(ibv_create_cq)(reserve->nic->context, (int)source->room, source, reserve->nic->channel, 0);
    if (!source->cq) {
        source->room = need + common;
        source->cq = LP_REAL(ibv_create_cq)(reserve->nic->context, (int)source->room, source,
                                            reserve->nic->channel, 0);
    }
    if (!source->cq || ibv_req_notify_cq(source->cq, 1)) {
        if (source->cq)
            (void)LP_REAL(ibv_destroy_cq)(source->cq);
        free(source);
        return NULL;
    }
    lp_lock(&queue->poll_lock);
    queue->sources[count] = source;
    atomic_store_explicit(&queue->source_count, count + 1, memory_order_release);
    lp_unlock(&queue->poll_lock);
    return source;
}

static uint32_t send_need(const struct lp_lane *lane) {
    return lane->qp->cap.max_send_wr + LP_OWN_SLOTS;
}

static uint32_t recv_need(const struct lp_lane *lane) {
    return (lane->shared ? 0 : lane->qp->cap.max_recv_wr) + LP_MAILS_PER_ROUND;
}

static bool get_sources(struct lp_half *half) {
    struct lp_lane *lane = half->lane;

    half->send_source = find_source(lane->send_queue, half->reserve, send_need(lane), NULL);
    if (!half->send_source)
        return false;
    half->send_source->used += send_need(lane);
    half->recv_source = find_source(lane->recv_queue, half->reserve, recv_need(lane), lane->shared);
    if (!half->recv_source) {
        half->send_source->used -= send_need(lane);
        half->send_source = NULL;
        return false;
    }
    half->recv_source->used += recv_need(lane);
    return true;
}

struct ibv_qp *lp_half_mail_qp(const struct lp_half *half) {
    return half->mail_qp ? half->mail_qp : half->qp;
}

static bool post_mail_receives(struct lp_half *half) {
    for (int i = 0; i < LP_MAILS_PER_ROUND; i++) {
        struct ibv_recv_wr *bad = NULL, wr = {.wr_id = LP_WR_ID(LP_KIND_MAIL_RECV, i)};
        if (ibv_post_recv(lp_half_mail_qp(half), &wr, &bad))
            return false;
        half->recvs_out++;
    }
    return true;
}

static bool to_init(struct ibv_qp *qp, uint8_t port, unsigned int access) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = port, .qp_access_flags = access};

    return !LP_REAL(ibv_modify_qp)(qp, &attr,
                                   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* Mails take a receive each, to be noticed. Those of a shared queue belong to the job's messages. */
static bool make_mail_qp(struct lp_half *half, uint8_t port) {
    struct ibv_qp_init_attr init = {.send_cq = half->send_source->cq,
                                    .recv_cq = half->recv_source->cq,
                                    .cap = {.max_send_wr = LP_MAILS_PER_ROUND + 1,
                                            .max_recv_wr = LP_MAILS_PER_ROUND,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC};

    half->mail_qp = LP_REAL(ibv_create_qp)(half->reserve->pd, &init);
    return half->mail_qp && to_init(half->mail_qp, port, IBV_ACCESS_REMOTE_WRITE);
}

static bool make_qp(struct lp_half *half, uint8_t port) {
    struct lp_lane *lane = half->lane;
    const struct ibv_qp_cap *cap = &lane->qp->cap;
    struct ibv_qp_init_attr init = {.send_cq = half->send_source->cq,
                                    .recv_cq = half->recv_source->cq,
                                    .srq = half->place ? half->place->real : NULL,
                                    .cap = {.max_send_wr = send_need(lane),
                                            .max_recv_wr = half->place ? 0 : recv_need(lane),
                                            .max_send_sge = cap->max_send_sge ? cap->max_send_sge : 1,
                                            .max_recv_sge = half->place         ? 0
                                                            : cap->max_recv_sge ? cap->max_recv_sge
                                                                                : 1,
                                            .max_inline_data = cap->max_inline_data},
                                    .qp_type = IBV_QPT_RC};

    half->qp = LP_REAL(ibv_create_qp)(half->reserve->pd, &init);
    if (!half->qp)
        return false;
    half->qp_num = half->qp->qp_num;
    return to_init(half->qp, port,
                   lane->attr.qp_access_flags | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) &&
           (!half->place || make_mail_qp(half, port)) && post_mail_receives(half);
}

static bool make_block(struct lp_half *half) {
    void *block = NULL;

    if (posix_memalign(&block, 4096, BLOCK))
        return false;
    memset(block, 0, BLOCK);
    half->block = block;
    half->block_mr = LP_REAL(ibv_reg_mr)(half->reserve->pd, block, BLOCK,
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    half->keys_block = half->block + KEYS_AT;
    half->keys_room = (BLOCK - KEYS_AT - 2 * sizeof(struct lp_key_table)) / sizeof(struct lp_key_entry);
    return half->block_mr != NULL;
}

/* The poll locks of both queues of a lane, each once. */
static void lock_polls(const struct lp_lane *lane) {
    struct lp_queue *a = lane->send_queue, *b = lane->recv_queue;

    if ((uintptr_t)a > (uintptr_t)b) {
        a = lane->recv_queue;
        b = lane->send_queue;
    }
    lp_lock(&a->poll_lock);
    if (b != a)
        lp_lock(&b->poll_lock);
}

static void unlock_polls(const struct lp_lane *lane) {
    lp_unlock(&lane->send_queue->poll_lock);
    if (lane->recv_queue != lane->send_queue)
        lp_unlock(&lane->recv_queue->poll_lock);
}

/* Under the numbers that its completions bear. */
static bool listed(struct lp_map *halves, struct lp_half *half, bool there) {
    const struct ibv_qp *qps[2] = {half->qp, half->mail_qp};
    bool all = true;

    for (int i = 0; i < 2; i++) {
        if (qps[i] && there)
            all = lp_map_put(halves, (uintptr_t)qps[i]->qp_num + 1, half) && all;
        else if (qps[i])
            (void)lp_map_take(halves, (uintptr_t)qps[i]->qp_num + 1);
    }
    return all;
}

void lp_half_drop(struct lp_half *half) {
    struct lp_lane *lane = half->lane;

    lock_polls(lane);
    lp_lock(&lane->lock);
    if (lane->spares[half->id] == half)
        lane->spares[half->id] = NULL;
    if (lane->now == half)
        lane->now = &lane->own;
    if (half->send_source)
        listed(&half->send_source->halves, half, false);
    if (half->recv_source)
        listed(&half->recv_source->halves, half, false);
    if (half->stage == LP_STAGE_OPEN) {
        half->send_source->open--;
        half->recv_source->open--;
        atomic_fetch_sub(&lane->send_queue->open, 1);
        atomic_fetch_sub(&lane->recv_queue->open, 1);
    }
    lp_unlock(&lane->lock);
    unlock_polls(lane);
    if (half->qp)
        (void)LP_REAL(ibv_destroy_qp)(half->qp);
    if (half->mail_qp)
        (void)LP_REAL(ibv_destroy_qp)(half->mail_qp);
    if (half->place) {
        lp_half_leaves_place(half);
        lp_place_detach(half->place);
    }
    if (half->send_source)
        half->send_source->used -= send_need(lane);
    if (half->recv_source)
        half->recv_source->used -= recv_need(lane);
    if (half->keys_mr) {
        (void)LP_REAL(ibv_dereg_mr)(half->keys_mr);
        free(half->keys_block);
    }
    if (half->block_mr)
        (void)LP_REAL(ibv_dereg_mr)(half->block_mr);
    free(half->block);
    free(half);
}

void lp_half_tell_gone(struct lp_lane *lane, const struct lp_half *half) {
    struct lp_spare gone = half->mine;

    gone.qpn = 0;
    if (half->told)
        lp_channel_spare(lane, &gone);
}

static bool publish(struct lp_half *half) {
    struct lp_lane *lane = half->lane;

    lock_polls(lane);
    const bool sent =
        listed(&half->send_source->halves, half, true) && listed(&half->recv_source->halves, half, true);
    lp_lock(&lane->lock);
    lane->spares[half->id] = half;
    lp_unlock(&lane->lock);
    unlock_polls(lane);
    return sent;
}

static struct lp_half *make(struct lp_lane *lane, const struct lp_spare_want *want) {
    struct lp_nic *nic = lp_nic_of((const char *)want->device);
    struct lp_half *half = nic ? calloc(1, sizeof(*half)) : NULL;
    union ibv_gid gid;
    uint16_t flags = 0;
    uint8_t index;

    if (!half || !find_gid(lane, nic->context, want->port, &gid, &index)) {
        free(half);
        return NULL;
    }
    half->lane = lane;
    half->id = want->id;
    half->stage = LP_STAGE_MADE;
    half->reserve = lp_keys_reserve(lane->domain, nic);
    half->shared = lane->shared;
    if (half->reserve && lane->shared)
        half->place = lp_place_on(lane->shared, half->reserve);
    if (half->place)
        lp_place_attach(half->place);
    if (!half->reserve || (lane->shared && !half->place) || !get_sources(half) || !make_block(half) ||
        !make_qp(half, want->port) || !publish(half)) {
        lp_half_drop(half);
        return NULL;
    }
    (void)lp_keys_catch_up(half->reserve);
    half->nonce = random_bits();
    if (!lp_spare_psn_trusted(nic->context))
        flags |= LP_SPARE_PSN_UNTRUSTED;
    if (!(lane->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE))
        flags |= LP_SPARE_NO_WRITES;
    half->mine = (struct lp_spare){.mail_addr = (uintptr_t)half->block,
                                   .keys_addr = (uintptr_t)half->reserve->table,
                                   .mail_rkey = half->block_mr->rkey,
                                   .keys_rkey = half->reserve->table_mr->rkey,
                                   .qpn = half->qp_num,
                                   .mail_qpn = half->mail_qp ? half->mail_qp->qp_num : 0,
                                   .psn = random_bits() & LP_PSN_MASK,
                                   .mtu = (uint8_t)lp_spare_active_mtu(nic->context, want->port),
                                   .id = want->id,
                                   .flags = flags,
                                   .round = want->round};
    memcpy(half->mine.gid, gid.raw, sizeof(half->mine.gid));
    half->sgid_index = index;
    half->port = want->port;
    return half;
}

void lp_spare_want(struct lp_lane *lane, const struct lp_spare_want *want) {
    struct lp_half *half = lane->spares[want->id];

    if (!(lane->up || lane->passive) || lane->plain || lane->failing || lane->dead)
        return;
    if (half) {
        const bool same =
            half->mine.round == want->round && !strcmp(half->reserve->nic->name, (const char *)want->device);
        if (same && half->stage != LP_STAGE_BROKEN)
            lp_channel_spare(lane, &half->mine);
        if (same || (int32_t)(want->round - half->mine.round) < 0)
            return;
        lp_spare_drop(lane, want->id);
        if (lane->spares[want->id])
            return; /* in use */
    }
    half = make(lane, want);
    if (half) {
        half->told = true;
        lp_channel_spare(lane, &half->mine);
    } else {
        struct lp_spare none = {
            .id = want->id, .round = want->round, .mtu = IBV_MTU_256}; /* agents check it */
        lp_channel_spare(lane, &none);
    }
}

void lp_spare_drop(struct lp_lane *lane, uint32_t id) {
    struct lp_half *half = lane->spares[id];

    if (!half || (half == lane->now && !lane->dead && !lane->failed && !lp_mig_is_fenced(&lane->conn.mig)))
        return;
    lp_lock(&lane->lock);
    if (half->stage == LP_STAGE_USABLE)
        lp_engine_act(lane, lp_conn_spare_gone(&lane->conn, id));
    lp_unlock(&lane->lock);
    lp_half_drop(half);
}

void lp_spare_drop_all(struct lp_lane *lane, bool open_too) {
    for (uint32_t id = 0; id < LP_SPARES; id++)
        if (lane->spares[id] && (open_too || lane->spares[id] != lane->now))
            lp_half_drop(lane->spares[id]);
}
