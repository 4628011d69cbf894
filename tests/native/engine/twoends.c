/*
 * Runs both ends of a verbs client (rcflow, ncclflow: built as shared libraries whose main is client_main) in
 * one process over the fake verbs library, with the shim between, while links fail and heal at random.
 *
 *   twoends LIBRARY SEED FAULTS KINDS [agent manners] -- OPTIONS
 *
 * KINDS is a set of letters: p port down, s silent cut, g GID lost, f queue pair fatal... see fault().
 * The exit code is 0 when both ends say 0.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "agent.h"
#include "fake.h"

enum { SILENCE_US = 250000 /* retries end: 4 times 33 ms and some */ };

struct side {
    void *library;
    int (*main)(int, char **);
    int argc;
    char *argv[64];
    int code;
    atomic_bool ended;
    pthread_t thread;
};

static struct {
    uint64_t random;
    unsigned int faults, rails;
    const char *kinds, *socket;
    struct agent_manners manners;
} plan;

/* The job's own memory, written by a NIC and read by the job: ordered by completions, which ThreadSanitizer
 * can't see. getopt's state: one end after the other. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
    return "race:^sges_copy\nrace:^execute_write\nrace:^main$\nrace:^nap_us$\n";
}

static uint32_t chance(void) {
    plan.random = plan.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(plan.random >> 33);
}

static void nap_us(unsigned int us) {
    const struct timespec wait = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&wait, NULL);
}

static void *run_side(void *arg) {
    struct side *side = arg;

    side->code = side->main(side->argc, side->argv);
    atomic_store(&side->ended, true);
    return NULL;
}

static void name_of(int nic, char *name, size_t room) {
    snprintf(name, room, "fake_h%ur%u", (unsigned int)nic / plan.rails, (unsigned int)nic % plan.rails);
}

static void tell_page(int nic, int state) {
    char name[28];

    name_of(nic, name, sizeof(name));
    agent_page_state(name, state);
}

/* One fault on one rail of one end; heals before the next, so that a path is always left. */
static void fault(unsigned int rail) {
    const int host = (int)(chance() % 2), nic = host * (int)plan.rails + (int)rail;
    const int other = (1 - host) * (int)plan.rails + (int)rail;
    const unsigned int hold_us = 2000 + chance() % 60000;
    char name[28];

    switch (plan.kinds[chance() % strlen(plan.kinds)]) {
    case 'p': /* seen by the agent at once */
        fake_port(nic, false);
        tell_page(nic, LP_NIC_DOWN);
        nap_us(hold_us);
        fake_port(nic, true);
        tell_page(nic, LP_NIC_UP);
        break;
    case 's': /* seen by nobody, long enough for the retries to end */
        fake_cut(nic, other, FAKE_ALL);
        fake_cut(other, nic, FAKE_ALL);
        nap_us(hold_us + SILENCE_US);
        fake_cut(nic, other, 0);
        fake_cut(other, nic, 0);
        break;
    case 'a': /* acknowledgements only: much is executed that nobody knows of */
        fake_cut(nic, other, FAKE_ACK | FAKE_RESPONSE);
        nap_us(hold_us + SILENCE_US);
        fake_cut(nic, other, 0);
        break;
    case 'g':
        fake_lose_gid(nic);
        break;
    case 'o': /* an order, and nothing wrong at all */
        name_of(nic, name, sizeof(name));
        agent_order(name, LP_WHY_DRAIN);
        break;
    case 'k': /* the agent dies and comes back */
        agent_stop();
        nap_us(hold_us);
        if (!agent_start(plan.socket, &plan.manners))
            exit(2);
        break;
    default:
        break;
    }
}

static bool over(struct side *sides) {
    return atomic_load(&sides[0].ended) || atomic_load(&sides[1].ended);
}

/* Every connection that there is has a proven spare, and that has been so for a while: all are there. */
static void wait_covered(struct side *sides, int steady) {
    for (int good = 0, tries = 0; good < steady && tries < 5000 && !over(sides); tries++) {
        good = agent_all_ready() ? good + 1 : 0;
        nap_us(2000);
    }
}

static void *break_things(void *arg) {
    struct side *sides = arg;

    for (unsigned int i = 0; i < plan.faults && !over(sides); i++) {
        nap_us(5000 + chance() % 40000);
        wait_covered(sides, i ? 1 : 100);
        if (!over(sides))
            fault(chance() % plan.rails);
    }
    return NULL;
}

