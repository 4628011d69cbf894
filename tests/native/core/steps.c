/* Which steps are possible, and taking one. */
#include <string.h>

#include "world.h"

static unsigned takers(const struct program *program, unsigned end) {
    unsigned count = 0;
    for (unsigned i = 0; i < program->count[end]; i++) {
        count += lp_op_takes_receive(program->req[end][i].op);
    }
    return count;
}

static bool has_atomics(const struct program *program, unsigned end) {
    bool any = false;
    for (unsigned i = 0; i < program->count[end]; i++) {
        any = any || program->req[end][i].op == LP_OP_ATOMIC;
    }
    return any;
}

static void fix_pointers(struct world *world) {
    for (unsigned end = 0; end < 2; end++) {
        world->ends[end].conn.sends = (struct lp_send_ring *)(void *)world->ends[end].sends;
        world->ends[end].conn.recvs = (struct lp_recv_ring *)(void *)world->ends[end].recvs;
    }
}

void world_copy(struct world *to, const struct world *from) {
    memcpy(to, from, offsetof(struct world, qps) + from->paths * sizeof(from->qps[0]));
    fix_pointers(to);
}

/* The next spare is made when one was used. */
static bool spare_is_wanted(const struct world *world, unsigned spare) {
    return spare + 1 < world->paths && world->ends[0].conn.mig.state != LP_DEAD &&
           world->ends[0].conn.mig.last_epoch >= spare && !(world->ends[0].spare_known & (1u << spare));
}

static void give_spares(struct world *world) {
    for (unsigned spare = 0; spare < PATHS - 1 && !world->limits->late_spare; spare++) {
        if (spare_is_wanted(world, spare)) {
            driver_spare(world, 0, spare);
        }
    }
}

void world_init(struct world *world, const struct program *program, const struct limits *limits) {
    memset(world, 0, sizeof(*world));
    world->program = program;
    world->limits = limits;
    world->left = *limits;
    /* One path more than there is trouble that can use one up. */
    unsigned trouble =
        limits->faults + limits->orders + limits->attempts + (limits->lies != 0) + (limits->app_errors != 0);
    world->paths = (uint8_t)(trouble + 1 < PATHS ? trouble + 1 : PATHS);
    if (limits->untrusted != 0 || limits->no_consumed != 0) {
        world->excuse |= EXCUSE_BLIND;
    }
    for (unsigned end = 0; end < 2; end++) {
        struct end *self = &world->ends[end];
        struct lp_identity who = {.local_qpn = 100 + end, .remote_qpn = 101 - end};
        who.local_gid[15] = (uint8_t)(end + 1);
        who.remote_gid[15] = (uint8_t)(2 - end);
        who.local_psn = lp_psn_add(LP_PSN_MASK, end); /* 0xffffff and 0: one end wraps at once */
        who.remote_psn = lp_psn_add(LP_PSN_MASK, !end);
        fix_pointers(world);
        lp_send_ring_init(self->sends, REQS, 1, 0);
        lp_recv_ring_init(self->recvs, REQS, 1);
        uint32_t flags = (limits->atomics || has_atomics(program, !end) ? LP_CONN_ATOMICS : 0) |
                         (limits->untrusted & (1u << end) ? LP_CONN_PSN_UNTRUSTED : 0);
        if (sizeof(self->sends) < lp_send_ring_bytes(REQS, 1, 0) ||
            sizeof(self->recvs) < lp_recv_ring_bytes(REQS, 1) ||
            !lp_conn_init(&self->conn, &who, self->conn.sends, self->conn.recvs, MTU, flags)) {
            __builtin_trap();
        }
    }
    for (unsigned end = 0; end < 2; end++) {
        unsigned late_recvs =
            limits->late_recvs < takers(program, !end) ? limits->late_recvs : takers(program, !end);
        for (unsigned i = 0; i < takers(program, !end) - late_recvs; i++) {
            driver_post_recv(world, end);
        }
        for (unsigned spare = 0; spare + 1u < world->paths && end == 1; spare++) {
            driver_spare(world, end, spare); /* only the leader's word on a spare decides */
        }
    }
    for (unsigned end = 0; end < 2; end++) {
        unsigned late = limits->late_sends < program->count[end] ? limits->late_sends : program->count[end];
        for (unsigned i = 0; i < program->count[end] - late; i++) {
            driver_post_send(world, end);
        }
    }
    give_spares(world);
}

