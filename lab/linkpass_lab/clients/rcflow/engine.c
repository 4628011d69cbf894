/* The loop of a run: post, poll, converse, keep time; and the orderly end, also of a run that went wrong. */
#include "../common/clock.h"
#include "../common/nap.h"
#include "flow.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#define WAIT_MS 50
#define EVENT_GRACE_MS 200       /* an armed queue has a completion: its event must come within this */
#define TAIL_NS (20 * NS_PER_MS) /* after the end: is there a completion too many? */
#define SETTLE_NS (2 * NS_PER_S) /* after the peer's FIN: for receive completions still to be polled */
#define SPOILT_NS (5 * NS_PER_S) /* after an error: for the peer's result */

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

static bool all_complete(const struct flow *f) {
    for (uint64_t q = 0; q < f->workload.qps; q++)
        if (f->initiators[q].completed != f->initiators[q].posted)
            return false;
    return true;
}

static bool own_side_done(struct flow *f) {
    return !f->initiates ||
           (atomic_load_explicit(&f->still_posting, memory_order_acquire) == 0 && all_complete(f));
}

static bool all_verified(const struct flow *f) {
    for (uint64_t q = 0; f->responds && q < f->workload.qps; q++)
        if (f->responders[q].verified < f->peer_completed[q])
            return false;
    return true;
}

static void settle_peer(struct flow *f, uint64_t now) {
    if (!f->fin_known || f->result_sent)
        return;
    for (uint64_t q = 0; f->responds && q < f->workload.qps; q++)
        if (f->peer_completed[q] > f->responders[q].reported)
            responder_on_report(&f->responders[q], f->peer_completed[q]);
    if (!all_verified(f) && now - f->fin_ns < SETTLE_NS)
        return;
    for (uint64_t q = 0; f->responds && q < f->workload.qps; q++)
        responder_finish(&f->responders[q], f->peer_posted[q], f->peer_completed[q]);
    session_send_result(f);
}

/* What this side saw complete, the peer must have verified: request by request, where the peer verifies. */
static void reconcile(struct flow *f) {
    uint64_t completed[OP_KINDS] = {0};
    if (!f->initiates || !f->peer_result.known || verdict_spoilt(&f->verdict))
        return;
    for (uint64_t q = 0; q < f->workload.qps; q++)
        for (int op = 0; op < OP_KINDS; op++)
            completed[op] += f->initiators[q].counts.completed[op];
    for (int op = OP_WRITE; op <= OP_SEND_IMM; op++)
        if (completed[op] != f->peer_result.verified[op])
            verdict_violation(&f->verdict, LOST, 0, 0,
                              "%llu of %s complete here, but %llu verified by the peer",
                              (unsigned long long)completed[op], op_name((enum op)op),
                              (unsigned long long)f->peer_result.verified[op]);
}

static void keep_time(struct flow *f, uint64_t now) {
    const struct settings *s = &f->options.settings;
    bool over = f->workload.duration_ms && now - f->stats.start_ns >= f->workload.duration_ms * NS_PER_MS;
    if (((f->is_client && over) || interrupted) && !f->stop_sent) {
        f->stop_sent = true;
        f->stopping = true;
        control_send(&f->control, MSG_STOP, NULL, 0);
        poster_wake(f);
    }
    if (s->deadline_s && now - f->begun_ns >= s->deadline_s * NS_PER_S)
        verdict_error(&f->verdict, false, 0, "DEADLINE", now, "not finished after %u s", s->deadline_s);
    if (s->stall_s && now - f->last_progress_ns >= s->stall_s * NS_PER_S)
        verdict_error(&f->verdict, false, 0, "STALLED", now, "no completion and no message for %u s",
                      s->stall_s);
    if (f->control.lost && !(f->peer_result.known && f->result_sent))
        verdict_error(&f->verdict, false, 0, "PEER_LOST", now, "control connection: %s", f->control.why);
}

