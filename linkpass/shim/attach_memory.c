/* Protection domains and memory regions. */
#include "attach_life.h"

struct ibv_pd *lp_made_pd(struct ibv_pd *real) {
    struct lp_pd *pd = LP_NEW_SHADOW(pd, real);

    if (pd)
        (void)LP_PUBLISH(pd, pd);
    return real;
}

struct ibv_mr *lp_made_mr(struct ibv_mr *real, uint64_t iova, int access, int dmabuf_fd,
                          uint64_t memory_offset) {
    struct lp_mr *mr = LP_NEW_SHADOW(mr, real);

    if (mr) {
        mr->pd = real->pd;
        mr->iova = iova;
        mr->access = access;
        mr->dmabuf_fd = dmabuf_fd;
        mr->memory_offset = memory_offset;
        (void)LP_PUBLISH(mr, mr);
    }
    return real;
}

static void lp_fold_pd(struct lp_pd *pd) {
    (void)pd;
}

static void lp_fold_mr(struct lp_mr *mr) {
    (void)mr;
}

LP_DEFINE_DESTROY(pd, ibv_pd, ibv_dealloc_pd)
LP_DEFINE_DESTROY(mr, ibv_mr, ibv_dereg_mr)

struct ibv_pd *lp_hook_ibv_alloc_pd(struct ibv_context *context) {
    const bool outermost = lp_enter();
    struct ibv_pd *pd = LP_REAL(ibv_alloc_pd)(context);
    lp_leave();
    return outermost ? lp_made_pd(pd) : pd;
}

struct ibv_pd *lp_hook_ibv_import_pd(struct ibv_context *context, uint32_t handle) {
    const bool outermost = lp_enter();
    struct ibv_pd *pd = LP_REAL(ibv_import_pd)(context, handle);
    lp_leave();
    return outermost ? lp_made_pd(pd) : pd;
}

void lp_hook_ibv_unimport_pd(struct ibv_pd *real) {
    struct lp_pd *pd = lp_enter() ? lp_map_take(&lp_pds, LP_KEY(real)) : NULL;

    if (pd)
        LP_RUN(pd_destroying, pd);
    LP_REAL(ibv_unimport_pd)(real);
    lp_leave();
    free(pd);
}

struct ibv_mr *lp_hook_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    const bool outermost = lp_enter();
    struct ibv_mr *mr = LP_REAL(ibv_reg_mr)(pd, addr, length, access);
    lp_leave();
    return outermost ? lp_made_mr(mr, (uintptr_t)addr, access, LP_HOST_MEMORY, 0) : mr;
}

struct ibv_mr *lp_hook_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       int access) {
    const bool outermost = lp_enter();
    struct ibv_mr *mr = LP_REAL(ibv_reg_mr_iova)(pd, addr, length, iova, access);
    lp_leave();
    return outermost ? lp_made_mr(mr, iova, access, LP_HOST_MEMORY, 0) : mr;
}

struct ibv_mr *lp_hook_ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                        unsigned int access) {
    const bool outermost = lp_enter();
    struct ibv_mr *mr = LP_REAL(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
    lp_leave();
    return outermost ? lp_made_mr(mr, iova, (int)access, LP_HOST_MEMORY, 0) : mr;
}

struct ibv_mr *lp_hook_ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                         int fd, int access) {
    const bool outermost = lp_enter();
    struct ibv_mr *mr = LP_REAL(ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);
    lp_leave();
    return outermost ? lp_made_mr(mr, iova, access, fd, offset) : mr;
}

/* Its argument is newer than the headers that this is compiled with: the region is known, how it was made
 * isn't. */
struct ibv_mr *lp_hook_ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr) {
    const bool outermost = lp_enter();
    struct ibv_mr *mr = LP_REAL(ibv_reg_mr_ex)(pd, attr);
    lp_leave();
    return outermost && mr ? lp_made_mr(mr, (uintptr_t)mr->addr, 0, LP_IMPORTED_MEMORY, 0) : mr;
}

struct ibv_mr *lp_hook_ibv_import_mr(struct ibv_pd *pd, uint32_t handle) {
    const bool outermost = lp_enter();
    struct ibv_mr *mr = LP_REAL(ibv_import_mr)(pd, handle);
    lp_leave();
    return outermost && mr ? lp_made_mr(mr, (uintptr_t)mr->addr, 0, LP_IMPORTED_MEMORY, 0) : mr;
}

void lp_hook_ibv_unimport_mr(struct ibv_mr *real) {
    struct lp_mr *mr = lp_enter() ? lp_map_take(&lp_mrs, LP_KEY(real)) : NULL;

    if (mr)
        LP_RUN(mr_destroying, mr);
    LP_REAL(ibv_unimport_mr)(real);
    lp_leave();
    free(mr);
}

/* Seen by the hooks as the end of one region and the start of another under the same address. */
int lp_hook_ibv_rereg_mr(struct ibv_mr *real, int flags, struct ibv_pd *pd, void *addr, size_t length,
                         int access) {
    struct lp_mr *mr = lp_enter() ? lp_map_take(&lp_mrs, LP_KEY(real)) : NULL;

    if (mr)
        LP_RUN(mr_destroying, mr);
    int result = LP_REAL(ibv_rereg_mr)(real, flags, pd, addr, length, access);
    const int error = errno;
    lp_leave();
    if (mr && result && lp_map_put(&lp_mrs, LP_KEY(real), mr)) {
        LP_RUN(mr_kept, mr);
    } else if (mr) {
        const uint64_t iova = flags & IBV_REREG_MR_CHANGE_TRANSLATION ? (uintptr_t)addr : mr->iova;
        (void)lp_made_mr(real, iova, flags & IBV_REREG_MR_CHANGE_ACCESS ? access : mr->access, mr->dmabuf_fd,
                         mr->memory_offset);
        free(mr);
    }
    errno = error;
    return result;
}
