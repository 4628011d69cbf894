/*
 * What a move costs without a network: COUNT queue pairs between two hosts of the fake verbs library, with
 * OUTSTANDING WRITEs each that the path has swallowed, leave a port that the page calls DOWN.  RUNS times,
 * each in a process of its own; a line of JSON a run, in microseconds.  moves COUNT OUTSTANDING RUNS
 */
#include <dirent.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "agent.h"
#include "pair.h"

enum { BYTES = 64, PATIENCE_S = 120 };

static int count, outstanding;
static char socket_path[64];

static uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "moves: %s\n", what);
    _exit(1);
}

/* What the shim's own thread has used of a processor; 0: there is none. */
static uint64_t keeper_ns(void) {
    DIR *tasks = opendir("/proc/self/task");
    uint64_t ns = 0;

    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
        FILE *comm = fopen(path, "re");
        if (comm) {
            (void)!fgets(name, sizeof(name), comm);
            fclose(comm);
        }
        if (strcmp(name, "linkpass\n") != 0)
            continue;
        snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", task->d_name);
        FILE *times = fopen(path, "re");
        if (times) {
            if (fscanf(times, "%" SCNu64, &ns) != 1)
                fail("no times of the shim's thread");
            fclose(times);
        }
    }
    if (tasks)
        closedir(tasks);
    return ns;
}

static void nap_ms(unsigned int ms) {
    const struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
}

/* One more queue pair of an end: all but the queue pair is shared. */
static struct end *sharing(const struct end *end) {
    struct end *more = calloc(1, sizeof(*more));
    struct ibv_qp_init_attr init = {
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .cap = {.max_send_wr = (uint32_t)outstanding, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};

    if (!more)
        fail("no memory");
    more->nic = end->nic;
    more->context = end->context;
    more->pd = end->pd;
    more->send_cq = end->send_cq;
    more->recv_cq = end->recv_cq;
    more->mr = end->mr;
    more->qp = ibv_create_qp(end->pd, &init);
    if (!more->qp)
        fail("no queue pair");
    return more;
}

static void post_writes(const struct end *from, const struct pair *pair) {
    struct ibv_sge sge = {.addr = (uintptr_t)pair->a.memory, .length = BYTES, .lkey = pair->a.mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {(uintptr_t)pair->b.memory, pair->b.mr->rkey}};

    for (int i = 0; i < outstanding; i++)
        if (ibv_post_send(from->qp, &wr, &bad))
            fail("post refused");
}

static void await(bool (*is_so)(void), const char *what) {
    const uint64_t until = now_ns() + PATIENCE_S * UINT64_C(1000000000);

    while (!is_so()) {
        if (now_ns() > until)
            fail(what);
        nap_ms(2);
    }
}

static bool all_moved(void) {
    return agent_migrations() >= 2 * (uint64_t)count;
}

static void once(void) {
    /* Retries go on for longer than the move takes: what moves them is the page. */
    const struct pair_options options = {
        .cqe = count * (outstanding + 4) + 64, .send_wr = (uint32_t)outstanding, .timeout = 18, .retry = 7};
    const struct agent_manners manners = {.rails = 2, .give_up_ms = 60000, .attempt_ms = 2000};
    struct end **from = calloc((size_t)count, sizeof(struct end *));
    struct ibv_wc wc[64];

    if (!from || !agent_start(socket_path, &manners))
        fail("no agent");
    struct pair *pair = pair_new(&options);
    from[0] = &pair->a;
    for (int i = 1; i < count; i++) {
        struct end *a = sharing(&pair->a), *b = sharing(&pair->b);
        end_connect(a, b, SEND_PSN_A, SEND_PSN_B, &options);
        end_connect(b, a, SEND_PSN_B, SEND_PSN_A, &options);
        from[i] = a;
    }
    fake_auto(true);
    nap_ms(100);
    await(agent_all_ready, "not covered");
    fake_cut(0, 2, FAKE_ALL);
    fake_cut(2, 0, FAKE_ALL);
    for (int i = 0; i < count; i++)
        post_writes(from[i], pair);
    const uint64_t keeper = keeper_ns(), start = now_ns(), until = start + PATIENCE_S * UINT64_C(1000000000);
    fake_port(0, false);
    agent_page_state("fake_h0r0", LP_NIC_DOWN);
    for (long left = (long)count * outstanding; left;) {
        const int got = ibv_poll_cq(pair->a.send_cq, 64, wc);
        for (int i = 0; i < got; i++)
            if (wc[i].status)
                fail("a request failed");
        left -= got > 0 ? got : 0;
        if (!got)
            sched_yield(); /* with less than four processors the shim's thread would wait for a slice of ours
                            */
        if (got < 0 || now_ns() > until)
            fail("completions are missing");
    }
    const uint64_t flowed = now_ns() - start;
    await(all_moved, "not all were told to have moved");
    if (agent_lost())
        fail("the agent lost frames");
    const struct agent_times worst = agent_slowest();
    printf("{\"fence\": %.1f, \"settle\": %.1f, \"replay\": %.1f, \"all_completed\": %.1f, "
           "\"shim_thread\": %.1f}\n",
           (double)worst.fence / 1e3, (double)worst.settle / 1e3, (double)worst.gap / 1e3,
           (double)flowed / 1e3, (double)(keeper_ns() - keeper) / 1e3);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const int runs = argc > 3 ? atoi(argv[3]) : 0;
    int failed = 0;

    count = argc > 1 ? atoi(argv[1]) : 0;
    outstanding = argc > 2 ? atoi(argv[2]) : 0;
    if (count < 1 || outstanding < 1 || runs < 1) {
        fprintf(stderr, "moves COUNT OUTSTANDING RUNS\n");
        return 2;
    }
    snprintf(socket_path, sizeof(socket_path), "/tmp/engine_moves.%d.sock", (int)getpid());
    setenv("LINKPASS_SOCKET", socket_path, 1);
    for (int i = 0; i < runs; i++) {
        const pid_t child = fork();
        if (child == 0) {
            once();
            _exit(checks_failed != 0);
        }
        int status = -1;
        (void)waitpid(child, &status, 0);
        failed += status != 0;
    }
    (void)unlink(socket_path);
    return failed != 0;
}
