/* The one definition of what agent and shim, and shim and shim, say to each other.
 *
 * Three surfaces, all little-endian, all fixed-width, none with implicit padding (checked at the end of this
 * file):
 *   1. the page:     agent -> shim, shared memory, read on the fast path
 *   2. the frames:   agent <-> shim, a Unix SOCK_SEQPACKET socket, one frame a datagram
 *   3. the mailbox:  shim -> shim, RDMA written over the spare queue pair itself (with a shared receive
 * queue: over a queue pair beside it), no agent in between
 *
 * Everything that is read from any of them is untrusted: check magic, version, length and every bound given
 * here. A change that an older reader would misread raises LP_ABI_VERSION; the reader refuses other versions
 * by name. The part between LP_ABI_BEGIN and LP_ABI_END is read by Python's cffi: no include, no conditional,
 * no expression.
 */
#ifndef LINKPASS_ABI_H
#define LINKPASS_ABI_H

#include <stdint.h>

/* LP_ABI_BEGIN */

#define LP_ABI_VERSION 3

/* ---- 1. the page
 * -------------------------------------------------------------------------------------------- */

#define LP_PAGE_MAGIC 0x4750504c /* "LPPG" */
#define LP_PAGE_BYTES 4096
#define LP_PAGE_NICS 63
#define LP_NIC_NAME                                                                                          \
    28 /* bytes, NUL-terminated; the kernel's IB device names are shorter than 64, in practice < 16 */

/* A port as the agent believes it to be; the order of model.PortState. Any other value reads as UNKNOWN. */
enum lp_nic_state {
    LP_NIC_UNKNOWN = 0, /* not watched: never a reason to move */
    LP_NIC_UP = 1,
    LP_NIC_SUSPECT = 2, /* still used */
    LP_NIC_HELD = 3,    /* back, not yet trusted: never a target */
    LP_NIC_DRAINED = 4, /* taken out by an operator: leave it gently, never a target */
    LP_NIC_DOWN = 5,    /* leave it at once */
    LP_NIC_ABSENT = 6
};

struct lp_page_nic {
    uint8_t name[28];  /* verbs device name, e.g. "mlx5_0" */
    uint8_t port;      /* 1-based */
    uint8_t state;     /* enum lp_nic_state, stored with relaxed order */
    uint16_t reserved; /* 0 */
    uint64_t since_ns; /* CLOCK_MONOTONIC of the last change of state */
    uint64_t changes;  /* counts changes of this entry */
    uint64_t reserved2[2];
};

/* The writer changes entries first, then stores `generation` + 1 with release order. A reader that sees a new
 * generation looks at every entry it cares for. A torn entry is harmless: it can only cause or delay a
 * migration, never make one inexact. */
struct lp_page {
    uint32_t magic;
    uint16_t version;
    uint16_t nic_count; /* 0 to LP_PAGE_NICS */
    uint64_t generation;
    uint64_t beat_ns; /* CLOCK_MONOTONIC when the agent last looked after the page */
    uint64_t agent_incarnation;
    uint64_t reserved[4];
    struct lp_page_nic nics[63];
};

/* ---- 2. the frames
 * ------------------------------------------------------------------------------------------ */

#define LP_FRAME_MAGIC 0x5246504c /* "LPFR" */
#define LP_FRAME_MAX 1024         /* bytes, head included */
#define LP_SPARES 8               /* spare queue pairs of one connection, ids 0 to 7 */
#define LP_TEXT 128               /* bytes of a human-readable reason, NUL-terminated */

