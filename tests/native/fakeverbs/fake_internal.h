/* The insides of the fake verbs library.  One lock, fake.lock, guards everything but what is marked
 * otherwise. */
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#include <pthread.h>
#include <string.h>

#include "fake.h"

#define PSN_MASK 0xffffffu
#define CONTAINER(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline uint32_t psn_add(uint32_t psn, uint32_t n) {
    return (psn + n) & PSN_MASK;
}

/* Signed distance from b to a. */
static inline int32_t psn_diff(uint32_t a, uint32_t b) {
    return (int32_t)((a - b) << 8) >> 8;
}

enum opcode {
    OP_SEND,
    OP_WRITE,
    OP_READ,
    OP_CMP_SWP,
    OP_FETCH_ADD,
    OP_READ_RESPONSE,
    OP_ATOMIC_RESPONSE,
    OP_ACK,
    OP_NAK,
    OP_RNR
};

enum nak_code { NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION };

struct packet {
    struct packet *next;
    uint64_t order; /* over all wires: when it was sent */
    int source, target;
    uint32_t source_qpn, target_qpn;
    uint32_t psn;
    enum opcode opcode;
    bool first, last, has_imm, has_inv, solicited, ack_request;
    bool retransmitted;
    uint32_t imm; /* or the rkey to invalidate */
    uint64_t remote_addr;
    uint32_t rkey;
    uint32_t message_length; /* of a WRITE or READ */
    uint64_t compare_add, swap;
    enum nak_code nak;
    uint8_t rnr_timer;
    uint32_t length;
    uint8_t payload[];
};

struct wire {
    struct packet *head, **tail;
    size_t count;
    unsigned int cut;
    bool held;
};

struct events { /* a list that an eventfd counts */
    int fd;
    struct event *head, **tail;
};

struct event {
    struct event *next;
    void *about; /* struct fake_cq, or NULL */
    struct ibv_async_event async;
};

struct nic {
    struct ibv_device device;
    int index, host, rail;
    bool up, no_gid, twin_gid; /* twin_gid: see fake_gid_twin */
    int fail_error;
    unsigned int fail_after;
    size_t objects;
    struct context *contexts;
    struct fake_stats stats;
};

struct context {
    struct verbs_context verbs;
    struct nic *nic;
    struct context *next;
    struct events events;
};

struct mr {
    struct ibv_mr ibv;
    uint64_t iova;
    int access;
};

struct cqe {
    struct ibv_wc wc;
    struct qp *frees; /* with free_on_poll: the send queue whose slots it frees */
    uint32_t slots;
};

struct cq {
    union {
        struct ibv_cq ibv;
        struct ibv_cq_ex ex;
    };
    struct cqe *ring;
    int head, count;
    bool armed, armed_solicited, overrun;
    uint32_t events; /* made */
    uint32_t users;
    struct cqe current;        /* of start_poll */
    pthread_mutex_t poll_lock; /* from start_poll to end_poll; taken before fake.lock */
};

struct channel {
    struct ibv_comp_channel ibv;
    struct events events;
};

struct rwqe {
    uint64_t wr_id;
    int sge_count;
    struct ibv_sge sges[FAKE_MAX_SGE];
};

struct rq {
    struct rwqe *ring;
    uint32_t capacity, head, count, max_sge;
};

struct srq {
    struct ibv_srq ibv;
    struct rq rq;
    uint32_t limit;
    uint32_t users;
};

struct wqe {
    uint64_t wr_id;
    enum opcode opcode;
    enum ibv_wc_opcode wc_opcode;
    bool signaled, solicited, fence, has_imm, has_inv, local, inlined;
    uint32_t imm;
    uint64_t remote_addr, compare_add, swap;
    uint32_t rkey;
    int sge_count;
    uint32_t length;
    union {
        struct ibv_sge sges[FAKE_MAX_SGE];
        uint8_t inline_data[FAKE_MAX_INLINE]; /* if inlined */
    };
    uint32_t first_psn, packets; /* once started */
    bool started;
    enum ibv_wc_status fault; /* found when it was to be sent: completes so when it is the oldest */
    uint32_t received;        /* packets of the response */
};

enum { SAVED_ATOMICS = 128, FAKE_FIRST_KEY = 0x1000 };

struct qp {
    union {
        struct ibv_qp ibv;
        struct ibv_qp_ex ex;
    };
    struct nic *nic;
    enum ibv_qp_state state; /* ibv.state is what the library's calls have seen last */
    struct ibv_qp_attr attr; /* as set */
    struct ibv_qp_init_attr init;
    int peer; /* NIC that the destination GID names; -1: none */
    bool extended;

    /* requester */
    struct wqe *sq;
    uint32_t sq_capacity, sq_head, sq_count; /* not retired */
    uint32_t sq_unfreed;                     /* retired, slot not free (free_on_poll) */
    uint32_t sq_uncounted;                   /* retired without completion since the last one */
    uint32_t sq_sent;                        /* of sq_count: this many, the oldest, were sent whole */
    uint32_t send_psn;                       /* next to send */
    uint32_t max_psn;                        /* next never sent */
    uint32_t acked_psn;                      /* oldest not acknowledged */
    unsigned int retries, rnr_retries;       /* left */
    uint64_t timer;                          /* 0: off; changed by timer_set() alone */
    uint32_t timer_slot;                     /* while it is on */
    bool rnr_waiting;
    bool sq_drained_due;
    bool unseen; /* receives that were posted in ERR */

    /* responder */
    struct rq rq;
    uint32_t expected_psn;
    bool nak_sent;
    bool in_message;
    enum opcode message_opcode;
    uint64_t write_at;
    uint32_t write_left, write_rkey;
    uint32_t message_received;
    bool has_rwqe;
    struct rwqe rwqe;
    struct {
        uint32_t psn;
        uint64_t original;
        bool used;
    } atomics[SAVED_ATOMICS];
    uint32_t next_atomic;

