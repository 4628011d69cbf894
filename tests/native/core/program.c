/* Programs, limits and steps as text: "W2s S2u / R2sf", "faults=1 late_sends=1", "deliver 0 1". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "world.h"

static const char LETTERS[] = "WISRA"; /* in the order of enum lp_op */

static bool parse_request(const char *word, struct request *request) {
    const char *letter = strchr(LETTERS, word[0]);
    if (word[0] == '\0' || letter == NULL || word[1] < '1' || word[1] > '3') {
        return false;
    }
    request->op = (uint8_t)(letter - LETTERS);
    request->packets = (uint8_t)(word[1] - '0');
    request->signaled = word[2] == 's';
    request->fence = word[2] != '\0' && word[3] == 'f';
    return word[2] == 's' || word[2] == 'u';
}

bool program_parse(const char *text, struct program *program) {
    char copy[128];
    unsigned end = 0;
    memset(program, 0, sizeof(*program));
    if (strlen(text) >= sizeof(copy)) {
        return false;
    }
    strcpy(copy, text);
    for (char *word = strtok(copy, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        if (strcmp(word, "/") == 0) {
            end = 1;
        } else if (program->count[end] == REQS ||
                   !parse_request(word, &program->req[end][program->count[end]++])) {
            return false;
        }
    }
    return true;
}

void program_print(const struct program *program, char *text, unsigned size) {
    unsigned at = 0;
    for (unsigned end = 0; end < 2; end++) {
        for (unsigned i = 0; i < program->count[end] && at + 8 < size; i++) {
            const struct request *request = &program->req[end][i];
            at +=
                (unsigned)snprintf(text + at, size - at, "%c%d%c%s ", LETTERS[request->op], request->packets,
                                   request->signaled ? 's' : 'u', request->fence ? "f" : "");
        }
        at += (unsigned)snprintf(text + at, size - at, end == 0 ? "/ " : "");
    }
}

#define FIELD(name)                                                                                          \
    { #name, offsetof(struct limits, name) }
static const struct {
    const char *name;
    size_t offset;
} FIELDS[] = {FIELD(faults),      FIELD(orders),     FIELD(attempts),   FIELD(timeouts), FIELD(destroys),
              FIELD(app_errors),  FIELD(repeats),    FIELD(drops),      FIELD(lies),     FIELD(reorder),
              FIELD(late_sends),  FIELD(late_recvs), FIELD(late_spare), FIELD(eager),    FIELD(untrusted),
              FIELD(no_consumed), FIELD(atomics)};

bool limits_parse(const char *text, struct limits *limits) {
    char copy[256];
    memset(limits, 0, sizeof(*limits));
    if (strlen(text) >= sizeof(copy)) {
        return false;
    }
    strcpy(copy, text);
    for (char *word = strtok(copy, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        bool known = false;
        if (value == NULL) {
            return false;
        }
        *value++ = '\0';
        for (unsigned i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++) {
            if (strcmp(word, FIELDS[i].name) == 0) {
                ((uint8_t *)limits)[FIELDS[i].offset] = (uint8_t)atoi(value);
                known = true;
            }
        }
        if (!known) {
            return false;
        }
    }
    return true;
}

void limits_print(const struct limits *limits, char *text, unsigned size) {
    unsigned at = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++) {
        uint8_t value = ((const uint8_t *)limits)[FIELDS[i].offset];
        if (value != 0 && at + 20 < size) {
            at += (unsigned)snprintf(text + at, size - at, "%s%s=%u", at != 0 ? " " : "", FIELDS[i].name,
                                     value);
        }
    }
}

static const char *const STEPS[ST_KINDS] = {
    "post-send", "post-recv", "deliver",     "ack",         "poll",  "drain", "open",    "replay",
    "mail",      "tell",      "retry-exc",   "spare",       "FAULT", "ORDER", "ATTEMPT", "TIMEOUT",
    "DESTROY",   "APP-ERROR", "REPEAT-TELL", "REPEAT-MAIL", "DROP",  "LIE"};

void step_print(struct step step, char *text, unsigned size) {
    (void)snprintf(text, size, "%s %u %u %u", STEPS[step.kind], step.end, step.a, step.b);
}

bool step_parse(const char *text, struct step *step) {
    char name[16];
    unsigned end, a, b;
    if (sscanf(text, "%15s %u %u %u", name, &end, &a, &b) != 4 || end > 1) {
        return false;
    }
    for (unsigned kind = 0; kind < ST_KINDS; kind++) {
        if (strcmp(name, STEPS[kind]) == 0) {
            *step = (struct step){(uint8_t)kind, (uint8_t)end, (uint8_t)a, (uint8_t)b};
            return true;
        }
    }
    return false;
}
