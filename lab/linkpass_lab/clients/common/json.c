#include "json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

void json_start(struct json *j, FILE *out) {
    *j = (struct json){.out = out};
}

static void quoted(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

static void lead(struct json *j, const char *key) {
    if (j->filled[j->depth])
        fputs(",", j->out);
    j->filled[j->depth] = true;
    if (key) {
        quoted(j->out, key);
        fputc(':', j->out);
    }
}

static void open_container(struct json *j, const char *key, char bracket) {
    lead(j, key);
    fputc(bracket, j->out);
    assert(j->depth + 1 < JSON_DEPTH);
    j->filled[++j->depth] = false;
}

static void close_container(struct json *j, char bracket) {
    assert(j->depth > 0);
    j->depth--;
    fputc(bracket, j->out);
    if (j->depth == 0)
        fputc('\n', j->out);
}

void json_object(struct json *j, const char *key) {
    open_container(j, key, '{');
}

void json_array(struct json *j, const char *key) {
    open_container(j, key, '[');
}

void json_end_object(struct json *j) {
    close_container(j, '}');
}

void json_end_array(struct json *j) {
    close_container(j, ']');
}

void json_string(struct json *j, const char *key, const char *value) {
    if (!value) {
        json_null(j, key);
        return;
    }
    lead(j, key);
    quoted(j->out, value);
}

void json_u64(struct json *j, const char *key, uint64_t value) {
    lead(j, key);
    fprintf(j->out, "%" PRIu64, value);
}

void json_i64(struct json *j, const char *key, int64_t value) {
    lead(j, key);
    fprintf(j->out, "%" PRId64, value);
}

void json_bool(struct json *j, const char *key, bool value) {
    lead(j, key);
    fputs(value ? "true" : "false", j->out);
}

void json_null(struct json *j, const char *key) {
    lead(j, key);
    fputs("null", j->out);
}

void json_seconds(struct json *j, const char *key, uint64_t ns) {
    lead(j, key);
    fprintf(j->out, "%" PRIu64 ".%09" PRIu64, ns / 1000000000u, ns % 1000000000u);
}

void json_double(struct json *j, const char *key, double value) {
    if (!isfinite(value)) {
        json_null(j, key);
        return;
    }
    lead(j, key);
    fprintf(j->out, "%.6f", value);
}
