/* Stands for libmlx5.so.1: the calls of it that programs use past libibverbs. */
#include <infiniband/verbs.h>
#include <stdint.h>

__attribute__((visibility("default"))) int mlx5dv_init_obj(void *object, uint64_t kinds);
__attribute__((visibility("default"))) struct ibv_qp *
mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, void *more);

int mlx5dv_init_obj(void *object, uint64_t kinds) {
    return object && kinds ? 0 : 22;
}

/* The library that made the context, without a way round by libibverbs. */
struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, void *more) {
    (void)more;
    return ibv_create_qp_ex(context, attr);
}
