/* The shim's doing part over the model NIC: what the real one will do with verbs, in miniature. */
#include <string.h>

#include "world.h"

/* The epoch's queue pair of an end. */
unsigned driver_path(const struct world *world, unsigned end) {
    unsigned spare = world->ends[end].conn.mig.spare;
    return spare == LP_SPARES ? 0 : spare + 1;
}

void driver_give_job(struct world *world, unsigned end) {
    struct lp_done done;
    while (lp_conn_next(&world->ends[end].conn, &done)) {
        oracle_send_done(world, end, &done);
    }
}

static void tell(struct world *world, unsigned end, enum lp_relay_kind kind, bool hard) {
    struct tells *inbox = &world->ends[!end].inbox;
    struct lp_tell said = {
        .kind = kind, .epoch = world->ends[end].conn.mig.epoch, .hard = hard, .spare = LP_SPARES};
    if (world->limits->drops == 255 ||
        (inbox->count != 0 && memcmp(&inbox->item[inbox->count - 1], &said, sizeof(said)) == 0)) {
        return; /* a silent relay; or said twice in a row, which teaches nothing new */
    }
    if (inbox->count == TELLS) {
        memmove(&inbox->item[0], &inbox->item[1], (TELLS - 1) * sizeof(said));
        inbox->count--;
    }
    inbox->item[inbox->count++] = said;
}

static void write_mail(struct world *world, unsigned end, enum lp_mail_kind kind) {
    struct end *self = &world->ends[end];
    unsigned path = driver_path(world, end);
    lp_conn_write_mail(&self->conn, kind, &world->qps[path][end].sent);
    lp_conn_mail_sent(&self->conn, self->conn.mig.spare);
    nic_post(world, path, end, &(struct wqe){.op = MAIL_OP, .req = REQS}, 1);
}

static void post_one(struct world *world, unsigned end, uint32_t token) {
    struct end *self = &world->ends[end];
    const struct lp_send_entry *entry = lp_send_ring_at(self->conn.sends, token);
    const struct request *request = &world->program->req[end][entry->wr_id];
    struct wqe wqe = {.op = request->op,
                      .req = (uint8_t)entry->wr_id,
                      .token = token,
                      .signaled = lp_send_must_signal(entry),
                      .fence = request->fence};
    nic_post(world, driver_path(world, end), end, &wqe, request->packets);
}

static void post_held_recvs(struct world *world, unsigned end) {
    struct lp_conn *conn = &world->ends[end].conn;
    uint32_t token;
    while (lp_conn_next_recv(conn, &token)) {
        lp_conn_recv_posted(conn, token);
        nic_post_recv(world, driver_path(world, end), end, token);
    }
}

static void fail(struct world *world, unsigned end) {
    struct qp *qp = &world->qps[driver_path(world, end)][end];
    nic_to_error(world, driver_path(world, end), end, LP_WC_FLUSH);
    struct cqe cqe;
    while (nic_take_cqe(qp, &cqe)) { /* what truly came in before counts, the rest is told by the shim */
        bool deliver = false;
        uint64_t wr_id = 0;
        if (cqe.is_recv && cqe.status == LP_WC_OK) {
            (void)lp_conn_recv_cqe(&world->ends[end].conn, world->ends[end].conn.mig.epoch, cqe.token,
                                   cqe.status, &deliver, &wr_id);
            if (deliver) {
                oracle_recv_done(world, end, wr_id, cqe.message);
            }
        }
    }
}

void driver_do(struct world *world, unsigned end, uint32_t actions) {
    struct lp_conn *conn = &world->ends[end].conn;
    if (actions & LP_DO_TELL_NEED) {
        tell(world, end, LP_TELL_NEED, true);
    }
    if (actions & LP_DO_TELL_WISH) {
        tell(world, end, LP_TELL_NEED, false);
    }
    if (actions & LP_DO_TELL_PREP) {
        tell(world, end, LP_TELL_PREP, false);
    }
    if (actions & LP_DO_TELL_ABORT) {
        tell(world, end, LP_TELL_ABORT, false);
    }
    if (actions & LP_DO_FENCE) {
        bool broken =
            conn->mig.role == LP_LEADER ? LP_MUTANT(LP_M_NO_FENCE_LEADER) : LP_MUTANT(LP_M_NO_FENCE_FOLLOWER);
        if (!broken) {
            nic_to_error(world, driver_path(world, end), end, LP_WC_FLUSH);
        }
    }
    if (actions & LP_DO_MARK) {
        struct wqe mark = {.op = MARK_OP, .req = REQS, .signaled = 1};
        lp_conn_marker_sent(conn, &mark.token);
        nic_post(world, driver_path(world, end), end, &mark, 1);
    }
    if (actions & LP_DO_OFFER) {
        write_mail(world, end, LP_MAIL_OFFER);
    }
    if (actions & LP_DO_ACCEPT) {
        write_mail(world, end, LP_MAIL_ACCEPT);
    }
    if (actions & LP_DO_RESUME) {
        uint32_t token;
        post_held_recvs(world, end);
        while (lp_conn_next_post(conn, &token)) {
            lp_conn_posted(conn, token);
            post_one(world, end, token);
        }
    }
    if (actions & LP_DO_FAIL) {
        fail(world, end);
    }
    if (conn->mig.state == LP_DEAD) {
        nic_to_error(world, driver_path(world, end), end, LP_WC_FLUSH);
        return;
    }
    driver_give_job(world, end);
}