static bool fenced_state(const struct world *world, unsigned end) {
    uint8_t state = world->ends[end].conn.mig.state;
    return state >= LP_FENCING && state <= LP_OFFERED;
}

static unsigned progress_steps(const struct world *world, struct step *steps) {
    unsigned n = 0;
#define ADD(...)                                                                                             \
    steps[n++] = (struct step) {                                                                             \
        __VA_ARGS__                                                                                          \
    }
    for (uint8_t end = 0; end < 2; end++) {
        const struct end *self = &world->ends[end];
        const struct lp_mig *mig = &self->conn.mig;
        if (mig->state != LP_DEAD) {
            if (self->job.sends_posted < world->program->count[end]) {
                ADD(ST_POST_SEND, end, 0, 0);
            }
            if (self->job.recvs_posted < takers(world->program, !end)) {
                ADD(ST_POST_RECV, end, 0, 0);
            }
        }
        for (uint8_t path = 0; path < world->paths; path++) {
            const struct qp *qp = &world->qps[path][end];
            bool starved;
            if (nic_can_deliver(world, path, end, &starved)) {
                ADD(ST_DELIVER, end, path, 0);
            }
            if (nic_can_ack(world, path, end)) {
                ADD(ST_ACK, end, path, 0);
            }
            if (mig->state == LP_DEAD) {
                continue;
            }
            if (qp->cq_count != 0) {
                ADD(ST_POLL, end, path, 0);
            }
            if (qp->mail_unread) {
                ADD(ST_MAIL, end, path, 0);
            }
            if (!qp->error && world->qps[path][!end].error && nic_has_open_sends(qp)) {
                ADD(ST_RETRY_EXC, end, path, 0);
            }
        }
        if (mig->state == LP_FENCING) {
            ADD(ST_DRAIN, end, 0, 0);
        }
        if (mig->state == LP_OPENING) {
            ADD(ST_OPEN, end, 0, 0);
        }
        if (mig->state == LP_REPLAYING) {
            ADD(ST_REPLAY, end, 0, 0);
        }
        for (uint8_t i = 0; i < self->inbox.count && (i == 0 || world->limits->reorder); i++) {
            ADD(ST_TELL, end, i, 0);
        }
        for (uint8_t spare = 0; spare < PATHS - 1 && end == 0 && world->limits->late_spare; spare++) {
            if (spare_is_wanted(world, spare)) {
                ADD(ST_SPARE, end, spare, 0);
            }
        }
    }
    return n;
}

