#include "suites.h"

#include <string.h>

/* Two packets where a message can be executed in part, signaled and not. */
#define EVERY "W2s W2u I2s I2u S2s S2u R2s R2u A1s A1u"
#define FENCED EVERY " W2sf S2sf R2sf A1sf"
#define SIGNALED "W2s I2s S2s R2s A1s"
#define CORE "W2s W2u S2s R2u A1s S2sf"

const struct suite SUITES[] = {
    {"ci", "leader sends 3", FENCED, {3, 0}, "faults=1 eager=1", 5},
    {"ci", "follower sends 3", FENCED, {0, 3}, "faults=1 eager=1", 5},
    {"ci", "leader sends 2, polled late", FENCED, {2, 0}, "faults=1 late_sends=1", 3},
    {"ci", "follower sends 2, polled late", FENCED, {0, 2}, "faults=1 late_recvs=1", 3},
    {"ci", "2 faults, one way 2", CORE, {2, 0}, "faults=2 eager=1", 3},
    {"ci", "2 faults, other way 2", CORE, {0, 2}, "faults=2 eager=1", 3},
    {"ci", "both ways 2", FENCED, {2, 2}, "faults=1 eager=1", 1511},
    {"ci", "2 faults, both ways 1", SIGNALED, {1, 1}, "faults=2 eager=1", 7},
    {"ci", "orders, both ways 2", EVERY, {2, 2}, "orders=1 reorder=1 eager=1", 251},
    {"ci", "order then fault", SIGNALED, {1, 1}, "orders=1 faults=1 eager=1", 5},
    {"ci", "agent silent", SIGNALED, {2, 1}, "faults=1 drops=255 attempts=1 eager=1", 37},
    {"ci", "agent loses", SIGNALED, {1, 1}, "faults=1 drops=1 attempts=1 eager=1", 7},
    {"ci", "agent repeats, reorders", SIGNALED, {1, 1}, "faults=1 repeats=1 reorder=1 eager=1", 7},
    {"ci", "agent lies", SIGNALED, {1, 1}, "faults=1 lies=1 eager=1", 11},
    {"ci", "deadline", SIGNALED, {2, 1}, "faults=1 timeouts=1 eager=1", 37},
    {"ci", "destroy", SIGNALED, {2, 1}, "faults=1 destroys=1 eager=1", 37},
    {"ci", "job's own error", SIGNALED, {2, 1}, "faults=1 app_errors=1 eager=1", 37},
    {"ci", "untrusted packet numbers", FENCED, {2, 1}, "faults=1 untrusted=3 eager=1", 307},
    {"ci", "receives not counted", SIGNALED, {2, 1}, "faults=1 no_consumed=3 eager=1", 37},
    {"ci",
     "posting meanwhile",
     SIGNALED,
     {2, 1},
     "faults=1 late_sends=2 late_recvs=1 late_spare=1 eager=1",
     37},
    {"full", "leader sends 3", FENCED, {3, 0}, "faults=1 eager=1", 1},
    {"full", "follower sends 3", FENCED, {0, 3}, "faults=1 eager=1", 1},
    {"full", "leader sends 2, polled late", FENCED, {2, 0}, "faults=1 late_sends=1", 1},
    {"full", "follower sends 2, polled late", FENCED, {0, 2}, "faults=1 late_recvs=1", 1},
    {"full", "2 faults, one way 2", CORE, {2, 0}, "faults=2 eager=1", 1},
    {"full", "2 faults, other way 2", CORE, {0, 2}, "faults=2 eager=1", 1},
    {"full", "both ways 2", FENCED, {2, 2}, "faults=1 eager=1", 31},
    {"full", "2 faults, both ways 1", SIGNALED, {1, 1}, "faults=2 eager=1", 1},
    {"full", "orders, both ways 2", EVERY, {2, 2}, "orders=1 reorder=1 eager=1", 7},
    {"full", "order then fault", SIGNALED, {1, 1}, "orders=1 faults=1 eager=1", 1},
    {"full", "agent silent", SIGNALED, {2, 1}, "faults=1 drops=255 attempts=1 eager=1", 1},
    {"full", "agent loses", SIGNALED, {1, 1}, "faults=1 drops=1 attempts=1 eager=1", 1},
    {"full", "agent repeats, reorders", SIGNALED, {1, 1}, "faults=1 repeats=1 reorder=1 eager=1", 1},
    {"full", "agent lies", SIGNALED, {1, 1}, "faults=1 lies=1 eager=1", 1},
    {"full", "deadline", SIGNALED, {2, 1}, "faults=1 timeouts=1 eager=1", 1},
    {"full", "destroy", SIGNALED, {2, 1}, "faults=1 destroys=1 eager=1", 1},
    {"full", "job's own error", SIGNALED, {2, 1}, "faults=1 app_errors=1 eager=1", 1},
    {"full", "untrusted packet numbers", FENCED, {2, 1}, "faults=1 untrusted=3 eager=1", 3},
    {"full", "receives not counted", SIGNALED, {2, 1}, "faults=1 no_consumed=3 eager=1", 1},
    {"full",
     "posting meanwhile",
     SIGNALED,
     {2, 1},
     "faults=1 late_sends=2 late_recvs=1 late_spare=1 eager=1",
     1},
    {"full", "leader sends 4", FENCED, {4, 0}, "faults=1 eager=1", 1},
    {"full", "follower sends 4", FENCED, {0, 4}, "faults=1 eager=1", 1},
    {"full", "4 a side", SIGNALED, {4, 4}, "faults=1 eager=1", 30011},
    {"full", "2 faults, both ways 2", SIGNALED, {2, 2}, "faults=2 eager=1", 37},
    {"full", "3 faults, one way 2", CORE, {2, 0}, "faults=3 eager=1", 1},
    {"mutants", "fenced", "R2u S2sf W2sf", {2, 0}, "faults=1 eager=1", 1},
    {"mutants", "deadline", "R2s W2s", {0, 2}, "faults=1 timeouts=1 eager=1", 1},
    {"mutants", "leader sends", SIGNALED, {2, 0}, "faults=1 eager=1", 1},
    {"mutants", "follower sends", SIGNALED, {0, 2}, "faults=1 eager=1", 1},
    {"mutants", "untrusted", "W2s S2s", {2, 1}, "faults=1 untrusted=3 eager=1", 1},
    {"mutants", "repeats", "S2s W2u", {1, 1}, "faults=1 eager=1 repeats=1", 1},
    {"mutants", "2 faults", "S2s W2u", {1, 2}, "faults=2 eager=1", 3},
    {"mutants", "3", SIGNALED " R2u S2sf", {3, 0}, "faults=1 eager=1", 7},
    {0},
};

