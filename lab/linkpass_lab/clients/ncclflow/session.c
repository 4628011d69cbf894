/* The control conversation: agree on the job, exchange ends, start together, end together. */
#include "../common/clock.h"
#include "../common/names.h"
#include "../common/pattern.h"
#include "run.h"

#include <errno.h>
#include <string.h>

#define ANSWER_NS (60 * NS_PER_S) /* set-up is slow under emulation */

static int setup_failed(struct run *r, const char *name, const char *why) {
    verdict_error(&r->verdict, false, 0, name, now_ns(), "%s", why);
    return EXIT_ERROR;
}

static int peer_failed(struct run *r) {
    char why[160];
    snprintf(why, sizeof(why), "during set-up: %s", r->control.why);
    return setup_failed(r, "PEER_LOST", why);
}

static int connect_peer(struct run *r) {
    const struct settings *s = &r->options.settings;
    char why[200];
    uint64_t wait = s->wait_s * NS_PER_S;
    int rc = s->host ? control_connect(&r->control, s->host, s->tcp_port, wait, s->peer_timeout_s)
                     : control_accept(&r->control, s->tcp_port, wait, s->peer_timeout_s);
    if (rc == 0)
        return 0;
    if (s->host)
        snprintf(why, sizeof(why), "cannot reach %s, TCP port %u: %s (is the server running there?)", s->host,
                 s->tcp_port, strerror(rc));
    else
        snprintf(why, sizeof(why), "no client came to TCP port %u: %s", s->tcp_port, strerror(rc));
    return setup_failed(r, "NO_PEER", why);
}

static int agree(struct run *r) {
    uint64_t words[1 + JOB_WORDS] = {PROTOCOL_VERSION};
    if (r->is_client) {
        memcpy(words + 1, &r->job, sizeof(r->job));
        control_send(&r->control, MSG_HELLO, words, 1 + JOB_WORDS);
        return 0;
    }
    if (!control_expect(&r->control, MSG_HELLO, &r->message, ANSWER_NS))
        return peer_failed(r);
    if (r->message.count != 1 + JOB_WORDS || r->message.words[0] != PROTOCOL_VERSION)
        return setup_failed(r, "PROTOCOL", "the client is of another version");
    memcpy(&r->job, r->message.words + 1, sizeof(r->job));
    const char *fault = job_fault(&r->job);
    if (fault)
        return setup_failed(r, "PROTOCOL", fault);
    struct settings *s = &r->options.settings;
    s->mtu = (uint32_t)r->job.mtu;
    s->timeout = (uint32_t)r->job.timeout;
    s->retry = (uint32_t)r->job.retry;
    s->rnr_retry = (uint32_t)r->job.rnr_retry;
    s->min_rnr = (uint32_t)r->job.min_rnr;
    s->rd_atomic = (uint32_t)r->job.rd_atomic;
    return 0;
}

static int create_connections(struct run *r) {
    char why[200];
    if (device_open(&r->device, &r->options.settings, why, sizeof(why)))
        return setup_failed(r, "SETUP", why);
    r->pd = ibv_alloc_pd(r->device.context);
    if (!r->pd)
        return setup_failed(r, "SETUP", "cannot create a protection domain");
    uint64_t total = r->job.connections * (r->job.bidirectional ? 2 : 1);
    for (r->count = 0; r->count < total; r->count++) {
        struct connection *c = &r->connections[r->count];
        bool of_client = r->count < r->job.connections;
        *c = (struct connection){.job = &r->job,
                                 .verdict = &r->verdict,
                                 .stats = &r->stats,
                                 .log = &r->log,
                                 .index = (uint32_t)r->count,
                                 .key = pattern_key(r->job.seed, (uint32_t)r->count, 7),
                                 .is_sender = of_client == r->is_client};
        if (connection_create(c, &r->device, r->pd, &r->options, why, sizeof(why))) {
            r->count++;
            return setup_failed(r, "SETUP", why);
        }
    }
    return 0;
}

