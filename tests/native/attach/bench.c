/*
 * What the shim adds: nanoseconds of a post + poll pair and of a poll that finds nothing, over a provider
 * that does nothing, and memory.  Run it bare, with the shim, and with the shim and LINKPASS_SOCKET set, when
 * it is its own agent and its queue pairs are recorded (bench/shim.py does all that).  bench [ROUNDS]
 *
 * Prints one line of JSON: of each case the median and the 95th percentile over the rounds, in ns per
 * request; of the threads the CPU time, and how often one of them had to wait for another.
 */
#include <infiniband/verbs.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

enum {
    PAIRS = 1008, /* a round, whole batches: short beside a time slice, long beside reading the clock */
    MAX_BATCH = 16,
    MANY_QPS = 64,
    THREADS = 4,
    MEMORY_QPS = 1024,
    SEND_DEPTH = 128, /* perftest's defaults */
    RECV_DEPTH = 512
};

static int rounds = 1001;

struct lane {
    struct ibv_cq *cq;
    struct ibv_qp *qps[MANY_QPS];
    int qp_count, batch;
    clockid_t clock;
    double *ns; /* of each round */
    long waits;
};

static double now_ns(clockid_t clock) {
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void *need(void *object) {
    if (!object) {
        perror("bench");
        exit(2);
    }
    return object;
}

static void post_poll(const struct lane *lane, int round) {
    struct ibv_sge sge = {.addr = 0x1000, .length = 64, .lkey = 1};
    struct ibv_send_wr *bad, wrs[MAX_BATCH];
    struct ibv_wc wc[MAX_BATCH];
    uint64_t id = 0;

    for (int i = 0; i < lane->batch; i++)
        wrs[i] = (struct ibv_send_wr){.next = i + 1 < lane->batch ? &wrs[i + 1] : NULL,
                                      .sg_list = &sge,
                                      .num_sge = 1,
                                      .opcode = IBV_WR_RDMA_WRITE,
                                      .send_flags = IBV_SEND_SIGNALED};
    for (int done = 0; done < PAIRS; done += lane->batch) {
        for (int i = 0; i < lane->batch; i++)
            wrs[i].wr_id = id++;
        if (ibv_post_send(lane->qps[(round + done) % lane->qp_count], wrs, &bad) ||
            ibv_poll_cq(lane->cq, lane->batch, wc) != lane->batch || wc[lane->batch - 1].wr_id != id - 1)
            exit(3);
    }
}

static void empty_poll(const struct lane *lane, int round) {
    struct ibv_wc wc;

    (void)round;
    for (int i = 0; i < PAIRS; i++)
        if (ibv_poll_cq(lane->cq, 1, &wc))
            exit(3);
}

static void measure(struct lane *lane, void (*work)(const struct lane *, int)) {
    struct rusage before, after;

    work(lane, 0); /* warm */
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < rounds; i++) {
        const double start = now_ns(lane->clock);
        work(lane, i);
        lane->ns[i] = (now_ns(lane->clock) - start) / PAIRS;
    }
    getrusage(RUSAGE_THREAD, &after);
    lane->waits = after.ru_nvcsw - before.ru_nvcsw;
}

static void say(const char *name, double *ns, int count) {
    qsort(ns, (size_t)count, sizeof(ns[0]), compare);
    printf("\"%s\": {\"median\": %.2f, \"p95\": %.2f}, ", name, ns[count / 2], ns[count * 95 / 100]);
}

/* Connected to somebody who isn't there: nothing is sent anyway. */
static struct ibv_qp *connected(struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = SEND_DEPTH, .max_recv_wr = RECV_DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = need(ibv_create_qp(pd, &init));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int failed =
        ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = qp->qp_num,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh.dgid.raw = {0xfe, 0x80, [15] = 2}}};
    failed |= ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    failed |= ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (failed)
        exit(4);
    return qp;
}

static struct lane lane_new(struct ibv_pd *pd, int qp_count, int batch, clockid_t clock) {
    struct lane lane = {.cq = need(ibv_create_cq(pd->context, 256, NULL, NULL, 0)),
                        .qp_count = qp_count,
                        .batch = batch,
                        .clock = clock,
                        .ns = need(calloc((size_t)rounds, sizeof(double)))};

