/* The parts of the attach layer that need no verbs: the map, ld.so.cache, the batch of ibv_wr_*. */
#include <pthread.h>

#include "attach_batch.h"
#include "forward/forward.h"
#include "objects_map.h"
#include "pair.h"

/* ---- the map
 * ------------------------------------------------------------------------------------------------ */

static void map_keeps_what_was_put(void) {
    struct lp_map map = {0};

    CHECK(lp_map_get(&map, 8) == NULL);
    for (uintptr_t key = 8; key < 8 * 5000; key += 8)
        CHECK(lp_map_put(&map, key, (void *)(key + 1)));
    for (uintptr_t key = 8; key < 8 * 5000; key += 8)
        CHECK(lp_map_get(&map, key) == (void *)(key + 1));
    CHECK(lp_map_put(&map, 16, (void *)5));
    CHECK(lp_map_get(&map, 16) == (void *)5);
    CHECK(lp_map_take(&map, 16) == (void *)5);
    CHECK(lp_map_get(&map, 16) == NULL);
    CHECK(lp_map_take(&map, 16) == NULL);
    CHECK(lp_map_get(&map, 24) == (void *)25);
    lp_map_clear(&map);
}

static void map_does_not_grow_by_churn(void) {
    struct lp_map map = {0};

    for (uintptr_t key = 8; key < 8 * 100000; key += 8) {
        CHECK(lp_map_put(&map, key, (void *)key));
        CHECK(lp_map_take(&map, key) == (void *)key);
    }
    struct lp_map_table *table = atomic_load(&map.table);
    CHECK_EQ(table->bits, LP_MAP_MIN_BITS);
    CHECK(table->older == NULL);
    lp_map_clear(&map);
}

static struct lp_map shared_map;
static _Atomic bool stop;
static _Atomic int wrong;

/* Keys below 100 * 16 stay for ever: readers must always find them, with the right value, whatever writers
 * do. */
static void *read_all(void *arg) {
    while (!atomic_load(&stop)) {
        for (uintptr_t i = 1; i < 100; i++) {
            if (lp_map_get(&shared_map, i * 16) != (void *)(i + 7))
                atomic_fetch_add(&wrong, 1);
            void *passing = lp_map_get(&shared_map, (i + 1000) * 16);
            if (passing && passing != (void *)(i + 1007))
                atomic_fetch_add(&wrong, 1);
        }
    }
    return arg;
}

static void readers_are_never_misled_by_writers(void) {
    pthread_t readers[2];

    for (uintptr_t i = 1; i < 100; i++)
        CHECK(lp_map_put(&shared_map, i * 16, (void *)(i + 7)));
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&readers[i], NULL, read_all, NULL), 0);
    for (int round = 0; round < 300; round++) {
        for (uintptr_t i = 1; i < 100; i++)
            CHECK(lp_map_put(&shared_map, (i + 1000) * 16, (void *)(i + 1007)));
        for (uintptr_t i = 1; i < 100; i++)
            CHECK(lp_map_take(&shared_map, (i + 1000) * 16) == (void *)(i + 1007));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    CHECK_EQ(wrong, 0);
    lp_map_clear(&shared_map);
}

/* ---- ld.so.cache
 * -------------------------------------------------------------------------------------------- */

struct found {
    char path[64];
    int calls;
};

static bool take(const char *path, void *arg) {
    struct found *found = arg;

    found->calls++;
    snprintf(found->path, sizeof(found->path), "%s", path);
    return found->calls == 2; /* not the first */
}

/* A cache of three entries, in the layout of glibc's dl-cache.h: header 48 bytes, entries 24 bytes, strings.
 */
