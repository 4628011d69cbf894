/* The sending half of a queue pair: packets out, acknowledgements and responses in, retries, errors,
 * flushing. */
#include "fake_internal.h"

static bool is_response(enum opcode opcode) {
    return opcode == OP_READ || opcode == OP_CMP_SWP || opcode == OP_FETCH_ADD;
}

static struct wqe *wqe_at(struct qp *qp, uint32_t i) {
    return &qp->sq[(qp->sq_head + i) % qp->sq_capacity];
}

static uint32_t wqe_end(const struct wqe *wqe) {
    return psn_add(wqe->first_psn, wqe->packets);
}

static void restart_timer(struct qp *qp) {
    const bool waiting = qp->acked_psn != qp->max_psn;

    /* 4.096 us * 2^timeout; 0 waits without end. */
    timer_set(qp, waiting && qp->attr.timeout ? fake.now + (UINT64_C(4096) << qp->attr.timeout) : 0);
}

/* ---- completions
 * -------------------------------------------------------------------------------------------- */

static void complete(struct qp *qp, const struct wqe *wqe, enum ibv_wc_status status) {
    struct ibv_wc wc = {.wr_id = wqe->wr_id,
                        .status = status,
                        .opcode = wqe->wc_opcode,
                        .byte_len = wqe->length,
                        .qp_num = qp->ibv.qp_num};
    const bool by_poll = fake.config.free_on_poll;

    if (!wqe->signaled && status == IBV_WC_SUCCESS) {
        qp->sq_uncounted += by_poll;
        return;
    }
    const uint32_t slots = by_poll ? 1 + qp->sq_uncounted : 0;
    qp->sq_uncounted = 0;
    qp->sq_unfreed += slots;
    cq_add(CONTAINER(qp->ibv.send_cq, struct cq, ibv), &wc, false, by_poll ? qp : NULL, slots);
}

static void retire_head(struct qp *qp, enum ibv_wc_status status) {
    const struct wqe wqe = *wqe_at(qp, 0);

    qp->sq_head = (qp->sq_head + 1) % qp->sq_capacity;
    qp->sq_count--;
    qp->sq_sent -= qp->sq_sent != 0;
    complete(qp, &wqe, status);
}

void requester_fail(struct qp *qp, enum ibv_wc_status status) {
    if (qp->sq_count)
        retire_head(qp, status);
    qp_error(qp);
}

/* Completes what is done, oldest first. */
static void retire(struct qp *qp) {
    while (qp->sq_count) {
        const struct wqe *wqe = wqe_at(qp, 0);
        if (wqe->fault) {
            requester_fail(qp, wqe->fault);
            return;
        }
        if (!wqe->started || psn_diff(qp->acked_psn, wqe_end(wqe)) < 0)
            break;
        retire_head(qp, IBV_WC_SUCCESS);
    }
    if (qp->sq_drained_due && !(qp->sq_count && wqe_at(qp, 0)->started)) {
        qp->sq_drained_due = false;
        fake_async(qp->nic, qp->ibv.context, IBV_EVENT_SQ_DRAINED, qp);
    }
}

bool qp_flush_one(struct qp *qp) {
    struct ibv_wc wc = {.status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV, .qp_num = qp->ibv.qp_num};
    struct rwqe rwqe;

    if (qp->state != IBV_QPS_ERR)
        return false;
    if (qp->sq_count) {
        qp->unseen = false;
        retire_head(qp, IBV_WC_WR_FLUSH_ERR);
        return true;
    }
    if (qp->unseen)
        return false;
    if (qp->has_rwqe) {
        rwqe = qp->rwqe;
        qp->has_rwqe = false;
    } else if (qp->ibv.srq || !rq_take(qp, &rwqe)) {
        return false; /* receives of a shared queue stay there */
    }
    wc.wr_id = rwqe.wr_id;
    cq_add(CONTAINER(qp->ibv.recv_cq, struct cq, ibv), &wc, false, NULL, 0);
    return true;
}

/* ---- sending
 * ------------------------------------------------------------------------------------------------ */

static uint32_t packets_of(const struct qp *qp, const struct wqe *wqe) {
    const uint32_t mtu = mtu_bytes(qp->attr.path_mtu);

    if (wqe->local)
        return 0;
    return wqe->length > mtu ? (wqe->length + mtu - 1) / mtu : 1;
}

/* May this request start, given those before it? */
static bool may_start(struct qp *qp, uint32_t index) {
    const struct wqe *wqe = wqe_at(qp, index);
    uint32_t responses = 0;

    if (qp->state == IBV_QPS_SQD)
        return false;
    if (!wqe->fence && !is_response(wqe->opcode))
        return true;
    for (uint32_t i = 0; i < index; i++)
        responses += is_response(wqe_at(qp, i)->opcode);
    if (wqe->fence && responses)
        return false;
    return !is_response(wqe->opcode) || responses < (qp->attr.max_rd_atomic ? qp->attr.max_rd_atomic : 1);
}

