#include "deliver.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "srq.h"

enum { LP_BATCH = 32, LP_ACK_LOOK_NS = 100000 };

struct lp_half lp_gone;

/* Where a completion may go without a stop in `ready`: the array of the poll under way. */
struct lp_direct {
    struct lp_queue *queue;
    struct ibv_wc *out;
    bool used;
};

static uint32_t waiting(struct lp_queue *queue) {
    return atomic_load_explicit(&queue->ready_count, memory_order_acquire);
}

static void grow(struct lp_queue *queue, uint32_t count) {
    const uint32_t room = queue->ready_room ? queue->ready_room * 2 : 64;
    struct ibv_wc *larger = malloc(room * sizeof(*larger));

    if (!larger) {
        fputs("linkpass: no memory for a completion; ending rather than losing it\n", stderr);
        abort();
    }
    for (uint32_t i = 0; i < count; i++)
        larger[i] = queue->ready[(queue->ready_head + i) % queue->ready_room];
    free(queue->ready);
    queue->ready = larger;
    queue->ready_head = 0;
    queue->ready_room = room;
}

void lp_deliver_push(struct lp_queue *queue, const struct ibv_wc *wc) {
    pthread_mutex_lock(&queue->ready_lock);
    const uint32_t count = atomic_load_explicit(&queue->ready_count, memory_order_relaxed);
    if (count == queue->ready_room)
        grow(queue, count);
    queue->ready[(queue->ready_head + count) % queue->ready_room] = *wc;
    atomic_store_explicit(&queue->ready_count, count + 1, memory_order_release);
    pthread_mutex_unlock(&queue->ready_lock);
}

static int pop(struct lp_queue *queue, int room, struct ibv_wc *out) {
    int taken = 0;

    pthread_mutex_lock(&queue->ready_lock);
    uint32_t count = atomic_load_explicit(&queue->ready_count, memory_order_relaxed);
    while (taken < room && count) {
        out[taken++] = queue->ready[queue->ready_head];
        queue->ready_head = (queue->ready_head + 1) % queue->ready_room;
        count--;
    }
    atomic_store_explicit(&queue->ready_count, count, memory_order_release);
    pthread_mutex_unlock(&queue->ready_lock);
    return taken;
}

void lp_deliver_forget(struct lp_queue *queue, uint32_t qp_num) {
    pthread_mutex_lock(&queue->ready_lock);
    const uint32_t count = atomic_load_explicit(&queue->ready_count, memory_order_relaxed);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct ibv_wc *wc = &queue->ready[(queue->ready_head + i) % queue->ready_room];
        if (wc->qp_num != qp_num)
            queue->ready[(queue->ready_head + kept++) % queue->ready_room] = *wc;
    }
    atomic_store_explicit(&queue->ready_count, kept, memory_order_release);
    pthread_mutex_unlock(&queue->ready_lock);
}

void lp_deliver_wake(struct lp_queue *queue) {
    if (queue->bell && atomic_exchange_explicit(&queue->armed, 0, memory_order_acq_rel))
        lp_bell_ring(queue);
}

static void give(struct lp_queue *queue, const struct ibv_wc *wc, struct lp_direct *direct) {
    if (direct && direct->queue == queue && !direct->used && !waiting(queue)) {
        *direct->out = *wc;
        direct->used = true;
        return;
    }
    lp_deliver_push(queue, wc);
    if (!direct || direct->queue != queue)
        lp_deliver_wake(queue);
}

static enum ibv_wc_opcode wc_opcode(uint8_t opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    case IBV_WR_LOCAL_INV:
        return IBV_WC_LOCAL_INV;
    case IBV_WR_BIND_MW:
        return IBV_WC_BIND_MW;
    default:
        return IBV_WC_SEND;
    }
}

