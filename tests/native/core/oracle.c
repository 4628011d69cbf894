/* What must hold: every request executed once and in order, told to the job once and in order, and never told
 * done when it isn't. Where exactness is impossible, an error, and only then. */
#include "world.h"

void oracle_wrong(struct world *world, const char *what) {
    if (world->wrong == NULL) {
        world->wrong = what;
    }
}

void oracle_packet(struct world *world, unsigned from, const struct wqe *wqe, unsigned index) {
    struct job *job = &world->ends[from].job;
    const struct program *program = world->program;
    if (wqe->op == LP_OP_READ) {
        if (wqe->req < job->next_send && !job->failed) {
            oracle_wrong(world, "a READ ran again after the job had its completion");
        }
        for (unsigned later = wqe->req + 1u; later < program->count[from]; later++) {
            if (program->req[from][later].fence && job->touched[later]) {
                oracle_wrong(world, "a READ ran again after a fenced request behind it had begun");
            }
        }
        return;
    }
    if (job->executed[wqe->req]) {
        oracle_wrong(world, "a packet of an executed request was executed again");
    }
    if (wqe->req < job->next_send && !job->failed) {
        oracle_wrong(world, "a packet landed after the job had its completion");
    }
    for (unsigned before = 0; before < wqe->req; before++) {
        if (!job->executed[before] && program->req[from][before].op != LP_OP_READ) {
            oracle_wrong(world, "a request overtook an earlier one");
        }
    }
    if (job->touched[wqe->req] < index + 1) {
        job->touched[wqe->req] = (uint8_t)(index + 1);
    }
}

void oracle_executed(struct world *world, unsigned from, unsigned req) {
    struct job *job = &world->ends[from].job;
    if (job->executed[req] < 2) {
        job->executed[req]++;
    }
}

static void check_true(struct world *world, unsigned end, unsigned req) {
    struct job *job = &world->ends[end].job;
    uint8_t op = world->program->req[end][req].op;
    if (!job->executed[req]) {
        oracle_wrong(world, "a request was reported done that wasn't executed");
    }
    if ((op == LP_OP_READ || op == LP_OP_ATOMIC) && !job->answered[req]) {
        oracle_wrong(world, "a READ or atomic was reported done whose result isn't here");
    }
}

static void send_failed(struct world *world, unsigned end, uint64_t wr_id, uint32_t status) {
    struct job *job = &world->ends[end].job;
    /* Unsignaled requests before it may stay silent only if they were executed. */
    while (!job->send_failed && job->next_send < wr_id) {
        if (world->program->req[end][job->next_send].signaled) {
            oracle_wrong(world, "a signaled request got no completion");
        }
        check_true(world, end, job->next_send++);
    }
    if (wr_id != job->next_send) {
        oracle_wrong(world, "error completions are out of order");
    }
    if (!job->send_failed && status == LP_WC_FLUSH) {
        oracle_wrong(world, "the first error is a flush: nobody sees what went wrong");
    }
    job->failed = job->send_failed = 1;
    job->next_send = (uint8_t)(wr_id + 1);
}

void oracle_send_done(struct world *world, unsigned end, const struct lp_done *done) {
    struct job *job = &world->ends[end].job;
    if (done->is_recv) {
        if (done->status != LP_WC_FLUSH || done->wr_id != job->next_recv) {
            oracle_wrong(world, "a receive was flushed out of order");
        }
        job->failed = 1;
        job->next_recv++;
        return;
    }
    if (done->status != LP_WC_OK) {
        send_failed(world, end, done->wr_id, done->status);
        return;
    }
    if (job->failed) {
        oracle_wrong(world, "a success after an error");
    }
    if (done->wr_id < job->next_send || done->wr_id >= job->sends_posted) {
        oracle_wrong(world, "a send completion came twice or out of order");
        return;
    }
    for (; job->next_send < done->wr_id; job->next_send++) {
        if (world->program->req[end][job->next_send].signaled) {
            oracle_wrong(world, "a send completion overtook an earlier one");
        }
        check_true(world, end, job->next_send);
    }
    if (!world->program->req[end][done->wr_id].signaled) {
        oracle_wrong(world, "an unsignaled request got a completion");
    }
    check_true(world, end, job->next_send++);
}

