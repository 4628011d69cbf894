/*
 * A fake verbs library: several hosts with several NICs in one process, with the semantics of RC queue pairs
 * as the InfiniBand specification and Linux's rdma_rxe have them, moved along step by step by a test.
 *
 * Programs use it through <infiniband/verbs.h>, as they would use libibverbs; tests steer it with the
 * functions below. Nothing moves by itself: posting only queues.  fake_step() does one thing (send a packet,
 * deliver a packet, flush a request), fake_advance() lets time pass.  fake_auto(true) starts a thread that
 * does both with the real clock.
 *
 * NICs are numbered host * rails + rail and named "fake_h<host>r<rail>".  All NICs can reach each other.  GID
 * index 0 is fe80::/64, index 1 is ::ffff:10.<rail>.0.<host + 1>; both name the NIC.
 *
 * Environment, read when the library is first used: FAKEVERBS_HOSTS, FAKEVERBS_RAILS (default 2 and 2),
 * FAKEVERBS_AUTO=1 (start the thread at once).
 */
#ifndef FAKE_H
#define FAKE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

enum { FAKE_MAX_NICS = 64, FAKE_MAX_INLINE = 256, FAKE_MAX_SGE = 16 };

struct fake_config {
    int hosts, rails;
    enum ibv_mtu active_mtu; /* of ports; a queue pair may use less */
    unsigned int window;     /* packets on the way per queue pair; rxe: 128 */
    bool flush_at_once; /* false: each flushed request is a step, as hardware flushes after modify_qp returns
                         */
    bool free_on_poll; /* a send queue slot is free when its completion was polled (mlx5), not before (rxe) */
    bool retry_7_forever; /* rxe: retry_cnt 7 means without end; else 7 retries, as the specification says */
    bool unseen_receives; /* rxe: a receive posted in ERR isn't flushed until something else happens to it */
    bool lying_psn;       /* ibv_query_qp gives rq_psn 0: a driver that isn't to be trusted */
    int first_subnet;     /* added to <rail> in GIDs: they follow the addresses of a lab (10.10.x.x and on) */
    uint32_t first_qpn;   /* added to queue pair numbers: processes of one host don't share any */
};

/* hosts 2, rails 2, MTU 4096, window 128, flush by steps, slots free when retired, retry 7 for ever, honest.
 */
FAKE_API struct fake_config fake_default_config(void);

/*
 * Start anew with this fleet: wires empty, nothing cut, time 0.  All contexts must be closed; false if one is
 * open.
 */
FAKE_API bool fake_start(const struct fake_config *config);

/* Change what can be changed while running: window, flush_at_once, free_on_poll, retry_7_forever, lying_psn,
 * unseen_receives. */
FAKE_API void fake_tune(const struct fake_config *config);

/* ---- moving
 * ------------------------------------------------------------------------------------------------ */

/* Do one thing, the fairest next: false if nothing can happen before time passes or a test does something. */
FAKE_API bool fake_step(void);

/* Steps until idle; returns how many. */
FAKE_API size_t fake_run(void);

/* Send up to n packets of that NIC's queue pairs; returns how many.  They then lie on the wire. */
FAKE_API size_t fake_transmit(int nic, size_t n);

/* Deliver up to n of the packets that lie on wires to that NIC, in the order they were sent, held wires
 * included. */
FAKE_API size_t fake_deliver(int nic, size_t n);

/* Flush up to n requests of queue pairs in ERR on that NIC; returns how many. */
FAKE_API size_t fake_flush(int nic, size_t n);

/* Let that many nanoseconds pass; retransmission and RNR timers that expire meanwhile run, in order. */
FAKE_API void fake_advance(uint64_t ns);

/* fake_run(), and time to the next timer, until neither does anything or limit_ns have passed. */
FAKE_API void fake_settle(uint64_t limit_ns);

FAKE_API uint64_t fake_now(void);
FAKE_API uint64_t fake_next_timer(void); /* absolute; UINT64_MAX: none */

/* Start or stop the thread that moves everything by the real clock. */
FAKE_API void fake_auto(bool on);

/* ---- faults
 * ------------------------------------------------------------------------------------------------ */

enum fake_kind {
    FAKE_REQUEST = 1,  /* SEND, WRITE, READ request, atomic request */
    FAKE_RESPONSE = 2, /* READ response, atomic response: they acknowledge as well */
    FAKE_ACK = 4,      /* ACK, NAK, RNR NAK */
    FAKE_ALL = 7
};

struct fake_packet_info {
    int source, target; /* NICs */
    uint32_t source_qpn, target_qpn;
    uint32_t psn;
    enum fake_kind kind;
    uint32_t length;  /* of the payload */
    bool first, last; /* of its message */
};

enum fake_verdict { FAKE_PASS, FAKE_DROP };

/* Asked for each packet as it is sent; NULL: none.  Called with the library's lock held: call nothing back.
 */
typedef enum fake_verdict (*fake_filter_fn)(const struct fake_packet_info *packet, void *arg);
FAKE_API void fake_filter(fake_filter_fn filter, void *arg);

/* Packets of these kinds sent from source to target are lost from now on (kinds 0: none).  -1: every NIC. */
FAKE_API void fake_cut(int source, int target, unsigned int kinds);

/* Packets from source to target stay on the wire until released: fake_step() doesn't deliver them. */
FAKE_API void fake_hold(int source, int target, bool held);

FAKE_API size_t fake_on_wire(int source, int target);

/* Lose the first n packets that lie on the wire; returns how many were lost. */
FAKE_API size_t fake_lose(int source, int target, size_t n);

/* Deliver the n-th packet on the wire (0: the first) before the others; false if there is none. */
FAKE_API bool fake_overtake(int source, int target, size_t n);

/* A port goes down (PORT_ERR; packets from and to it are lost) or comes up (PORT_ACTIVE). */
FAKE_API void fake_port(int nic, bool up);

/* Lost route or GID, as rxe shows it: the oldest unfinished request completes with LOC_QP_OP_ERR, queue pair
 * to ERR. */
FAKE_API void fake_lose_gid(int nic);
/* The GID at index 1 goes or comes back, with the event, and no queue pair is told. */
FAKE_API void fake_gid_there(int nic, bool there);
/* From now on that GID is RoCE v1 at index 1 and RoCE v2 at index 2, as drivers of both kinds have it. No
 * event. */
FAKE_API void fake_gid_twin(int nic);

FAKE_API void fake_qp_fatal(struct ibv_qp *qp);
FAKE_API void fake_device_fatal(int nic);

/* Every ibv_* function of that NIC that can fail does, with this errno (0: no longer), after `after` more
 * calls. */
FAKE_API void fake_fail_calls(int nic, int error, unsigned int after);

/* ---- looking
 * ----------------------------------------------------------------------------------------------- */

struct fake_stats {
    uint64_t sent, delivered, lost; /* packets */
    uint64_t retransmitted;         /* of sent */
    uint64_t naks, rnr_naks, duplicates;
    uint64_t posted, completions, overflows;
};

FAKE_API struct fake_stats fake_stats(int nic);
FAKE_API int fake_nics(void);
FAKE_API int fake_nic_of(const struct ibv_context *context);
FAKE_API struct ibv_context *fake_open(int nic); /* ibv_open_device of that NIC */
FAKE_API size_t
fake_open_objects(int nic); /* PDs, MRs, CQs, QPs, SRQs, AHs, channels, contexts not destroyed */

#endif
