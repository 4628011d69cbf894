/* Test programs: `PROGRAM NAME` runs one case, `PROGRAM` lists their names. A failed CHECK ends the program.
 */
#ifndef TESTS_CLIENTS_CHECK_H
#define TESTS_CLIENTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

struct test_case {
    const char *name;
    void (*run)(void);
};

static inline int run_cases(const struct test_case *cases, size_t count, int argc, char **argv) {
    for (size_t i = 0; i < count; i++) {
        if (argc < 2)
            puts(cases[i].name);
        else if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}

#endif