static unsigned letters_of(const struct suite *suite, char words[32][8]) {
    unsigned count = 0;
    const char *at = suite->letters;
    while (*at != '\0') {
        unsigned length = (unsigned)strcspn(at, " ");
        memcpy(words[count], at, length);
        words[count++][length] = '\0';
        at += length + (at[length] == ' ');
    }
    return count;
}

/* Programs of up to `most` requests: 1 + n + n^2 + ... */
static uint64_t ways(unsigned letters, unsigned most) {
    uint64_t sum = 1;
    uint64_t power = 1;
    for (unsigned i = 0; i < most; i++) {
        power *= letters;
        sum += power;
    }
    return sum;
}

uint64_t suite_size(const struct suite *suite) {
    char words[32][8];
    unsigned letters = letters_of(suite, words);
    return ways(letters, suite->most[0]) * ways(letters, suite->most[1]) - 1;
}

static void put_side(uint64_t index, unsigned letters, char words[32][8], char *text) {
    uint64_t power = 1;
    unsigned count = 0;
    while (index >= power) { /* which length */
        index -= power;
        power *= letters;
        count++;
    }
    for (unsigned i = 0; i < count; i++) {
        strcat(text, words[index % letters]);
        strcat(text, " ");
        index /= letters;
    }
}

void suite_program(const struct suite *suite, uint64_t index, struct program *program) {
    char words[32][8];
    char text[128] = "";
    unsigned letters = letters_of(suite, words);
    uint64_t first = ways(letters, suite->most[0]);
    index += 1; /* not the empty one */
    put_side(index % first, letters, words, text);
    strcat(text, "/ ");
    put_side(index / first, letters, words, text);
    if (!program_parse(text, program)) {
        __builtin_trap();
    }
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * UINT64_C(0x2545f4914f6cdd1d) >> 32;
}

void suite_random(uint64_t seed, struct program *program, struct limits *limits) {
    static const struct suite any = {.letters = FENCED " W1s S1s S1u W3s R3s", .most = {REQS, REQS}};
    uint64_t state = (seed + 1) * UINT64_C(0xd1342543de82ef95) | 1;
    (void)draw(&state);
    suite_program(&any, draw(&state) * UINT64_C(65537) % suite_size(&any), program);
    memset(limits, 0, sizeof(*limits));
    limits->faults = (uint8_t)(draw(&state) % 3);
    limits->orders = (uint8_t)(draw(&state) % 3);
    limits->late_sends = (uint8_t)(draw(&state) % (REQS + 1));
    limits->late_recvs = (uint8_t)(draw(&state) % (REQS + 1));
    limits->late_spare = draw(&state) % 2;
    limits->eager = draw(&state) % 2;
    limits->atomics = draw(&state) % 4 != 0;
    limits->reorder = draw(&state) % 2;
    limits->attempts = draw(&state) % 4 == 0;
    limits->repeats = (uint8_t)(draw(&state) % 3);
    switch (draw(&state) %
            8) { /* at most one of the kinds that excuse an error, so that the others show none */
    case 0:
        limits->timeouts = 1;
        break;
    case 1:
        limits->destroys = 1;
        break;
    case 2:
        limits->app_errors = 1;
        break;
    case 3:
        limits->lies = 2;
        break;
    case 4:
        limits->drops = draw(&state) % 2 ? 255 : 2;
        break;
    case 5:
        limits->untrusted = (uint8_t)(1 + draw(&state) % 3);
        break;
    default:
        break;
    }
}
