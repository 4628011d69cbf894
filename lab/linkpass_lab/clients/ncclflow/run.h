/* One run of ncclflow, put together: what main, session, engine and report share. */
#ifndef NCCLFLOW_RUN_H
#define NCCLFLOW_RUN_H

#include "../common/control.h"
#include "connection.h"

enum message_type {
    MSG_HELLO = 1, /* protocol version, job */
    MSG_ENDS,      /* per connection: lanes' ends, region address, rkey */
    MSG_READY,
    MSG_STOP,  /* receivers: post no more */
    MSG_FIN,   /* has_error, status, violations; per connection: groups, checksum (of receivers; else 0) */
    MSG_RESULT /* has_error, status, violations, messages, bytes */
};
#define PROTOCOL_VERSION 1

struct peer_result {
    bool known, has_error;
    int status;
    uint64_t violations, messages, bytes;
};

struct run {
    struct options options;
    struct job job;
    bool is_client;
    struct verdict verdict;
    struct stats stats;
    struct completion_log log;
    struct control control;
    struct message message;
    struct device device;
    struct ibv_pd *pd;
    struct connection connections[2 * CONNECTIONS_MAX]; /* the client's sending ones first */
    uint64_t count;
    uint64_t begun_ns, last_progress_ns, over_ns;
    bool stopping, stop_sent, fin_sent, fin_known, result_sent;
    uint64_t peer_groups[2 * CONNECTIONS_MAX], peer_checksum[2 * CONNECTIONS_MAX];
    struct peer_result peer;
};

/* session.c: 0, or an exit code with the error in the verdict */
int session_open(struct run *r);
void session_send_fin(struct run *r);
void session_send_result(struct run *r);
void session_take_messages(struct run *r);
/* engine.c */
void engine_run(struct run *r);
/* report.c */
void report_write(struct run *r, FILE *out);

#endif
