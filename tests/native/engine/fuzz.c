/*
 * Everything that is read from the agent, mutated by seed: frames must be refused or sound, the page must
 * never be read beyond its bounds, whatever stands in it.
 *
 *   engine_fuzz [ROUNDS [SEED]]      with libFuzzer: -DLP_LIBFUZZER, LLVMFuzzerTestOneInput
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "channel.h"

static uint64_t state;

static uint32_t chance(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33);
}

static void require(bool is_so, const char *what) {
    if (!is_so) {
        fprintf(stderr, "not so: %s\n", what);
        abort();
    }
}

/* What a frame that was called sound may be relied upon for. */
static void check_frame(const uint8_t *bytes, size_t length) {
    uint16_t kind = 0;

    if (!lp_frame_sound(bytes, length, &kind))
        return;
    require(length >= sizeof(struct lp_head) && length <= LP_FRAME_MAX, "length");
    if (kind == LP_SPARE_WANT || kind == LP_SPARE_DROP) {
        struct lp_spare_want want;
        require(length == sizeof(want), "length of WANT");
        memcpy(&want, bytes, sizeof(want));
        require(want.id < LP_SPARES && strnlen((char *)want.device, 28) < 28 && want.port, "WANT");
    } else if (kind == LP_SPARE_PEER) {
        struct lp_spare_here here;
        require(length == sizeof(here), "length of PEER");
        memcpy(&here, bytes, sizeof(here));
        require(here.spare.id < LP_SPARES, "PEER");
    } else if (kind == LP_ORDER) {
        struct lp_order order;
        require(length == sizeof(order), "length of ORDER");
        memcpy(&order, bytes, sizeof(order));
        require(order.spare <= LP_SPARES && strnlen((char *)order.device, 28) < 28, "ORDER");
    } else if (kind == LP_WELCOME) {
        struct lp_welcome welcome;
        require(length == sizeof(welcome), "length of WELCOME");
        memcpy(&welcome, bytes, sizeof(welcome));
        require(welcome.give_up_ms && welcome.give_up_ms <= 3600000 && welcome.attempt_ms, "WELCOME");
    } else {
        require(kind == LP_REFUSED || kind == LP_RELAY, "kind");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    check_frame(bytes, length);
    if (length >= sizeof(struct lp_page)) {
        struct lp_page page;
        memcpy(&page, bytes, sizeof(page));
        require(lp_page_state(&page, "mlx5_0", 1) <= LP_NIC_ABSENT, "state");
    }
    return 0;
}

static size_t draw_frame(uint8_t *bytes) {
    static const struct {
        uint16_t kind;
        size_t length;
    } kinds[] = {{LP_WELCOME, sizeof(struct lp_welcome)},       {LP_REFUSED, sizeof(struct lp_refused)},
                 {LP_SPARE_WANT, sizeof(struct lp_spare_want)}, {LP_SPARE_PEER, sizeof(struct lp_spare_here)},
                 {LP_SPARE_DROP, sizeof(struct lp_spare_want)}, {LP_ORDER, sizeof(struct lp_order)},
                 {LP_RELAY, sizeof(struct lp_relay)},           {LP_HELLO, sizeof(struct lp_hello)}};
    const uint32_t which = chance() % 8;
    size_t length = kinds[which].length;
    const struct lp_head head = {.magic = LP_FRAME_MAGIC,
                                 .version = LP_ABI_VERSION,
                                 .kind = kinds[which].kind,
                                 .length = (uint32_t)length};

    for (size_t i = 0; i < LP_FRAME_MAX; i++)
        bytes[i] = (uint8_t)(chance() % 3 ? 0 : chance());
    memcpy(bytes, &head, sizeof(head));
    if (chance() % 4 == 0)
        bytes[chance() % length] ^= (uint8_t)(1u << chance() % 8);
    if (chance() % 8 == 0)
        length = chance() % (LP_FRAME_MAX + 1);
    return length;
}

static void fuzz_page(void) {
    const int seals[] = {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL};
    const long sizes[] = {0, 100, LP_PAGE_BYTES - 1, LP_PAGE_BYTES, 3 * LP_PAGE_BYTES};
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const int seal = seals[chance() % 3];
    const long size = sizes[chance() % 5];
    struct lp_page page;
    const char *why;

    for (size_t i = 0; i < sizeof(page); i++)
        ((uint8_t *)&page)[i] = (uint8_t)chance();
    if (chance() % 4) {
        page.magic = LP_PAGE_MAGIC;
        page.version = LP_ABI_VERSION;
    }
    if (chance() % 2) {
        memcpy(page.nics[chance() % LP_PAGE_NICS].name, "mlx5_0", 7);
        page.nics[chance() % LP_PAGE_NICS].port = 1;
    }
    require(fd >= 0 && !ftruncate(fd, size), "memfd");
    if (size >= LP_PAGE_BYTES)
        require(pwrite(fd, &page, sizeof(page), 0) == (ssize_t)sizeof(page), "write");
    require(fcntl(fd, F_ADD_SEALS, seal) == 0, "seal");
    const struct lp_page *mapped = lp_page_map(fd, &why);
    require(!mapped == (why != NULL), "a reason, or a page");
    require(!mapped || ((seal & F_SEAL_SHRINK) && size >= LP_PAGE_BYTES && page.magic == LP_PAGE_MAGIC),
            "page");
    if (mapped) {
        require(lp_page_state(mapped, "mlx5_0", 1) <= LP_NIC_ABSENT, "state");
        require(lp_page_state(mapped, "a name that is much longer than any device's may be", 1) ==
                    LP_NIC_UNKNOWN,
                "long name");
        munmap((void *)(uintptr_t)mapped, LP_PAGE_BYTES);
    }
}

#ifndef LP_LIBFUZZER
int main(int argc, char **argv) {
    const long rounds = argc > 1 ? atol(argv[1]) : 200000;
    long sound = 0;

    state = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    for (long i = 0; i < rounds; i++) {
        uint8_t bytes[LP_FRAME_MAX];
        uint16_t kind;
        const size_t length = draw_frame(bytes);
        /* A block of its very length: reading beyond it is seen by the sanitizers. */
        uint8_t *exact = malloc(length ? length : 1);
        require(exact != NULL, "memory");
        memcpy(exact, bytes, length);
        sound += lp_frame_sound(exact, length, &kind);
        (void)LLVMFuzzerTestOneInput(exact, length);
        free(exact);
        if (i % 64 == 0)
            fuzz_page();
    }
    require(sound > rounds / 20, "enough frames got through to be a test");
    printf("%ld frames, %ld of them sound\n1 passed, 0 failed\n", rounds, sound);
    return 0;
}
#endif
