/* Untrusted bytes: what of them may be used. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel.h"

bool lp_text_sound(const uint8_t *text, size_t room) {
    return memchr(text, 0, room) != NULL;
}

static size_t length_of(uint16_t kind) {
    switch (kind) {
    case LP_WELCOME:
        return sizeof(struct lp_welcome);
    case LP_REFUSED:
        return sizeof(struct lp_refused);
    case LP_SPARE_WANT:
    case LP_SPARE_DROP:
        return sizeof(struct lp_spare_want);
    case LP_SPARE_PEER:
        return sizeof(struct lp_spare_here);
    case LP_ORDER:
        return sizeof(struct lp_order);
    case LP_RELAY:
        return sizeof(struct lp_relay);
    default:
        return 0;
    }
}

static bool body_sound(const void *bytes, uint16_t kind) {
    if (kind == LP_SPARE_WANT || kind == LP_SPARE_DROP) {
        struct lp_spare_want want;
        memcpy(&want, bytes, sizeof(want));
        return want.id < LP_SPARES && lp_text_sound(want.device, sizeof(want.device)) && want.port;
    }
    if (kind == LP_SPARE_PEER) {
        struct lp_spare_here here;
        memcpy(&here, bytes, sizeof(here));
        return here.spare.id < LP_SPARES;
    }
    if (kind == LP_ORDER) {
        struct lp_order order;
        memcpy(&order, bytes, sizeof(order));
        return order.spare <= LP_SPARES && lp_text_sound(order.device, sizeof(order.device));
    }
    if (kind == LP_WELCOME) {
        struct lp_welcome welcome;
        memcpy(&welcome, bytes, sizeof(welcome));
        return welcome.give_up_ms >= 1 && welcome.give_up_ms <= 3600000 && welcome.attempt_ms >= 1 &&
               welcome.attempt_ms <= 60000;
    }
    return true;
}

bool lp_frame_sound(const void *bytes, size_t length, uint16_t *kind) {
    struct lp_head head;

    if (length < sizeof(head) || length > LP_FRAME_MAX)
        return false;
    memcpy(&head, bytes, sizeof(head));
    *kind = head.kind;
    return head.magic == LP_FRAME_MAGIC && head.version == LP_ABI_VERSION && head.length == length &&
           length_of(head.kind) == length && body_sound(bytes, head.kind);
}

/* Sealed against shrinking, so that reading it can't fault. */
const struct lp_page *lp_page_map(int fd, const char **why) {
    struct stat stat;
    const int seals = fcntl(fd, F_GET_SEALS);
    void *page = MAP_FAILED;

    *why = NULL;
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        *why = "the page isn't sealed against shrinking";
    else if (fstat(fd, &stat) || stat.st_size < LP_PAGE_BYTES)
        *why = "the page is too small";
    else if ((page = mmap(NULL, LP_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        *why = "the page can't be mapped";
    (void)close(fd);
    if (*why)
        return NULL;
    const struct lp_page *mapped = page;
    if (mapped->magic != LP_PAGE_MAGIC || mapped->version != LP_ABI_VERSION) {
        *why = "the page is of another version";
        (void)munmap(page, LP_PAGE_BYTES);
        return NULL;
    }
    return mapped;
}

enum lp_nic_state lp_page_state(const struct lp_page *page, const char *name, uint8_t port) {
    const uint16_t said = page ? __atomic_load_n(&page->nic_count, __ATOMIC_RELAXED) : 0;
    const uint16_t count = said < LP_PAGE_NICS ? said : LP_PAGE_NICS;
    const size_t length = strlen(name);

    for (uint16_t i = 0; i < count && length < LP_NIC_NAME; i++) {
        const struct lp_page_nic *nic = &page->nics[i];
        if (nic->port != port || memcmp(nic->name, name, length + 1) != 0)
            continue;
        const uint8_t state = __atomic_load_n(&nic->state, __ATOMIC_RELAXED);
        return state <= LP_NIC_ABSENT ? (enum lp_nic_state)state : LP_NIC_UNKNOWN;
    }
    return LP_NIC_UNKNOWN;
}
