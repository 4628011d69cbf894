#include "watermark.h"

#include "mutant.h"

uint64_t lp_packets(enum lp_op op, uint64_t length, uint32_t path_mtu) {
    uint32_t shift = 0;
    while ((UINT64_C(1) << shift) < path_mtu) { /* path MTUs are powers of two, 256 to 4096 */
        shift++;
    }
    return lp_packets_log2(op, length, shift);
}

uint64_t lp_packets_log2(enum lp_op op, uint64_t length, uint32_t mtu_shift) {
    switch (op) {
    case LP_OP_LOCAL:
        return 0;
    case LP_OP_ATOMIC:
        return 1;
    case LP_OP_READ:
        if (LP_MUTANT(LP_M_READ_ONE_PACKET)) {
            return 1;
        }
        break;
    default:
        break;
    }
    return length == 0 ? 1 : (length + (UINT64_C(1) << mtu_shift) - 1) >> mtu_shift;
}

/* Every verdict unknown: the mark itself can't be used. */
static enum lp_settle_fault refuse(const struct lp_settle_in *in, uint8_t *verdicts, uint32_t *bad,
                                   enum lp_settle_fault fault) {
    for (uint32_t i = 0; i < in->count; i++) {
        verdicts[i] = LP_UNKNOWN;
    }
    *bad = 0;
    return fault;
}

/* What the peer's PSN says of one request: `reached` is the first packet that it hadn't taken in. */
static enum lp_verdict by_psn(const struct lp_span *span, uint64_t reached) {
    if (span->op ==
        LP_OP_LOCAL) { /* occupies no packet; a later packet proves it, since it was done before that */
        return reached > span->first ? LP_EXECUTED : LP_UNKNOWN;
    }
    uint64_t end = span->end;
    if (LP_MUTANT(LP_M_PSN_SHORT)) {
        end -= 1;
    } else if (LP_MUTANT(LP_M_PSN_LONG)) {
        end += 1;
    }
    if (reached >= end) {
        return LP_EXECUTED;
    }
    return reached > span->first ? LP_PARTLY : LP_NOT_EXECUTED;
}

/* What counting receives says: executed up to the last one consumed, unknown until the next that takes a
 * receive, not executed behind that one's first packet. */
static void by_receives(const struct lp_settle_in *in, uint8_t *verdicts, uint32_t consumed) {
    uint32_t seen = 0;
    uint32_t after_last = 0; /* first index that the consumed receives don't prove */
    for (uint32_t i = 0; i < in->count && seen < consumed; i++) {
        struct lp_span span = in->span(in->requests, i);
        if (!span.done && lp_op_takes_receive(span.op)) {
            seen++;
            after_last = i + 1;
        }
    }
    bool beyond_next = false;
    for (uint32_t i = 0; i < in->count; i++) {
        struct lp_span span = in->span(in->requests, i);
        if (i < after_last || span.done) {
            verdicts[i] = LP_EXECUTED;
        } else if (beyond_next) {
            verdicts[i] = LP_NOT_EXECUTED;
        } else if (lp_op_takes_receive(span.op)) {
            verdicts[i] = LP_PARTLY; /* perhaps a prefix; its receive wasn't consumed */
            beyond_next = true;
        } else if (span.op == LP_OP_READ) {
            verdicts[i] = LP_REREAD;
        } else {
            verdicts[i] = LP_MUTANT(LP_M_TRUST_ALL) ? LP_NOT_EXECUTED : LP_UNKNOWN;
        }
    }
}

/* READs and atomics return something, so being executed isn't enough: it must also be here. A later fenced
 * request of which any packet was taken in proves that, because it wasn't sent before. */
static void by_result(const struct lp_settle_in *in, uint8_t *verdicts) {
    bool proven = false;
    bool doubtful = false;
    for (uint32_t i = in->count; i-- > 0;) {
        struct lp_span span = in->span(in->requests, i);
        if (span.done) {
            continue;
        }
        bool touched =
            verdicts[i] == LP_EXECUTED || (verdicts[i] == LP_PARTLY && (in->mark.flags & LP_MARK_PSN));
        if (span.op == LP_OP_READ && verdicts[i] != LP_NOT_EXECUTED) {
            verdicts[i] = proven ? LP_EXECUTED : doubtful ? LP_UNKNOWN : LP_REREAD;
        } else if (span.op == LP_OP_ATOMIC && verdicts[i] == LP_EXECUTED && !proven) {
            verdicts[i] = LP_MUTANT(LP_M_ATOMIC_REPLAY) ? LP_NOT_EXECUTED : LP_LOST;
        }
        if (span.fence && touched && !LP_MUTANT(LP_M_FENCE_BLIND)) {
            proven = true;
        } else if (span.fence && !touched && verdicts[i] != LP_NOT_EXECUTED) {
            doubtful = true;
        }
    }
}

