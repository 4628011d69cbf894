/* What a NIC does: RC in order, once per packet, RNR without a receive, everything flushed in ERR. */
#include <string.h>

#include "world.h"

static const struct wqe *wqe_of(const struct qp *qp, unsigned packet) {
    for (unsigned i = 0; i < qp->sq_count; i++) {
        if (packet >= qp->sq[i].first && packet < qp->sq[i].end) {
            return &qp->sq[i];
        }
    }
    return NULL;
}

/* A fenced request isn't sent before every earlier READ and atomic has its response. */
static bool may_be_sent(const struct qp *qp, const struct wqe *wqe) {
    for (const struct wqe *before = qp->sq; before < wqe && wqe->fence; before++) {
        if ((before->op == LP_OP_READ || before->op == LP_OP_ATOMIC) && qp->acked < before->end) {
            return false;
        }
    }
    return true;
}

/* Not the job's: 0 for a job's request. */
static uint8_t own_op(const struct wqe *wqe) {
    return wqe->op >= MARK_OP ? wqe->op : 0;
}

bool nic_can_deliver(const struct world *world, unsigned path, unsigned from, bool *starved) {
    const struct qp *sender = &world->qps[path][from];
    const struct qp *target = &world->qps[path][!from];
    const struct wqe *wqe = wqe_of(sender, target->expected);
    *starved = false;
    if (target->error || wqe == NULL || !may_be_sent(sender, wqe)) {
        return false;
    }
    bool first = target->expected == wqe->first;
    bool last = target->expected + 1 == wqe->end;
    if ((wqe->op == LP_OP_SEND && first) || (wqe->op == LP_OP_WRITE_IMM && last)) {
        *starved = target->rq_used == target->rq_count;
    }
    return !*starved;
}

static void push_cqe(struct qp *qp, struct cqe cqe) {
    if (qp->cq_count == CQES) {
        __builtin_trap(); /* the model's own bound; nothing to do with the code under test */
    }
    qp->cq[(qp->cq_head + qp->cq_count++) % CQES] = cqe;
}

bool nic_take_cqe(struct qp *qp, struct cqe *cqe) {
    if (qp->cq_count == 0) {
        return false;
    }
    *cqe = qp->cq[qp->cq_head];
    memset(&qp->cq[qp->cq_head], 0, sizeof(*cqe));
    qp->cq_head = (uint8_t)((qp->cq_head + 1) % CQES);
    qp->cq_count--;
    return true;
}

void nic_deliver(struct world *world, unsigned path, unsigned from) {
    struct qp *sender = &world->qps[path][from];
    struct qp *target = &world->qps[path][!from];
    const struct wqe *wqe = wqe_of(sender, target->expected);
    if (wqe->op == MAIL_OP) {
        target->expected++;
        target->mail_unread = 1;
        sender->acked = wqe->end; /* nobody waits for a mail's acknowledgement: spare the orders of it */
        return;
    }
    if (wqe->op == MARK_OP) {
        target->expected++;
        return;
    }
    oracle_packet(world, from, wqe, target->expected - wqe->first);
    target->expected = wqe->op == LP_OP_READ ? wqe->end : (uint8_t)(target->expected + 1);
    if (target->expected != wqe->end) {
        return;
    }
    oracle_executed(world, from, wqe->req);
    if (wqe->op == LP_OP_ATOMIC && sender->error) {
        world->excuse |= EXCUSE_ATOMIC; /* a late packet: nobody is there to take the result */
    }
    if (wqe->op == LP_OP_SEND || wqe->op == LP_OP_WRITE_IMM) {
        uint32_t token = target->rq[target->rq_used++];
        push_cqe(target, (struct cqe){.token = token, .is_recv = 1, .message = wqe->req});
    }
}

/* The acknowledgement or response of the next request comes back; it may have been on its way for long. */
bool nic_can_ack(const struct world *world, unsigned path, unsigned end) {
    const struct qp *qp = &world->qps[path][end];
    const struct wqe *wqe = wqe_of(qp, qp->acked);
    return !qp->error && wqe != NULL && world->qps[path][!end].expected >= wqe->end;
}

void nic_ack(struct world *world, unsigned path, unsigned end) {
    struct qp *qp = &world->qps[path][end];
    const struct wqe *wqe = wqe_of(qp, qp->acked);
    qp->acked = wqe->end;
    if (wqe->op < MARK_OP) {
        world->ends[end].job.answered[wqe->req] = 1;
    }
    if (wqe->signaled) {
        push_cqe(qp, (struct cqe){.token = wqe->token, .is_mail = own_op(wqe)});
    }
}

bool nic_has_open_sends(const struct qp *qp) {
    return qp->sq_count != 0 && qp->acked < qp->sq[qp->sq_count - 1].end;
}

void nic_post(struct world *world, unsigned path, unsigned end, const struct wqe *wqe, unsigned packets) {
    struct qp *qp = &world->qps[path][end];
    struct wqe *slot = &qp->sq[qp->sq_count];
    if (qp->error) {
        push_cqe(qp, (struct cqe){.token = wqe->token, .status = LP_WC_FLUSH, .is_mail = own_op(wqe)});
        return;
    }
    if (qp->sq_count == REQS + 3) {
        __builtin_trap();
    }
    *slot = *wqe;
    slot->first = qp->sq_count == 0 ? 0 : qp->sq[qp->sq_count - 1].end;
    slot->end = (uint8_t)(slot->first + packets);
    qp->sq_count++;
}

void nic_post_recv(struct world *world, unsigned path, unsigned end, uint32_t token) {
    struct qp *qp = &world->qps[path][end];
    if (qp->error) {
        push_cqe(qp, (struct cqe){.token = token, .status = LP_WC_FLUSH, .is_recv = 1});
        return;
    }
    if (qp->rq_count == REQS) {
        __builtin_trap();
    }
    qp->rq[qp->rq_count++] = token;
}

/* Into ERR: the oldest open request shows `status`, the others are flushed, and so are unused receives. */
void nic_to_error(struct world *world, unsigned path, unsigned end, uint32_t status) {
    struct qp *qp = &world->qps[path][end];
    if (qp->error) {
        return;
    }
    qp->error = 1;
    for (unsigned i = 0; i < qp->sq_count; i++) {
        const struct wqe *wqe = &qp->sq[i];
        if (wqe->op == LP_OP_ATOMIC && world->ends[end].job.executed[wqe->req] &&
            (wqe->end > qp->acked || !wqe->signaled)) {
            world->excuse |= EXCUSE_ATOMIC; /* an unsignaled one's result may be here, but nothing says so */
        }
        if (wqe->end <= qp->acked) {
            continue;
        }
        push_cqe(qp, (struct cqe){.token = wqe->token, .status = (uint8_t)status, .is_mail = own_op(wqe)});
        status = LP_WC_FLUSH;
    }
    for (unsigned i = qp->rq_used; i < qp->rq_count; i++) {
        push_cqe(qp, (struct cqe){.token = qp->rq[i], .status = LP_WC_FLUSH, .is_recv = 1});
    }
}
