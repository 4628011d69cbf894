/*
 * Takes definitions out of a loaded library's symbol table, by making them undefined in memory.
 *
 * Why: a program that asks dlvsym() for, say, ibv_reg_dmabuf_mr must get NULL where the real library is too
 * old to have it.  Look-ups skip symbols whose value and section are 0.  Bindings made earlier stay as they
 * are.
 */
#include "forward.h"

#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct lp_tables {
    ElfW(Sym) * symbols;
    size_t symbol_count;
    ElfW(Verdef) * versions;
    const char *strings;
};

/* DT_GNU_HASH doesn't say how many symbols there are: follow the chain of the highest bucket to its end. */
static size_t lp_count_symbols(const uint32_t *hash) {
    const uint32_t buckets = hash[0], first = hash[1], bloom = hash[2];
    const uint32_t *bucket = hash + 4 + (size_t)bloom * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t last = 0;

    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return (size_t)last + 1;
}

static bool lp_read_dynamic(uintptr_t base, const ElfW(Dyn) * dynamic, struct lp_tables *tables) {
    const uint32_t *hash = NULL;

    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        /* Some loaders relocate these pointers in place, some don't. */
        uintptr_t at = dynamic->d_un.d_ptr < base ? dynamic->d_un.d_ptr + base : dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_SYMTAB)
            tables->symbols = (ElfW(Sym) *)at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            hash = (const uint32_t *)at;
        else if (dynamic->d_tag == DT_STRTAB)
            tables->strings = (const char *)at;
        else if (dynamic->d_tag == DT_VERDEF)
            tables->versions = (ElfW(Verdef) *)at;
    }
    if (!hash || !tables->symbols || !tables->strings || !tables->versions)
        return false;
    tables->symbol_count = lp_count_symbols(hash);
    return true;
}

static bool lp_listed(uintptr_t address, const void *const *addresses, size_t count) {
    for (size_t i = 0; i < count; i++)
        if ((uintptr_t)addresses[i] == address)
            return true;
    return false;
}

/* Make the pages that hold [start, end) writable, or read-only again. */
static bool lp_writable(const void *start, const void *end, bool writable) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)start & ~(page - 1);

    return !mprotect((void *)from, (uintptr_t)end - from, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

bool lp_hide_symbols(const void *base, const void *dynamic, const void *const *addresses, size_t count) {
    struct lp_tables tables = {0};

    if (!count || !lp_read_dynamic((uintptr_t)base, dynamic, &tables))
        return false;
    if (!lp_writable(tables.symbols, tables.symbols + tables.symbol_count, true))
        return false;
    for (size_t i = 1; i < tables.symbol_count; i++) {
        ElfW(Sym) *symbol = &tables.symbols[i];
        if (symbol->st_shndx != SHN_UNDEF &&
            lp_listed((uintptr_t)base + symbol->st_value, addresses, count)) {
            symbol->st_value = 0;
            symbol->st_shndx = SHN_UNDEF;
        }
    }
    (void)lp_writable(tables.symbols, tables.symbols + tables.symbol_count, false);
    return true;
}

static const char *lp_version_name(const struct lp_tables *tables, const ElfW(Verdef) * version) {
    const ElfW(Verdaux) *name = (const void *)((const char *)version + version->vd_aux);

    return tables->strings + name->vda_name;
}

static ElfW(Verdef) * lp_next_version(ElfW(Verdef) * version) {
    return version->vd_next ? (void *)((char *)version + version->vd_next) : NULL;
}

static bool lp_defines(const struct lp_tables *tables, const char *name) {
    for (ElfW(Verdef) *version = tables->versions; version; version = lp_next_version(version))
        if (!strcmp(lp_version_name(tables, version), name))
            return true;
    return false;
}

bool lp_hide_versions(const void *base, const void *dynamic, const void *other_base,
                      const void *other_dynamic, const char *prefix) {
    struct lp_tables ours = {0}, theirs = {0};
    ElfW(Verdef) *last = NULL;

    if (!lp_read_dynamic((uintptr_t)base, dynamic, &ours) ||
        !lp_read_dynamic((uintptr_t)other_base, other_dynamic, &theirs))
        return false;
    for (ElfW(Verdef) *version = ours.versions; version; version = lp_next_version(version))
        last = version;
    if (!lp_writable(ours.versions, last + 1, true))
        return false;
    for (ElfW(Verdef) *version = ours.versions; version; version = lp_next_version(version)) {
        const char *name = lp_version_name(&ours, version);
        if (!strncmp(name, prefix, strlen(prefix)) && !lp_defines(&theirs, name))
            version->vd_hash = 0; /* the loader compares this first */
    }
    (void)lp_writable(ours.versions, last + 1, false);
    return true;
}
