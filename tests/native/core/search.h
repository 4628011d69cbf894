/* Searches of the world's orders of steps: all of them, or random ones. */
#ifndef SEARCH_H
#define SEARCH_H

#include <stdio.h>

#include "world.h"

#define MAX_DEPTH 400

struct finding {
    const char *wrong; /* NULL: nothing found */
    unsigned depth;
    struct step trace[MAX_DEPTH];
};

struct tally {
    uint64_t programs;
    uint64_t states;
    uint64_t steps;
    uint64_t ends;     /* states from which only trouble leads on */
    uint64_t migrated; /* of which: with at least one migration done at both ends */
    uint64_t errored;  /* of which: where the job got an error */
};

/* Visits every state that can be reached. True: nothing wrong. */
bool search_all(const struct program *program, const struct limits *limits, struct tally *tally,
                struct finding *finding);
/* One random walk to an end. */
bool search_random(const struct program *program, const struct limits *limits, uint64_t seed,
                   struct tally *tally, struct finding *finding);
/* Follows a trace. True: it could be followed and nothing was wrong. */
bool search_replay(const struct program *program, const struct limits *limits, const struct step *steps,
                   unsigned count, bool talk, struct finding *finding);
void finding_print(FILE *out, const struct program *program, const struct limits *limits,
                   const struct finding *finding);

#endif
