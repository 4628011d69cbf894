/* Packet sequence numbers, and what they prove.
 *
 * A PSN has 24 bits and wraps. Inside one epoch (one queue pair pair) the shim counts packets with 64 bits
 * from 0, the epoch's first packet, and never wraps; only what the peer's `rq_psn` says is folded back to 64
 * bits. The wire's PSN is (first PSN of the epoch + count) modulo 2^24.
 *
 * docs/shim.md holds the argument why the verdicts below are exact.
 */
#ifndef LINKPASS_WATERMARK_H
#define LINKPASS_WATERMARK_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#define LP_PSN_BITS 24
#define LP_PSN_SPAN (UINT64_C(1) << LP_PSN_BITS)
#define LP_PSN_MASK ((uint32_t)(LP_PSN_SPAN - 1))

/* What a recorded request is, as far as exactness cares. */
enum lp_op {
    LP_OP_WRITE = 0,
    LP_OP_WRITE_IMM,
    LP_OP_SEND, /* with or without immediate data */
    LP_OP_READ,
    LP_OP_ATOMIC, /* compare-and-swap, fetch-and-add */
    LP_OP_OPAQUE, /* on the wire, can't be replayed: SEND_WITH_INV */
    LP_OP_LOCAL,  /* no packet, can't be replayed: LOCAL_INV, BIND_MW */
    LP_OP_COUNT
};

/* What is known of a request after the fence. */
enum lp_verdict {
    LP_NOT_EXECUTED = 0, /* no packet of it: replay */
    LP_PARTLY,           /* a prefix of its packets, no completion at the peer: replay */
    LP_EXECUTED,         /* and nothing of it is lost: complete it with success */
    LP_REREAD,           /* a READ whose response is lost or not known to be here: replay */
    LP_LOST,             /* an atomic that was executed and whose result is lost: can't be repaired */
    LP_UNKNOWN           /* can't be told: can't be repaired */
};

/* Packets that a request occupies in its sender's PSN space: those it sends, or, for a READ, those of the
 * response. */
uint64_t lp_packets(enum lp_op op, uint64_t length, uint32_t path_mtu);
/* The same without a division, for the fast path: path MTU = 1 << mtu_shift. */
uint64_t lp_packets_log2(enum lp_op op, uint64_t length, uint32_t mtu_shift);

static inline uint32_t lp_psn_add(uint32_t psn, uint64_t count) {
    return (uint32_t)((psn + count) & LP_PSN_MASK);
}

/* How far `psn` lies ahead of `from`, 0 to 2^24 - 1. */
static inline uint32_t lp_psn_ahead(uint32_t psn, uint32_t from) {
    return (psn - from) & LP_PSN_MASK;
}

static inline bool lp_op_takes_receive(enum lp_op op) {
    return op == LP_OP_SEND || op == LP_OP_WRITE_IMM || op == LP_OP_OPAQUE /* SEND_WITH_INV */;
}

/* One request as settle sees it. Packet counts are those of the settled epoch: [first, end), `end` exclusive.
 */
struct lp_span {
    uint64_t first;
    uint64_t end;
    uint8_t op; /* enum lp_op */
    bool fence; /* IBV_SEND_FENCE: was not sent before every earlier READ and atomic had its response */
    bool done;  /* known complete by other means: only passed over */
};

/* Reads request number `at`, 0 being the oldest that isn't known complete. */
typedef struct lp_span (*lp_span_fn)(const void *requests, uint32_t at);

struct lp_settle_in {
    const void *requests;
    lp_span_fn span;
    uint32_t count;  /* requests posted in the settled epoch and not known complete */
    uint64_t acked;  /* packets of this epoch known to be executed (the end of the newest known complete) */
    uint64_t posted; /* packets of this epoch posted in all */
    uint32_t first_psn;  /* wire PSN of packet 0 */
    uint32_t taken;      /* requests known complete in this epoch that took a receive, modulo 2^32 */
    struct lp_mark mark; /* the peer's, for this very epoch */
};

enum lp_settle_fault {
    LP_SETTLE_FINE = 0,
    LP_SETTLE_NO_MARK,     /* neither PSN nor count of receives */
    LP_SETTLE_PSN_RANGE,   /* the PSN lies outside what was posted, or 2^24 packets or more are open */
    LP_SETTLE_RECEIVES,    /* PSN and count of receives contradict each other */
    LP_SETTLE_TAKEN_RANGE, /* more receives consumed than sent, or fewer than known */
    LP_SETTLE_UNKNOWABLE,  /* only receives could be counted, and a WRITE or atomic lies beyond the last of
                              them */
    LP_SETTLE_ATOMIC_LOST, /* an atomic was executed and its result is lost */
    LP_SETTLE_OPAQUE       /* an operation that can't be replayed wasn't executed, or can't be told */
};

/* Fills verdicts[0 .. count). Returns LP_SETTLE_FINE when every request is exact, else the first reason
 * found, and
 * `*bad` is the oldest request that can't be repaired: those before it have right verdicts, from it on
 * they're LP_UNKNOWN or LP_LOST. Faults of the mark itself set *bad to 0 and every verdict to LP_UNKNOWN. */
enum lp_settle_fault lp_settle(const struct lp_settle_in *in, uint8_t *verdicts, uint32_t *bad);

const char *lp_settle_text(enum lp_settle_fault fault);

#endif