static enum lp_settle_fault first_bad(const struct lp_settle_in *in, uint8_t *verdicts, uint32_t *bad) {
    for (uint32_t i = 0; i < in->count; i++) {
        struct lp_span span = in->span(in->requests, i);
        bool opaque =
            (span.op == LP_OP_OPAQUE || span.op == LP_OP_LOCAL) && verdicts[i] != LP_EXECUTED && !span.done;
        if (!opaque && verdicts[i] != LP_LOST && verdicts[i] != LP_UNKNOWN) {
            continue;
        }
        enum lp_settle_fault fault = opaque                   ? LP_SETTLE_OPAQUE
                                     : verdicts[i] == LP_LOST ? LP_SETTLE_ATOMIC_LOST
                                                              : LP_SETTLE_UNKNOWABLE;
        *bad = i;
        for (uint32_t rest = opaque ? i : i + 1; rest < in->count; rest++) {
            verdicts[rest] = LP_UNKNOWN;
        }
        return fault;
    }
    *bad = in->count;
    return LP_SETTLE_FINE;
}

enum lp_settle_fault lp_settle(const struct lp_settle_in *in, uint8_t *verdicts, uint32_t *bad) {
    const bool has_psn = in->mark.flags & LP_MARK_PSN;
    const bool has_consumed = in->mark.flags & LP_MARK_CONSUMED;
    if (!has_psn && !has_consumed) {
        return refuse(in, verdicts, bad, LP_SETTLE_NO_MARK);
    }
    uint32_t takers = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        struct lp_span span = in->span(in->requests, i);
        takers += !span.done && lp_op_takes_receive(span.op);
    }
    const uint32_t consumed = in->mark.consumed - in->taken;
    if (has_consumed && consumed > takers) {
        return refuse(in, verdicts, bad, LP_SETTLE_TAKEN_RANGE);
    }
    if (!has_psn) {
        by_receives(in, verdicts, consumed);
    } else {
        uint32_t acked_psn = lp_psn_add(in->first_psn, in->acked);
        uint64_t reached = in->acked + lp_psn_ahead(in->mark.psn & LP_PSN_MASK, acked_psn);
        if (in->mark.psn > LP_PSN_MASK || in->posted - in->acked >= LP_PSN_SPAN || reached > in->posted) {
            return refuse(in, verdicts, bad, LP_SETTLE_PSN_RANGE);
        }
        uint32_t reached_takers = 0;
        for (uint32_t i = 0; i < in->count; i++) {
            struct lp_span span = in->span(in->requests, i);
            verdicts[i] = (uint8_t)(span.done ? LP_EXECUTED : by_psn(&span, reached));
            reached_takers += !span.done && verdicts[i] == LP_EXECUTED && lp_op_takes_receive(span.op);
        }
        if (has_consumed && reached_takers != consumed) {
            return refuse(in, verdicts, bad, LP_SETTLE_RECEIVES);
        }
    }
    by_result(in, verdicts);
    return first_bad(in, verdicts, bad);
}

const char *lp_settle_text(enum lp_settle_fault fault) {
    switch (fault) {
    case LP_SETTLE_FINE:
        return "every request is settled";
    case LP_SETTLE_NO_MARK:
        return "the peer's packet number and count of receives are both unknown";
    case LP_SETTLE_PSN_RANGE:
        return "the peer's packet number lies outside what was sent";
    case LP_SETTLE_RECEIVES:
        return "the peer's packet number and count of receives contradict each other";
    case LP_SETTLE_TAKEN_RANGE:
        return "the peer's count of receives lies outside what was sent";
    case LP_SETTLE_UNKNOWABLE:
        return "counting receives can't tell whether a request was executed";
    case LP_SETTLE_ATOMIC_LOST:
        return "an atomic was executed and its result is lost";
    case LP_SETTLE_OPAQUE:
        return "an operation that can't be replayed is outstanding";
    }
    return "unknown";
}
