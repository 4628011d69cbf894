/*
 * Reads ld.so.cache, glibc's own format ("glibc-ld.so.cache1.1", since glibc 2.2; alone since 2.32), which
 * may stand behind the older "ld.so-1.7.0" table.  Strings are offsets from the start of the newer header.
 */
#include "forward.h"

#include <stdint.h>
#include <string.h>

static const char lp_new_magic[] = "glibc-ld.so.cache1.1";
static const char lp_old_magic[] = "ld.so-1.7.0";

struct lp_cache_header {
    char magic[20];
    uint32_t count;
    uint32_t strings_size;
    uint32_t unused[5];
};

struct lp_cache_entry {
    int32_t flags;
    uint32_t key;
    uint32_t value;
    uint32_t os_version;
    uint64_t hwcap;
};

struct lp_old_header {
    char magic[12];
    uint32_t count;
};

enum { LP_OLD_ENTRY_SIZE = 12 };

/* The string at that offset, or NULL if it doesn't end inside the file. */
static const char *lp_string(const char *start, size_t size, uint32_t offset) {
    return offset < size && memchr(start + offset, 0, size - offset) ? start + offset : NULL;
}

bool lp_ldcache_find(const void *cache, size_t size, const char *soname,
                     bool (*accept)(const char *path, void *arg), void *arg) {
    const char *start = cache;
    struct lp_cache_header header;

    if (size > sizeof(struct lp_old_header) && !memcmp(start, lp_old_magic, sizeof(lp_old_magic) - 1)) {
        struct lp_old_header old;
        memcpy(&old, start, sizeof(old));
        uint64_t skip = sizeof(old) + (uint64_t)old.count * LP_OLD_ENTRY_SIZE;
        skip = (skip + 7) & ~(uint64_t)7; /* the newer header is aligned to 8 */
        if (skip >= size)
            return false;
        start += skip;
        size -= (size_t)skip;
    }
    if (size < sizeof(header) || memcmp(start, lp_new_magic, sizeof(lp_new_magic) - 1))
        return false;
    memcpy(&header, start, sizeof(header));
    if (header.count > (size - sizeof(header)) / sizeof(struct lp_cache_entry))
        return false;
    for (uint32_t i = 0; i < header.count; i++) {
        struct lp_cache_entry entry;
        memcpy(&entry, start + sizeof(header) + (size_t)i * sizeof(entry), sizeof(entry));
        if (entry.hwcap) /* a variant for some processors only; the plain one is listed as well */
            continue;
        const char *key = lp_string(start, size, entry.key);
        const char *value = lp_string(start, size, entry.value);
        if (key && value && !strcmp(key, soname) && accept(value, arg))
            return true;
    }
    return false;
}
