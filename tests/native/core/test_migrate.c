/* The table as a whole, and what the connection makes of untrusted input. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "conn.h"

static void table_leads_only_to_states(void) {
    bool right = true;
    for (int role = 0; role < LP_ROLES; role++) {
        for (int state = LP_ACTIVE; state < LP_STATES; state++) {
            for (int event = 0; event < LP_EVENTS; event++) {
                right = right && lp_mig_row(role, state, event)->next < LP_STATES;
            }
        }
    }
    CHECK(right);
}

/* The follower neither prepares nor offers: those states are the leader's. */
static bool has_state(int role, int state) {
    return role == LP_LEADER || (state != LP_PREP && state != LP_OFFERED);
}

/* What an agent or a timer may say at any time must be legal in every state: it can't make the machine stop.
 */
static void advice_is_legal_in_every_state(void) {
    static const enum lp_event common[] = {LP_EV_ORDER,   LP_EV_ORDER_FREE, LP_EV_ABORT,  LP_EV_TIMEOUT,
                                           LP_EV_ATTEMPT, LP_EV_APP_ERROR,  LP_EV_DESTROY};
    for (int role = 0; role < LP_ROLES; role++) {
        for (int state = LP_ACTIVE; state < LP_STATES; state++) {
            for (unsigned i = 0; i < sizeof(common) / sizeof(common[0]) && has_state(role, state); i++) {
                CHECK(lp_mig_row(role, state, common[i])->next != LP_NOWHERE);
            }
            CHECK(!has_state(role, state) ||
                  lp_mig_row(role, state, role == LP_LEADER ? LP_EV_NEED : LP_EV_PREP)->next != LP_NOWHERE);
        }
    }
}

static void final_states_are_final(void) {
    for (int role = 0; role < LP_ROLES; role++) {
        for (int event = 0; event < LP_EVENTS; event++) {
            CHECK(lp_mig_row(role, LP_DEAD, event)->next == LP_DEAD);
            CHECK(lp_mig_row(role, LP_FAILED, event)->next == (event == LP_EV_DESTROY ? LP_DEAD : LP_FAILED));
        }
    }
}

/* Nobody replays before both ends are fenced and receives are posted: read off the table itself. */
static void replay_is_reached_only_through_fence_and_receives(void) {
    for (int role = 0; role < LP_ROLES; role++) {
        for (int state = LP_ACTIVE; state < LP_STATES; state++) {
            for (int event = 0; event < LP_EVENTS; event++) {
                const struct lp_row *row = lp_mig_row(role, state, event);
                if (row->actions & LP_DO_REPLAY) {
                    CHECK(state == (role == LP_LEADER ? LP_OFFERED : LP_OPENING));
                }
                if (row->actions & LP_DO_OPEN) {
                    CHECK(state == LP_FENCED);
                }
                if (row->next == LP_FENCED && state != LP_FENCED) {
                    CHECK(event == LP_EV_DRAINED && state == LP_FENCING);
                }
                if (row->next == LP_FENCING && state != LP_FENCING) {
                    CHECK(row->actions & LP_DO_FENCE);
                }
                if (row->actions & LP_DO_RESUME) {
                    CHECK(state == LP_REPLAYING || state == LP_PREP || state == LP_HOLD);
                }
            }
        }
    }
}

static void roles_are_opposite_and_never_equal(void) {
    struct lp_identity a = {.local_qpn = 7, .remote_qpn = 9};
    struct lp_identity b = {.local_qpn = 9, .remote_qpn = 7};
    struct lp_identity same = {.local_qpn = 7, .remote_qpn = 7};
    enum lp_role role;
    CHECK(lp_role_of(&a, &role) && role == LP_LEADER);
    CHECK(lp_role_of(&b, &role) && role == LP_FOLLOWER);
    CHECK(!lp_role_of(&same, &role));
    a.local_gid[0] = 1;
    b.remote_gid[0] = 1;
    CHECK(lp_role_of(&a, &role) && role == LP_FOLLOWER);
    CHECK(lp_role_of(&b, &role) && role == LP_LEADER);
}

struct pair {
    struct lp_conn conn[2];
    void *blocks[4];
};

static void make(struct pair *pair) {
    for (int end = 0; end < 2; end++) {
        struct lp_identity who = {.local_qpn = 1 + (uint32_t)end,
                                  .remote_qpn = 2 - (uint32_t)end,
                                  .local_psn = 100 * (uint32_t)end,
                                  .remote_psn = 100 * (uint32_t)!end};
        pair->blocks[end] = aligned_alloc(64, lp_send_ring_bytes(4, 1, 0));
        pair->blocks[end + 2] = aligned_alloc(64, lp_recv_ring_bytes(4, 1));
        CHECK(lp_conn_init(&pair->conn[end], &who, lp_send_ring_init(pair->blocks[end], 4, 1, 0),
                           lp_recv_ring_init(pair->blocks[end + 2], 4, 1), 1024, 0));
        struct lp_path path = {.tx_psn = 5, .rx_psn = 6, .mtu = 1024, .round = 3};
        CHECK(lp_conn_spare_usable(&pair->conn[end], 2, &path) == 0);
    }
}

static void drop(struct pair *pair) {
    for (int i = 0; i < 4; i++) {
        free(pair->blocks[i]);
    }
}

