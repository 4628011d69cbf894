#include "promise.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char socket_path[64];
const struct agent_manners manners = {.rails = 2, .give_up_ms = 3000, .attempt_ms = 100};

void nap_ms(unsigned int ms) {
    const struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
}

bool within(bool (*is_so)(void), unsigned int ms) {
    for (unsigned int waited = 0; waited < ms; waited += 2) {
        if (is_so())
            return true;
        nap_ms(2);
    }
    return is_so();
}

const struct agent_manners *behave(const struct agent_manners *how) {
    CHECK(agent_start(socket_path, how));
    return how;
}

struct pair *covered_pair(const struct pair_options *options) {
    struct pair *pair = pair_new(options);

    fake_auto(true);
    CHECK(within(agent_all_ready, 20000));
    return pair;
}

void done(struct pair *pair) {
    CHECK_EQ(ibv_destroy_qp(pair->a.qp), 0);
    CHECK_EQ(ibv_destroy_qp(pair->b.qp), 0);
    struct end *ends[2] = {&pair->a, &pair->b};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(ibv_destroy_cq(ends[i]->send_cq), 0);
        CHECK_EQ(ibv_destroy_cq(ends[i]->recv_cq), 0);
        CHECK_EQ(ibv_destroy_comp_channel(ends[i]->channel), 0);
        CHECK_EQ(ibv_dereg_mr(ends[i]->mr), 0);
        if (ends[i]->srq)
            CHECK_EQ(ibv_destroy_srq(ends[i]->srq), 0);
        CHECK_EQ(ibv_dealloc_pd(ends[i]->pd), 0);
        CHECK_EQ(ibv_close_device(ends[i]->context), 0);
    }
    free(pair);
    agent_stop();
}

/* The next completion within ten seconds. */
void wait_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status) {
    struct ibv_wc wc = {0};

    for (int i = 0; i < 10000; i++) {
        if (next_wc(cq, &wc)) {
            CHECK_EQ(wc.wr_id, wr_id);
            CHECK_EQ(wc.status, status);
            return;
        }
        nap_ms(1);
    }
    fprintf(stderr, "no completion, wanted id %llu\n", (unsigned long long)wr_id);
    checks_failed++;
}

void cut_rail_0(bool cut) {
    fake_cut(0, 2, cut ? FAKE_ALL : 0);
    fake_cut(2, 0, cut ? FAKE_ALL : 0);
}

void fail_the_rail(void) {
    agent_page_state("fake_h0r0", LP_NIC_DOWN);
    fake_port(0, false); /* its event is what makes a job look that doesn't poll */
}

bool has_moved(void) {
    return agent_migrations() >= 2;
}

int run_promises(const struct test *tests, size_t count, int argc, char **argv) {
    int passed = 0, failed = 0;

    snprintf(socket_path, sizeof(socket_path), "/tmp/linkpass_promises.%d.sock", (int)getpid());
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && !strstr(tests[i].name, argv[1]))
            continue;
        /* Spare NICs stay open for the life of a process, and a fleet starts anew only when all are closed.
         */
        const pid_t child = fork();
        if (child == 0) {
            setenv("LINKPASS_SOCKET", socket_path, 1);
            checks_failed = 0;
            tests[i].run();
            fflush(NULL);
            _exit(checks_failed != 0);
        }
        int status = -1;
        (void)waitpid(child, &status, 0);
        printf("%s %s\n", status ? "FAIL" : "ok  ", tests[i].name);
        fflush(stdout);
        status ? failed++ : passed++;
    }
    (void)unlink(socket_path);
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