/* The n-th request of the peer that takes a receive. */
static int nth_message(const struct world *world, unsigned from, unsigned nth) {
    for (unsigned i = 0; i < world->program->count[from]; i++) {
        if (lp_op_takes_receive(world->program->req[from][i].op) && nth-- == 0) {
            return (int)i;
        }
    }
    return -1;
}

void oracle_recv_done(struct world *world, unsigned end, uint64_t wr_id, unsigned message) {
    struct job *job = &world->ends[end].job;
    if (wr_id != job->next_recv) {
        oracle_wrong(world, "a receive completion came twice or out of order");
    }
    if (nth_message(world, !end, job->next_recv) != (int)message) {
        oracle_wrong(world, "a receive holds the wrong message");
    }
    job->next_recv++;
}

static void check_whole(struct world *world, unsigned end) {
    const struct job *job = &world->ends[end].job;
    const struct program *program = world->program;
    for (unsigned i = 0; i < program->count[end]; i++) {
        if (!job->executed[i] || (job->executed[i] > 1 && program->req[end][i].op != LP_OP_READ)) {
            oracle_wrong(world, "at the end a request wasn't executed exactly once");
        }
    }
    for (unsigned i = job->next_send; i < program->count[end]; i++) {
        if (program->req[end][i].signaled) {
            oracle_wrong(world, "at the end a signaled request has no completion");
        }
    }
    if (nth_message(world, !end, job->next_recv) >= 0) {
        oracle_wrong(world, "at the end a message wasn't delivered");
    }
}

/* Without a spare left the leader can only wait for another one, or for its deadline. */
static bool out_of_spares(const struct world *world) {
    const struct lp_conn *leader = &world->ends[0].conn;
    bool any = false;
    for (unsigned spare = 0; spare + 1u < world->paths; spare++) {
        any = any || leader->spares[spare].usable || !(world->ends[0].spare_known & (1u << spare));
    }
    return leader->mig.state == LP_FENCED && !any;
}

/* A follower that lost patience before it fenced: the leader's own patience, spent in this world, would end
 * its part. */
static bool left_waiting(const struct world *world) {
    return world->limits->attempts != 0 && world->left.attempts == 0 &&
           world->ends[0].conn.mig.state == LP_PREP && world->ends[1].conn.mig.state == LP_ACTIVE;
}

void oracle_end(struct world *world) {
    const struct end *ends = world->ends;
    const struct limits *limits = world->limits;
    bool relay_reliable = limits->drops == 0 && limits->lies == 0;
    bool provoked = limits->faults || limits->attempts || limits->timeouts || limits->destroys ||
                    limits->app_errors || limits->lies;
    bool failed = ends[0].conn.mig.state == LP_FAILED || ends[1].conn.mig.state == LP_FAILED;
    bool gone = ends[0].conn.mig.state == LP_DEAD || ends[1].conn.mig.state == LP_DEAD;
    if (failed && !provoked) {
        oracle_wrong(world, "mere advice cost the job an error");
    }
    if ((failed || gone) && world->excuse == 0) {
        oracle_wrong(world, "the job got an error that it needn't have got");
        return;
    }
    if (failed || gone) {
        return; /* what was reported has been checked when it was reported */
    }
    if (ends[0].conn.mig.state == LP_ACTIVE && ends[1].conn.mig.state == LP_ACTIVE) {
        check_whole(world, 0);
        check_whole(world, 1);
        return;
    }
    /* Waiting is right when an end wasn't told: then only a timer helps. */
    if (relay_reliable && !out_of_spares(world) && !left_waiting(world)) {
        oracle_wrong(world, "stuck without a reason");
    }
}
