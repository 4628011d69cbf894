#include "search.h"

#include <stdlib.h>
#include <string.h>

/* A set of hashes; 0 marks a free slot. */
static struct {
    uint64_t *slots;
    size_t size; /* a power of two */
    size_t used;
} seen;

static void seen_grow(void) {
    size_t old_size = seen.size;
    uint64_t *old = seen.slots;
    seen.size = old_size != 0 ? old_size * 2 : 1 << 14;
    seen.slots = calloc(seen.size, sizeof(*seen.slots));
    if (seen.slots == NULL) {
        abort();
    }
    for (size_t i = 0; i < old_size; i++) {
        size_t at = old[i] & (seen.size - 1);
        while (old[i] != 0 && seen.slots[at] != 0) {
            at = (at + 1) & (seen.size - 1);
        }
        if (old[i] != 0) {
            seen.slots[at] = old[i];
        }
    }
    free(old);
}

static void seen_clear(void) {
    free(seen.slots);
    memset(&seen, 0, sizeof(seen));
    seen_grow();
}

static bool seen_add(uint64_t hash) {
    hash |= hash == 0;
    if (seen.used * 2 >= seen.size) {
        seen_grow();
    }
    size_t at = hash & (seen.size - 1);
    for (; seen.slots[at] != 0; at = (at + 1) & (seen.size - 1)) {
        if (seen.slots[at] == hash) {
            return false;
        }
    }
    seen.slots[at] = hash;
    seen.used++;
    return true;
}

struct level {
    struct world world;
    struct step steps[MAX_STEPS];
    unsigned count;
    unsigned next;
};

static struct level levels[MAX_DEPTH];

static bool only_trouble(const struct level *level) {
    return level->count == 0 || level->steps[0].kind > ST_LAST_PROGRESS; /* progress comes first */
}

static void count_end(const struct world *world, struct tally *tally) {
    tally->ends++;
    tally->migrated += world->ends[0].conn.migrations != 0 && world->ends[1].conn.migrations != 0;
    tally->errored += world->ends[0].job.failed || world->ends[1].job.failed;
}

/* Lists the steps of a fresh level and checks it if it is an end. */
static void open_level(struct level *level, struct tally *tally) {
    level->next = 0;
    level->count = level->world.wrong != NULL ? 0 : world_steps(&level->world, level->steps);
    if (level->world.wrong == NULL && only_trouble(level)) {
        world_check_end(&level->world);
        count_end(&level->world, tally);
    }
}

static void report(struct finding *finding, unsigned depth) {
    finding->wrong = levels[depth].world.wrong;
    finding->depth = depth;
    for (unsigned i = 0; i < depth; i++) {
        finding->trace[i] = levels[i].steps[levels[i].next - 1];
    }
}

bool search_all(const struct program *program, const struct limits *limits, struct tally *tally,
                struct finding *finding) {
    unsigned depth = 0;
    finding->wrong = NULL;
    seen_clear();
    world_init(&levels[0].world, program, limits);
    (void)seen_add(world_hash(&levels[0].world));
    open_level(&levels[0], tally);
    tally->programs++;
    tally->states++;
    for (;;) {
        struct level *level = &levels[depth];
        if (level->world.wrong != NULL) {
            report(finding, depth);
            return false;
        }
        if (level->next == level->count) {
            if (depth-- == 0) {
                return true;
            }
            continue;
        }
        struct level *child = &levels[depth + 1];
        struct step step = level->steps[level->next++];
        world_copy(&child->world, &level->world);
        world_apply(&child->world, step);
        tally->steps++;
        if (child->world.wrong == NULL && !seen_add(world_hash(&child->world))) {
            continue;
        }
        tally->states++;
        if (++depth + 1 == MAX_DEPTH) {
            abort(); /* no program is that long: the machine runs in a circle */
        }
        open_level(child, tally);
    }
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * UINT64_C(0x2545f4914f6cdd1d) >> 32;
}

bool search_random(const struct program *program, const struct limits *limits, uint64_t seed,
                   struct tally *tally, struct finding *finding) {
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    unsigned depth = 0;
    finding->wrong = NULL;
    world_init(&levels[0].world, program, limits);
    open_level(&levels[0], tally);
    tally->programs++;
    while (levels[depth].world.wrong == NULL && depth + 1 < MAX_DEPTH) {
        struct level *level = &levels[depth];
        if (level->count == 0 || (only_trouble(level) && draw(&state) % 4 == 0)) {
            return true;
        }
        unsigned progress = 0;
        while (progress < level->count && level->steps[progress].kind <= ST_LAST_PROGRESS) {
            progress++;
        }
        /* Trouble is rare, so that it also comes late. */
        unsigned range = progress != 0 && draw(&state) % 16 != 0 ? progress : level->count;
        unsigned pick = (unsigned)(draw(&state) % range);
        level->next = pick + 1;
        struct level *child = &levels[depth + 1];
        world_copy(&child->world, &level->world);
        world_apply(&child->world, level->steps[pick]);
        tally->steps++;
        depth++;
        open_level(child, tally);
    }
    if (levels[depth].world.wrong != NULL) {
        report(finding, depth);
        return false;
    }
    return true;
}

static void talk_of(const struct world *world, struct step step) {
    char text[64];
    step_print(step, text, sizeof(text));
    printf("  %-20s", text);
    for (unsigned end = 0; end < 2; end++) {
        const struct lp_conn *conn = &world->ends[end].conn;
        printf("  %s:%s epoch %u base %u done %u/%u", end == 0 ? "L" : "F", lp_state_text(conn->mig.state),
               conn->mig.epoch, conn->mig.base, world->ends[end].job.next_send,
               world->ends[end].job.next_recv);
    }
    printf("\n");
}

bool search_replay(const struct program *program, const struct limits *limits, const struct step *steps,
                   unsigned count, bool talk, struct finding *finding) {
    struct level *level = &levels[0];
    finding->wrong = NULL;
    world_init(&level->world, program, limits);
    for (unsigned i = 0; i < count && level->world.wrong == NULL; i++) {
        bool possible = false;
        level->count = world_steps(&level->world, level->steps);
        for (unsigned j = 0; j < level->count; j++) {
            possible = possible || memcmp(&level->steps[j], &steps[i], sizeof(steps[i])) == 0;
        }
        if (!possible) {
            break; /* the code has changed its ways; what is left of the trace has no meaning */
        }
        world_apply(&level->world, steps[i]);
        if (talk) {
            talk_of(&level->world, steps[i]);
        }
    }
    level->count = level->world.wrong != NULL ? 0 : world_steps(&level->world, level->steps);
    if (level->world.wrong == NULL && only_trouble(level)) {
        world_check_end(&level->world);
    }
    finding->wrong = level->world.wrong;
    return finding->wrong == NULL;
}

void finding_print(FILE *out, const struct program *program, const struct limits *limits,
                   const struct finding *finding) {
    char text[256];
    program_print(program, text, sizeof(text));
    fprintf(out, "# %s\nprogram %s\n", finding->wrong, text);
    limits_print(limits, text, sizeof(text));
    fprintf(out, "limits %s\n", text);
    for (unsigned i = 0; i < finding->depth; i++) {
        step_print(finding->trace[i], text, sizeof(text));
        fprintf(out, "%s\n", text);
    }
}