static void owed(struct lp_lane *lane, struct lp_direct *direct, const struct ibv_wc *raw) {
    struct lp_done done;

    if (!lane->connected || lane->plain || (lane->conn.failing && !lane->failed))
        return;
    while (lp_conn_next(&lane->conn, &done)) {
        struct ibv_wc wc = {.byte_len = done.length};
        if (raw && !done.is_recv)
            wc = *raw; /* what the provider adds: vendor_err, flags */
        if (!raw || done.status || raw->opcode != wc_opcode(done.opcode))
            wc.byte_len = done.length;
        wc.wr_id = done.wr_id;
        wc.status = (enum ibv_wc_status)done.status;
        wc.opcode = done.is_recv ? IBV_WC_RECV : wc_opcode(done.opcode);
        wc.qp_num = lane->own.qp_num;
        give(done.is_recv ? lane->recv_queue : lane->send_queue, &wc, direct);
    }
}

void lp_deliver_owed(struct lp_lane *lane) {
    owed(lane, NULL, NULL);
}

/* A lane that isn't protected (yet, or any more): only names are changed. */
static void plain_send(struct lp_lane *lane, uint32_t token, const struct ibv_wc *raw,
                       struct lp_direct *direct) {
    struct lp_send_ring *ring = lane->conn.sends;
    struct lp_send_entry entry;
    struct ibv_wc wc = *raw;

    for (;;) {
        const uint32_t at = atomic_load_explicit(&ring->head, memory_order_relaxed);
        if ((int32_t)(token - at) < 0 || !lp_send_ring_discard(ring, &entry))
            return;
        if (at == token)
            break;
    }
    if (raw->status == IBV_WC_SUCCESS && !(entry.flags & LP_SEND_SIGNALED))
        return; /* an atomic that was told for our sake */
    wc.wr_id = entry.wr_id;
    give(lane->send_queue, &wc, direct);
}

static void plain_recv(struct lp_lane *lane, uint32_t token, const struct ibv_wc *raw,
                       struct lp_direct *direct) {
    struct lp_recv_ring *ring = lane->conn.recvs;
    struct lp_recv_entry entry;
    struct ibv_wc wc = *raw;

    if (atomic_load_explicit(&ring->head, memory_order_relaxed) != token ||
        !lp_recv_ring_discard(ring, &entry))
        return;
    wc.wr_id = entry.wr_id;
    give(lane->recv_queue, &wc, direct);
}

/* True: this completion ends a lane that has no spare, as it would end without this library. */
static bool turns_plain(struct lp_lane *lane, const struct lp_half *half, const struct ibv_wc *raw) {
    if (!lane->plain && (!lane->connected || (raw->status && !lane->covered && half == &lane->own)))
        lane->plain = lane->connected;
    return lane->plain || !lane->connected;
}

static uint32_t took_send(struct lp_half *half, uint32_t token, const struct ibv_wc *raw,
                          struct lp_direct *direct) {
    struct lp_lane *lane = half->lane;

    if (turns_plain(lane, half, raw)) {
        plain_send(lane, token, raw, direct);
        return 0;
    }
    uint32_t actions = lp_conn_send_cqe(&lane->conn, half->epoch, token, raw->status);
    owed(lane, direct, raw);
    return actions;
}

/* The same of a shared receive queue. An error of the job's own making is told as it came; any other receive
 * that brought the job nothing waits for another message. */
static uint32_t took_shared(struct lp_half *half, uint32_t token, const struct ibv_wc *raw,
                            struct lp_direct *direct) {
    struct lp_lane *lane = half->lane;
    struct ibv_wc wc = *raw;
    uint32_t actions = 0;
    bool deliver = turns_plain(lane, half, raw);
    uint64_t unused;

    if (!deliver) {
        const bool open = half->epoch == lane->conn.mig.epoch && !lp_mig_is_fenced(&lane->conn.mig);
        actions = lp_conn_recv_cqe(&lane->conn, half->epoch, token, raw->status, &deliver, &unused);
        if (open && raw->status && lp_status_class(raw->status) == LP_CLASS_APP)
            deliver = true;
        lane->conn.first_error_out = lane->conn.first_error_out || (deliver && raw->status);
    }
    if (!deliver)
        lp_shared_return(lane->shared, token);
    else if (lp_shared_done(lane->shared, token, &wc.wr_id)) {
        wc.qp_num = lane->own.qp_num;
        give(lane->recv_queue, &wc, direct);
    }
    return actions;
}