static bool is_over(struct flow *f, uint64_t now) {
    bool spoilt = verdict_spoilt(&f->verdict);
    if (!f->fin_sent && (spoilt || own_side_done(f)))
        session_send_fin(f);
    settle_peer(f, now);
    if (f->tail_until_ns == 0 && f->result_sent && f->peer_result.known)
        f->tail_until_ns = now + TAIL_NS;
    if (f->tail_until_ns == 0 && spoilt)
        f->tail_until_ns = now + (f->control.lost ? TAIL_NS : SPOILT_NS);
    if (f->result_sent && f->peer_result.known && f->tail_until_ns > now + TAIL_NS)
        f->tail_until_ns = now + TAIL_NS;
    return f->tail_until_ns && now >= f->tail_until_ns;
}

/* A completion was found though the channel stayed silent: did the event come late, or not at all? */
static void check_event_came(struct flow *f) {
    struct pollfd p = {.fd = f->objects.channel->fd, .events = POLLIN};
    if (f->workload.solicited || poll(&p, 1, EVENT_GRACE_MS) > 0)
        return;
    verdict_violation(&f->verdict, MISSED_EVENT, 0, 0,
                      "an armed completion queue has a completion, but its channel did not wake");
}

static void sleep_for_events(struct flow *f) {
    struct objects *x = &f->objects;
    if (!f->armed) {
        if (queues_arm(x, f->workload.solicited))
            verdict_error(&f->verdict, false, 0, "ARM_FAILED", now_ns(), "ibv_req_notify_cq failed");
        f->armed = true;
        return; /* poll once more: what came before arming makes no event */
    }
    struct pollfd p[3] = {{.fd = x->channel->fd, .events = POLLIN},
                          {.fd = f->control.lost ? -1 : f->control.fd, .events = POLLIN},
                          {.fd = x->device.context->async_fd, .events = POLLIN}};
    poll(p, 3, WAIT_MS);
    if (p[0].revents) {
        f->armed = false;
        if (queues_take_events(x) < 0)
            verdict_error(&f->verdict, false, 0, "EVENT_FAILED", now_ns(), "ibv_get_cq_event failed");
    }
}

static void idle(struct flow *f, uint64_t now) {
    if (f->options.events)
        sleep_for_events(f);
    else
        nap(f->last_progress_ns, now, f->options.settings.spin, f->control.lost ? -1 : f->control.fd);
}

static void loop(struct flow *f) {
    bool slept_armed = false;
    for (uint64_t turn = 0;; turn++) {
        bool spoilt = verdict_spoilt(&f->verdict);
        uint64_t moved = f->options.threads || spoilt ? 0 : poster_round(f);
        int n = completions_take(f);
        if (n > 0 && slept_armed && f->armed)
            check_event_came(f);
        slept_armed = false;
        if (n <= 0 || turn % 16 == 0)
            session_take_messages(f);
        uint64_t now = now_ns();
        if (n > 0)
            f->last_progress_ns = now;
        completions_flow_control(f);
        if (f->options.threads)
            poster_wake(f);
        keep_time(f, now);
        if (is_over(f, now))
            return;
        if (n <= 0 && moved == 0) {
            while (device_async_event(&f->objects.device, &f->verdict, now))
                ;
            slept_armed = f->armed;
            idle(f, now);
        }
    }
}

void engine_run(struct flow *f) {
    pthread_t poster;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    f->still_posting = f->initiates ? f->workload.qps : 0;
    stats_start(&f->stats, now_ns(), unix_ns());
    f->last_progress_ns = f->stats.start_ns;
    bool threaded = f->options.threads && pthread_create(&poster, NULL, poster_thread, f) == 0;
    if (f->options.threads && !threaded)
        f->options.threads = false;
    loop(f);
    f->ended = true;
    if (threaded) {
        poster_wake(f);
        pthread_join(poster, NULL);
    }
    stats_end(&f->stats, f->tail_until_ns && !verdict_spoilt(&f->verdict) ? f->stats.last_ns : now_ns());
    reconcile(f);
}