enum lp_frame_kind {
    /* shim -> agent */
    LP_HELLO = 1,      /* first frame; the socket's peer credentials say who it is, not this frame */
    LP_CONN_UP = 2,    /* a connection reached RTS, or stays in RTR */
    LP_CONN_DOWN = 3,  /* the job destroyed it, or it is no longer protected */
    LP_CONN_STATE = 4, /* for people and metrics */
    LP_SPARE_HERE = 5, /* our half of a spare pair: to be relayed to the peer's agent */
    /* agent -> shim */
    LP_WELCOME = 64,    /* carries the page's file descriptor (SCM_RIGHTS) */
    LP_REFUSED = 65,    /* go on as a pass-through */
    LP_SPARE_WANT = 66, /* make a spare for this connection on that device */
    LP_SPARE_PEER = 67, /* the peer's half of a spare pair */
    LP_SPARE_DROP = 68,
    LP_ORDER = 69, /* move: advice, never needed for correctness */
    /* both ways, relayed between the two shims without being understood */
    LP_RELAY = 128
};

struct lp_head {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;   /* enum lp_frame_kind */
    uint32_t length; /* whole frame, head included; equals the datagram's length */
    uint32_t seq;    /* grows by one per sender; for logs only */
};

struct lp_hello {
    struct lp_head head;
    uint64_t capabilities; /* 0 in version 1 */
    uint8_t shim_version[32];
    uint8_t job[64]; /* /proc/self/comm or LINKPASS_JOB, NUL-terminated */
};

struct lp_welcome {
    struct lp_head head;
    uint64_t give_up_ms; /* 1 to 3,600,000; default 60,000 */
    uint64_t attempt_ms; /* 1 to 60,000: patience with a peer that doesn't answer an offer; default 1,000 */
    uint64_t capabilities;
};

struct lp_refused {
    struct lp_head head;
    uint8_t reason[128];
};

/* Who a connection is. Both ends know all of it from the job's own set-up, so neither needs the agents' word.
 */
struct lp_identity {
    uint8_t local_gid[16];
    uint8_t remote_gid[16];
    uint32_t local_qpn;  /* 24 bits */
    uint32_t remote_qpn; /* 24 bits */
    uint32_t local_psn;  /* first PSN this end sends (sq_psn at RTS), 24 bits */
    uint32_t remote_psn; /* first PSN this end expects (rq_psn at RTR), 24 bits */
};

enum lp_conn_flags {
    LP_CONN_ATOMICS = 1, /* the peer may send atomics: our QP allows IBV_ACCESS_REMOTE_ATOMIC */
    LP_CONN_SRQ = 2,
    LP_CONN_PSN_UNTRUSTED = 4, /* this driver's rq_psn isn't to be believed */
    LP_CONN_PASSIVE = 8        /* never went to RTS: only receives, and doesn't know its local_psn (0 here) */
};

struct lp_conn_up {
    struct lp_head head;
    uint64_t conn; /* the shim's id, unique in its process, never reused */
    struct lp_identity who;
    uint8_t device[28];
    uint8_t port;
    uint8_t mtu; /* enum ibv_mtu: 1 = 256 .. 5 = 4096 */
    uint16_t flags;
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
};

enum lp_down_reason {
    LP_DOWN_DESTROYED = 1,
    LP_DOWN_FAILED = 2,     /* the job got its original error */
    LP_DOWN_UNPROTECTED = 3 /* it did something that can't be protected; it runs on as without LinkPass */
};

struct lp_conn_down {
    struct lp_head head;
    uint64_t conn;
    uint32_t reason; /* enum lp_down_reason */
    uint32_t detail; /* an ibv_wc_status or an errno */
};

struct lp_conn_state {
    struct lp_head head;
    uint64_t conn;
    uint32_t state; /* enum lp_state of migrate.h */
    uint32_t epoch;
    uint32_t migrations;
    uint32_t spare;      /* id of the spare in use, or LP_SPARES for the original */
    uint64_t gap_ns;     /* last migration: trigger to first replay */
    uint64_t fence_ns;   /* of which: to fenced */
    uint64_t settle_ns;  /* of which: to settled */
    uint64_t replay_ns;  /* trigger to the last of what had waited: all is posted on the new path */
    uint64_t trigger_ns; /* CLOCK_MONOTONIC of that trigger; 0: it never moved */
    uint64_t replayed_bytes;
    uint32_t replayed; /* requests */
    uint32_t executed; /* requests found executed by the watermark */
};

