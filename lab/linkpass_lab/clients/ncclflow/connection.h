/* One connection, seen from one end: its memory, queue pairs and queue, and what is under way. */
#ifndef NCCLFLOW_CONNECTION_H
#define NCCLFLOW_CONNECTION_H

#include "../common/completion_log.h"
#include "../common/device.h"
#include "../common/stats.h"
#include "clear_to_send.h"
#include "lane_order.h"
#include "options.h"

/* Kinds of wr_id: the top byte; the second byte is the lane; the rest the group's number. */
enum wr_kind { WR_DATA = 1, WR_RECEIVE, WR_CTS, WR_FLUSH };
#define WR_NUMBER_MASK ((1ull << 48) - 1)

struct counters {
    uint64_t groups, messages, bytes, checksum, cts, writes, imms, flushes;
};

struct pending {
    struct group group;
    uint32_t events; /* completions still to come */
    bool active, flushing;
    uint64_t flush_number;
    uint32_t flush_last; /* the receive that is read */
};

struct connection {
    const struct job *job;
    struct verdict *verdict;
    struct stats *stats;
    struct completion_log *log;
    uint32_t index;
    uint64_t key;
    bool is_sender;

    struct ibv_cq *cq;
    struct ibv_qp *lanes[LANES_MAX], *flush_qp;
    struct endpoint ends[LANES_MAX];

    /* One mapping, one memory region; offsets in it: */
    unsigned char *memory;
    uint64_t bytes, fifo_at, sizes_at, flush_at;
    struct ibv_mr *mr;

    /* Of the peer: where its region lies. */
    uint64_t peer_memory;
    uint32_t peer_rkey;

    struct pending *pending;            /* max_requests entries */
    uint64_t next;                      /* group to post (receiver) or to answer (sender) */
    uint64_t done;                      /* all groups before this one are done */
    struct lane_order order[LANES_MAX]; /* data sent, or receives */
    struct lane_order cts_order, flush_order;
    struct counters counters;
};

uint64_t wr_id_of(enum wr_kind kind, uint64_t lane, uint64_t number);
/* 0, or an errno value with a sentence in `why`. Queue pairs end in INIT, the flush pair in RTS. */
int connection_create(struct connection *c, const struct device *d, struct ibv_pd *pd,
                      const struct options *o, char *why, size_t room);
void connection_destroy(struct connection *c);
bool connection_idle(const struct connection *c); /* nothing under way */
/* Take completions; their number, -1 when polling failed. */
int connection_poll(struct connection *c);

/* receiver.c: post what may be posted (unless `stop`); number of groups posted, -1: an error was noted */
int receiver_post(struct connection *c, bool stop, bool inline_cts);
void receiver_completion(struct connection *c, const struct completion *w, uint64_t now);

/* sender.c: answer what is cleared; number of groups answered, -1: an error was noted */
int sender_answer(struct connection *c);
void sender_completion(struct connection *c, const struct completion *w, uint64_t now);

/* Shared by both: an unsuccessful completion. */
void connection_failed(struct connection *c, const struct completion *w, uint64_t now);
void connection_retire(struct connection *c); /* move `done` past finished groups */

#endif
