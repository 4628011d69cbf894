/* The control conversation: agree on the workload, exchange ends, start together; credit; the end. */
#include "../common/clock.h"
#include "../common/names.h"
#include "../common/pattern.h"
#include "flow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_NS (60 * NS_PER_S) /* set-up is slow under emulation */

static int setup_failed(struct flow *f, const char *name, const char *why) {
    verdict_error(&f->verdict, false, 0, name, now_ns(), "%s", why);
    return EXIT_ERROR;
}

static int peer_failed(struct flow *f) {
    char why[160];
    snprintf(why, sizeof(why), "during set-up: %s", f->control.why);
    return setup_failed(f, "PEER_LOST", why);
}

static int connect_peer(struct flow *f) {
    const struct settings *s = &f->options.settings;
    char why[200];
    uint64_t wait = s->wait_s * NS_PER_S;
    int rc = s->host ? control_connect(&f->control, s->host, s->tcp_port, wait, s->peer_timeout_s)
                     : control_accept(&f->control, s->tcp_port, wait, s->peer_timeout_s);
    if (rc == 0)
        return 0;
    if (s->host)
        snprintf(why, sizeof(why), "cannot reach %s, TCP port %u: %s (is the server running there?)", s->host,
                 s->tcp_port, strerror(rc));
    else
        snprintf(why, sizeof(why), "no client came to TCP port %u: %s", s->tcp_port, strerror(rc));
    return setup_failed(f, "NO_PEER", why);
}

static int agree(struct flow *f) {
    uint64_t words[1 + WORKLOAD_WORDS];
    if (f->is_client) {
        words[0] = PROTOCOL_VERSION;
        memcpy(words + 1, &f->workload, sizeof(f->workload));
        control_send(&f->control, MSG_HELLO, words, 1 + WORKLOAD_WORDS);
        return 0;
    }
    if (!control_expect(&f->control, MSG_HELLO, &f->message, ANSWER_NS))
        return peer_failed(f);
    if (f->message.count != 1 + WORKLOAD_WORDS || f->message.words[0] != PROTOCOL_VERSION)
        return setup_failed(f, "PROTOCOL", "the client is of another version");
    memcpy(&f->workload, f->message.words + 1, sizeof(f->workload));
    const char *fault = workload_fault(&f->workload);
    if (fault)
        return setup_failed(f, "PROTOCOL", fault);
    struct settings *s = &f->options.settings;
    s->mtu = (uint32_t)f->workload.mtu;
    s->timeout = (uint32_t)f->workload.timeout;
    s->retry = (uint32_t)f->workload.retry;
    s->rnr_retry = (uint32_t)f->workload.rnr_retry;
    s->min_rnr = (uint32_t)f->workload.min_rnr;
    s->rd_atomic = (uint32_t)f->workload.rd_atomic;
    return 0;
}

static int create_checkers(struct flow *f) {
    const struct workload *w = &f->workload;
    f->initiates = f->is_client || w->bidirectional;
    f->responds = !f->is_client || w->bidirectional;
    memory_layout(&f->own, w, f->initiates, f->responds);
    memory_layout(&f->peer, w, f->responds, f->initiates);
    int rc = memory_map(&f->own);
    f->initiators = calloc(w->qps, sizeof(*f->initiators));
    f->responders = calloc(w->qps, sizeof(*f->responders));
    f->last_report = calloc(w->qps, sizeof(uint64_t));
    f->last_grant = calloc(w->qps, sizeof(uint64_t));
    if (rc || !f->initiators || !f->responders || !f->last_report || !f->last_grant ||
        (f->responds && workload_receives(w) && receive_slots_create(&f->slots, w)))
        return ENOMEM;
    for (uint32_t q = 0; q < w->qps; q++) {
        if (f->initiates &&
            initiator_create(&f->initiators[q], w, &f->own, &f->peer, &f->verdict, q, !f->is_client))
            return ENOMEM;
        if (f->responds)
            responder_create(&f->responders[q], w, &f->own, &f->verdict, q, f->is_client);
        f->last_grant[q] = w->window;
    }
    return 0;
}

static uint32_t pack_ends(struct flow *f, struct endpoint *ends, uint64_t *words) {
    uint32_t n = 0;
    for (uint64_t q = 0; q < f->workload.qps; q++) {
        /* Some first packet numbers lie just before the 24-bit wrap, where counting is most easily wrong. */
        uint32_t psn = (uint32_t)pattern_key(f->workload.seed, (uint32_t)q, 2u + f->is_client);
        ends[q] = endpoint_of(&f->objects.device, &f->options.settings, f->objects.qps[q],
                              q % 2 ? psn : 0xfff000 + (psn & 0x7ff));
        endpoint_pack(&ends[q], words + n);
        n += ENDPOINT_WORDS;
        if (f->initiates)
            f->initiators[q].qp_num = f->objects.qps[q]->qp_num;
    }
    for (uint64_t m = 0; m < f->workload.mrs; m++) {
        words[n++] = (uintptr_t)f->own.base[m];
        words[n++] = f->objects.mrs[m]->rkey;
    }
    return n;
}