/* The request that the next PSN belongs to, started if it is new; NULL: nothing to send now. */
static struct wqe *next_to_send(struct qp *qp) {
    for (uint32_t i = qp->sq_sent; i < qp->sq_count; i++) {
        struct wqe *wqe = wqe_at(qp, i);
        if (wqe->fault)
            return NULL;
        if (wqe->started && psn_diff(qp->send_psn, wqe_end(wqe)) >= 0) {
            qp->sq_sent = i + 1;
            continue;
        }
        if (wqe->started)
            return wqe;
        if (!may_start(qp, i))
            return NULL;
        wqe->started = true;
        wqe->first_psn = qp->send_psn;
        wqe->packets = packets_of(qp, wqe);
        return wqe;
    }
    return NULL;
}

static bool fill_payload(struct qp *qp, const struct wqe *wqe, uint32_t offset, struct packet *packet) {
    if (wqe->inlined) {
        memcpy(packet->payload, wqe->inline_data + offset, packet->length);
        return true;
    }
    return sges_copy(qp, wqe->sges, wqe->sge_count, offset, packet->payload, packet->length, false);
}

static struct packet *make_request(struct qp *qp, struct wqe *wqe, uint32_t index) {
    const uint32_t mtu = mtu_bytes(qp->attr.path_mtu);
    const uint32_t offset = index * mtu;
    uint32_t length = 0;

    if (wqe->opcode == OP_SEND || wqe->opcode == OP_WRITE)
        length = wqe->length - offset < mtu ? wqe->length - offset : mtu;
    struct packet *packet = packet_new(qp, wqe->opcode, qp->send_psn, length);
    packet->first = index == 0;
    packet->last = is_response(wqe->opcode) || index + 1 == wqe->packets;
    packet->has_imm = wqe->has_imm && packet->last;
    packet->has_inv = wqe->has_inv && packet->last;
    packet->imm = wqe->imm;
    packet->solicited = wqe->solicited && packet->last;
    packet->ack_request = packet->last || index % 32 == 31;
    packet->rkey = wqe->rkey;
    packet->remote_addr = wqe->remote_addr + offset;
    packet->message_length = wqe->length - offset;
    packet->compare_add = wqe->compare_add;
    packet->swap = wqe->swap;
    if (length && !fill_payload(qp, wqe, offset, packet)) {
        packet_free(packet);
        return NULL;
    }
    return packet;
}

bool requester_transmit(struct qp *qp) {
    if ((qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD) || qp->rnr_waiting)
        return false;
    if (psn_diff(qp->send_psn, qp->acked_psn) >= (int32_t)fake.config.window)
        return false;
    struct wqe *wqe = next_to_send(qp);
    if (!wqe)
        return false;
    if (wqe->local) {
        retire(qp);
        return true;
    }
    const uint32_t index = (uint32_t)psn_diff(qp->send_psn, wqe->first_psn);
    struct packet *packet = make_request(qp, wqe, index);
    if (!packet) {
        wqe->fault = IBV_WC_LOC_PROT_ERR;
        retire(qp);
        return true;
    }
    packet->retransmitted = psn_diff(qp->send_psn, qp->max_psn) < 0;
    if (wqe->opcode == OP_READ)
        wqe->received = index;
    qp->send_psn = wqe->opcode == OP_READ ? wqe_end(wqe) : psn_add(qp->send_psn, 1);
    if (psn_diff(qp->send_psn, qp->max_psn) > 0)
        qp->max_psn = qp->send_psn;
    if (!qp->timer)
        restart_timer(qp);
    packet_send(packet);
    return true;
}

/* ---- receiving
 * ---------------------------------------------------------------------------------------------- */

/* Everything before `psn` is acknowledged; false if a response that should have come first is missing. */
static bool advance(struct qp *qp, uint32_t psn) {
    bool whole = true;
    uint32_t to = psn;

    for (uint32_t i = 0; i < qp->sq_count; i++) {
        const struct wqe *wqe = wqe_at(qp, i);
        if (!wqe->started || psn_diff(wqe->first_psn, psn) >= 0)
            break;
        const uint32_t have = psn_add(wqe->first_psn, wqe->received);
        if (is_response(wqe->opcode) && wqe->received < wqe->packets && psn_diff(have, psn) < 0) {
            to = have;
            whole = false;
            break;
        }
    }
    if (psn_diff(to, qp->acked_psn) > 0) {
        qp->acked_psn = to;
        qp->retries = qp->attr.retry_cnt;
        qp->rnr_retries = qp->attr.rnr_retry;
        if (psn_diff(qp->send_psn, to) < 0)
            qp->send_psn = to;
        restart_timer(qp);
        retire(qp);
    }
    return whole;
}