enum lp_spare_flags {
    LP_SPARE_PSN_UNTRUSTED = 1, /* as LP_CONN_PSN_UNTRUSTED, told to the peer */
    LP_SPARE_PROVEN = 2,        /* it has carried data both ways: the half is told again with this flag */
    LP_SPARE_NO_WRITES = 4      /* the sender's job lets nobody write: not even an empty WRITE is taken */
};

/* Half of a spare queue pair. `mail` and `keys` lie in the sender's memory, registered on the spare's device:
 * the peer writes its lp_mail to `mail` and reads the key table at `keys`, both over the spare itself. */
struct lp_spare {
    uint8_t gid[16];
    uint64_t mail_addr;
    uint64_t keys_addr;
    uint32_t mail_rkey;
    uint32_t keys_rkey;
    uint32_t qpn; /* 24 bits */
    uint32_t psn; /* 24 bits, first PSN that this half sends */
    uint8_t mtu;
    uint8_t id; /* 0 to LP_SPARES - 1, chosen by the leader's agent, the same at both ends */
    uint16_t flags;
    uint32_t round;    /* makes of this id: grows when a dead pair is made anew */
    uint32_t mail_qpn; /* of a queue pair beside it that takes the mails (a shared receive queue gives them no
                          receives of their own); first PSN as above. 0: they come over the spare itself */
    uint32_t reserved;
};

struct lp_spare_here { /* also LP_SPARE_PEER */
    struct lp_head head;
    uint64_t conn;
    struct lp_identity who; /* the sender's view */
    struct lp_spare spare;
};

struct lp_spare_want { /* also LP_SPARE_DROP */
    struct lp_head head;
    uint64_t conn;
    uint8_t device[28];
    uint8_t port;
    uint8_t id;
    uint16_t reserved;
    uint32_t round;
    uint32_t reserved2;
};

enum lp_order_why {
    LP_WHY_DOWN = 1,  /* a port of the path is down */
    LP_WHY_DRAIN = 2, /* an operator wants it empty */
    LP_WHY_DEGRADED = 3,
    LP_WHY_FAIL_BACK = 4
};

struct lp_order {
    struct lp_head head;
    uint64_t conn;  /* 0: all of this process that use the named device and port */
    uint32_t why;   /* enum lp_order_why */
    uint32_t spare; /* preferred spare, or LP_SPARES: any */
    uint8_t device[28];
    uint8_t port;
    uint8_t reserved[3];
    uint8_t reason[128];
};

/* What the two ends tell each other through the agents. All of it is advice: losing, delaying, repeating,
 * reordering or forging it can cost time or end a migration with the job's original error, and nothing else.
 */
enum lp_relay_kind {
    LP_TELL_NEED = 1, /* follower -> leader: I need to leave this epoch's path (hard: my end of it is dead) */
    LP_TELL_PREP = 2, /* leader -> follower: I mean to leave; fence when none of your atomics is in flight */
    LP_TELL_FENCED = 3, /* follower -> leader: done */
    LP_TELL_ABORT = 4   /* my job has its original error: stop waiting for me */
};

struct lp_tell {
    uint32_t kind; /* enum lp_relay_kind */
    uint32_t epoch;
    uint32_t hard;
    uint32_t spare; /* preferred, or LP_SPARES */
};

struct lp_relay {
    struct lp_head head;
    uint64_t conn;          /* shim -> agent: the sender's id; agent -> shim: the receiver's id */
    struct lp_identity who; /* the sender's view; the receiver checks that it mirrors its own */
    struct lp_tell tell;
};

/* ---- 3. the mailbox
 * ----------------------------------------------------------------------------------------- */

#define LP_MAIL_MAGIC 0x4c4d504c /* "LPML" */
#define LP_MARKS 8
#define LP_MAIL_BYTES 256 /* one packet at the smallest path MTU */

