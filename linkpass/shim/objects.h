/*
 * Shadow objects: what this library keeps beside each real verbs object of the job.
 *
 * Found by the address of the real object, without a lock (objects_map.h).  Queue pair shadows are
 * type-stable: their memory (and what `extra` points to) is used again for other queue pairs but never
 * returned, because a completion of a queue pair may be polled while another thread destroys it.  The real
 * object's own pointer is the identity to check after a look-up.
 *
 * An object that isn't found (made before this library was attached, or by a way around it) is not an error:
 * the call goes to the real function of its context.
 */
#ifndef LP_OBJECTS_H
#define LP_OBJECTS_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "objects_map.h"

/* Why a queue pair can't be protected; 0: it can. */
enum lp_unprotected {
    LP_PROTECTABLE = 0,
    LP_NOT_RC = 1,       /* UD, UC, XRC, raw packets, driver types */
    LP_MEMORY_WINDOW,    /* binds memory windows */
    LP_OPENED_BY_NUMBER, /* ibv_open_qp: shared with another process */
    LP_OTHER_OPERATIONS /* may build requests that this library doesn't see: ibv_wr_atomic_write, ibv_wr_flush
                         */
};

enum lp_memory {
    LP_HOST_MEMORY = -1,
    LP_DEVICE_MEMORY = -2, /* ibv_alloc_dm */
    LP_NULL_MEMORY = -3,
    LP_IMPORTED_MEMORY = -4
};

struct lp_counts {
    _Atomic uint64_t send;     /* requests posted with success, of ibv_post_send and ibv_wr_complete */
    _Atomic uint64_t recv;     /* receives posted with success */
    _Atomic uint64_t complete; /* completions handed to the job */
    _Atomic uint64_t refused;  /* requests that the provider didn't take */
};

struct lp_context {
    struct ibv_context *real;
    struct ibv_context_ops ops; /* as the provider set them */
    /* Extended functions as the provider set them; NULL where it has none. */
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    struct ibv_srq *(*create_srq_ex)(struct ibv_context *, struct ibv_srq_init_attr_ex *);
    struct ibv_qp *(*open_qp)(struct ibv_context *, struct ibv_qp_open_attr *);
    struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
    struct ibv_mr *(*reg_dm_mr)(struct ibv_pd *, struct ibv_dm *, uint64_t, size_t, unsigned int);
    struct ibv_mr *(*alloc_null_mr)(struct ibv_pd *);
    struct lp_map qp_numbers; /* queue pair number + 1 -> struct lp_qp */
    struct lp_counts counts;  /* of objects that are gone */
    char name[64];            /* the device's, e.g. "mlx5_0" */
    _Atomic int unfollowed;   /* queue pairs that nobody protects: `followed` isn't set */
    void *extra;              /* for the hooks */
};

struct lp_pd {
    struct ibv_pd *real;
    struct lp_context *context;
    _Atomic bool windows; /* a memory window was made in it */
    void *extra;
};

struct lp_mr {
    struct ibv_mr *real;
    struct lp_context *context;
    struct ibv_pd *pd;
    uint64_t iova; /* what the job uses as address: addr unless registered with another */
    int access;
    int dmabuf_fd;          /* or one of enum lp_memory */
    uint64_t memory_offset; /* into the dmabuf or device memory */
    void *extra;
};

struct lp_channel {
    struct ibv_comp_channel *real;
    struct lp_context *context;
    void *extra;
};

struct lp_cq {
    struct ibv_cq *real;
    struct lp_context *context;
    int (*real_poll)(struct ibv_cq *, int, struct ibv_wc *);
    /* ibv_cq_ex only */
    int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
    int (*next_poll)(struct ibv_cq_ex *);
    void (*end_poll)(struct ibv_cq_ex *);
    bool extended;
    struct lp_counts counts;
    void *extra;
};

struct lp_srq {
    struct ibv_srq *real;
    struct lp_context *context;
    uint32_t max_wr, max_sge; /* as granted */
    bool simple;              /* for plain receives, without a limit */
    struct lp_counts counts;
    void *extra;
};

struct lp_wr_batch; /* attach.h */
struct lp_wr_real;

struct lp_qp {
    struct ibv_qp *real; /* NULL: this shadow is free */
    struct lp_context *context;
    int (*real_post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
    int (*real_post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    struct ibv_qp_ex *ex;      /* NULL unless made with send operations */
    struct lp_wr_batch *batch; /* with ex */
    struct lp_wr_real *wr_real;
    struct ibv_qp_cap cap; /* as granted */
    uint32_t qp_num;
    enum ibv_qp_type type;
    _Atomic int unprotected; /* enum lp_unprotected */
    bool sq_sig_all;
    bool unfollowed; /* counted in the context */
    struct lp_counts counts;
    void *extra;
    struct lp_qp *next_free;
};

extern struct lp_map lp_contexts, lp_pds, lp_mrs, lp_channels, lp_cqs, lp_srqs, lp_qps;

#define LP_KEY(object) ((uintptr_t)(object))

static inline struct lp_context *lp_context_of(const struct ibv_context *real) {
    return lp_map_get(&lp_contexts, LP_KEY(real));
}

static inline struct lp_qp *lp_qp_of(const struct ibv_qp *real) {
    return lp_map_get(&lp_qps, LP_KEY(real));
}

static inline struct lp_cq *lp_cq_of(const struct ibv_cq *real) {
    return lp_map_get(&lp_cqs, LP_KEY(real));
}

static inline struct lp_srq *lp_srq_of(const struct ibv_srq *real) {
    return lp_map_get(&lp_srqs, LP_KEY(real));
}

static inline struct lp_mr *lp_mr_of(const struct ibv_mr *real) {
    return lp_map_get(&lp_mrs, LP_KEY(real));
}

static inline struct lp_pd *lp_pd_of(const struct ibv_pd *real) {
    return lp_map_get(&lp_pds, LP_KEY(real));
}

static inline struct lp_channel *lp_channel_of(const struct ibv_comp_channel *real) {
    return lp_map_get(&lp_channels, LP_KEY(real));
}

/* The queue pair of that number.  Check ->real and ->qp_num under your own lock if it may be gone meanwhile.
 */
static inline struct lp_qp *lp_qp_by_number(struct lp_context *context, uint32_t number) {
    return lp_map_get(&context->qp_numbers, (uintptr_t)number + 1);
}

static inline void lp_count(_Atomic uint64_t *counter, uint64_t add) {
    atomic_fetch_add_explicit(counter, add, memory_order_relaxed);
}

/* Around a fork: the child must not inherit the pool locked. */
void lp_pool_lock(void);
void lp_pool_unlock(void);

/* A zeroed shadow for a queue pair, from the type-stable pool; NULL without memory. */
struct lp_qp *lp_qp_alloc(void);
void lp_qp_free(struct lp_qp *qp);

/* Publish a queue pair under its address and number; false without memory (then it is under neither). */
bool lp_qp_publish(struct lp_qp *qp);

/* The opposite.  Done before the real object is destroyed: its address and number may be used again at once.
 */
struct lp_qp *lp_qp_withdraw(const struct ibv_qp *real);

/* Add what was counted on an object that goes away to its context. */
void lp_counts_fold(struct lp_counts *into, const struct lp_counts *from);

#endif
