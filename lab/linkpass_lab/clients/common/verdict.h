/* The verdict of a run: the first error, every violation (up to a limit), async events, and the exit code.
 *
 * An *error* is an honest failure: the job was told. A *violation* is a lie: wrong bytes, or a completion
 * that is lost, repeated, out of order or wrong. Violations outrank everything. Safe to call from several
 * threads. */
#ifndef CLIENTS_VERDICT_H
#define CLIENTS_VERDICT_H

#include "json.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum exit_code { EXIT_RIGHT = 0, EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_VIOLATION = 3 };

enum violation_kind {
    DATA_MISMATCH,
    DUPLICATE,
    LOST,
    REORDERED,
    WRONG_IMM,
    WRONG_LENGTH,
    WRONG_OPCODE,
    WRONG_QP,
    WRONG_ATOMIC,
    OVERWRITTEN,  /* memory changed that no request may touch now: a late or repeated write, or an overrun */
    MISSED_EVENT, /* a completion in an armed queue whose channel did not wake */
    UNEXPECTED,   /* a completion that nothing was posted for */
    VIOLATION_KINDS
};

#define VIOLATIONS_KEPT 64
#define ASYNC_KEPT 64
#define MESSAGE_MAX 200

struct violation {
    enum violation_kind kind;
    uint32_t qp;
    uint64_t seq;
    char detail[MESSAGE_MAX];
};

struct run_error {
    bool set, by_peer;
    int status;       /* ibv_wc_status, or 0 when the error isn't a completion's */
    const char *name; /* a literal: RETRY_EXC_ERR, PEER_LOST, DEADLINE, ... */
    uint64_t at_ns;
    char message[MESSAGE_MAX];
};

struct async_note {
    uint64_t at_ns;
    uint32_t port;
    char name[48];
};

struct verdict {
    pthread_mutex_t lock;
    struct run_error error;
    uint64_t violation_count;
    struct violation violations[VIOLATIONS_KEPT];
    uint64_t async_count;
    struct async_note async_notes[ASYNC_KEPT];
    uint64_t flushed; /* completions with an error after the first one */
    uint64_t peer_violations;
};

void verdict_init(struct verdict *v);
void verdict_violation(struct verdict *v, enum violation_kind kind, uint32_t qp, uint64_t seq,
                       const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Keeps the first error only. Returns true when this was the first. */
bool verdict_error(struct verdict *v, bool by_peer, int status, const char *name, uint64_t at_ns,
                   const char *format, ...) __attribute__((format(printf, 6, 7)));
void verdict_async(struct verdict *v, uint64_t at_ns, const char *name, uint32_t port);
/* True when the run must stop: an error or a violation, here or at the peer. */
bool verdict_spoilt(struct verdict *v);
enum exit_code verdict_exit(struct verdict *v);
/* The error and the first violations as lines for people. */
void verdict_print(struct verdict *v, const char *program, FILE *out);
const char *violation_name(enum violation_kind kind);
void verdict_write(struct verdict *v, struct json *j, const char *side, const char *peer_side);

#endif