/* What comes next is the oldest packet that isn't acknowledged. */
static void send_again(struct qp *qp) {
    qp->send_psn = qp->acked_psn;
    qp->sq_sent = 0;
}

/* Send again from there; the last retry used up ends the queue pair. */
static void go_back(struct qp *qp) {
    const bool for_ever = qp->attr.retry_cnt == 7 && fake.config.retry_7_forever;

    if (!for_ever && !qp->retries) {
        requester_fail(qp, IBV_WC_RETRY_EXC_ERR);
        return;
    }
    if (!for_ever)
        qp->retries--;
    send_again(qp);
    restart_timer(qp);
}

void requester_timeout(struct qp *qp) {
    timer_set(qp, 0);
    mark_set(MAY_SEND, qp);
    if (qp->rnr_waiting) {
        qp->rnr_waiting = false;
        send_again(qp);
    } else if (qp->acked_psn != qp->max_psn) {
        go_back(qp);
    }
}

static struct wqe *wqe_of_psn(struct qp *qp, uint32_t psn) {
    for (uint32_t i = 0; i < qp->sq_count; i++) {
        struct wqe *wqe = wqe_at(qp, i);
        if (wqe->started && psn_diff(psn, wqe->first_psn) >= 0 && psn_diff(psn, wqe_end(wqe)) < 0)
            return wqe;
    }
    return NULL;
}

static void take_response(struct qp *qp, const struct packet *packet) {
    struct wqe *wqe = wqe_of_psn(qp, packet->psn);

    if (!wqe || !is_response(wqe->opcode))
        return;
    const int32_t index = psn_diff(packet->psn, wqe->first_psn);
    if ((uint32_t)index < wqe->received)
        return;
    if (!advance(qp, packet->psn)) { /* one before it was lost */
        go_back(qp);
        return;
    }
    wqe = wqe_of_psn(qp, packet->psn);
    if (!wqe) /* completing what came before failed */
        return;
    const uint64_t offset = (uint64_t)index * mtu_bytes(qp->attr.path_mtu);
    if (!sges_copy(qp, wqe->sges, wqe->sge_count, offset, (void *)packet->payload, packet->length, true)) {
        wqe->fault = IBV_WC_LOC_PROT_ERR;
        qp->sq_sent = 0; /* nothing after it is sent any more */
        retire(qp);
        return;
    }
    wqe->received = (uint32_t)index + 1;
    (void)advance(qp, psn_add(packet->psn, 1));
}

/* InfiniBand specification, table "Encoding for RNR NAK timer field", in units of 10 us. */
static const uint32_t rnr_10us[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                                      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                                      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

static void take_rnr(struct qp *qp, const struct packet *packet) {
    (void)advance(qp, packet->psn);
    if (qp->state == IBV_QPS_ERR)
        return;
    if (!qp->rnr_retries) {
        requester_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
        return;
    }
    if (qp->attr.rnr_retry != 7)
        qp->rnr_retries--;
    send_again(qp);
    qp->rnr_waiting = true;
    timer_set(qp, fake.now + (uint64_t)rnr_10us[packet->rnr_timer & 31] * 10000);
}

static void take_nak(struct qp *qp, const struct packet *packet) {
    static const enum ibv_wc_status statuses[] = {[NAK_INVALID] = IBV_WC_REM_INV_REQ_ERR,
                                                  [NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR,
                                                  [NAK_OPERATION] = IBV_WC_REM_OP_ERR};

    if (!advance(qp, packet->psn) || packet->nak == NAK_SEQUENCE) {
        if (qp->state != IBV_QPS_ERR)
            go_back(qp);
        return;
    }
    if (qp->state != IBV_QPS_ERR)
        requester_fail(qp, statuses[packet->nak]);
}

void requester_receive(struct qp *qp, const struct packet *packet) {
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD)
        return;
    /* Late and impossible ones: outside what is waited for. */
    if (psn_diff(packet->psn, qp->acked_psn) < 0 || psn_diff(packet->psn, qp->max_psn) >= 0)
        return;
    mark_set(MAY_SEND, qp);
    switch (packet->opcode) {
    case OP_READ_RESPONSE:
    case OP_ATOMIC_RESPONSE:
        take_response(qp, packet);
        break;
    case OP_RNR:
        take_rnr(qp, packet);
        break;
    case OP_NAK:
        take_nak(qp, packet);
        break;
    default:
        if (!advance(qp, psn_add(packet->psn, 1)))
            go_back(qp);
    }
}