enum lp_mail_kind {
    LP_MAIL_PROBE = 1, /* "does this spare carry data?" */
    LP_MAIL_ECHO = 2,
    LP_MAIL_OFFER = 3, /* leader -> follower */
    LP_MAIL_ACCEPT = 4 /* follower -> leader */
};

enum lp_mark_flags {
    LP_MARK_PSN = 1,     /* `psn` was read after the fence and the driver is trusted */
    LP_MARK_CONSUMED = 2 /* `consumed` counts every receive completion of this epoch (no CQ overflow) */
};

/* What one end had taken in over one epoch's path when it was fenced. Final: it never changes afterwards. */
struct lp_mark {
    uint32_t epoch;
    uint32_t psn;      /* next PSN expected, 24 bits */
    uint32_t consumed; /* receives of this epoch that completed with success, modulo 2^32 */
    uint32_t flags;    /* enum lp_mark_flags */
};

struct lp_mail {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;          /* enum lp_mail_kind */
    struct lp_identity who; /* the sender's view of the job's connection */
    uint32_t epoch;         /* PROBE, ECHO: a nonce */
    uint32_t base;          /* the epoch whose PSNs the sender's unsettled requests bear */
    uint32_t spare;         /* id of the spare that this mail came over */
    uint32_t round;
    uint32_t mark_count; /* 0 to LP_MARKS */
    uint32_t reserved;
    struct lp_mark marks[8];
    uint64_t reserved2;
    uint64_t
        sum; /* FNV-1a, 64 bit, of all bytes before it: tells a whole mail from one that is still arriving */
};

/* The key table: what a job's lkey/rkey is called on the spare's device. Sorted by rkey. The reader reads it
 * over the spare, and again when `version` is odd or differs before and after. */
struct lp_key_entry {
    uint64_t addr; /* start of the region, as the job registered it */
    uint64_t length;
    uint32_t rkey;       /* on the original device */
    uint32_t spare_rkey; /* on the spare's device */
    uint64_t reserved;
};

struct lp_key_table {
    uint64_t version; /* odd while it is being changed */
    uint32_t count;
    uint32_t capacity;
    /* struct lp_key_entry entries[capacity] follow */
};

/* LP_ABI_END */

#define LP_STATIC(name, expr) _Static_assert(expr, name)
LP_STATIC("page", sizeof(struct lp_page) == LP_PAGE_BYTES && sizeof(struct lp_page_nic) == 64);
LP_STATIC("nic name", sizeof(((struct lp_page_nic *)0)->name) == LP_NIC_NAME);
LP_STATIC("head", sizeof(struct lp_head) == 16);
LP_STATIC("identity", sizeof(struct lp_identity) == 48);
LP_STATIC("hello", sizeof(struct lp_hello) == 120);
LP_STATIC("welcome", sizeof(struct lp_welcome) == 40);
LP_STATIC("conn_up", sizeof(struct lp_conn_up) == 112);
LP_STATIC("conn_down", sizeof(struct lp_conn_down) == 32);
LP_STATIC("conn_state", sizeof(struct lp_conn_state) == 96);
LP_STATIC("spare", sizeof(struct lp_spare) == 64);
LP_STATIC("spare_here", sizeof(struct lp_spare_here) == 136);
LP_STATIC("spare_want", sizeof(struct lp_spare_want) == 64);
LP_STATIC("order", sizeof(struct lp_order) == 192);
LP_STATIC("relay", sizeof(struct lp_relay) == 88);
LP_STATIC("mark", sizeof(struct lp_mark) == 16);
LP_STATIC("mail", sizeof(struct lp_mail) <= LP_MAIL_BYTES && sizeof(struct lp_mail) == 224);
LP_STATIC("key", sizeof(struct lp_key_entry) == 32 && sizeof(struct lp_key_table) == 16);
LP_STATIC("frame bound", sizeof(struct lp_order) <= LP_FRAME_MAX);

#endif
