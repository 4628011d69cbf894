/* One run of rcflow, put together: what main, session, engine, completions and report share. */
#ifndef RCFLOW_FLOW_H
#define RCFLOW_FLOW_H

#include "../common/completion_log.h"
#include "../common/control.h"
#include "../common/stats.h"
#include "objects.h"
#include "post.h"
#include "responder.h"

#include <pthread.h>

enum message_type {
    MSG_HELLO = 1, /* protocol version, workload */
    MSG_ENDS,      /* queue pairs and memory regions of the sender */
    MSG_READY,     /* queue pairs in RTS */
    MSG_REPORT,    /* pairs: queue pair, requests complete */
    MSG_GRANT,     /* pairs: queue pair, requests that may be posted */
    MSG_STOP,      /* post no more */
    MSG_FIN,       /* has_error, status, violations; per queue pair: posted, completed */
    MSG_RESULT     /* has_error, status, violations, bytes; per operation: verified */
};
#define PROTOCOL_VERSION 1

struct peer_result {
    bool known;
    bool has_error;
    int status;
    uint64_t violations, bytes, verified[OP_KINDS];
};

struct flow {
    struct options options;
    struct workload workload;
    bool is_client, initiates, responds;
    struct verdict verdict;
    struct stats stats;
    struct completion_log log;
    struct control control;
    struct message message;
    struct objects objects;
    struct memory own, peer; /* peer: layout only */
    struct remote_regions remote;
    struct initiator *initiators;
    struct responder *responders;
    struct receive_slots slots;
    uint64_t *last_report, *last_grant; /* per queue pair */

    /* shared with the posting thread */
    _Atomic bool stopping, ended;
    _Atomic uint64_t still_posting; /* initiators with more to post */
    pthread_mutex_t kick_lock;
    pthread_cond_t kick;

    uint64_t begun_ns, last_progress_ns, tail_until_ns;
    bool fin_sent, fin_known, result_sent, stop_sent, armed;
    uint64_t fin_ns; /* when the peer's FIN came */
    uint64_t peer_posted[QPS_MAX], peer_completed[QPS_MAX];
    struct peer_result peer_result;
};

/* session.c: 0, or an exit code with the error in the verdict */
int session_open(struct flow *f);
void session_send_fin(struct flow *f);
void session_send_result(struct flow *f);
void session_take_messages(struct flow *f);

/* completions.c: poll the queues once and check what came; number of completions, -1 on an error */
int completions_take(struct flow *f);
/* Tell the peer what is complete, and what it may post, where due. */
void completions_flow_control(struct flow *f);
int completions_post_receives(struct flow *f);

/* poster.c */
uint64_t poster_round(struct flow *f); /* post what may be posted now, a list per queue pair; number posted */
void *poster_thread(void *flow);
void poster_wake(struct flow *f);

/* engine.c */
void engine_run(struct flow *f);

/* report.c */
void report_write(struct flow *f, FILE *out);

#endif
