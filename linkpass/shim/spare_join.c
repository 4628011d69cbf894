/* Spares joined to the peer's, proven by mails, opened by them. */
#include <string.h>

#include "channel.h"
#include "deliver.h"
#include "keys.h"
#include "spare_inner.h"
#include "srq.h"

/* ---- joining
 * -------------------------------------------------------------------------------------------- */

static bool mirrors(const struct lp_identity *mine, const struct lp_identity *theirs) {
    return !memcmp(mine->local_gid, theirs->remote_gid, 16) &&
           !memcmp(mine->remote_gid, theirs->local_gid, 16) && mine->local_qpn == theirs->remote_qpn &&
           mine->remote_qpn == theirs->local_qpn && mine->local_psn == theirs->remote_psn &&
           mine->remote_psn == theirs->local_psn;
}

static bool join(struct lp_half *half, struct ibv_qp *qp, uint32_t peer_qpn) {
    const struct ibv_qp_attr *job = &half->lane->attr;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)(half->mine.mtu < half->peer.mtu ? half->mine.mtu : half->peer.mtu),
        .dest_qp_num = peer_qpn,
        .rq_psn = half->peer.psn,
        .max_dest_rd_atomic = job->max_dest_rd_atomic ? job->max_dest_rd_atomic : 1,
        .min_rnr_timer = job->min_rnr_timer,
        .ah_attr = job->ah_attr};

    memcpy(attr.ah_attr.grh.dgid.raw, half->peer.gid, 16);
    attr.ah_attr.grh.sgid_index = half->sgid_index;
    attr.ah_attr.port_num = half->port;
    attr.ah_attr.is_global = 1;
    if (LP_REAL(ibv_modify_qp)(qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        return false;
    const bool sends = half->lane->up; /* else the job never set these: 67 ms, six times again, for ever */
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = sends ? job->timeout : 14,
                                .retry_cnt = sends ? job->retry_cnt : 6,
                                .rnr_retry = sends ? job->rnr_retry : 7,
                                .sq_psn = half->mine.psn,
                                .max_rd_atomic = job->max_rd_atomic ? job->max_rd_atomic : 1};
    return !LP_REAL(ibv_modify_qp)(qp, &attr,
                                   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void small_mail(struct lp_half *half, enum lp_mail_kind kind, uint32_t nonce) {
    struct lp_mail mail = {.magic = LP_MAIL_MAGIC,
                           .version = LP_ABI_VERSION,
                           .kind = (uint16_t)kind,
                           .who = half->lane->conn.who,
                           .epoch = nonce,
                           .spare = half->id,
                           .round = half->mine.round};

    mail.sum = lp_mail_sum(&mail);
    if (!lp_spare_mail(half, &mail))
        half->stage = LP_STAGE_BROKEN;
    else if (!half->mail_qp)
        half->mails++;
}

void lp_spare_peer(struct lp_lane *lane, const struct lp_spare_here *peer) {
    struct lp_half *half = lane->spares[peer->spare.id];
    const struct lp_spare *spare = &peer->spare;

    if (!half || spare->round != half->mine.round)
        return;
    if (half->stage == LP_STAGE_MADE)
        lp_lane_adopt(lane, peer->who.remote_psn);
    if (!mirrors(&lane->who, &peer->who))
        return;
    if (spare->qpn == 0 && half->stage < LP_STAGE_USABLE) {
        lp_spare_drop(lane, spare->id);
        return;
    }
    if (half->stage != LP_STAGE_MADE || spare->mtu < IBV_MTU_256 || spare->mtu > IBV_MTU_4096 ||
        spare->qpn == 0 || spare->qpn > LP_PSN_MASK || spare->psn > LP_PSN_MASK ||
        spare->mail_qpn > LP_PSN_MASK)
        return;
    if ((spare->mail_qpn != 0) != (half->mail_qp != NULL))
        return; /* one end has a shared receive queue and the other hasn't: not built */
    half->peer = *spare;
    lane->peer_no_writes = (spare->flags & LP_SPARE_NO_WRITES) != 0;
    const bool joined = join(half, half->qp, half->peer.qpn) &&
                        (!half->mail_qp || join(half, half->mail_qp, half->peer.mail_qpn));
    lp_lock(&lane->lock);
    half->stage = joined ? LP_STAGE_JOINED : LP_STAGE_BROKEN;
    if (joined)
        small_mail(half, LP_MAIL_PROBE, half->nonce);
    lp_unlock(&lane->lock);
    lp_lane_dirty(lane);
}

/* ---- mails
 * ---------------------------------------------------------------------------------------------- */

bool lp_spare_mail(struct lp_half *half, const struct lp_mail *mail) {
    const uint32_t at = (mail->kind - 1u) * BOX;
    struct ibv_sge sge = {
        .addr = (uintptr_t)half->block + OUT_AT + at, .length = sizeof(*mail), .lkey = half->block_mr->lkey};
    struct ibv_send_wr *bad = NULL, wr = {.wr_id = LP_WR_ID(LP_KIND_MAIL_SEND, mail->kind),
                                          .sg_list = &sge,
                                          .num_sge = 1,
                                          .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                          .send_flags = IBV_SEND_SOLICITED};

    memcpy(half->block + OUT_AT + at, mail, sizeof(*mail));
    wr.wr.rdma.remote_addr = half->peer.mail_addr + at;
    wr.wr.rdma.rkey = half->peer.mail_rkey;
    return ibv_post_send(lp_half_mail_qp(half), &wr, &bad) == 0;
}

static void becomes_usable(struct lp_half *half) {
    struct lp_lane *lane = half->lane;
    const uint8_t mtu = half->mine.mtu < half->peer.mtu ? half->mine.mtu : half->peer.mtu;
    const struct lp_path path = {.tx_psn = half->mine.psn,
                                 .rx_psn = half->peer.psn,
                                 .mtu = 128u << mtu,
                                 .mails = half->mails,
                                 .round = half->mine.round,
                                 .usable = true,
                                 .peer_untrusted = (half->peer.flags & LP_SPARE_PSN_UNTRUSTED) != 0};

    half->stage = LP_STAGE_USABLE;
    half->mine.flags |= LP_SPARE_PROVEN;
    lp_channel_spare(lane, &half->mine);
    lane->covered = true;
    lane->order_at = 0;
    uint32_t actions = lp_conn_spare_usable(&lane->conn, half->id, &path);
    half->keys_wanted = true;
    lp_keys_read(half);
    lp_engine_act(lane, actions);
}

/* The n-th mail of a round is PROBE, ECHO, then OFFER or ACCEPT: only that box is read, and only when its
 * arrival was seen on the completion queue. */
static void read_mail(struct lp_half *half) {
    struct lp_lane *lane = half->lane;
    const enum lp_mail_kind third = lane->conn.mig.role == LP_FOLLOWER ? LP_MAIL_OFFER : LP_MAIL_ACCEPT;
    const enum lp_mail_kind order[LP_MAILS_PER_ROUND] = {LP_MAIL_PROBE, LP_MAIL_ECHO, third};
    const enum lp_mail_kind kind = order[half->mails_read];
    struct lp_mail mail;

    memcpy(&mail, half->block + (kind - 1) * BOX, sizeof(mail));
    half->mails_read++;
    if (mail.magic != LP_MAIL_MAGIC || mail.kind != kind || mail.sum != lp_mail_sum(&mail))
        return;
    if (kind == LP_MAIL_PROBE) {
        half->sent_echo = true;
        small_mail(half, LP_MAIL_ECHO, mail.epoch);
    } else if (kind == LP_MAIL_ECHO) {
        half->heard_echo = mail.epoch == half->nonce;
    } else if (!lane->failed && !lane->plain) {
        lp_engine_act(lane, lp_conn_mail(&lane->conn, half->id, &mail));
    }
    if (half->sent_echo && half->heard_echo && half->stage == LP_STAGE_JOINED && !lane->plain &&
        !lane->failing)
        becomes_usable(half);
}

void lp_spare_look(struct lp_lane *lane) {
    for (uint32_t id = 0; id < LP_SPARES; id++) {
        struct lp_half *half = lane->spares[id];
        if (!half)
            continue;
        lp_lock(&lane->lock);
        if (half->place && half->place->dead && half->stage < LP_STAGE_OPEN)
            half->stage = LP_STAGE_BROKEN; /* what lies in that real queue lies elsewhere by now */
        while (half->stage >= LP_STAGE_JOINED && half->stage != LP_STAGE_BROKEN &&
               half->mails_read < half->mails_in)
            read_mail(half);
        lp_keys_read_done(half);
        if (half->keys_wanted)
            lp_keys_read(half);
        const bool broken = half->stage == LP_STAGE_BROKEN;
        if (broken)
            lp_engine_act(lane, lp_conn_spare_gone(&lane->conn, id));
        lp_unlock(&lane->lock);
        if (broken && half != lane->now) {
            lp_half_tell_gone(lane, half);
            lp_half_drop(half);
        }
    }
}
