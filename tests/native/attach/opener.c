/*
 * A program that isn't linked to libibverbs: it opens a name and takes its functions with dlvsym(), as NCCL
 * does. opener NAME [wanted]: a transfer if FAKEVERBS_AUTO=1 gives it a fleet; prints what each symbol
 * resolves to.
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *handle;

static void *symbol(const char *name, const char *version) {
    void *address = dlvsym(handle, name, version);

    printf("%s@%s %s\n", name, version, address ? "found" : "missing");
    return address;
}

int main(int argc, char **argv) {
    handle = dlopen(argc > 1 ? argv[1] : "libibverbs.so", RTLD_NOW);
    if (!handle)
        handle = dlopen("libibverbs.so.1", RTLD_NOW);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    struct ibv_device **(*get_list)(int *) =
        (__typeof__(get_list))symbol("ibv_get_device_list", "IBVERBS_1.1");
    struct ibv_context *(*open_device)(struct ibv_device *) =
        (__typeof__(open_device))symbol("ibv_open_device", "IBVERBS_1.1");
    struct ibv_pd *(*alloc_pd)(struct ibv_context *) =
        (__typeof__(alloc_pd))symbol("ibv_alloc_pd", "IBVERBS_1.1");
    struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) =
        (__typeof__(create_cq))symbol("ibv_create_cq", "IBVERBS_1.1");
    struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *) =
        (__typeof__(create_qp))symbol("ibv_create_qp", "IBVERBS_1.1");
    int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int) =
        (__typeof__(modify_qp))symbol("ibv_modify_qp", "IBVERBS_1.1");
    (void)symbol("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
    (void)symbol("ibv_reg_mr_iova2", "IBVERBS_1.8");
    (void)symbol("ibv_query_ece", "IBVERBS_1.10");
    (void)symbol("ibv_open_device", "IBVERBS_9.9");
    int count = 0;
    struct ibv_device **list = get_list(&count);
    printf("devices %d\n", count);
    if (!count)
        return 0;
    struct ibv_context *context = open_device(list[0]);
    struct ibv_pd *pd = alloc_pd(context);
    struct ibv_cq *cq = create_cq(context, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = create_qp(pd, &init);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    if (!qp || modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        return 3;
    struct ibv_recv_wr *bad, wr = {.wr_id = 1};
    if (ibv_post_recv(qp, &wr, &bad)) /* inline: through context->ops */
        return 4;
    attr.qp_state = IBV_QPS_ERR;
    if (modify_qp(qp, &attr, IBV_QP_STATE))
        return 5;
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) != 1)
        continue;
    printf("flushed %d\n", wc.status == IBV_WC_WR_FLUSH_ERR);
    return 0;
}
