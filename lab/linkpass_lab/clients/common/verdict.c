#include "verdict.h"

#include <stdarg.h>
#include <string.h>

static const char *const NAMES[VIOLATION_KINDS] = {
    [DATA_MISMATCH] = "data_mismatch", [DUPLICATE] = "duplicate",   [LOST] = "lost",
    [REORDERED] = "reordered",         [WRONG_IMM] = "wrong_imm",   [WRONG_LENGTH] = "wrong_length",
    [WRONG_OPCODE] = "wrong_opcode",   [WRONG_QP] = "wrong_qp",     [WRONG_ATOMIC] = "wrong_atomic",
    [OVERWRITTEN] = "overwritten",     [UNEXPECTED] = "unexpected", [MISSED_EVENT] = "missed_event",
};

const char *violation_name(enum violation_kind kind) {
    return NAMES[kind];
}

void verdict_init(struct verdict *v) {
    memset(v, 0, sizeof(*v));
    pthread_mutex_init(&v->lock, NULL);
}

void verdict_violation(struct verdict *v, enum violation_kind kind, uint32_t qp, uint64_t seq,
                       const char *format, ...) {
    pthread_mutex_lock(&v->lock);
    if (v->violation_count < VIOLATIONS_KEPT) {
        struct violation *one = &v->violations[v->violation_count];
        *one = (struct violation){.kind = kind, .qp = qp, .seq = seq};
        va_list args;
        va_start(args, format);
        vsnprintf(one->detail, sizeof(one->detail), format, args);
        va_end(args);
    }
    v->violation_count++;
    pthread_mutex_unlock(&v->lock);
}

bool verdict_error(struct verdict *v, bool by_peer, int status, const char *name, uint64_t at_ns,
                   const char *format, ...) {
    pthread_mutex_lock(&v->lock);
    bool first = !v->error.set;
    if (first) {
        v->error = (struct run_error){
            .set = true, .by_peer = by_peer, .status = status, .name = name, .at_ns = at_ns};
        va_list args;
        va_start(args, format);
        vsnprintf(v->error.message, sizeof(v->error.message), format, args);
        va_end(args);
    }
    pthread_mutex_unlock(&v->lock);
    return first;
}

void verdict_async(struct verdict *v, uint64_t at_ns, const char *name, uint32_t port) {
    pthread_mutex_lock(&v->lock);
    if (v->async_count < ASYNC_KEPT) {
        struct async_note *note = &v->async_notes[v->async_count];
        *note = (struct async_note){.at_ns = at_ns, .port = port};
        snprintf(note->name, sizeof(note->name), "%s", name);
    }
    v->async_count++;
    pthread_mutex_unlock(&v->lock);
}

bool verdict_spoilt(struct verdict *v) {
    pthread_mutex_lock(&v->lock);
    bool spoilt = v->error.set || v->violation_count || v->peer_violations;
    pthread_mutex_unlock(&v->lock);
    return spoilt;
}

enum exit_code verdict_exit(struct verdict *v) {
    if (v->violation_count || v->peer_violations)
        return EXIT_VIOLATION;
    return v->error.set ? EXIT_ERROR : EXIT_RIGHT;
}

void verdict_print(struct verdict *v, const char *program, FILE *out) {
    if (v->error.set)
        fprintf(out, "%s: %s: %s\n", program, v->error.name, v->error.message);
    for (uint64_t i = 0; i < v->violation_count && i < 5; i++)
        fprintf(out, "%s: VIOLATION %s, queue pair %u, request %llu: %s\n", program,
                NAMES[v->violations[i].kind], v->violations[i].qp, (unsigned long long)v->violations[i].seq,
                v->violations[i].detail);
}

static void write_error(const struct run_error *e, struct json *j, const char *side) {
    if (!e->set) {
        json_null(j, "error");
        return;
    }
    json_object(j, "error");
    json_string(j, "side", side);
    json_i64(j, "status", e->status);
    json_string(j, "name", e->name);
    json_seconds(j, "at", e->at_ns);
    json_string(j, "message", e->message);
    json_end_object(j);
}

void verdict_write(struct verdict *v, struct json *j, const char *side, const char *peer_side) {
    write_error(&v->error, j, v->error.by_peer ? peer_side : side);
    json_u64(j, "violation_count", v->violation_count);
    json_u64(j, "peer_violation_count", v->peer_violations);
    json_array(j, "violations");
    for (uint64_t i = 0; i < v->violation_count && i < VIOLATIONS_KEPT; i++) {
        json_object(j, NULL);
        json_string(j, "kind", NAMES[v->violations[i].kind]);
        json_u64(j, "qp", v->violations[i].qp);
        json_u64(j, "seq", v->violations[i].seq);
        json_string(j, "detail", v->violations[i].detail);
        json_end_object(j);
    }
    json_end_array(j);
    json_u64(j, "flushed", v->flushed);
    json_array(j, "async_events");
    for (uint64_t i = 0; i < v->async_count && i < ASYNC_KEPT; i++) {
        json_object(j, NULL);
        json_string(j, "name", v->async_notes[i].name);
        json_u64(j, "port", v->async_notes[i].port);
        json_seconds(j, "at", v->async_notes[i].at_ns);
        json_end_object(j);
    }
    json_end_array(j);
}