static void a_mail_that_is_odd_in_any_byte_is_dropped(void) {
    struct pair pair;
    struct lp_mail mail;
    make(&pair);
    uint32_t actions = lp_conn_order(&pair.conn[0], LP_SPARES);
    CHECK((actions & LP_DO_FENCE) && pair.conn[0].mig.state == LP_FENCING);
    CHECK(lp_conn_drained(&pair.conn[0], 0, LP_MARK_PSN | LP_MARK_CONSUMED, 100) & LP_DO_OPEN);
    CHECK(lp_conn_opened(&pair.conn[0], 1, true) & LP_DO_OFFER);
    lp_conn_write_mail(&pair.conn[0], LP_MAIL_OFFER, &mail);
    struct lp_mail broken;
    for (size_t i = 0; i < sizeof(mail); i++) {
        broken = mail;
        ((uint8_t *)&broken)[i] ^= 0x40;
        CHECK(lp_conn_mail(&pair.conn[1], 2, &broken) == 0 && pair.conn[1].mig.state == LP_ACTIVE);
    }
    broken = mail; /* whole, but of another connection */
    broken.who.local_qpn = 77;
    broken.sum = lp_mail_sum(&broken);
    CHECK(lp_conn_mail(&pair.conn[1], 2, &broken) == 0);
    broken = mail;
    broken.mark_count = LP_MARKS + 1;
    broken.sum = lp_mail_sum(&broken);
    CHECK(lp_conn_mail(&pair.conn[1], 2, &broken) == 0);
    broken = mail;
    broken.round = 2; /* an older make of this spare */
    broken.sum = lp_mail_sum(&broken);
    CHECK(lp_conn_mail(&pair.conn[1], 2, &broken) == 0);
    CHECK(lp_conn_mail(&pair.conn[1], 1, &mail) == 0); /* came over another spare */
    CHECK(lp_conn_mail(&pair.conn[1], 99, &mail) == 0);
    CHECK(lp_conn_mail(&pair.conn[0], 2, &mail) == 0); /* an offer isn't for the leader */
    CHECK(lp_conn_mail(&pair.conn[1], 2, &mail) & LP_DO_FENCE);
    drop(&pair);
}

static void an_offer_without_the_right_mark_fails_closed(void) {
    struct pair pair;
    struct lp_mail mail;
    struct lp_sge sge = {.length = 10};
    struct lp_send send = {
        .wr_id = 42, .sges = &sge, .sge_count = 1, .op = LP_OP_WRITE, .flags = LP_SEND_SIGNALED};
    struct lp_done done;
    uint32_t token;
    make(&pair);
    CHECK(lp_conn_post_send(&pair.conn[1], &send, &token) == LP_POST_NOW);
    (void)lp_conn_order(&pair.conn[0], LP_SPARES);
    (void)lp_conn_drained(&pair.conn[0], 0, LP_MARK_PSN | LP_MARK_CONSUMED, 100);
    (void)lp_conn_opened(&pair.conn[0], 1, true);
    lp_conn_write_mail(&pair.conn[0], LP_MAIL_OFFER, &mail);
    mail.marks[0].epoch = 5;
    mail.sum = lp_mail_sum(&mail);
    CHECK(lp_conn_mail(&pair.conn[1], 2, &mail) & LP_DO_FENCE);
    CHECK(lp_conn_drained(&pair.conn[1], 0, LP_MARK_PSN, 0) & LP_DO_FAIL);
    CHECK(lp_conn_next(&pair.conn[1], &done) && done.wr_id == 42 && done.status == LP_WC_RETRY_EXC);
    CHECK(!lp_conn_next(&pair.conn[1], &done));
    CHECK(lp_conn_post_send(&pair.conn[1], &send, &token) == LP_POST_HELD); /* as on a queue pair in ERR: */
    CHECK(lp_conn_next(&pair.conn[1], &done) && done.status == LP_WC_FLUSH);
    drop(&pair);
}

static void advice_without_a_proven_spare_changes_nothing(void) {
    struct pair pair;
    make(&pair);
    CHECK(lp_conn_spare_gone(&pair.conn[0], 2) == 0);
    CHECK(lp_conn_order(&pair.conn[0], LP_SPARES) == 0 && pair.conn[0].mig.state == LP_ACTIVE);
    CHECK(lp_conn_order(&pair.conn[1], LP_SPARES) == LP_DO_TELL_WISH && pair.conn[1].mig.state == LP_ACTIVE);
    struct lp_tell tell = {.kind = LP_TELL_ABORT};
    CHECK(lp_conn_tell(&pair.conn[0], &pair.conn[1].who, &tell) == 0 && pair.conn[0].mig.state == LP_ACTIVE);
    tell.kind = 1234;
    CHECK(lp_conn_tell(&pair.conn[0], &pair.conn[1].who, &tell) == 0);
    drop(&pair);
}

int main(void) {
    table_leads_only_to_states();
    advice_is_legal_in_every_state();
    final_states_are_final();
    replay_is_reached_only_through_fence_and_receives();
    roles_are_opposite_and_never_equal();
    a_mail_that_is_odd_in_any_byte_is_dropped();
    an_offer_without_the_right_mark_fails_closed();
    advice_without_a_proven_spare_changes_nothing();
    return check_end();
}
