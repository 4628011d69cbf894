/* The receiving half of a queue pair: executes requests in order of their PSNs and answers. */
#include "fake_internal.h"

static void answer(struct qp *qp, enum opcode opcode, uint32_t psn, enum nak_code nak) {
    struct packet *packet = packet_new(qp, opcode, psn, 0);

    packet->nak = nak;
    packet->rnr_timer = qp->attr.min_rnr_timer;
    if (opcode == OP_NAK)
        qp->nic->stats.naks++;
    if (opcode == OP_RNR)
        qp->nic->stats.rnr_naks++;
    packet_send(packet);
}

static void receive_done(struct qp *qp, const struct packet *packet, enum ibv_wc_status status) {
    struct ibv_wc wc = {.wr_id = qp->rwqe.wr_id,
                        .status = status,
                        .opcode = packet->opcode == OP_WRITE ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                        .byte_len = qp->message_received,
                        .qp_num = qp->ibv.qp_num,
                        .src_qp = packet->source_qpn};

    if (packet->has_imm) {
        wc.imm_data = packet->imm;
        wc.wc_flags = IBV_WC_WITH_IMM;
    } else if (packet->has_inv) {
        wc.invalidated_rkey = packet->imm;
        wc.wc_flags = IBV_WC_WITH_INV;
    }
    qp->has_rwqe = false;
    cq_add(CONTAINER(qp->ibv.recv_cq, struct cq, ibv), &wc, packet->solicited, NULL, 0);
}

/* A request that can't be executed: NAK, the receive that it used fails, queue pair to ERR. */
static void refuse(struct qp *qp, const struct packet *packet, enum nak_code nak, enum ibv_wc_status status) {
    answer(qp, OP_NAK, packet->psn, nak);
    if (qp->has_rwqe && status != IBV_WC_SUCCESS)
        receive_done(qp, packet, status);
    fake_async(qp->nic, qp->ibv.context, nak == NAK_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR,
               qp);
    qp_error(qp);
}

static bool take_receive(struct qp *qp, const struct packet *packet) {
    if (qp->has_rwqe || rq_take(qp, &qp->rwqe)) {
        qp->has_rwqe = true;
        return true;
    }
    qp->nak_sent = true;
    answer(qp, OP_RNR, packet->psn, NAK_SEQUENCE);
    return false;
}

static void executed(struct qp *qp, const struct packet *packet) {
    qp->expected_psn = psn_add(qp->expected_psn, 1);
    qp->in_message = !packet->last;
    if (packet->ack_request)
        answer(qp, OP_ACK, packet->psn, NAK_SEQUENCE);
}

static void execute_send(struct qp *qp, const struct packet *packet) {
    if (packet->first) {
        if (!take_receive(qp, packet))
            return;
        qp->message_received = 0;
    }
    if (qp->message_received + (uint64_t)packet->length > sges_length(qp->rwqe.sges, qp->rwqe.sge_count)) {
        refuse(qp, packet, NAK_INVALID, IBV_WC_LOC_LEN_ERR);
        return;
    }
    if (packet->length && !sges_copy(qp, qp->rwqe.sges, qp->rwqe.sge_count, qp->message_received,
                                     (void *)packet->payload, packet->length, true)) {
        refuse(qp, packet, NAK_OPERATION, IBV_WC_LOC_PROT_ERR);
        return;
    }
    qp->message_received += packet->length;
    if (packet->last)
        receive_done(qp, packet, IBV_WC_SUCCESS);
    executed(qp, packet);
}

static void execute_write(struct qp *qp, const struct packet *packet) {
    if (packet->first) {
        qp->write_at = packet->remote_addr;
        qp->write_left = packet->message_length;
        qp->write_rkey = packet->rkey;
        qp->message_received = 0;
    }
    if (packet->length > qp->write_left || (packet->last && packet->length != qp->write_left)) {
        refuse(qp, packet, NAK_INVALID, IBV_WC_SUCCESS);
        return;
    }
    /* All that is left of the message is checked: a write out of bounds changes nothing. Length 0: no check.
     */
    uint8_t *memory = NULL;
    if (qp->write_left) {
        memory = mr_translate(qp->nic, qp->ibv.pd, qp->write_rkey, true, qp->write_at, qp->write_left,
                              IBV_ACCESS_REMOTE_WRITE);
        if (!memory) {
            refuse(qp, packet, NAK_ACCESS, IBV_WC_SUCCESS);
            return;
        }
    }
    if (packet->has_imm && !take_receive(qp, packet))
        return;
    if (packet->length)
        memcpy(memory, packet->payload, packet->length);
    qp->write_at += packet->length;
    qp->write_left -= packet->length;
    qp->message_received += packet->length;
    if (packet->has_imm)
        receive_done(qp, packet, IBV_WC_SUCCESS);
    executed(qp, packet);
}

