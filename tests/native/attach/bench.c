/*
 * What the shim adds: nanoseconds of a post + poll pair and of a poll that finds nothing, over a provider
 * that does nothing.  Run it with and without the shim; it prints one line of JSON.  bench [QUEUE_PAIRS]
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 2001, BATCH = 1000, MAX_QPS = 4096 };

static double now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void *need(void *object) {
    if (!object) {
        perror("verbs");
        exit(2);
    }
    return object;
}

static double post_poll(struct ibv_qp **qps, int qp_count, struct ibv_cq *cq) {
    struct ibv_sge sge = {.addr = 0x1000, .length = 64, .lkey = 1};
    struct ibv_send_wr *bad,
        wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_wc wc;
    const double start = now_ns();

    for (int i = 0; i < BATCH; i++) {
        wr.wr_id = (uint64_t)i;
        if (ibv_post_send(qps[i % qp_count], &wr, &bad) || ibv_poll_cq(cq, 1, &wc) != 1 ||
            wc.wr_id != (uint64_t)i)
            exit(3);
    }
    return (now_ns() - start) / BATCH;
}

static double empty_poll(struct ibv_cq *cq) {
    struct ibv_wc wc;
    const double start = now_ns();

    for (int i = 0; i < BATCH; i++)
        if (ibv_poll_cq(cq, 1, &wc))
            exit(3);
    return (now_ns() - start) / BATCH;
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof(values[0]), compare);
    return values[ROUNDS / 2];
}

int main(int argc, char **argv) {
    static double pair[ROUNDS], empty[ROUNDS];
    static struct ibv_qp *qps[MAX_QPS];
    const int qp_count = argc > 1 ? atoi(argv[1]) : 1;

    if (qp_count < 1 || qp_count > MAX_QPS)
        return 2;
    struct ibv_device **list = need(ibv_get_device_list(NULL));
    struct ibv_context *context = need(ibv_open_device(need(list[0])));
    struct ibv_pd *pd = need(ibv_alloc_pd(context));
    struct ibv_cq *cq = need(ibv_create_cq(context, 256, NULL, NULL, 0));
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {.max_send_wr = 128, .max_send_sge = 1}, .qp_type = IBV_QPT_RC};
    for (int i = 0; i < qp_count; i++)
        qps[i] = need(ibv_create_qp(pd, &init));
    for (int i = 0; i < ROUNDS; i++) {
        pair[i] = post_poll(qps, qp_count, cq);
        empty[i] = empty_poll(cq);
    }
    printf("{\"queue_pairs\": %d, \"post_poll_ns\": %.1f, \"empty_poll_ns\": %.1f}\n", qp_count, median(pair),
           median(empty));
    for (int i = 0; i < qp_count; i++)
        ibv_destroy_qp(qps[i]);
    ibv_destroy_cq(cq);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(list);
    return 0;
}
