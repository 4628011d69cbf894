/* The result of a run as one JSON object. */
#include "run.h"

static void write_options(const struct run *r, struct json *j) {
    const struct job *o = &r->job;
    json_object(j, "options");
    json_string(j, "device", r->device.name);
    json_i64(j, "gid_index", r->device.gid_index);
    json_u64(j, "seed", o->seed);
    json_u64(j, "iterations", o->iterations);
    json_u64(j, "duration_ms", o->duration_ms);
    json_u64(j, "connections", o->connections);
    json_bool(j, "bidirectional", o->bidirectional);
    json_u64(j, "qps", o->lanes);
    json_u64(j, "group", o->group);
    json_u64(j, "max_requests", o->max_requests);
    json_u64(j, "size_low", o->size_low);
    json_u64(j, "size_high", o->size_high);
    json_u64(j, "adaptive_over", o->adaptive_over);
    json_bool(j, "flush", o->flush);
    json_bool(j, "inline_cts", r->options.inline_cts);
    json_u64(j, "timeout", o->timeout);
    json_u64(j, "retry", o->retry);
    json_end_object(j);
}

static void write_role(const struct run *r, struct json *j, const char *key, bool sender) {
    struct counters t = {0};
    for (uint64_t i = 0; i < r->count; i++) {
        const struct counters *c = &r->connections[i].counters;
        if (r->connections[i].is_sender != sender)
            continue;
        t.groups += c->groups;
        t.messages += c->messages;
        t.bytes += c->bytes;
        t.checksum ^= c->checksum;
        t.cts += c->cts;
        t.writes += c->writes;
        t.imms += c->imms;
        t.flushes += c->flushes;
    }
    char sum[20];
    snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)t.checksum);
    json_object(j, key);
    json_u64(j, "groups", t.groups);
    json_u64(j, "messages", t.messages);
    json_u64(j, "bytes", t.bytes);
    json_string(j, "checksum", sum);
    json_u64(j, "clear_to_sends", t.cts);
    json_u64(j, "writes", t.writes);
    json_u64(j, "imms", t.imms);
    json_u64(j, "flushes", t.flushes);
    json_end_object(j);
}

void report_write(struct run *r, FILE *out) {
    struct json j;
    const char *side = r->is_client ? "client" : "server";
    enum exit_code code = verdict_exit(&r->verdict);
    json_start(&j, out);
    json_object(&j, NULL);
    json_string(&j, "program", "ncclflow");
    json_string(&j, "side", side);
    json_bool(&j, "finished", code == EXIT_RIGHT);
    json_i64(&j, "exit", code);
    verdict_write(&r->verdict, &j, side, r->is_client ? "server" : "client");
    write_role(r, &j, "sent", true);
    write_role(r, &j, "received", false);
    if (r->peer.known) {
        json_object(&j, "peer");
        json_bool(&j, "has_error", r->peer.has_error);
        json_i64(&j, "status", r->peer.status);
        json_u64(&j, "violations", r->peer.violations);
        json_u64(&j, "messages", r->peer.messages);
        json_u64(&j, "bytes", r->peer.bytes);
        json_end_object(&j);
    } else {
        json_null(&j, "peer");
    }
    stats_write(&r->stats, &j);
    write_options(r, &j);
    json_end_object(&j);
    fflush(out);
}
