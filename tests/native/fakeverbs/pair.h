/* For tests: two connected RC queue pairs on the fake library, and checks that say what went wrong. */
#ifndef FAKE_PAIR_H
#define FAKE_PAIR_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

extern int checks_failed;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);            \
            checks_failed++;                                                                                 \
        }                                                                                                    \
    } while (0)

#define CHECK_EQ(got, wanted)                                                                                \
    do {                                                                                                     \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                    \
        if (got_ != wanted_) {                                                                               \
            fprintf(stderr, "%s:%d: %s: %s is %lld, wanted %lld\n", __FILE__, __LINE__, __func__, #got,      \
                    got_, wanted_);                                                                          \
            checks_failed++;                                                                                 \
        }                                                                                                    \
    } while (0)

enum { END_BYTES = 1 << 16, PAIR_DEPTH = 16, SEND_PSN_A = 0xfffffe, SEND_PSN_B = 0x000100 };

struct end {
    int nic;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t memory[END_BYTES];
};

/* What differs from test to test; zeros give the usual. */
struct pair_options {
    enum ibv_mtu mtu;  /* 256 */
    int cqe;           /* 64 */
    uint32_t send_wr;  /* PAIR_DEPTH */
    int access;        /* of the regions and queue pairs: all */
    uint8_t timeout;   /* 14: 67 ms */
    uint8_t retry;     /* 6 */
    uint8_t rnr_retry; /* 7 */
    uint8_t rnr_timer; /* 12: 0.64 ms */
    uint8_t rd_atomic; /* 4 */
    bool srq, sig_all, extended;
    bool atomic_write;                       /* with extended: ibv_wr_atomic_write may be used */
    bool passive_b;                          /* B stays in RTR */
    bool passive;                            /* this end stays in RTR */
    bool no_timeout, no_retry, no_rnr_retry; /* 0 for what is given as 0 above */
};

struct pair {
    struct end a, b;
};

struct pair *pair_new(const struct pair_options *options);
void pair_free(struct pair *pair); /* checks that nothing is left open on the NICs */

/* One end alone. */
void end_open(struct end *end, int nic, const struct pair_options *options);
void end_connect(struct end *end, struct end *peer, uint32_t psn, uint32_t peer_psn,
                 const struct pair_options *options);
void end_close(struct end *end);

int to_state(struct ibv_qp *qp, enum ibv_qp_state state);
enum ibv_qp_state state_of(struct ibv_qp *qp);
uint32_t rq_psn_of(struct ibv_qp *qp);
uint32_t sq_psn_of(struct ibv_qp *qp);

/* Post one request from memory[at] of `from` to memory[to_at] of `to`; signaled. */
int post(struct end *from, struct end *to, enum ibv_wr_opcode opcode, uint64_t wr_id, uint32_t at,
         uint32_t to_at, uint32_t length, unsigned int flags);
int post_recv(struct end *end, uint64_t wr_id, uint32_t at, uint32_t length);

/* The next completion; false if there is none. */
bool next_wc(struct ibv_cq *cq, struct ibv_wc *wc);

/* The next completion must have this id and status. */
void expect_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status);
void expect_none(struct ibv_cq *cq);

/* The next asynchronous event must be of this type; it is acknowledged. */
void expect_event(struct ibv_context *context, enum ibv_event_type type);

struct test {
    const char *name;
    void (*run)(void);
};

/* Runs those whose name contains argv[1] (all without), prints "N passed, N failed"; the exit code. */
int run_tests(const struct test *tests, size_t count, int argc, char **argv);

#define TEST(name)                                                                                           \
    { #name, name }

#endif
