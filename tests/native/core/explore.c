/* The explorer's command line.
 *
 *   explore suite NAME [PART PARTS]   every order of steps of every program of a suite (ci, full)
 *   explore one PROGRAM LIMITS        one program, e.g. "W2s S2s / R2s" "faults=2 late_sends=1"
 *   explore random SEED RUNS          random long runs with every kind of trouble
 *   explore replay FILE...            bugs once found: a trace, or a program to search whole
 *   explore mutants                   every deliberate defect must be found
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "search.h"
#include "suites.h"

#ifdef LINKPASS_MUTANTS
int lp_mutant = LP_M_NONE;
#endif

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void print_tally(const char *name, const struct tally *tally, double since) {
    printf("%-28s %8llu programs %11llu states %12llu steps %10llu ends (%llu moved, %llu errors) %7.1f s\n",
           name, (unsigned long long)tally->programs, (unsigned long long)tally->states,
           (unsigned long long)tally->steps, (unsigned long long)tally->ends,
           (unsigned long long)tally->migrated, (unsigned long long)tally->errored, seconds() - since);
    (void)fflush(stdout);
}

static void add(struct tally *sum, const struct tally *part) {
    sum->programs += part->programs;
    sum->states += part->states;
    sum->steps += part->steps;
    sum->ends += part->ends;
    sum->migrated += part->migrated;
    sum->errored += part->errored;
}

static bool run_set(const struct suite *suite, unsigned part, unsigned parts, struct tally *tally,
                    struct finding *finding, struct program *program, struct limits *limits) {
    if (!limits_parse(suite->limits, limits)) {
        fprintf(stderr, "suite %s: bad limits\n", suite->name);
        exit(2);
    }
    uint64_t total = suite_size(suite);
    for (uint64_t i = 0; i < total; i++) {
        if (i % parts != part || (suite->stride > 1 && i % suite->stride != suite->stride / 2)) {
            continue;
        }
        suite_program(suite, i, program);
        if (!search_all(program, limits, tally, finding)) {
            return false;
        }
    }
    return true;
}

static int run_suite(const char *name, unsigned part, unsigned parts) {
    static struct finding finding;
    struct tally sum = {0};
    struct program program;
    struct limits limits;
    double begin = seconds();
    bool any = false;
    for (const struct suite *suite = SUITES; suite->name != NULL; suite++) {
        if (strcmp(suite->group, name) != 0) {
            continue;
        }
        struct tally tally = {0};
        double since = seconds();
        any = true;
        if (!run_set(suite, part, parts, &tally, &finding, &program, &limits)) {
            finding_print(stdout, &program, &limits, &finding);
            return 1;
        }
        print_tally(suite->name, &tally, since);
        add(&sum, &tally);
    }
    print_tally("all", &sum, begin);
    return any ? 0 : 2;
}

static int run_one(const char *text, const char *limits_text) {
    static struct finding finding;
    struct program program;
    struct limits limits;
    struct tally tally = {0};
    double since = seconds();
    if (!program_parse(text, &program) || !limits_parse(limits_text, &limits)) {
        fprintf(stderr, "explore: can't read the program or its limits\n");
        return 2;
    }
    bool fine = search_all(&program, &limits, &tally, &finding);
    print_tally(text, &tally, since);
    if (!fine) {
        finding_print(stdout, &program, &limits, &finding);
        (void)search_replay(&program, &limits, finding.trace, finding.depth, true, &finding);
    }
    return fine ? 0 : 1;
}

static int run_random(uint64_t seed, uint64_t runs) {
    static struct finding finding;
    struct tally tally = {0};
    double since = seconds();
    for (uint64_t i = 0; i < runs; i++) {
        struct program program;
        struct limits limits;
        suite_random(seed + i, &program, &limits);
        if (!search_random(&program, &limits, seed + i, &tally, &finding)) {
            printf("seed %llu\n", (unsigned long long)(seed + i));
            finding_print(stdout, &program, &limits, &finding);
            return 1;
        }
    }
    print_tally("random", &tally, since);
    return 0;
}

static int run_replay(const char *path) {
    static struct finding finding;
    static struct step steps[MAX_DEPTH];
    struct program program = {0};
    struct limits limits = {0};
    unsigned count = 0;
    char line[256];
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "%s: can't open\n", path);
        return 2;
    }
    bool fine = true;
    while (fine && fgets(line, sizeof(line), file) != NULL) {
        if (line[0] == '#' || line[0] == '\n') {
            continue;
        }
        if (strncmp(line, "program ", 8) == 0) {
            fine = program_parse(line + 8, &program);
        } else if (strncmp(line, "limits", 6) == 0) {
            fine = limits_parse(line + 6, &limits);
        } else {
            fine = count < MAX_DEPTH && step_parse(line, &steps[count++]);
        }
    }
    (void)fclose(file);
    if (!fine) {
        fprintf(stderr, "%s: can't read: %s", path, line);
        return 2;
    }
    struct tally tally = {0};
    if (count == 0) { /* no trace: the whole program is small enough to be searched */
        fine = search_all(&program, &limits, &tally, &finding);
    } else {
        fine = search_replay(&program, &limits, steps, count, getenv("LP_TALK") != NULL, &finding);
    }
    printf("%s: %s\n", path, fine ? "fine" : finding.wrong);
    return fine ? 0 : 1;
}
static int run_mutants(void) {
#ifdef LINKPASS_MUTANTS
    static struct finding finding;
    int missed = 0;
    for (lp_mutant = LP_M_NONE + 1; lp_mutant < LP_M_COUNT; lp_mutant++) {
        struct tally tally = {0};
        struct program program;
        struct limits limits;
        bool caught = false;
        for (const struct suite *suite = SUITES; suite->name != NULL && !caught; suite++) {
            if (strcmp(suite->group, "mutants") == 0) {
                caught = !run_set(suite, 0, 1, &tally, &finding, &program, &limits);
            }
        }
        char text[256] = "";
        if (caught) {
            program_print(&program, text, sizeof(text));
        }
        printf("mutant %2d: %s after %llu states: %s[%s]\n", lp_mutant, caught ? "caught" : "MISSED",
               (unsigned long long)tally.states, text, caught ? finding.wrong : "");
        (void)fflush(stdout);
        missed += !caught;
    }
    printf("%d passed, %d failed\n", LP_M_COUNT - 1 - missed, missed);
    return missed != 0;
#else
    fprintf(stderr, "explore: built without LINKPASS_MUTANTS\n");
    return 2;
#endif
}

int main(int argc, char **argv) {
    if (argc >= 3 && strcmp(argv[1], "suite") == 0) {
        unsigned parts = argc >= 5 ? (unsigned)atoi(argv[4]) : 1;
        return run_suite(argv[2], argc >= 5 ? (unsigned)atoi(argv[3]) : 0, parts != 0 ? parts : 1);
    }
    if (argc == 4 && strcmp(argv[1], "one") == 0) {
        return run_one(argv[2], argv[3]);
    }
    if (argc == 4 && strcmp(argv[1], "random") == 0) {
        return run_random(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0));
    }
    if (argc >= 3 && strcmp(argv[1], "replay") == 0) {
        int worst = 0;
        for (int i = 2; i < argc; i++) {
            int code = run_replay(argv[i]);
            worst = code > worst ? code : worst;
        }
        return worst;
    }
    if (argc == 2 && strcmp(argv[1], "mutants") == 0) {
        return run_mutants();
    }
    fprintf(stderr, "usage: explore suite NAME [PART PARTS] | one PROGRAM LIMITS | random SEED RUNS | replay "
                    "FILE... | mutants\n");
    return 2;
}