static int exchange_ends(struct run *r) {
    static uint64_t words[CONTROL_WORDS_MAX];
    char why[160];
    uint32_t n = 0;
    uint64_t lanes = r->job.lanes, each = lanes * ENDPOINT_WORDS + 2;
    for (uint64_t i = 0; i < r->count; i++) {
        for (uint64_t l = 0; l < lanes; l++, n += ENDPOINT_WORDS)
            endpoint_pack(&r->connections[i].ends[l], words + n);
        words[n++] = (uintptr_t)r->connections[i].memory;
        words[n++] = r->connections[i].mr->rkey;
    }
    control_send(&r->control, MSG_ENDS, words, n);
    if (!control_expect(&r->control, MSG_ENDS, &r->message, ANSWER_NS))
        return peer_failed(r);
    if (r->message.count != n)
        return setup_failed(r, "PROTOCOL", "the peer described another number of queue pairs");
    for (uint64_t i = 0; i < r->count; i++) {
        struct connection *c = &r->connections[i];
        const uint64_t *of = r->message.words + i * each;
        for (uint64_t l = 0; l < lanes; l++) {
            struct endpoint peer = endpoint_unpack(of + l * ENDPOINT_WORDS);
            if (qp_to_ready(c->lanes[l], &r->device, &r->options.settings, &c->ends[l], &peer, why,
                            sizeof(why)))
                return setup_failed(r, "SETUP", why);
        }
        c->peer_memory = of[each - 2];
        c->peer_rkey = (uint32_t)of[each - 1];
    }
    control_send(&r->control, MSG_READY, NULL, 0);
    return control_expect(&r->control, MSG_READY, &r->message, ANSWER_NS) ? 0 : peer_failed(r);
}

int session_open(struct run *r) {
    int rc = connect_peer(r);
    if (rc == 0)
        rc = agree(r);
    if (rc == 0)
        rc = create_connections(r);
    return rc ? rc : exchange_ends(r);
}

void session_send_fin(struct run *r) {
    uint64_t words[3 + 4 * CONNECTIONS_MAX] = {r->verdict.error.set, (uint64_t)r->verdict.error.status,
                                               r->verdict.violation_count};
    uint32_t n = 3;
    for (uint64_t i = 0; i < r->count; i++) {
        const struct connection *c = &r->connections[i];
        words[n++] = c->is_sender ? 0 : c->counters.groups;
        words[n++] = c->is_sender ? 0 : c->counters.checksum;
    }
    control_send(&r->control, MSG_FIN, words, n);
    r->fin_sent = true;
}

void session_send_result(struct run *r) {
    uint64_t words[5] = {r->verdict.error.set, (uint64_t)r->verdict.error.status, r->verdict.violation_count};
    for (uint64_t i = 0; i < r->count; i++)
        if (!r->connections[i].is_sender) {
            words[3] += r->connections[i].counters.messages;
            words[4] += r->connections[i].counters.bytes;
        }
    control_send(&r->control, MSG_RESULT, words, 5);
    r->result_sent = true;
}

static void note_peer_state(struct run *r, const uint64_t *words) {
    if (words[2] > r->verdict.peer_violations)
        r->verdict.peer_violations = words[2];
    if (words[0])
        verdict_error(&r->verdict, true, (int)words[1], words[1] ? status_name((int)words[1]) : "PEER_ERROR",
                      now_ns(), "the peer ended with an error%s%s", words[1] ? ": " : "",
                      words[1] ? ibv_wc_status_str((enum ibv_wc_status)words[1]) : "");
}

static bool take(struct run *r, const struct message *m) {
    if (m->type == MSG_STOP) {
        r->stopping = true;
        return true;
    }
    if (m->type == MSG_FIN && m->count == 3 + 2 * r->count) {
        for (uint64_t i = 0; i < r->count; i++) {
            r->peer_groups[i] = m->words[3 + 2 * i];
            r->peer_checksum[i] = m->words[4 + 2 * i];
        }
        r->fin_known = true;
        note_peer_state(r, m->words);
        return true;
    }
    if (m->type == MSG_RESULT && m->count == 5) {
        r->peer =
            (struct peer_result){true, m->words[0], (int)m->words[1], m->words[2], m->words[3], m->words[4]};
        note_peer_state(r, m->words);
        return true;
    }
    return false;
}

void session_take_messages(struct run *r) {
    control_pump(&r->control);
    while (control_next(&r->control, &r->message)) {
        r->last_progress_ns = now_ns();
        if (take(r, &r->message))
            continue;
        verdict_error(&r->verdict, false, 0, "PROTOCOL", now_ns(), "control message %u makes no sense here",
                      r->message.type);
        return;
    }
}