static unsigned trouble_steps(const struct world *world, struct step *steps) {
    const struct limits *left = &world->left;
    unsigned n = 0;
    for (uint8_t end = 0; end < 2; end++) {
        const struct end *self = &world->ends[end];
        const struct lp_mig *mig = &self->conn.mig;
        uint8_t path = (uint8_t)driver_path(world, end);
        if (mig->state == LP_DEAD) {
            continue;
        }
        for (uint8_t any = 0; any < world->paths && left->faults != 0; any++) {
            /* Of a path that isn't open here, only the one that the peer may be using is of interest. */
            if (!world->qps[any][end].error && (any == path || any == driver_path(world, !end))) {
                ADD(ST_FAULT, end, any, 0);
            }
        }
        if (left->orders != 0 && mig->state == LP_ACTIVE) {
            ADD(ST_ORDER, end, 0, 0);
        }
        if (left->attempts != 0 && mig->state != LP_ACTIVE && mig->state != LP_FAILED) {
            ADD(ST_ATTEMPT, end, 0, 0);
        }
        if (left->timeouts != 0 && fenced_state(world, end)) {
            ADD(ST_TIMEOUT, end, 0, 0);
        }
        if (left->destroys != 0) {
            ADD(ST_DESTROY, end, 0, 0);
        }
        if (left->app_errors != 0 && !world->qps[path][end].error &&
            nic_has_open_sends(&world->qps[path][end])) {
            ADD(ST_APP_ERROR, end, path, 0);
        }
        for (uint8_t i = 0; i < self->inbox.count; i++) {
            if (left->repeats != 0) {
                ADD(ST_REPEAT_TELL, end, i, 0);
            }
            if (left->drops != 0 && left->drops != 255) {
                ADD(ST_DROP, end, i, 0);
            }
        }
        for (uint8_t any = 1; any < world->paths && left->repeats != 0; any++) {
            if (world->qps[any][end].mail_known) {
                ADD(ST_REPEAT_MAIL, end, any, 0);
            }
        }
        if (left->lies != 0) {
            for (uint8_t kind = LP_TELL_NEED; kind <= LP_TELL_ABORT; kind++) {
                for (uint8_t epoch = 0; epoch <= mig->epoch + 1 && epoch < 4; epoch++) {
                    ADD(ST_LIE, end, kind, epoch);
                }
            }
        }
    }
    return n;
}
#undef ADD

unsigned world_steps(const struct world *world, struct step *steps) {
    unsigned n = progress_steps(world, steps);
    return n + trouble_steps(world, steps + n);
}

static struct lp_tell take_tell(struct world *world, unsigned end, unsigned index, bool keep) {
    struct tells *inbox = &world->ends[end].inbox;
    struct lp_tell tell = inbox->item[index];
    if (!keep) {
        memmove(&inbox->item[index], &inbox->item[index + 1], (inbox->count - index - 1u) * sizeof(tell));
        inbox->count--;
        memset(&inbox->item[inbox->count], 0, sizeof(tell));
    }
    return tell;
}

static void hear(struct world *world, unsigned end, const struct lp_tell *tell) {
    struct lp_conn *conn = &world->ends[end].conn;
    struct lp_identity who = world->ends[!end].conn.who;
    driver_do(world, end, lp_conn_tell(conn, &who, tell));
}

static void read_mail(struct world *world, unsigned end, unsigned path) {
    struct qp *qp = &world->qps[path][end];
    struct lp_mail mail = world->qps[path][!end].sent;
    qp->mail_unread = 0;
    qp->mail_known = 1;
    driver_do(world, end, lp_conn_mail(&world->ends[end].conn, path - 1, &mail));
}

static void fault(struct world *world, unsigned end, unsigned path, uint32_t status) {
    bool told = nic_has_open_sends(&world->qps[path][end]);
    nic_to_error(world, path, end, status);
    if (!told &&
        path == driver_path(world, end)) { /* nothing to complete with an error: the async event says it */
        driver_do(world, end, lp_conn_fatal(&world->ends[end].conn, world->ends[end].conn.mig.epoch));
    }
}

static void take_progress(struct world *world, struct step step) {
    unsigned end = step.end;
    struct lp_tell tell;
    switch (step.kind) {
    case ST_POST_SEND:
        driver_post_send(world, end);
        break;
    case ST_POST_RECV:
        driver_post_recv(world, end);
        break;
    case ST_DELIVER:
        nic_deliver(world, step.a, end);
        break;
    case ST_ACK:
        nic_ack(world, step.a, end);
        break;
    case ST_POLL:
        driver_poll_one(world, step.a, end);
        break;
    case ST_DRAIN:
        driver_drain(world, end);
        break;
    case ST_OPEN:
        driver_open(world, end);
        break;
    case ST_REPLAY:
        driver_replay(world, end);
        break;
    case ST_MAIL:
        read_mail(world, end, step.a);
        break;
    case ST_TELL:
        tell = take_tell(world, end, step.a, false);
        hear(world, end, &tell);
        break;
    case ST_RETRY_EXC:
        nic_to_error(world, step.a, end, LP_WC_RETRY_EXC);
        break;
    case ST_SPARE:
        driver_spare(world, end, step.a);
        break;
    }
}

