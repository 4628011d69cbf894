/* The record of work requests that aren't known complete, one ring for sends and one for receives of a queue
 * pair.
 *
 * A ring is one block of memory without a pointer inside: allocate lp_*_ring_bytes(), call init, and nothing
 * allocates, locks or calls the system afterwards. It may be copied with memcpy.
 *
 * Threads: one poster and one poller at a time, which may be two threads (the caller serialises posters among
 * themselves, as every provider does). All else (settle, replay, fail) needs both shut out.
 *
 * Tokens count requests of one ring modulo 2^32; the shim posts a request with its token as wr_id, so that a
 * completion finds its entry without a search.
 *
 *     head          undone            next            tail
 *      | done, not yet | posted in this   | recorded, not  |
 *      | delivered     | epoch, or done   | posted (held)  |
 */
#ifndef LINKPASS_RING_H
#define LINKPASS_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "watermark.h"

/* Laid out as struct ibv_sge, so that a job's list is copied as it is. */
struct lp_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};

enum lp_send_flags {
    LP_SEND_SIGNALED = 1, /* the job wants a completion: IBV_SEND_SIGNALED, or sq_sig_all */
    LP_SEND_FENCE = 2,
    LP_SEND_SOLICITED = 4,
    LP_SEND_INLINE = 8
};

/* A send request as a value. */
struct lp_send {
    uint64_t wr_id;
    const struct lp_sge *sges;
    uint32_t sge_count;
    uint8_t op;     /* enum lp_op */
    uint8_t opcode; /* enum ibv_wr_opcode, kept for the replay and for wc->opcode */
    uint8_t flags;  /* enum lp_send_flags */
    uint32_t imm;   /* immediate data, network order, as in the work request; or the rkey to invalidate */
    uint32_t rkey;
    uint64_t remote_addr;
    uint64_t compare_add;
    uint64_t swap;
};

enum lp_entry_state {
    LP_HELD = 0, /* recorded; not posted in the present epoch */
    LP_POSTED,   /* posted in the present epoch */
    LP_DONE      /* known complete; its completion waits for its turn */
};

struct lp_send_entry {
    uint64_t wr_id;
    uint64_t first; /* packets of the present epoch, meaningful when POSTED: [first, end) */
    uint64_t end;
    uint64_t remote_addr;
    uint64_t compare_add;
    uint64_t swap;
    uint32_t rkey;
    uint32_t imm;
    uint32_t length;    /* bytes */
    uint32_t sge_count; /* 0 when inline: the payload holds `length` bytes of data instead */
    uint8_t op;
    uint8_t opcode;
    uint8_t flags;
    uint8_t state; /* enum lp_entry_state */
    uint32_t replays;
};

struct lp_send_ring {
    uint32_t slots;  /* a power of two >= max_wr */
    uint32_t max_wr; /* what the job was granted */
    uint32_t max_sge;
    uint32_t max_inline; /* bytes */
    uint32_t stride;     /* bytes of one payload slot: SGEs or inline data */
    uint32_t path_mtu;   /* bytes, of the present epoch's path */
    uint32_t first_psn;  /* wire PSN of packet 0 of the present epoch */
    uint32_t taken;      /* requests known complete in this epoch that took a receive */
    uint64_t posted;     /* packets of this epoch posted so far, mails included */
    uint64_t acked;      /* packets of this epoch known executed */
    _Atomic uint32_t head;
    _Atomic uint32_t tail;
    uint32_t undone;          /* oldest that isn't DONE (poller's) */
    uint32_t next;            /* oldest that isn't posted in this epoch (poster's) */
    _Atomic uint32_t fragile; /* posted and not known complete, of a kind that may not be settled: atomics,
                                 opaque, local */
    uint32_t mtu_shift;       /* log2 of path_mtu: path MTUs are powers of two */
};

enum lp_push {
    LP_PUSH_OK = 0,
    LP_PUSH_FULL,   /* as ENOMEM of ibv_post_send */
    LP_PUSH_TOO_BIG /* as EINVAL: more SGEs or inline bytes than granted, or 2^31 bytes and more */
};

size_t lp_send_ring_bytes(uint32_t max_wr, uint32_t max_sge, uint32_t max_inline);
/* `block` is 64-byte aligned and lp_send_ring_bytes() long. */
struct lp_send_ring *lp_send_ring_init(void *block, uint32_t max_wr, uint32_t max_sge, uint32_t max_inline);

/* A new path: packets count from 0 again, after `mails` packets that the shim itself has sent on it. */
void lp_send_ring_epoch(struct lp_send_ring *ring, uint32_t first_psn, uint32_t path_mtu, uint32_t mails);