/* Returns false when memory can't be read. */
static bool send_read_response(struct qp *qp, const struct packet *packet) {
    const uint32_t mtu = mtu_bytes(qp->attr.path_mtu);
    const uint32_t total = packet->message_length;
    const uint8_t *memory = NULL;

    if (total) {
        memory = mr_translate(qp->nic, qp->ibv.pd, packet->rkey, true, packet->remote_addr, total,
                              IBV_ACCESS_REMOTE_READ);
        if (!memory)
            return false;
    }
    uint32_t offset = 0, index = 0;
    do {
        const uint32_t length = total - offset < mtu ? total - offset : mtu;
        struct packet *response = packet_new(qp, OP_READ_RESPONSE, psn_add(packet->psn, index), length);
        if (length)
            memcpy(response->payload, memory + offset, length);
        response->first = index++ == 0;
        offset += length;
        response->last = offset == total;
        packet_send(response);
    } while (offset < total);
    return true;
}

static void execute_read(struct qp *qp, const struct packet *packet) {
    const uint32_t mtu = mtu_bytes(qp->attr.path_mtu);
    const uint32_t packets = packet->message_length > mtu ? (packet->message_length + mtu - 1) / mtu : 1;

    if (!send_read_response(qp, packet)) {
        refuse(qp, packet, NAK_ACCESS, IBV_WC_SUCCESS);
        return;
    }
    qp->expected_psn = psn_add(qp->expected_psn, packets);
}

static void send_atomic_response(struct qp *qp, uint32_t psn, uint64_t original) {
    struct packet *response = packet_new(qp, OP_ATOMIC_RESPONSE, psn, sizeof(original));

    memcpy(response->payload, &original, sizeof(original));
    response->first = response->last = true;
    packet_send(response);
}

static void execute_atomic(struct qp *qp, const struct packet *packet) {
    uint64_t *memory = mr_translate(qp->nic, qp->ibv.pd, packet->rkey, true, packet->remote_addr, 8,
                                    IBV_ACCESS_REMOTE_ATOMIC);
    const uint32_t slot = qp->next_atomic++ % SAVED_ATOMICS;

    if (packet->remote_addr % 8) {
        refuse(qp, packet, NAK_INVALID, IBV_WC_SUCCESS);
        return;
    }
    if (!memory) {
        refuse(qp, packet, NAK_ACCESS, IBV_WC_SUCCESS);
        return;
    }
    const uint64_t original = *memory;
    if (packet->opcode == OP_FETCH_ADD)
        *memory = original + packet->compare_add;
    else if (original == packet->compare_add)
        *memory = packet->swap;
    qp->atomics[slot].psn = packet->psn;
    qp->atomics[slot].original = original;
    qp->atomics[slot].used = true;
    qp->expected_psn = psn_add(qp->expected_psn, 1);
    send_atomic_response(qp, packet->psn, original);
}

/* Seen before: answer again, execute nothing again (a READ reads again, which changes nothing). */
static void duplicate(struct qp *qp, const struct packet *packet) {
    qp->nic->stats.duplicates++;
    switch (packet->opcode) {
    case OP_READ:
        (void)send_read_response(qp, packet);
        break;
    case OP_CMP_SWP:
    case OP_FETCH_ADD:
        for (int i = 0; i < SAVED_ATOMICS; i++)
            if (qp->atomics[i].used && qp->atomics[i].psn == packet->psn)
                send_atomic_response(qp, packet->psn, qp->atomics[i].original);
        break;
    default:
        answer(qp, OP_ACK, psn_add(qp->expected_psn, PSN_MASK), NAK_SEQUENCE);
    }
}

/* First, middle and last packets must follow each other, and the queue pair must allow the operation. */
static bool valid(const struct qp *qp, const struct packet *packet) {
    const int access = qp->attr.qp_access_flags;

    if (packet->first == qp->in_message || (qp->in_message && packet->opcode != qp->message_opcode))
        return false;
    if (!packet->last && packet->length != mtu_bytes(qp->attr.path_mtu) &&
        (packet->opcode == OP_SEND || packet->opcode == OP_WRITE))
        return false;
    switch (packet->opcode) {
    case OP_WRITE:
        return access & IBV_ACCESS_REMOTE_WRITE;
    case OP_READ:
        return access & IBV_ACCESS_REMOTE_READ;
    case OP_CMP_SWP:
    case OP_FETCH_ADD:
        return access & IBV_ACCESS_REMOTE_ATOMIC;
    default:
        return true;
    }
}

void responder_receive(struct qp *qp, const struct packet *packet) {
    if (qp->state != IBV_QPS_RTR && qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD)
        return;
    const int32_t ahead = psn_diff(packet->psn, qp->expected_psn);
    if (ahead < 0) {
        duplicate(qp, packet);
        return;
    }
    if (ahead > 0) {
        if (!qp->nak_sent)
            answer(qp, OP_NAK, qp->expected_psn, NAK_SEQUENCE);
        qp->nak_sent = true;
        return;
    }
    qp->nak_sent = false;
    /* A READ request sent again from its middle is the first packet of what is left. */
    if (!valid(qp, packet) && !(packet->opcode == OP_READ && !qp->in_message &&
                                (qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_READ))) {
        refuse(qp, packet, NAK_INVALID, IBV_WC_LOC_QP_OP_ERR);
        return;
    }
    qp->message_opcode = packet->opcode;
    if (packet->opcode == OP_SEND)
        execute_send(qp, packet);
    else if (packet->opcode == OP_WRITE)
        execute_write(qp, packet);
    else if (packet->opcode == OP_READ)
        execute_read(qp, packet);
    else
        execute_atomic(qp, packet);
}
