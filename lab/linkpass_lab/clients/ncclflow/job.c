#include "job.h"

#include "../common/pattern.h"

const char *job_fault(const struct job *j) {
    if (j->connections < 1 || j->connections > CONNECTIONS_MAX)
        return "connections: 1 to 64 in each direction";
    if (j->lanes < 1 || j->lanes > LANES_MAX)
        return "queue pairs per connection: 1 to 4";
    if (j->max_requests < 1 || j->max_requests > 256)
        return "requests under way: 1 to 256";
    if (j->group < 1 || j->group > GROUP_MAX)
        return "receives per group: 1 to 8";
    if (j->size_low > j->size_high || j->size_high > 1u << 30)
        return "sizes: a range up to 1 GiB, the smaller first";
    if (j->iterations == 0 && j->duration_ms == 0)
        return "neither a number of requests nor a duration";
    if (j->timeout > 31 || j->retry > 7 || j->rnr_retry > 7 || j->min_rnr > 31 || j->rd_atomic > 128 ||
        j->mtu > 4096)
        return "a connection attribute out of range";
    return NULL;
}

uint64_t job_slots(const struct job *j) {
    return 2 * j->max_requests;
}

uint64_t job_stride(const struct job *j) {
    return (j->size_high + 64 + 63) / 64 * 64;
}

struct group plan_group(const struct job *j, uint64_t key, uint64_t number) {
    uint64_t draw = mix64(key ^ mix64(number + 17));
    struct group g = {.number = number, .count = (uint32_t)(1 + draw % j->group)};
    for (uint32_t r = 0; r < g.count; r++) {
        uint64_t d = mix64(draw + r + 1);
        /* Tags differ within a group, as the match depends on it. */
        g.tag[r] = (uint32_t)(d >> 40) << 3 | r;
        g.room[r] = (uint32_t)(j->size_low + d % (j->size_high - j->size_low + 1));
        uint64_t kind = mix64(d) % 16;
        g.size[r] = kind == 0 ? 0 : kind < 3 ? (uint32_t)(mix64(d + 1) % (g.room[r] + 1ull)) : g.room[r];
    }
    return g;
}

uint64_t payload_seq(uint64_t group, uint32_t r) {
    return group * GROUP_MAX + r;
}

uint32_t stripe(uint32_t size, uint64_t lanes, uint64_t lane, uint32_t *from) {
    uint64_t share = ((size + lanes - 1) / lanes + STRIPE_ALIGN - 1) / STRIPE_ALIGN * STRIPE_ALIGN;
    uint64_t start = share * lane;
    *from = start < size ? (uint32_t)start : size;
    return (uint32_t)(size - *from < share ? size - *from : share);
}

bool group_splits(const struct job *j, const struct group *g) {
    return g->count > 1 || (j->adaptive_over && g->size[0] > j->adaptive_over);
}

uint32_t group_imm(const struct group *g) {
    uint32_t imm = 0;
    if (g->count == 1)
        return g->size[0];
    for (uint32_t r = 0; r < g->count; r++)
        imm |= (g->size[r] ? 1u : 0u) << r;
    return imm;
}

uint32_t group_imm_bytes(const struct job *j, const struct group *g, uint64_t lane) {
    uint32_t from;
    if (g->count > 1)
        return g->count * (uint32_t)sizeof(uint32_t);
    return group_splits(j, g) ? 0 : stripe(g->size[0], j->lanes, lane, &from);
}
