/* Anything that agent, peer, NIC or job can hand in, at any time, in any order, with any content: no
 * impossible step, no byte out of bounds (run it under sanitizers), and after DESTROY nothing more happens.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "conn.h"

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % below;
}

/* Mostly small numbers near the present ones, sometimes any. */
static uint32_t near(uint32_t value) {
    switch (draw(8)) {
    case 0:
        return draw(UINT32_MAX);
    case 1:
        return UINT32_MAX;
    default:
        return value + draw(3) - 1;
    }
}

static void odd_mail(struct lp_conn *conn, const struct lp_identity *peer) {
    struct lp_mail mail;
    memset(&mail, 0, sizeof(mail));
    mail.magic = LP_MAIL_MAGIC;
    mail.version = LP_ABI_VERSION;
    mail.kind = (uint16_t)draw(6);
    mail.who = *peer;
    mail.epoch = near(conn->mig.epoch + 1);
    mail.base = near(conn->mig.base);
    mail.spare = draw(LP_SPARES + 1);
    mail.round = mail.spare < LP_SPARES ? conn->spares[mail.spare].round : 0;
    mail.mark_count = draw(LP_MARKS + 2);
    for (uint32_t i = 0; i < LP_MARKS; i++) {
        mail.marks[i] = (struct lp_mark){near(conn->mig.base),
                                         near(conn->sends->first_psn + (uint32_t)conn->sends->acked),
                                         near(conn->sends->taken), draw(5)};
    }
    mail.sum = lp_mail_sum(&mail);
    (void)lp_conn_mail(conn, mail.spare, &mail);
}

static void one_call(struct lp_conn *conn, const struct lp_identity *peer) {
    struct lp_sge sge = {.length = draw(4) * 500};
    struct lp_send send = {.wr_id = 1,
                           .sges = &sge,
                           .sge_count = draw(3),
                           .op = (uint8_t)draw(LP_OP_COUNT),
                           .flags = (uint8_t)draw(4)};
    struct lp_tell tell = {
        .kind = draw(6), .epoch = near(conn->mig.epoch), .hard = draw(2), .spare = draw(10)};
    struct lp_path path = {.tx_psn = draw(1 << 24),
                           .rx_psn = draw(1 << 24),
                           .mtu = 256u << draw(5),
                           .mails = draw(3),
                           .round = draw(3),
                           .peer_untrusted = draw(2)};
    struct lp_sge sges[2] = {{0}, {0}};
    struct lp_done done;
    uint64_t wr_id;
    uint32_t token;
    bool deliver;
    send.sge_count = send.sge_count > 1 ? 1 : send.sge_count;
    switch (draw(22)) {
    case 0:
        (void)lp_conn_post_recv(conn, 2, sges, draw(3), &token);
        break;
    case 1:
        (void)lp_conn_send_cqe(conn, near(conn->mig.epoch), near(conn->sends->undone),
                               draw(4) ? LP_WC_OK : draw(24));
        break;
    case 2:
        (void)lp_conn_recv_cqe(conn, near(conn->mig.epoch), near(atomic_load(&conn->recvs->head)),
                               draw(4) ? LP_WC_OK : draw(24), &deliver, &wr_id);
        break;
    case 3:
        (void)lp_conn_order(conn, draw(10));
        break;
    case 4:
        (void)lp_conn_fatal(conn, near(conn->mig.epoch));
        break;
    case 5:
        (void)lp_conn_tell(conn, peer, &tell);
        break;
    case 6:
    case 7:
        (void)lp_conn_spare_usable(conn, draw(10), &path);
        break;
    case 8:
        (void)lp_conn_spare_gone(conn, draw(10));
        break;
    case 9:
    case 10:
        (void)lp_conn_drained(conn, near(conn->mig.epoch), draw(5), near(0));
        break;
    case 11:
        (void)lp_conn_unfenced(conn, draw(20) ? UINT32_MAX : conn->mig.epoch);
        break;
    case 12:
    case 13:
        (void)lp_conn_opened(conn, conn->mig.epoch, draw(4) != 0);
        break;
    case 14:
        (void)lp_conn_replayed(conn, near(conn->mig.epoch));
        break;
    case 15:
        (void)(draw(30) ? lp_conn_attempt(conn) : lp_conn_timeout(conn));
        break;
    case 16:
    case 17:
        odd_mail(conn, peer);
        break;
    case 18:
        for (unsigned i = draw(4); i != 0 && !conn->holding && lp_conn_next_post(conn, &token); i--) {
            lp_conn_posted(conn, token);
        }
        break;
    case 19:
        while (lp_conn_next_recv(conn, &token)) {
            lp_conn_recv_posted(conn, token);
        }
        break;
    case 20:
        while (lp_conn_next(conn, &done)) {
        }
        break;
    default:
        (void)lp_conn_post_send(conn, &send, &token);
        break;
    }
}

static void fuzz(uint64_t seed) {
    struct lp_identity who = {
        .local_qpn = 1 + (uint32_t)(seed & 1), .remote_qpn = 2 - (uint32_t)(seed & 1), .local_psn = 0xfffff0};
    struct lp_identity peer = {
        .local_qpn = who.remote_qpn, .remote_qpn = who.local_qpn, .remote_psn = 0xfffff0};
    void *sends = aligned_alloc(64, lp_send_ring_bytes(5, 1, 0));
    void *recvs = aligned_alloc(64, lp_recv_ring_bytes(3, 2));
    struct lp_conn conn;
    state = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    CHECK(lp_conn_init(&conn, &who, lp_send_ring_init(sends, 5, 1, 0), lp_recv_ring_init(recvs, 3, 2), 1024,
                       draw(8)));
    for (unsigned i = 0; i < 300; i++) {
        one_call(&conn, &peer);
    }
    (void)lp_conn_destroy(&conn);
    bool dead = conn.mig.state == LP_DEAD;
    for (unsigned i = 0; i < 20; i++) {
        one_call(&conn, &peer);
        dead = dead && conn.mig.state == LP_DEAD;
    }
    CHECK(dead);
    free(sends);
    free(recvs);
}

int main(int argc, char **argv) {
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 0) : 20000;
    for (uint64_t seed = 1; seed <= runs; seed++) {
        fuzz(seed);
    }
    return check_end();
}
