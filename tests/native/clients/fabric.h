/* A perfect fabric made of memcpy: executes the requests that an initiator built in a responder's memory,
 * with hooks for doing it wrong. One queue pair, one direction. */
#ifndef TESTS_CLIENTS_FABRIC_H
#define TESTS_CLIENTS_FABRIC_H

#include "rcflow/receive_slots.h"
#include "rcflow/responder.h"

struct fabric {
    struct workload w;
    struct verdict verdict;
    struct memory own, peer_layout, answering;
    struct initiator initiator;
    struct responder responder;
    struct receive_slots slots;
    uint64_t wr_ids[4096]; /* posted receives, oldest at `oldest` */
    uint64_t oldest, newest, executed;
};

struct workload fabric_workload(void); /* every operation, small sizes, a window that wraps quickly */
void fabric_open(struct fabric *f, struct workload w);
void fabric_close(struct fabric *f);
/* Run until `target` requests are executed, reported and granted. */
void fabric_run(struct fabric *f, uint64_t target);
/* Build and publish the next request without executing it. */
struct outgoing *fabric_post(struct fabric *f);
/* Build requests and run them until the next one to build is of this kind; it is built and returned. */
struct outgoing *fabric_run_to(struct fabric *f, enum op op, uint32_t least_size);
/* Execute at the responder; its receive completion, if it makes one, is left in *c (else false). */
bool fabric_execute(struct fabric *f, const struct outgoing *o, struct completion *c);
void fabric_receive(struct fabric *f, const struct completion *c); /* deliver a receive completion */
struct completion fabric_done(const struct fabric *f,
                              const struct outgoing *o);                /* the requester's completion */
uint64_t fabric_complete(struct fabric *f, const struct completion *c); /* deliver it */
void fabric_credit(struct fabric *f);                                   /* report and grant */
unsigned char *fabric_target(struct fabric *f, uint64_t seq);
/* Exactly one kind of violation was seen. */
bool fabric_saw(const struct fabric *f, enum violation_kind kind);

#endif