static void take_trouble(struct world *world, struct step step) {
    struct limits *left = &world->left;
    struct lp_conn *conn = &world->ends[step.end].conn;
    struct lp_tell tell;
    switch (step.kind) {
    case ST_FAULT:
        left->faults--;
        fault(world, step.end, step.a, LP_WC_RETRY_EXC);
        break;
    case ST_ORDER:
        left->orders--;
        driver_do(world, step.end, lp_conn_order(conn, LP_SPARES));
        break;
    case ST_ATTEMPT:
        left->attempts--;
        driver_do(world, step.end, lp_conn_attempt(conn));
        break;
    case ST_TIMEOUT:
        left->timeouts--;
        world->excuse |= EXCUSE_TIMEOUT;
        driver_do(world, step.end, lp_conn_timeout(conn));
        break;
    case ST_DESTROY:
        left->destroys--;
        world->excuse |= EXCUSE_DESTROY;
        world->ends[step.end].job.destroyed = 1;
        driver_do(world, step.end, lp_conn_destroy(conn));
        break;
    case ST_APP_ERROR:
        left->app_errors--;
        world->excuse |= EXCUSE_APP;
        nic_to_error(world, step.a, step.end, 10 /* IBV_WC_REM_ACCESS_ERR */);
        break;
    case ST_REPEAT_TELL:
        left->repeats--;
        tell = take_tell(world, step.end, step.a, true);
        hear(world, step.end, &tell);
        break;
    case ST_REPEAT_MAIL:
        left->repeats--;
        read_mail(world, step.end, step.a);
        break;
    case ST_DROP:
        left->drops--;
        (void)take_tell(world, step.end, step.a, false);
        break;
    case ST_LIE:
        left->lies--;
        world->excuse |= step.a == LP_TELL_ABORT ? EXCUSE_LIE : 0;
        tell = (struct lp_tell){.kind = step.a, .epoch = step.b, .hard = 1, .spare = LP_SPARES};
        hear(world, step.end, &tell);
        break;
    }
}

/* A message that the job had given a receive must not find none: that would be an RNR of our own making. */
static void check_starved(struct world *world) {
    for (unsigned end = 0; end < 2; end++) {
        for (unsigned path = 0; path < world->paths; path++) {
            bool starved;
            (void)nic_can_deliver(world, path, end, &starved);
            const struct job *target = &world->ends[!end].job;
            unsigned used = 0;
            for (unsigned i = 0; i < world->program->count[end]; i++) {
                used += lp_op_takes_receive(world->program->req[end][i].op) &&
                        world->ends[end].job.executed[i] != 0;
            }
            uint8_t state = world->ends[!end].conn.mig.state;
            bool open = state == LP_ACTIVE || state == LP_HOLD || state == LP_PREP || state == LP_OFFERED ||
                        state == LP_REPLAYING;
            if (starved && open && path == driver_path(world, !end) && target->recvs_posted > used) {
                oracle_wrong(world, "a receive that the job had posted wasn't there");
            }
        }
    }
}

void world_apply(struct world *world, struct step step) {
    if (step.kind <= ST_LAST_PROGRESS) {
        take_progress(world, step);
    } else {
        take_trouble(world, step);
    }
    for (unsigned end = 0; end < 2 && world->limits->eager; end++) {
        driver_poll_all(world, end);
    }
    give_spares(world);
    check_starved(world);
}

void world_check_end(struct world *world) {
    oracle_end(world);
}
