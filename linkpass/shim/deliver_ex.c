/*
 * Extended completion queues: the job walks over completions and reads fields through functions in the
 * object. Ours answer from an ibv_wc taken the plain way, so a completion may come from any NIC or from this
 * library.
 */
#include "deliver.h"

#include <errno.h>

static const struct ibv_wc *current(struct ibv_cq_ex *real) {
    static const struct ibv_wc none;
    struct lp_cq *cq = lp_cq_of(ibv_cq_ex_to_cq(real));
    struct lp_queue *queue = cq ? lp_queue_of(cq) : NULL;

    return queue ? &queue->current : &none;
}

#define READER(type, name, field)                                                                            \
    static type read_##name(struct ibv_cq_ex *real) {                                                        \
        return current(real)->field;                                                                         \
    }
READER(enum ibv_wc_opcode, opcode, opcode)
READER(uint32_t, vendor_err, vendor_err)
READER(uint32_t, byte_len, byte_len)
READER(__be32, imm_data, imm_data)
READER(uint32_t, qp_num, qp_num)
READER(uint32_t, src_qp, src_qp)
READER(unsigned int, wc_flags, wc_flags)
READER(uint32_t, slid, slid)
READER(uint8_t, sl, sl)
READER(uint8_t, dlid_path_bits, dlid_path_bits)

#define TAKE_OVER(name)                                                                                      \
    do {                                                                                                     \
        if (real->read_##name)                                                                               \
            real->read_##name = read_##name;                                                                 \
    } while (0)

void lp_deliver_ex_init(struct lp_queue *queue) {
    struct ibv_cq_ex *real = (struct ibv_cq_ex *)queue->cq->real;

    queue->timed = real->read_completion_ts || real->read_completion_wallclock_ns || real->read_flow_tag ||
                   real->read_tm_info || real->read_cvlan;
    if (queue->timed)
        return;
    TAKE_OVER(opcode);
    TAKE_OVER(vendor_err);
    TAKE_OVER(byte_len);
    TAKE_OVER(imm_data);
    TAKE_OVER(qp_num);
    TAKE_OVER(src_qp);
    TAKE_OVER(wc_flags);
    TAKE_OVER(slid);
    TAKE_OVER(sl);
    TAKE_OVER(dlid_path_bits);
}

static bool is_ours(const struct lp_queue *queue) {
    return queue && !queue->timed;
}

int lp_deliver_next_poll(struct lp_cq *cq) {
    struct lp_queue *queue = lp_queue_of(cq);
    struct ibv_cq_ex *real = (struct ibv_cq_ex *)cq->real;

    if (!is_ours(queue))
        return cq->next_poll(real);
    int found = lp_deliver_poll(cq, 1, &queue->current);
    if (found != 1)
        return found < 0 ? -found : ENOENT;
    real->wr_id = queue->current.wr_id;
    real->status = queue->current.status;
    return 0;
}

/* Holds the lock until end_poll, unless there is nothing. */
int lp_deliver_start_poll(struct lp_cq *cq, struct ibv_poll_cq_attr *attr) {
    struct lp_queue *queue = lp_queue_of(cq);

    if (!is_ours(queue))
        return cq->start_poll((struct ibv_cq_ex *)cq->real, attr);
    if (attr->comp_mask)
        return EINVAL;
    pthread_mutex_lock(&queue->ex_lock);
    int result = lp_deliver_next_poll(cq);
    if (result)
        pthread_mutex_unlock(&queue->ex_lock);
    return result;
}

void lp_deliver_end_poll(struct lp_cq *cq) {
    struct lp_queue *queue = lp_queue_of(cq);

    if (is_ours(queue))
        pthread_mutex_unlock(&queue->ex_lock);
    else
        cq->end_poll((struct ibv_cq_ex *)cq->real);
}