/* Records. `*token` is then its number. With `post` it counts as POSTED at once (it must be the oldest not
 * posted, and the caller posts it right after), else it is HELD. */
enum lp_push lp_send_ring_push(struct lp_send_ring *ring, const struct lp_send *send, bool post,
                               uint32_t *token);
/* Would it be taken after `before` more? */
enum lp_push lp_send_ring_fits(const struct lp_send_ring *ring, const struct lp_send *send, uint32_t before);
/* Takes back the newest record, whose real post failed. */
void lp_send_ring_unpush(struct lp_send_ring *ring, uint32_t token);
/* The oldest HELD request, to be posted now; false if there is none. */
bool lp_send_ring_next(struct lp_send_ring *ring, uint32_t *token);
/* It was posted: gives it its packets. */
void lp_send_ring_posted(struct lp_send_ring *ring, uint32_t token);
/* A completion proves it and every earlier posted one. False: no such request is posted (a provider's fault).
 */
bool lp_send_ring_complete(struct lp_send_ring *ring, uint32_t token);
/* The same and pop in one, for the usual case: the token's entry is signaled, those before it aren't, none
 * waits. True: everything up to it is taken off, `*wr_id` is its own. False: nothing was done, go the long
 * way. */
bool lp_send_ring_retire(struct lp_send_ring *ring, uint32_t token, uint64_t *wr_id);
/* Takes the oldest entry off, if it is DONE. */
bool lp_send_ring_pop(struct lp_send_ring *ring, struct lp_send_entry *entry);
/* Takes the oldest entry off, whatever its state (the connection has failed). */
bool lp_send_ring_discard(struct lp_send_ring *ring, struct lp_send_entry *entry);

struct lp_send_entry *lp_send_ring_at(struct lp_send_ring *ring, uint32_t token);
void *lp_send_ring_payload(struct lp_send_ring *ring, uint32_t token); /* SGEs, or inline bytes */
/* Must the real post be signaled? What the job wants signaled, and every replay: completions of executed
 * requests may wait behind an unsignaled READ that runs again. */
static inline bool lp_send_must_signal(const struct lp_send_entry *entry) {
    return (entry->flags & LP_SEND_SIGNALED) || entry->replays != 0;
}
uint32_t lp_send_ring_count(const struct lp_send_ring *ring); /* recorded and not popped */
bool lp_send_ring_has_posted(struct lp_send_ring *ring);      /* posted and not known complete */

/* Settles all POSTED entries against the peer's mark of this epoch. Nothing changes unless the answer is
 * FINE; then executed ones are DONE, the others HELD, and `next` is the oldest to replay. `*executed` counts.
 */
enum lp_settle_fault lp_send_ring_settle(struct lp_send_ring *ring, const struct lp_mark *mark, bool commit,
                                         uint32_t *executed);

struct lp_recv_entry {
    uint64_t wr_id;
    uint32_t sge_count;
    uint8_t state; /* enum lp_entry_state */
    uint8_t reserved[3];
};

struct lp_recv_ring {
    uint32_t slots;
    uint32_t max_wr;
    uint32_t max_sge;
    _Atomic uint32_t head;
    _Atomic uint32_t tail;
    uint32_t next;
    uint32_t reserved[10];
};

size_t lp_recv_ring_bytes(uint32_t max_wr, uint32_t max_sge);
struct lp_recv_ring *lp_recv_ring_init(void *block, uint32_t max_wr, uint32_t max_sge);
/* A new path: nothing is posted on it yet, every recorded receive is HELD. */
void lp_recv_ring_epoch(struct lp_recv_ring *ring);
enum lp_push lp_recv_ring_push(struct lp_recv_ring *ring, uint64_t wr_id, const struct lp_sge *sges,
                               uint32_t count, bool post, uint32_t *token);
void lp_recv_ring_unpush(struct lp_recv_ring *ring, uint32_t token);
bool lp_recv_ring_next(struct lp_recv_ring *ring, uint32_t *token);
void lp_recv_ring_posted(struct lp_recv_ring *ring, uint32_t token);
/* Consumed with success. Receives of one queue pair complete in the order of posting; false: this one isn't
 * the oldest (a provider's fault). */
bool lp_recv_ring_consume(struct lp_recv_ring *ring, uint32_t token, struct lp_recv_entry *entry);
bool lp_recv_ring_discard(struct lp_recv_ring *ring, struct lp_recv_entry *entry);
struct lp_recv_entry *lp_recv_ring_at(struct lp_recv_ring *ring, uint32_t token);
struct lp_sge *lp_recv_ring_sges(struct lp_recv_ring *ring, uint32_t token);
uint32_t lp_recv_ring_count(const struct lp_recv_ring *ring);

#endif