/* Of a queue pair that isn't recorded, or is gone: only the receives of a shared queue bear names of ours. */
static void took_stranger(struct lp_queue *queue, const struct lp_half *half, struct ibv_wc *wc,
                          struct lp_direct *direct) {
    struct lp_shared *shared = half->shared;
    const bool receive = wc->status ? wc->wr_id >> 32 == LP_KIND_RECV : (wc->opcode & IBV_WC_RECV) != 0;

    if (!shared || (receive && !lp_shared_done(shared, (uint32_t)wc->wr_id, &wc->wr_id)))
        return;
    if (half == &shared->stranger)
        give(queue, wc, direct);
}

static uint32_t took_recv(struct lp_half *half, uint32_t token, const struct ibv_wc *raw,
                          struct lp_direct *direct) {
    struct lp_lane *lane = half->lane;
    struct ibv_wc wc = *raw;
    bool deliver = false;

    if (lane->shared)
        return took_shared(half, token, raw, direct);
    half->recvs_out--;
    if (turns_plain(lane, half, raw)) {
        plain_recv(lane, token, raw, direct);
        return 0;
    }
    uint32_t actions = lp_conn_recv_cqe(&lane->conn, half->epoch, token, raw->status, &deliver, &wc.wr_id);
    if (deliver) {
        wc.qp_num = lane->own.qp_num;
        give(lane->recv_queue, &wc, direct);
    }
    return actions;
}

/* One of this library's own requests. */
static uint32_t took_own(struct lp_half *half, enum lp_kind kind, uint32_t token, const struct ibv_wc *raw) {
    struct lp_lane *lane = half->lane;

    if (kind == LP_KIND_DRAIN) {
        half->drained = true;
        lp_lane_dirty(lane);
        return 0;
    }
    if (kind == LP_KIND_MAIL_RECV)
        half->recvs_out--;
    if (kind != LP_KIND_MARKER)
        lp_lane_dirty(lane);
    if (raw->status) {
        if (half->stage != LP_STAGE_OPEN) {
            half->stage = LP_STAGE_BROKEN;
            return 0;
        }
        if (lane->plain || !lane->connected)
            return 0;
        if (!lane->conn.error && raw->status != IBV_WC_WR_FLUSH_ERR)
            lane->conn.error = raw->status;
        return lp_conn_fatal(&lane->conn, half->epoch);
    }
    if (kind == LP_KIND_KEYS)
        half->keys_fresh = true;
    if (kind == LP_KIND_MAIL_RECV)
        half->mails_in++;
    return kind == LP_KIND_MARKER ? lp_conn_marker_done(&lane->conn, half->epoch, token) : 0;
}

/* The usual case, renamed where it lies: the oldest request that tells, nothing owed before it and nobody who
 * waits for it.  poll_lock held. */
static bool take_quickly(struct lp_queue *queue, struct lp_half *half, struct ibv_wc *wc) {
    struct lp_lane *lane = half->lane;

    if (wc->status || wc->wr_id >> 32 != LP_KIND_SEND)
        return false;
    lp_lock(&lane->lock);
    const bool usual = !lane->dead && lane->connected && !lane->plain && lane->send_queue == queue &&
                       !lane->fencing && !lane->replaying && !lane->resuming && !lane->marking &&
                       !waiting(queue) &&
                       lp_conn_send_cqe_fast(&lane->conn, half->epoch, (uint32_t)wc->wr_id, &wc->wr_id);
    if (usual)
        wc->qp_num = lane->own.qp_num;
    lp_unlock(&lane->lock);
    return usual;
}