void driver_poll_one(struct world *world, unsigned path, unsigned end) {
    struct lp_conn *conn = &world->ends[end].conn;
    struct cqe cqe;
    if (!nic_take_cqe(&world->qps[path][end], &cqe)) {
        return;
    }
    /* A completion of a queue pair belongs to the epoch that runs on it; older ones have been drained. */
    uint32_t epoch = path == driver_path(world, end) ? conn->mig.epoch : UINT32_MAX;
    uint32_t actions = 0;
    if (cqe.is_mail) {
        actions =
            cqe.status == LP_WC_OK ? lp_conn_marker_done(conn, epoch, cqe.token) : lp_conn_fatal(conn, epoch);
    } else if (cqe.is_recv) {
        bool deliver = false;
        uint64_t wr_id = 0;
        actions = lp_conn_recv_cqe(conn, epoch, cqe.token, cqe.status, &deliver, &wr_id);
        if (deliver) {
            oracle_recv_done(world, end, wr_id, cqe.message);
        }
    } else {
        struct lp_done done = {.status = LP_WC_OK};
        if (cqe.status == LP_WC_OK && lp_conn_send_cqe_fast(conn, epoch, cqe.token, &done.wr_id)) {
            oracle_send_done(world, end, &done);
        } else {
            actions = lp_conn_send_cqe(conn, epoch, cqe.token, cqe.status);
        }
    }
    driver_do(world, end, actions);
}

void driver_poll_all(struct world *world, unsigned end) {
    for (unsigned path = 0; path < world->paths; path++) {
        while (world->qps[path][end].cq_count != 0 && world->ends[end].conn.mig.state != LP_DEAD) {
            driver_poll_one(world, path, end);
        }
    }
}

/* Every completion of the queue pair in ERR is taken, then its packet number is read. */
void driver_drain(struct world *world, unsigned end) {
    struct lp_conn *conn = &world->ends[end].conn;
    unsigned path = driver_path(world, end);
    uint32_t epoch = conn->mig.epoch;
    while (world->qps[path][end].cq_count != 0 && conn->mig.state == LP_FENCING) {
        driver_poll_one(world, path, end);
    }
    if (conn->mig.state != LP_FENCING) {
        return; /* an error of the job's own was among them */
    }
    uint32_t rx_psn = path == 0 ? conn->who.remote_psn : conn->spares[path - 1].rx_psn;
    uint32_t known = LP_MARK_PSN | LP_MARK_CONSUMED;
    if (world->limits->no_consumed & (1u << end)) {
        known &= ~(uint32_t)LP_MARK_CONSUMED;
    }
    driver_do(world, end,
              lp_conn_drained(conn, epoch, known, lp_psn_add(rx_psn, world->qps[path][end].expected)));
}

void driver_open(struct world *world, unsigned end) {
    struct lp_conn *conn = &world->ends[end].conn;
    if (!LP_MUTANT(LP_M_EARLY_REPLAY)) {
        post_held_recvs(world, end);
    }
    bool dead = world->qps[driver_path(world, end)][end].error;
    driver_do(world, end, lp_conn_opened(conn, conn->mig.epoch, !dead));
}

void driver_replay(struct world *world, unsigned end) {
    struct lp_conn *conn = &world->ends[end].conn;
    uint32_t token;
    if (!lp_conn_next_post(conn, &token)) {
        driver_do(world, end, lp_conn_replayed(conn, conn->mig.epoch));
        return;
    }
    lp_conn_posted(conn, token);
    post_one(world, end, token);
}

void driver_post_send(struct world *world, unsigned end) {
    struct end *self = &world->ends[end];
    const struct request *request = &world->program->req[end][self->job.sends_posted];
    uint32_t token;
    struct lp_sge sge = {
        .addr = 0, .length = request->op == LP_OP_ATOMIC ? 8u : request->packets * (uint32_t)MTU, .lkey = 1};
    struct lp_send send = {.wr_id = self->job.sends_posted,
                           .sges = &sge,
                           .sge_count = 1,
                           .op = request->op,
                           .flags = (uint8_t)((request->signaled ? LP_SEND_SIGNALED : 0) |
                                              (request->fence ? LP_SEND_FENCE : 0))};
    enum lp_post post = lp_conn_post_send(&self->conn, &send, &token);
    if (post == LP_POST_FULL) {
        return; /* the job tries again later */
    }
    self->job.sends_posted++;
    if (post == LP_POST_NOW) {
        post_one(world, end, token);
    }
    driver_give_job(world, end);
}

void driver_post_recv(struct world *world, unsigned end) {
    struct end *self = &world->ends[end];
    uint32_t token;
    struct lp_sge sge = {.addr = 0, .length = 2 * MTU, .lkey = 1};
    enum lp_post post = lp_conn_post_recv(&self->conn, self->job.recvs_posted, &sge, 1, &token);
    self->job.recvs_posted++;
    if (post == LP_POST_NOW) {
        nic_post_recv(world, driver_path(world, end), end, token);
    }
    driver_give_job(world, end);
}

void driver_spare(struct world *world, unsigned end, unsigned spare) {
    /* First packet numbers near the wrap, different for each path and end. */
    uint32_t tx = lp_psn_add(LP_PSN_MASK, spare * 5 + end * 3);
    uint32_t rx = lp_psn_add(LP_PSN_MASK, spare * 5 + !end * 3);
    struct lp_path path = {.tx_psn = tx,
                           .rx_psn = rx,
                           .mtu = MTU,
                           .round = 1,
                           .peer_untrusted = world->limits->untrusted >> !end & 1};
    world->ends[end].spare_known |= (uint8_t)(1u << spare);
    driver_do(world, end, lp_conn_spare_usable(&world->ends[end].conn, spare, &path));
}