    for (int i = 0; i < qp_count; i++)
        lane.qps[i] = connected(pd, lane.cq);
    return lane;
}

static void lane_free(struct lane *lane) {
    for (int i = 0; i < lane->qp_count; i++)
        ibv_destroy_qp(lane->qps[i]);
    ibv_destroy_cq(lane->cq);
    free(lane->ns);
}

static void alone(struct ibv_pd *pd, const char *name, int qp_count, int batch,
                  void (*work)(const struct lane *, int)) {
    struct lane lane = lane_new(pd, qp_count, batch, CLOCK_MONOTONIC);

    measure(&lane, work);
    say(name, lane.ns, rounds);
    lane_free(&lane);
}

static pthread_barrier_t all_ready;

static void *work_beside_others(void *arg) {
    pthread_barrier_wait(&all_ready);
    measure(arg, post_poll);
    return NULL;
}

/* Each with a queue pair and a completion queue of its own: nobody should have to wait. */
static void threads(struct ibv_pd *pd) {
    struct lane lanes[THREADS];
    pthread_t ids[THREADS];
    double *ns = need(calloc((size_t)rounds * THREADS, sizeof(double)));
    long waits = 0;

    pthread_barrier_init(&all_ready, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        lanes[i] = lane_new(pd, 1, 1, CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&ids[i], NULL, work_beside_others, &lanes[i]))
            exit(2);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        memcpy(ns + i * rounds, lanes[i].ns, (size_t)rounds * sizeof(double));
        waits += lanes[i].waits;
        lane_free(&lanes[i]);
    }
    say("threads_4", ns, rounds * THREADS);
    printf("\"thread_waits\": %ld, ", waits);
    free(ns);
}

static double allocated(void) {
    const struct mallinfo2 info = mallinfo2();

    return (double)info.uordblks + (double)info.hblkhd;
}

static double resident(void) {
    long size = 0, pages = 0;
    FILE *file = need(fopen("/proc/self/statm", "r"));

    if (fscanf(file, "%ld %ld", &size, &pages) != 2)
        exit(5);
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void memory(struct ibv_pd *pd) {
    struct ibv_cq *cq = need(ibv_create_cq(pd->context, 256, NULL, NULL, 0));
    struct ibv_qp **qps = need(calloc(MEMORY_QPS, sizeof(struct ibv_qp *)));
    const double allocated_before = allocated(), resident_before = resident();

    for (int i = 0; i < MEMORY_QPS; i++)
        qps[i] = connected(pd, cq);
    printf("\"allocated_per_qp\": %.0f, \"resident_per_qp\": %.0f}\n",
           (allocated() - allocated_before) / MEMORY_QPS, (resident() - resident_before) / MEMORY_QPS);
    for (int i = 0; i < MEMORY_QPS; i++)
        ibv_destroy_qp(qps[i]);
    ibv_destroy_cq(cq);
    free(qps);
}

int main(int argc, char **argv) {
    const char *socket = getenv("LINKPASS_SOCKET");
    const struct agent_manners manners = {.rails = 1, .give_up_ms = 60000, .attempt_ms = 1000};

    rounds = argc > 1 ? atoi(argv[1]) : rounds;
    if (rounds < 1 || (socket && !agent_start(socket, &manners)))
        return 2;
    struct ibv_device **list = need(ibv_get_device_list(NULL));
    struct ibv_context *context = need(ibv_open_device(need(list[0])));
    struct ibv_pd *pd = need(ibv_alloc_pd(context));
    printf("{");
    alone(pd, "pair", 1, 1, post_poll);
    alone(pd, "pair_batch_16", 1, MAX_BATCH, post_poll);
    alone(pd, "pair_64_queue_pairs", MANY_QPS, 1, post_poll);
    alone(pd, "empty_poll", 1, 1, empty_poll);
    threads(pd);
    memory(pd);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(list);
    if (socket)
        agent_stop();
    return 0;
}
