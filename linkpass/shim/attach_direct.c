/*
 * Programs that go past libibverbs: mlx5dv_init_obj() and its like hand out the hardware's queues, and what
 * is then written there or read from there is seen by nobody else.  Who asks for an object that way must be
 * left alone with it from then on (UCX does with all of its own, on NICs that have the call).
 *
 * mlx5dv_create_qp() makes queue pairs that libibverbs never hears of.  They may share receive queues and
 * completion queues with others, so they must be known, if only as strangers.
 *
 * The functions belong to providers' libraries, which may be anywhere in the process, or not there at all.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>

#include "attach_life.h"

#define LP_EXPORT(version) __attribute__((visibility("default"), symver(version)))

/* struct mlx5dv_obj and struct mlx4dv_obj begin alike (rdma-core, providers' headers: kept for old programs).
 */
struct lp_direct_object {
    struct {
        void *in, *out;
    } qp, cq, srq;
};

enum { LP_DIRECT_QP = 1, LP_DIRECT_CQ = 2, LP_DIRECT_SRQ = 4 };

typedef int (*lp_init_obj)(struct lp_direct_object *, uint64_t);
typedef struct ibv_qp *(*lp_dv_create_qp)(struct ibv_context *, struct ibv_qp_init_attr_ex *, void *);

/* In the provider's library itself: by the usual search this very function would be found. */
static void *provided(const char *library, const char *symbol, const char *version) {
    void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *found = loaded ? dlvsym(loaded, symbol, version) : NULL;

    if (loaded)
        (void)dlclose(loaded);
    return found;
}

static int init_obj(void *real, struct lp_direct_object *object, uint64_t kinds) {
    const int result = real ? ((lp_init_obj)real)(object, kinds) : EOPNOTSUPP;

    if (result || !lp_attached || !lp_hooks->used_directly)
        return result;
    struct lp_qp *qp = kinds & LP_DIRECT_QP ? lp_qp_of(object->qp.in) : NULL;
    struct lp_cq *cq = kinds & LP_DIRECT_CQ ? lp_cq_of(object->cq.in) : NULL;
    struct lp_srq *srq = kinds & LP_DIRECT_SRQ ? lp_srq_of(object->srq.in) : NULL;
    lp_hooks->used_directly(qp, cq, srq);
    return 0;
}

LP_EXPORT("mlx5dv_init_obj@MLX5_1.0")
int lp_mlx5dv_init_obj_1_0(struct lp_direct_object *object, uint64_t kinds);
LP_EXPORT("mlx5dv_init_obj@@MLX5_1.2")
int lp_mlx5dv_init_obj_1_2(struct lp_direct_object *object, uint64_t kinds);
LP_EXPORT("mlx4dv_init_obj@@MLX4_1.0")
int lp_mlx4dv_init_obj_1_0(struct lp_direct_object *object, uint64_t kinds);
LP_EXPORT("mlx5dv_create_qp@@MLX5_1.3")
struct ibv_qp *lp_mlx5dv_create_qp_1_3(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                       void *more);

int lp_mlx5dv_init_obj_1_0(struct lp_direct_object *object, uint64_t kinds) {
    return init_obj(provided("libmlx5.so.1", "mlx5dv_init_obj", "MLX5_1.0"), object, kinds);
}

int lp_mlx5dv_init_obj_1_2(struct lp_direct_object *object, uint64_t kinds) {
    return init_obj(provided("libmlx5.so.1", "mlx5dv_init_obj", "MLX5_1.2"), object, kinds);
}

int lp_mlx4dv_init_obj_1_0(struct lp_direct_object *object, uint64_t kinds) {
    return init_obj(provided("libmlx4.so.1", "mlx4dv_init_obj", "MLX4_1.0"), object, kinds);
}

struct ibv_qp *lp_mlx5dv_create_qp_1_3(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                       void *more) {
    const lp_dv_create_qp real = (lp_dv_create_qp)provided("libmlx5.so.1", "mlx5dv_create_qp", "MLX5_1.3");

    if (!real) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    const bool outermost = lp_enter();
    struct ibv_srq *asked = attr->srq, *used = lp_srq_instead(asked, outermost);
    attr->srq = used;
    struct ibv_qp *qp = asked && !used ? NULL : real(context, attr, more);
    attr->srq = asked;
    lp_leave();
    if (qp && outermost && lp_attached)
        (void)lp_made_qp(qp, &attr->cap, attr->qp_type, attr->sq_sig_all != 0, LP_OTHER_OPERATIONS);
    lp_srq_over(used, outermost);
    return qp;
}
