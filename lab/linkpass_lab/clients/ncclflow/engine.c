/* The loop of a run: one thread that polls, as NCCL's proxy does; and the orderly end. */
#include "../common/clock.h"
#include "../common/nap.h"
#include "run.h"

#include <inttypes.h>
#include <signal.h>

#define TAIL_NS (20 * NS_PER_MS) /* after the end: is there a completion or a clear-to-send too many? */
#define SPOILT_NS (5 * NS_PER_S) /* after an error: for the peer's result */

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

static int step(struct run *r, struct connection *c) {
    int moved = connection_poll(c);
    if (moved < 0 || verdict_spoilt(&r->verdict))
        return moved > 0;
    int posted = c->is_sender ? sender_answer(c) : receiver_post(c, r->stopping, r->options.inline_cts);
    return moved + (posted > 0 ? posted : 0);
}

static bool receivers_done(const struct run *r) {
    for (uint64_t i = 0; i < r->count; i++) {
        const struct connection *c = &r->connections[i];
        bool more = r->job.iterations ? c->next < r->job.iterations && !r->stopping : !r->stopping;
        if (!c->is_sender && (more || !connection_idle(c)))
            return false;
    }
    return true;
}

static bool senders_done(const struct run *r) {
    for (uint64_t i = 0; i < r->count; i++) {
        const struct connection *c = &r->connections[i];
        if (c->is_sender && (c->counters.groups < r->peer_groups[i] || !connection_idle(c)))
            return false;
    }
    return true;
}

/* Both ends counted and summed for themselves; and nothing may lie in a fifo any more. */
static void compare_senders(struct run *r) {
    for (uint64_t i = 0; i < r->count; i++) {
        struct connection *c = &r->connections[i];
        if (!c->is_sender)
            continue;
        uint64_t left = cts_leftovers((volatile struct cts_entry *)(void *)(c->memory + c->fifo_at), &r->job);
        if (c->next != r->peer_groups[i])
            verdict_violation(&r->verdict, c->next < r->peer_groups[i] ? LOST : DUPLICATE, c->index, c->next,
                              "%" PRIu64 " groups sent, %" PRIu64 " received", c->next, r->peer_groups[i]);
        else if (c->counters.checksum != r->peer_checksum[i])
            verdict_violation(&r->verdict, DATA_MISMATCH, c->index, c->next,
                              "checksums differ: %016" PRIx64 " sent, %016" PRIx64 " received",
                              c->counters.checksum, r->peer_checksum[i]);
        if (left)
            verdict_violation(&r->verdict, OVERWRITTEN, c->index, c->next,
                              "%" PRIu64 " fifo entries were written after they had been answered", left);
    }
}

static void keep_time(struct run *r, uint64_t now) {
    const struct settings *s = &r->options.settings;
    bool over = r->job.duration_ms && now - r->stats.start_ns >= r->job.duration_ms * NS_PER_MS;
    if (((r->is_client && over) || interrupted) && !r->stop_sent) {
        r->stop_sent = r->stopping = true;
        control_send(&r->control, MSG_STOP, NULL, 0);
    }
    if (s->deadline_s && now - r->begun_ns >= s->deadline_s * NS_PER_S)
        verdict_error(&r->verdict, false, 0, "DEADLINE", now, "not finished after %u s", s->deadline_s);
    if (s->stall_s && now - r->last_progress_ns >= s->stall_s * NS_PER_S)
        verdict_error(&r->verdict, false, 0, "STALLED", now, "no completion and no message for %u s",
                      s->stall_s);
    if (r->control.lost && !(r->peer.known && r->result_sent))
        verdict_error(&r->verdict, false, 0, "PEER_LOST", now, "control connection: %s", r->control.why);
}

static bool is_over(struct run *r, uint64_t now) {
    bool spoilt = verdict_spoilt(&r->verdict);
    if (!r->fin_sent && (spoilt || receivers_done(r)))
        session_send_fin(r);
    if (r->fin_known && !r->result_sent && (spoilt || (senders_done(r) && r->fin_sent))) {
        if (!spoilt)
            compare_senders(r);
        session_send_result(r);
    }
    bool agreed = r->result_sent && r->peer.known;
    if (r->over_ns == 0 && spoilt)
        r->over_ns = now + (r->control.lost ? TAIL_NS : SPOILT_NS);
    if (agreed && (r->over_ns == 0 || r->over_ns > now + TAIL_NS))
        r->over_ns = now + TAIL_NS;
    return r->over_ns && now >= r->over_ns;
}

static void loop(struct run *r) {
    for (uint64_t turn = 0;; turn++) {
        int moved = 0;
        for (uint64_t i = 0; i < r->count; i++)
            moved += step(r, &r->connections[i]);
        if (moved == 0 || turn % 16 == 0)
            session_take_messages(r);
        uint64_t now = now_ns();
        if (moved > 0)
            r->last_progress_ns = now;
        keep_time(r, now);
        if (is_over(r, now))
            return;
        if (moved == 0) {
            while (device_async_event(&r->device, &r->verdict, now))
                ;
            nap(r->last_progress_ns, now, r->options.settings.spin, r->control.lost ? -1 : r->control.fd);
        }
    }
}

void engine_run(struct run *r) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    stats_start(&r->stats, now_ns(), unix_ns());
    r->last_progress_ns = r->stats.start_ns;
    loop(r);
    bool spoilt = verdict_spoilt(&r->verdict);
    if (!spoilt)
        compare_senders(r);
    stats_end(&r->stats, spoilt ? now_ns() : r->stats.last_ns);
}