static size_t make_cache(uint8_t *out) {
    static const char strings[] =
        "libibverbs.so.1\0/one/libibverbs.so.1\0/two/libibverbs.so.1\0libz.so.1\0/z\0";
    const uint32_t strings_at = 48 + 3 * 24;
    const uint32_t entries[3][2] = {{58, 68}, {0, 16}, {0, 37}}; /* key, value: offsets into strings */
    const uint32_t count = 3;

    memset(out, 0, 256);
    memcpy(out, "glibc-ld.so.cache1.1", 20);
    memcpy(out + 20, &count, 4);
    for (int i = 0; i < 3; i++) {
        const uint32_t key = strings_at + entries[i][0], value = strings_at + entries[i][1];
        memcpy(out + 48 + i * 24 + 4, &key, 4);
        memcpy(out + 48 + i * 24 + 8, &value, 4);
    }
    memcpy(out + strings_at, strings, sizeof(strings));
    return strings_at + sizeof(strings);
}

static void cache_gives_candidates_until_one_is_taken(void) {
    uint8_t cache[256];
    struct found found = {0};
    const size_t size = make_cache(cache);

    CHECK(lp_ldcache_find(cache, size, "libibverbs.so.1", take, &found));
    CHECK_EQ(found.calls, 2);
    CHECK(!strcmp(found.path, "/two/libibverbs.so.1"));
    found.calls = 0;
    CHECK(!lp_ldcache_find(cache, size, "libnone.so.1", take, &found));
    CHECK_EQ(found.calls, 0);
}

/* Every truncation and every single damaged byte: no read outside (AddressSanitizer looks), no crash. */
static void damaged_cache_is_refused_or_read_inside_its_bounds(void) {
    uint8_t cache[256];
    const size_t size = make_cache(cache);
    struct found found = {0};

    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1);
        memcpy(copy, cache, cut);
        (void)lp_ldcache_find(copy, cut, "libibverbs.so.1", take, &found);
        free(copy);
    }
    for (size_t at = 0; at < size; at++) {
        for (int value = 0; value < 256; value += 51) {
            uint8_t *copy = malloc(size);
            memcpy(copy, cache, size);
            copy[at] = (uint8_t)value;
            (void)lp_ldcache_find(copy, size, "libibverbs.so.1", take, &found);
            free(copy);
        }
    }
    CHECK(found.calls > 0);
}

/* ---- the batch
 * ---------------------------------------------------------------------------------------------- */

static void batch_links_after_it_moved(void) {
    struct lp_wr_batch *batch = calloc(1, sizeof(*batch));
    struct ibv_qp_ex ex = {0};
    char text[3] = "ab";

    for (uint64_t i = 0; i < 100; i++) {
        ex.wr_id = i;
        CHECK(lp_batch_request(batch, &ex, IBV_WR_RDMA_WRITE) != NULL);
        const struct ibv_sge sge = {.addr = 1000 + i, .length = 5};
        const struct ibv_data_buf part = {.addr = text, .length = 2};
        if (i % 2)
            lp_batch_sges(batch, 1, &sge);
        else
            lp_batch_inline(batch, 1, &part);
    }
    lp_batch_link(batch);
    uint64_t count = 0;
    for (const struct ibv_send_wr *wr = batch->wrs; wr; wr = wr->next, count++) {
        CHECK_EQ(wr->wr_id, count);
        CHECK_EQ(wr->num_sge, 1);
        if (count % 2)
            CHECK_EQ(wr->sg_list[0].addr, 1000 + count);
        else
            CHECK(!memcmp((void *)(uintptr_t)wr->sg_list[0].addr, "ab", 2));
    }
    CHECK_EQ(count, 100);
    CHECK(!batch->opaque);
    lp_batch_free(batch);
}

static const struct test tests[] = {
    TEST(map_keeps_what_was_put),
    TEST(map_does_not_grow_by_churn),
    TEST(readers_are_never_misled_by_writers),
    TEST(cache_gives_candidates_until_one_is_taken),
    TEST(damaged_cache_is_refused_or_read_inside_its_bounds),
    TEST(batch_links_after_it_moved),
};

int main(int argc, char **argv) {
    return run_tests(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
