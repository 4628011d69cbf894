/* The workload: what is sent, as a value both ends share; and the plan: request number n of a queue pair and
 * direction is a pure function of the workload, so the receiving end knows what has to come. */
#ifndef RCFLOW_WORKLOAD_H
#define RCFLOW_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum op { OP_WRITE, OP_WRITE_IMM, OP_SEND, OP_SEND_IMM, OP_READ, OP_FETCH_ADD, OP_CMP_SWP, OP_KINDS };

#define SIZES_MAX 16
#define SGES_MAX 16
#define MRS_MAX 16
#define QPS_MAX 1024
#define GUARD 64 /* poison after every payload, at least */

struct workload {
    uint64_t seed, iterations, duration_ms; /* iterations 0: run for duration_ms */
    uint64_t qps, depth, window, rx_depth, sges, mrs, inline_max, signal_every, post_list;
    uint64_t bidirectional, srq, fence, sq_sig_all, solicited;
    uint64_t mtu, timeout, retry, rnr_retry, min_rnr,
        rd_atomic; /* the connection's, so that both ends agree */
    uint64_t weights[OP_KINDS];
    uint64_t size_count, sizes[SIZES_MAX]; /* size_count 0: uniform in [sizes[0], sizes[1]] */
};
#define WORKLOAD_WORDS (sizeof(struct workload) / sizeof(uint64_t))

struct request {
    uint64_t seq;
    enum op op;
    uint32_t size, imm;
    uint64_t add;    /* FETCH_ADD: what is added */
    bool swap_fails; /* CMP_SWP: compares with a value that isn't there */
};

/* The atomic words of one queue pair and direction, as they are after the requests so far. */
struct chain {
    uint64_t sum, token;
};

/* What an atomic request carries, and the original value that it must return. */
struct atomic_values {
    uint64_t compare_add, swap, original;
};

const char *op_name(enum op op);
/* 0, or a sentence about what is wrong with the workload. */
const char *workload_fault(const struct workload *w);
uint64_t workload_max_size(const struct workload *w);
uint64_t workload_stride(const struct workload *w);
bool workload_uses(const struct workload *w, enum op op);
bool workload_writes(const struct workload *w);
bool workload_receives(const struct workload *w);
bool workload_atomics(const struct workload *w);

struct request plan_request(const struct workload *w, uint64_t key, uint64_t seq);
bool op_consumes_receive(enum op op);
bool op_has_imm(enum op op);
bool op_is_atomic(enum op op);
/* The low 24 bits of the immediate value are the sequence number's, the high 8 a hash. */
uint64_t seq_from_imm(uint32_t imm, uint64_t near);
void chain_start(struct chain *c, uint64_t key);
struct atomic_values chain_step(struct chain *c, uint64_t key, const struct request *r);

/* How a message of `total` bytes is cut: piece j lies in region mr[j] at the message's own offset. */
struct piece {
    uint32_t mr, offset, len;
};
size_t cut_pieces(uint64_t total, uint64_t sges, uint64_t mrs, uint64_t salt, struct piece out[SGES_MAX]);

#endif
