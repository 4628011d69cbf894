/*
 * The attach layer: stands between the job and the real verbs, keeps shadow objects (objects.h), and gives
 * whoever protects the connections one place to come in: struct lp_hooks.
 */
#ifndef LP_ATTACH_H
#define LP_ATTACH_H

#include "forward/forward.h"
#include "objects.h"

/* One request of an ibv_wr_* batch with what it points to.  `wr.sg_list` points into the batch. */
struct lp_wr_batch {
    struct ibv_send_wr *wrs; /* `recorded` of them, linked through ->next, in order */
    struct ibv_sge *sges;
    uint8_t *inline_data;
    size_t recorded, wr_capacity;
    size_t sge_count, sge_capacity;
    size_t inline_used, inline_capacity;
    uint32_t count; /* requests in all */
    bool opaque;    /* no memory: not all could be written down */
};

/*
 * All optional (NULL: nothing happens, and calls go straight to the real function).  Set once by
 * lp_hooks_set(), before the first device is opened.
 *
 * Life: `created` runs after the real object exists, before the job sees it.  `destroying` runs before the
 * real object is destroyed and after the shadow can no longer be found; when the provider refuses (EBUSY),
 * `kept` follows.
 *
 * Calls: the hook replaces the real function and has its exact contract; it calls LP_REAL() or the `real_*`
 * pointer of the shadow itself.  No lock is held.  Two hooks of one object may run at once if the job calls
 * so.
 */
struct lp_hooks {
    void (*context_created)(struct lp_context *context);
    void (*context_destroying)(struct lp_context *context);
    void (*pd_created)(struct lp_pd *pd);
    void (*pd_destroying)(struct lp_pd *pd);
    void (*pd_kept)(struct lp_pd *pd);
    void (*mw_created)(struct lp_pd *pd); /* the first memory window of this domain */
    void (*mr_created)(struct lp_mr *mr);
    void (*mr_destroying)(struct lp_mr *mr);
    void (*mr_kept)(struct lp_mr *mr);
    void (*channel_created)(struct lp_channel *channel);
    void (*channel_destroying)(struct lp_channel *channel);
    void (*channel_kept)(struct lp_channel *channel);
    int (*more_cqe)(void); /* entries that completion queues shall have beyond what the job asks for */
    void (*cq_created)(struct lp_cq *cq);
    void (*cq_leaves)(struct lp_cq *cq); /* may wait; it can still be found */
    void (*cq_destroying)(struct lp_cq *cq);
    void (*cq_kept)(struct lp_cq *cq);
    void (*srq_created)(struct lp_srq *srq);
    void (*srq_destroying)(struct lp_srq *srq);
    void (*srq_kept)(struct lp_srq *srq);
    /* What a new queue pair is to be attached to in place of `real`; NULL, with errno: it can't be made. */
    struct ibv_srq *(*srq_for_new_qp)(struct ibv_srq *real);
    void (*srq_new_qp_over)(struct ibv_srq *used); /* the queue pair is made, or can't be */
    void (*qp_created)(struct lp_qp *qp);
    void (*qp_destroying)(struct lp_qp *qp);
    void (*qp_kept)(struct lp_qp *qp);

    int (*post_send)(struct lp_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
    int (*post_recv)(struct lp_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
    int (*post_srq_recv)(struct lp_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
    int (*poll_cq)(struct lp_cq *cq, int count, struct ibv_wc *wc);
    int (*req_notify_cq)(struct lp_cq *cq, int solicited_only);

    /* ibv_wr_*: `complete` posts what was built by calling complete_real(qp); the batch holds the same
     * requests. */
    int (*wr_complete)(struct lp_qp *qp, struct lp_wr_batch *batch, int (*complete_real)(struct lp_qp *qp));

    int (*start_poll)(struct lp_cq *cq, struct ibv_poll_cq_attr *attr);
    int (*next_poll)(struct lp_cq *cq);
    void (*end_poll)(struct lp_cq *cq);

    int (*modify_qp)(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*query_qp)(struct lp_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init);
    /* The job has asked for the hardware's own queues of these (NULL: not of such an object). */
    void (*used_directly)(struct lp_qp *qp, struct lp_cq *cq, struct lp_srq *srq);
    int (*modify_srq)(struct lp_srq *srq, struct ibv_srq_attr *attr, int mask);
    int (*get_cq_event)(struct lp_channel *channel, struct ibv_cq **cq, void **cq_context);
    void (*ack_cq_events)(struct lp_cq *cq, unsigned int count);
    int (*get_async_event)(struct lp_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);
};

extern const struct lp_hooks *lp_hooks; /* never NULL */

/* Plug in.  Call from a constructor of this library, with a table that lives as long as the process. */
void lp_hooks_set(const struct lp_hooks *hooks);

/* False with LINKPASS=off or without a real library: every call goes straight through, nothing is kept or
 * patched. */
extern bool lp_attached;

/* True when LINKPASS_DEBUG is set. */
extern bool lp_debug;

#define LP_RUN(hook, object)                                                                                 \
    do {                                                                                                     \
        if (lp_hooks->hook)                                                                                  \
            lp_hooks->hook(object);                                                                          \
    } while (0)

/*
 * The shadow of a context, made and patched now if it is new (contexts can be opened by ways around
 * ibv_open_device, such as mlx5dv_open_device).  NULL when not attached or without memory.
 */
struct lp_context *lp_adopt(struct ibv_context *real);

/*
 * The real library and providers call exported functions of each other, so hooks nest.  Only the outermost
 * call is the job's: lp_enter() says whether this one is.
 */
bool lp_enter(void);
void lp_leave(void);

/* The same question for a call that may block, and be left by a longjmp(): nothing to undo. */
bool lp_outermost(void);

/* attach_ops.c, attach_extended.c: write this library's functions over those of the context. */
void lp_patch_ops(struct lp_context *context);
void lp_patch_extended(struct lp_context *context);

/* attach_wr.c, attach_cq_ex.c: write this library's functions over those of a new object. */
bool lp_patch_qp_ex(struct lp_qp *qp);
void lp_unpatch_qp_ex(struct lp_qp *qp);
void lp_patch_cq_ex(struct lp_cq *cq);

/* attach_objects.c: make the shadow of an object that the provider just made; a NULL object is passed on. */
struct ibv_pd *lp_made_pd(struct ibv_pd *real);
/* `dmabuf_fd`: LP_HOST_MEMORY, LP_DEVICE_MEMORY, LP_NULL_MEMORY or a file descriptor. */
struct ibv_mr *lp_made_mr(struct ibv_mr *real, uint64_t iova, int access, int dmabuf_fd,
                          uint64_t dmabuf_offset);
struct ibv_cq *lp_made_cq(struct ibv_cq *real, bool extended);
/* `simple`: for plain receives (not XRC, no tag matching). */
struct ibv_srq *lp_made_srq(struct ibv_srq *real, const struct ibv_srq_attr *attr, bool simple);
struct ibv_qp *lp_made_qp(struct ibv_qp *real, const struct ibv_qp_cap *cap, enum ibv_qp_type type,
                          bool sq_sig_all, enum lp_unprotected why);

/* attach_counts.c: what was seen, as text on standard error; for LINKPASS_DEBUG. */
void lp_note_stderr(void);
void lp_dump_counts(void);

/* attach_objects.c: forget a context that was closed, and what the job left open in it. */
void lp_context_gone(struct lp_context *context);

#endif