/* A completion of a real queue.  poll_lock held. */
static void take(struct lp_half *half, const struct ibv_wc *raw, struct lp_direct *direct) {
    const enum lp_kind kind = (enum lp_kind)(raw->wr_id >> 32);
    const uint32_t token = (uint32_t)raw->wr_id;
    struct lp_lane *lane = half->lane;
    uint32_t actions;

    lp_lock(&lane->lock);
    if (lane->dead) {
        lp_unlock(&lane->lock);
        return;
    }
    if (kind == LP_KIND_SEND)
        actions = took_send(half, token, raw, direct);
    else if (kind == LP_KIND_RECV)
        actions = took_recv(half, token, raw, direct);
    else
        actions = took_own(half, kind, token, raw);
    if (kind == LP_KIND_MARKER)
        owed(lane, direct, NULL);
    if (actions) {
        if (!lane->triggered_ns)
            lane->triggered_ns = lp_now_ns();
        atomic_fetch_or_explicit(&lane->todo, actions, memory_order_relaxed);
        lp_lane_dirty(lane);
    } else if (lane->fencing || lane->replaying || lane->resuming || lane->marking) {
        lp_lane_dirty(lane);
    }
    lp_unlock(&lane->lock);
}

/* Completions in wc[0 .. count), renamed in place; returns how many are the job's. */
static int take_all(struct lp_queue *queue, struct lp_map *halves, int count, struct ibv_wc *wc,
                    bool direct) {
    int kept = 0;

    for (int i = 0; i < count; i++) {
        struct lp_half *half = lp_map_get(halves, (uintptr_t)wc[i].qp_num + 1);
        if (direct && half && half->lane && take_quickly(queue, half, &wc[i])) {
            if (kept != i)
                wc[kept] = wc[i];
            kept++;
            continue;
        }
        struct ibv_wc raw = wc[i];
        struct lp_direct way = {.queue = queue, .out = &wc[kept]};
        if (half && half->lane)
            take(half, &raw, direct ? &way : NULL);
        else if (half)
            took_stranger(queue, half, &raw, direct ? &way : NULL);
        else if (halves == &queue->halves) /* a queue pair that isn't recorded */
            give(queue, &raw, direct ? &way : NULL);
        kept += way.used;
    }
    return kept;
}

static void look_at_page(void) {
    const struct lp_page *page = atomic_load_explicit(&lp_engine.page, memory_order_acquire);

    if (page && __atomic_load_n(&page->generation, __ATOMIC_RELAXED) !=
                    atomic_load_explicit(&lp_engine.page_seen, memory_order_relaxed))
        lp_engine_wake();
}

static int poll_sources(struct lp_queue *queue, int room, struct ibv_wc *wc) {
    const uint32_t count = atomic_load_explicit(&queue->source_count, memory_order_acquire);
    int done = 0;

    for (uint32_t i = 0; i < count && done < room; i++) {
        struct lp_source *source = queue->sources[i];
        int found = source->open ? ibv_poll_cq(source->cq, room - done, wc + done) : 0;
        if (found > 0)
            done += take_all(queue, &source->halves, found, wc + done, true);
    }
    return done;
}

/* A job that spins takes the lock again before a thread that it woke gets to run: on a busy processor for
 * ever. */
static bool yields(struct lp_queue *queue) {
    if (!atomic_load_explicit(&queue->wanted, memory_order_relaxed))
        return false;
    sched_yield();
    return atomic_load_explicit(&queue->wanted, memory_order_relaxed) != 0;
}

int lp_deliver_poll(struct lp_cq *cq, int count, struct ibv_wc *wc) {
    struct lp_queue *queue = lp_queue_of(cq);

    if (!queue || !atomic_load_explicit(&queue->lanes, memory_order_relaxed))
        return cq->real_poll(cq->real, count, wc);
    look_at_page();
    if (yields(queue))
        return 0;
    lp_lock(&queue->poll_lock);
    int done = waiting(queue) ? pop(queue, count, wc) : 0;
    int found = done < count ? cq->real_poll(cq->real, count - done, wc + done) : 0;
    if (found > 0)
        done += take_all(queue, &queue->halves, found, wc + done, true);
    if (done < count && atomic_load_explicit(&queue->open, memory_order_relaxed))
        done += poll_sources(queue, count - done, wc + done);
    if (done < count && waiting(queue))
        done += pop(queue, count - done, wc + done);
    lp_unlock(&queue->poll_lock);
    return done || found >= 0 ? done : found;
}

