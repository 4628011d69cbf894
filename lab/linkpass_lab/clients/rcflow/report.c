/* The result of a run as one JSON object. */
#include "../common/names.h"
#include "flow.h"

static void write_options(const struct flow *f, struct json *j) {
    const struct workload *w = &f->workload;
    json_object(j, "options");
    json_string(j, "device", f->objects.device.name);
    json_i64(j, "gid_index", f->objects.device.gid_index);
    json_u64(j, "seed", w->seed);
    json_u64(j, "iterations", w->iterations);
    json_u64(j, "duration_ms", w->duration_ms);
    json_u64(j, "qps", w->qps);
    json_u64(j, "depth", w->depth);
    json_u64(j, "window", w->window);
    json_u64(j, "rx_depth", w->rx_depth);
    json_u64(j, "max_size", workload_max_size(w));
    json_u64(j, "sges", w->sges);
    json_u64(j, "mrs", w->mrs);
    json_u64(j, "inline", w->inline_max);
    json_u64(j, "signal_every", w->signal_every);
    json_u64(j, "post_list", w->post_list);
    json_bool(j, "bidirectional", w->bidirectional);
    json_bool(j, "srq", w->srq);
    json_u64(j, "timeout", w->timeout);
    json_u64(j, "retry", w->retry);
    json_bool(j, "events", f->options.events);
    json_bool(j, "new_api", f->options.new_api);
    json_bool(j, "cq_ex", f->options.cq_ex);
    json_bool(j, "threads", f->options.threads);
    json_end_object(j);
}

static void write_ops(const struct flow *f, struct json *j) {
    json_object(j, "ops");
    for (int op = 0; op < OP_KINDS; op++) {
        uint64_t posted = 0, completed = 0, verified = 0, answered = 0;
        for (uint64_t q = 0; f->initiators && f->initiates && q < f->workload.qps; q++) {
            posted += f->initiators[q].counts.posted[op];
            completed += f->initiators[q].counts.completed[op];
            verified += f->initiators[q].counts.verified[op];
        }
        for (uint64_t q = 0; f->responders && f->responds && q < f->workload.qps; q++)
            answered += f->responders[q].verified_count[op];
        if (!f->workload.weights[op])
            continue;
        json_object(j, op_name((enum op)op));
        json_u64(j, "posted", posted);
        json_u64(j, "completed", completed);
        json_u64(j, "verified", verified + answered);
        json_end_object(j);
    }
    json_end_object(j);
}

static void write_peer(const struct flow *f, struct json *j) {
    const struct peer_result *p = &f->peer_result;
    if (!p->known) {
        json_null(j, "peer");
        return;
    }
    json_object(j, "peer");
    json_bool(j, "has_error", p->has_error);
    json_i64(j, "status", p->status);
    json_u64(j, "violations", p->violations);
    json_u64(j, "bytes", p->bytes);
    json_object(j, "verified");
    for (int op = 0; op < OP_KINDS; op++)
        if (f->workload.weights[op])
            json_u64(j, op_name((enum op)op), p->verified[op]);
    json_end_object(j);
    json_end_object(j);
}

void report_write(struct flow *f, FILE *out) {
    struct json j;
    const char *side = f->is_client ? "client" : "server";
    enum exit_code code = verdict_exit(&f->verdict);
    json_start(&j, out);
    json_object(&j, NULL);
    json_string(&j, "program", "rcflow");
    json_string(&j, "side", side);
    json_bool(&j, "finished", code == EXIT_RIGHT);
    json_i64(&j, "exit", code);
    verdict_write(&f->verdict, &j, side, f->is_client ? "server" : "client");
    write_ops(f, &j);
    write_peer(f, &j);
    stats_write(&f->stats, &j);
    write_options(f, &j);
    json_end_object(&j);
    fflush(out);
}