    /* ibv_wr_*: being built, under build_lock from wr_start to wr_complete; taken before fake.lock */
    pthread_mutex_t build_lock;
    struct wqe *building;
    uint32_t build_count;
    int build_error;
    uint32_t async_made;
};

/* What a queue pair may be marked with.  A mark that is there needn't be right: who finds it wrong clears it.
 * One that is missing would be a queue pair that never goes on: whatever may let it go on sets it. */
enum mark { EXISTS, MAY_SEND, MAY_FLUSH, MARKS };

struct table {
    struct qp **qps;         /* by number; only where EXISTS is set */
    struct qp **timers;      /* heap */
    uint64_t *marked[MARKS]; /* a bit a number */
    uint32_t capacity, timer_count;
};

struct fake {
    pthread_mutex_t lock;
    struct fake_config config;
    struct nic nics[FAKE_MAX_NICS];
    int nic_count;
    struct wire wires[FAKE_MAX_NICS][FAKE_MAX_NICS];
    struct table table;
    uint32_t cursor; /* number of the queue pair whose turn to send it is; 0: the newest */
    struct mr **mrs; /* by key_index(); NULL: none, or a window's */
    uint32_t mr_capacity;
    uint32_t next_qpn, next_key;
    uint64_t packet_order, now;
    uint32_t turn; /* fairness of fake_step() */
    fake_filter_fn filter;
    void *filter_arg;
    bool automatic, stopping;
    pthread_t thread;
    pthread_cond_t work;
};

extern struct fake fake;

void fake_lock(void); /* starts the library on first use */
void fake_unlock(void);
void fake_wake(void); /* something was posted or changed: the thread should look */

/* devices */
bool fake_refuse(struct nic *nic); /* fake_fail_calls(): true, with errno set, if this call must fail */
int fake_gid_to_nic(const union ibv_gid *gid);
void fake_async(struct nic *nic, struct ibv_context *only, enum ibv_event_type type, void *element);
struct nic *fake_nic_of_context(const struct ibv_context *context);
bool events_open(struct events *events);
void events_close(struct events *events);
bool events_push(struct events *events, void *about, const struct ibv_async_event *async);
bool events_pop(struct events *events, struct event *event); /* blocks on the fd; takes the lock itself */
void events_forget(struct events *events, const void *about);

/* completion queues */
void cq_add(struct cq *cq, const struct ibv_wc *wc, bool solicited, struct qp *frees, uint32_t slots);
void cq_forget_qp(struct cq *cq, const struct qp *qp);
int fake_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

/* memory */
void *mr_translate(struct nic *nic, struct ibv_pd *pd, uint32_t key, bool remote, uint64_t addr,
                   uint64_t length, int access);
/* Copy between a buffer and a scatter list, from `offset` of the list on; false: a key or bound is wrong. */
bool sges_copy(struct qp *qp, const struct ibv_sge *sges, int count, uint64_t offset, void *buffer,
               uint32_t length, bool to_sges);
uint64_t sges_length(const struct ibv_sge *sges, int count);

/* receive queues */
int rq_post(struct rq *rq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_mw *fake_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int fake_dealloc_mw(struct ibv_mw *mw);
int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
bool rq_take(struct qp *qp, struct rwqe *rwqe); /* from the queue pair's own or shared queue */

/* table */
bool table_add(struct qp *qp); /* false, with errno set: no memory, or no number is left */
void table_remove(struct qp *qp);
struct qp *qp_find(const struct nic *nic, uint32_t qpn);
void mark_set(enum mark mark, const struct qp *qp);
void mark_clear(enum mark mark, const struct qp *qp);
/* The newest with that mark whose number is below `end` (UINT32_MAX: of all); NULL: none. */
struct qp *marked_below(enum mark mark, uint32_t end);
void timer_set(struct qp *qp, uint64_t at); /* 0: off */
struct qp *timer_first(void);               /* NULL: none is on */

/* Every queue pair, the newest first. */
static inline struct qp *qp_newest(void) {
    return marked_below(EXISTS, UINT32_MAX);
}

static inline struct qp *qp_older(const struct qp *qp) {
    return marked_below(EXISTS, qp->ibv.qp_num);
}

/* queue pairs */
void qp_error(struct qp *qp); /* to ERR: requests will be flushed */
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_qp *fake_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
int wqe_build(struct qp *qp, const struct ibv_send_wr *wr, struct wqe *wqe);
int sq_push(struct qp *qp, const struct wqe *wqe, uint32_t count);
void qp_ex_fill(struct qp *qp);

static inline uint32_t mtu_bytes(enum ibv_mtu mtu) {
    return 128u << mtu;
}

/* requester */
bool requester_transmit(struct qp *qp); /* one packet; false: nothing to send now */
void requester_receive(struct qp *qp, const struct packet *packet);
void requester_timeout(struct qp *qp);
void requester_fail(struct qp *qp,
                    enum ibv_wc_status status); /* the oldest request fails, queue pair to ERR */
bool qp_flush_one(struct qp *qp);

/* responder */
void responder_receive(struct qp *qp, const struct packet *packet);

/* wires */
struct packet *packet_new(const struct qp *qp, enum opcode opcode, uint32_t psn, uint32_t length);
void packet_free(struct packet *packet);
void packet_send(struct packet *packet);
void packet_arrive(struct packet *packet); /* frees it */
bool wire_deliver(int target, bool held_too);
size_t fake_lose_locked(struct wire *wire, size_t n);
void fake_auto_start_locked(void);

#endif