static int exchange_ends(struct flow *f) {
    struct endpoint ends[QPS_MAX];
    char why[160];
    static uint64_t words[CONTROL_WORDS_MAX];
    uint32_t n = pack_ends(f, ends, words);
    control_send(&f->control, MSG_ENDS, words, n);
    if (!control_expect(&f->control, MSG_ENDS, &f->message, ANSWER_NS))
        return peer_failed(f);
    if (f->message.count != n)
        return setup_failed(f, "PROTOCOL", "the peer described another number of queue pairs");
    for (uint64_t q = 0; q < f->workload.qps; q++) {
        struct endpoint peer = endpoint_unpack(f->message.words + q * ENDPOINT_WORDS);
        if (qp_to_ready(f->objects.qps[q], &f->objects.device, &f->options.settings, &ends[q], &peer, why,
                        sizeof(why)))
            return setup_failed(f, "SETUP", why);
    }
    for (uint64_t m = 0; m < f->workload.mrs; m++) {
        const uint64_t *pair = f->message.words + f->workload.qps * ENDPOINT_WORDS + m * 2;
        f->remote.base[m] = pair[0];
        f->remote.rkey[m] = (uint32_t)pair[1];
    }
    control_send(&f->control, MSG_READY, NULL, 0);
    return control_expect(&f->control, MSG_READY, &f->message, ANSWER_NS) ? 0 : peer_failed(f);
}

int session_open(struct flow *f) {
    char why[200];
    int rc = connect_peer(f);
    if (rc || (rc = agree(f)))
        return rc;
    if (create_checkers(f))
        return setup_failed(
            f, "SETUP", "not enough memory for the buffers: fewer or smaller requests, or a smaller window");
    if (objects_create(&f->objects, &f->options, &f->workload, &f->own, why, sizeof(why)))
        return setup_failed(f, "SETUP", why);
    if ((rc = completions_post_receives(f))) {
        snprintf(why, sizeof(why), "cannot post receives: %s", strerror(rc));
        return setup_failed(f, "SETUP", why);
    }
    return exchange_ends(f);
}

void session_send_fin(struct flow *f) {
    static uint64_t words[3 + 2 * QPS_MAX];
    uint32_t n = 0;
    words[n++] = f->verdict.error.set;
    words[n++] = (uint64_t)f->verdict.error.status;
    words[n++] = f->verdict.violation_count;
    for (uint64_t q = 0; q < f->workload.qps; q++) {
        words[n++] = f->initiates ? f->initiators[q].posted : 0;
        words[n++] = f->initiates ? f->initiators[q].completed : 0;
    }
    control_send(&f->control, MSG_FIN, words, n);
    f->fin_sent = true;
}

void session_send_result(struct flow *f) {
    uint64_t words[4 + OP_KINDS] = {f->verdict.error.set, (uint64_t)f->verdict.error.status,
                                    f->verdict.violation_count};
    for (uint64_t q = 0; f->responds && q < f->workload.qps; q++) {
        words[3] += f->responders[q].bytes;
        for (int op = 0; op < OP_KINDS; op++)
            words[4 + op] += f->responders[q].verified_count[op];
    }
    control_send(&f->control, MSG_RESULT, words, 4 + OP_KINDS);
    f->result_sent = true;
}

static void note_peer_state(struct flow *f, const uint64_t *words) {
    if (words[2] > f->verdict.peer_violations)
        f->verdict.peer_violations = words[2];
    if (words[0])
        verdict_error(&f->verdict, true, (int)words[1], words[1] ? status_name((int)words[1]) : "PEER_ERROR",
                      now_ns(), "the peer ended with an error%s%s", words[1] ? ": " : "",
                      words[1] ? ibv_wc_status_str((enum ibv_wc_status)words[1]) : "");
}

static bool take_pairs(struct flow *f, const struct message *m) {
    if (m->count % 2 || !(m->type == MSG_GRANT ? f->initiates : f->responds))
        return false;
    for (uint32_t n = 0; n < m->count; n += 2) {
        uint64_t q = m->words[n], value = m->words[n + 1];
        if (q >= f->workload.qps)
            return false;
        if (m->type == MSG_GRANT) {
            atomic_store_explicit(&f->initiators[q].limit, value, memory_order_release);
        } else {
            uint64_t before = f->responders[q].bytes;
            responder_on_report(&f->responders[q], value);
            stats_received(&f->stats, now_ns(), f->responders[q].bytes - before);
        }
    }
    return true;
}

static bool take_fin(struct flow *f, const struct message *m) {
    if (m->count != 3 + 2 * f->workload.qps)
        return false;
    for (uint64_t q = 0; q < f->workload.qps; q++) {
        f->peer_posted[q] = m->words[3 + 2 * q];
        f->peer_completed[q] = m->words[4 + 2 * q];
    }
    f->fin_known = true;
    f->fin_ns = now_ns();
    note_peer_state(f, m->words);
    return true;
}

static bool take_result(struct flow *f, const struct message *m) {
    if (m->count != 4 + OP_KINDS)
        return false;
    f->peer_result = (struct peer_result){.known = true,
                                          .has_error = m->words[0],
                                          .status = (int)m->words[1],
                                          .violations = m->words[2],
                                          .bytes = m->words[3]};
    memcpy(f->peer_result.verified, m->words + 4, sizeof(f->peer_result.verified));
    note_peer_state(f, m->words);
    return true;
}

static bool take(struct flow *f, const struct message *m) {
    switch (m->type) {
    case MSG_REPORT:
    case MSG_GRANT:
        return take_pairs(f, m);
    case MSG_STOP:
        f->stopping = true;
        return true;
    case MSG_FIN:
        return take_fin(f, m);
    case MSG_RESULT:
        return take_result(f, m);
    default:
        return false;
    }
}

void session_take_messages(struct flow *f) {
    control_pump(&f->control);
    while (control_next(&f->control, &f->message)) {
        f->last_progress_ns = now_ns();
        if (!take(f, &f->message)) {
            verdict_error(&f->verdict, false, 0, "PROTOCOL", now_ns(),
                          "control message %u makes no sense here", f->message.type);
            return;
        }
    }
}
