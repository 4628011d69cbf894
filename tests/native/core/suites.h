/* Which programs and how much trouble: the sets that CI and `make explore` go through. */
#ifndef SUITES_H
#define SUITES_H

#include "world.h"

struct suite {
    const char *group;
    const char *name;
    const char *letters; /* requests to choose from, as in program.c */
    uint8_t most[2];     /* requests of each end: all counts up to this, at least one in all */
    const char *limits;
    unsigned stride; /* take one program in so many; 0, 1: all */
};

extern const struct suite SUITES[]; /* ends with name NULL */

uint64_t suite_size(const struct suite *suite);
void suite_program(const struct suite *suite, uint64_t index, struct program *program);
void suite_random(uint64_t seed, struct program *program, struct limits *limits);

#endif