void lp_deliver_pump(struct lp_queue *queue) {
    struct ibv_wc wc[LP_BATCH];
    int found;

    atomic_fetch_add(&queue->wanted, 1);
    lp_lock(&queue->poll_lock);
    atomic_fetch_sub(&queue->wanted, 1);
    while ((found = queue->cq->real_poll(queue->cq->real, LP_BATCH, wc)) > 0)
        (void)take_all(queue, &queue->halves, found, wc, false);
    for (uint32_t i = 0; i < queue->source_count; i++)
        while ((found = ibv_poll_cq(queue->sources[i]->cq, LP_BATCH, wc)) > 0)
            (void)take_all(queue, &queue->sources[i]->halves, found, wc, false);
    lp_unlock(&queue->poll_lock);
}

int lp_deliver_notify(struct lp_cq *cq, int solicited_only) {
    struct lp_queue *queue = lp_queue_of(cq);
    int result;

    if (!queue || !atomic_load_explicit(&queue->lanes, memory_order_relaxed))
        return cq->context->ops.req_notify_cq(cq->real, solicited_only);
    if (!solicited_only || !atomic_load_explicit(&queue->armed, memory_order_relaxed))
        atomic_store_explicit(&queue->armed, solicited_only ? 2 : 1, memory_order_seq_cst);
    result = cq->context->ops.req_notify_cq(cq->real, solicited_only);
    if (atomic_load(&queue->open)) {
        lp_lock(&queue->poll_lock);
        for (uint32_t i = 0; i < queue->source_count; i++)
            if (queue->sources[i]->open)
                (void)ibv_req_notify_cq(queue->sources[i]->cq, solicited_only);
        lp_unlock(&queue->poll_lock);
        lp_deliver_pump(queue);
    }
    /* Many completions come here at once with one event, where a queue of a NIC fills bit by bit: a job that
     * takes some after each event (perftest takes 16) would sleep on the rest. */
    if (!solicited_only && waiting(queue))
        lp_deliver_wake(queue);
    return result;
}

void lp_deliver_cq_created(struct lp_cq *cq) {
    struct lp_queue *queue = calloc(1, sizeof(*queue));

    if (!queue)
        return;
    queue->cq = cq;
    queue->forks = atomic_load(&lp_engine.forks);
    pthread_mutex_init(&queue->ready_lock, NULL);
    pthread_mutex_init(&queue->ex_lock, NULL);
    if (cq->extended)
        lp_deliver_ex_init(queue);
    cq->extra = queue;
}

static void drop_sources(struct lp_queue *queue) {
    for (uint32_t i = 0; i < queue->source_count; i++) {
        (void)LP_REAL(ibv_destroy_cq)(queue->sources[i]->cq);
        lp_map_clear(&queue->sources[i]->halves);
        free(queue->sources[i]);
    }
    queue->source_count = 0;
}

/* With queue pairs left, the provider refuses and all stays. */
/* engine.lock held.  The provider refuses to destroy one that is. */
static bool is_used(const struct lp_queue *queue) {
    bool used = false;

    for (struct lp_lane *lane = lp_engine.lanes; lane; lane = lane->next)
        used = used || lane->send_queue == queue || lane->recv_queue == queue;
    return used;
}

void lp_deliver_cq_leaves(struct lp_cq *cq) {
    struct lp_queue *queue = lp_queue_of(cq);

    if (!queue)
        return;
    pthread_mutex_lock(&lp_engine.lock);
    const bool used = is_used(queue);
    pthread_mutex_unlock(&lp_engine.lock);
    if (used)
        return;
    lp_bell_forget(queue); /* no more events from here on */
    while (atomic_load(&queue->rung))
        (void)nanosleep(&(struct timespec){.tv_nsec = LP_ACK_LOOK_NS}, NULL);
}

void lp_deliver_cq_destroying(struct lp_cq *cq) {
    struct lp_queue *queue = lp_queue_of(cq);

    if (!queue)
        return;
    pthread_mutex_lock(&lp_engine.lock);
    if (!is_used(queue)) {
        cq->extra = NULL;
        lp_bell_forget(queue);
        drop_sources(queue);
        lp_map_clear(&queue->halves);
        free(queue->ready);
        free(queue);
    }
    pthread_mutex_unlock(&lp_engine.lock);
}
