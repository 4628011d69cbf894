/* The least that a test program needs: named checks, a count, an exit code. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int check_failed, check_passed;

#define CHECK(expr)                                                                                          \
    do {                                                                                                     \
        if (expr) {                                                                                          \
            check_passed++;                                                                                  \
        } else {                                                                                             \
            check_failed++;                                                                                  \
            (void)fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #expr);         \
        }                                                                                                    \
    } while (0)

static inline int check_end(void) {
    printf("%d passed, %d failed\n", check_passed, check_failed);
    return check_failed != 0;
}

#endif