/* Two copies of the library, so that each end has statics of its own. */
static bool load(struct side *side, const char *path, const char *copy) {
    char command[1024];

    snprintf(command, sizeof(command), "cp '%s' '%s'", path, copy);
    if (system(command))
        return false;
    side->library = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
    if (!side->library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    void *found = dlsym(side->library, "client_main");
    memcpy(&side->main, &found, sizeof(found));
    return side->main != NULL;
}

static void add(struct side *side, const char *argument) {
    if (side->argc < 63)
        side->argv[side->argc++] = strdup(argument);
}

static void manner(const char *text) {
    unsigned int value = 0;
    const char *equals = strchr(text, '=');

    if (equals)
        value = (unsigned int)atoi(equals + 1);
    if (!strncmp(text, "drop", 4))
        plan.manners.drop_percent = value;
    else if (!strncmp(text, "repeat", 6))
        plan.manners.repeat_percent = value;
    else if (!strncmp(text, "lie", 3))
        plan.manners.lie_percent = value;
    else if (!strncmp(text, "shuffle", 7))
        plan.manners.shuffle_percent = value;
    else if (!strncmp(text, "giveup", 6))
        plan.manners.give_up_ms = value;
    else if (!strncmp(text, "attempt", 7))
        plan.manners.attempt_ms = value;
}

/* getopt has one state for the process, so the client starts when the server has read its options and
 * listens. */
static bool listens(const char *path, const char *wanted) {
    char line[512];
    bool found = false;
    FILE *table = fopen(path, "re");

    while (table && !found && fgets(line, sizeof(line), table)) {
        const char *at = strstr(line, wanted);
        const char *state = at ? strchr(at + strlen(wanted), ':') : NULL;
        found = state && !strncmp(state, ":0000 0A", 8);
    }
    if (table)
        fclose(table);
    return found;
}

static void wait_listening(int port) {
    char wanted[8];

    snprintf(wanted, sizeof(wanted), ":%04X ", (unsigned int)port);
    for (int tries = 0; tries < 2000; tries++) {
        if (listens("/proc/net/tcp6", wanted) || listens("/proc/net/tcp", wanted))
            return;
        nap_us(10000);
    }
}

int main(int argc, char **argv) {
    static struct side sides[2];
    char copies[2][128], port[16];
    pthread_t breaker;
    int at = 5;

    if (argc < 6) {
        fprintf(stderr, "usage: twoends LIBRARY SEED FAULTS KINDS [manner=N...] -- OPTIONS\n");
        return 2;
    }
    plan.random = strtoull(argv[2], NULL, 0) * 2 + 1;
    plan.faults = (unsigned int)atoi(argv[3]);
    plan.kinds = argv[4];
    plan.rails = 2;
    plan.socket = getenv("LINKPASS_SOCKET");
    plan.manners = (struct agent_manners){
        .rails = 2, .give_up_ms = 20000, .attempt_ms = 200, .seed = strtoull(argv[2], NULL, 0)};
    while (at < argc && strcmp(argv[at], "--") != 0)
        manner(argv[at++]);
    if (!plan.socket || !agent_start(plan.socket, &plan.manners))
        return 2;
    snprintf(port, sizeof(port), "%d", 20000 + (int)(getpid() % 12000));
    for (int i = 0; i < 2; i++) {
        snprintf(copies[i], sizeof(copies[i]), "/tmp/twoends.%d.%d.so", (int)getpid(), i);
        if (!load(&sides[i], argv[1], copies[i]))
            return 2;
        (void)unlink(copies[i]);
        add(&sides[i], i ? "client" : "server");
        add(&sides[i], "-d");
        add(&sides[i], i ? "fake_h1r0" : "fake_h0r0");
        add(&sides[i], "-p");
        add(&sides[i], port);
        for (int o = at + 1; o < argc; o++)
            add(&sides[i], argv[o]);
        if (i)
            add(&sides[i], "127.0.0.1");
    }
    fake_auto(true);
    for (int i = 0; i < 2; i++) {
        pthread_create(&sides[i].thread, NULL, run_side, &sides[i]);
        if (i == 0)
            wait_listening(atoi(port));
        extern int optind;
        optind = 1;
    }
    pthread_create(&breaker, NULL, break_things, sides);
    for (int i = 0; i < 2; i++)
        pthread_join(sides[i].thread, NULL);
    pthread_join(breaker, NULL);
    fprintf(stderr, "twoends: server %d, client %d, migrations %llu, failures %llu\n", sides[0].code,
            sides[1].code, (unsigned long long)agent_migrations(), (unsigned long long)agent_failures());
    fflush(stdout);
    fflush(stderr);
    _exit(sides[0].code || sides[1].code);
}
