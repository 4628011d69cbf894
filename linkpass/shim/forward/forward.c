/*
 * Loads the real libibverbs and fills the table of its functions.
 *
 * Order in the global scope matters.  Providers (librxe-rdmav34.so) name "libibverbs.so.1" as what they need
 * and the loader takes this library for it; they look up ibv_cmd_* and friends in the global scope.  So this
 * library is made global first and the real one after it: what is exported here wins, all the rest is found
 * in the real one.
 */
#include "forward.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

/*
 * What stands in for a function that the real library lacks.  EOPNOTSUPP and not ENOSYS: it is what verbs use
 * for "this provider can't", and callers (NCCL for dmabuf and ECE) take only that one for "not supported".
 */
static long lp_missing_INT(void) {
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
}

static void *lp_missing_PTR(void) {
    errno = EOPNOTSUPP;
    return NULL;
}

static unsigned long long lp_missing_ZERO(void) {
    errno = EOPNOTSUPP;
    return 0;
}

static void lp_missing_VOID(void) {
}

#define LP_FWD(slot, symbol, version, age, missing) [LP_S_##slot] = (lp_fn)lp_missing_##missing,
#define LP_HOOK LP_FWD
__attribute__((visibility("hidden"))) lp_fn lp_forward_table[LP_SLOTS] = {
#include "symbols.def"
#define LP_PRIVATE(symbol, missing) [LP_S_##symbol] = (lp_fn)lp_missing_##missing,
#define LP_REGISTER(number) [LP_S_verbs_register_driver_##number] = (lp_fn)lp_missing_VOID,
#include "private.def"
};
#undef LP_FWD
#undef LP_HOOK
#undef LP_PRIVATE
#undef LP_REGISTER

static const struct {
    const char *symbol;
    const char *version; /* NULL: any */
    bool newest;
} lp_names[LP_SLOTS] = {
#define LP_AGE_DEF true
#define LP_AGE_OLD false
#define LP_FWD(slot, symbol, version, age, missing) [LP_S_##slot] = {#symbol, version, LP_AGE_##age},
#define LP_HOOK LP_FWD
#include "symbols.def"
#undef LP_FWD
#undef LP_HOOK
#define LP_PRIVATE(symbol, missing) [LP_S_##symbol] = {#symbol, NULL, true},
#define LP_REGISTER(number)                                                                                  \
    [LP_S_verbs_register_driver_##number] = {"verbs_register_driver_" #number, NULL, true},
#include "private.def"
#undef LP_PRIVATE
#undef LP_REGISTER
};

/* The exported jumps of trampoline.c. */
#define LP_FWD(slot, symbol, version, age, missing) extern const char lp_entry_##slot[];
#define LP_HOOK LP_FWD
#define LP_PRIVATE(symbol, missing) extern const char lp_entry_##symbol[];
#define LP_REGISTER(number) extern const char lp_entry_verbs_register_driver_##number[];
#pragma GCC visibility push(hidden)
#include "private.def"
#include "symbols.def"
#pragma GCC visibility pop
#undef LP_FWD
#undef LP_HOOK
#undef LP_PRIVATE
#undef LP_REGISTER
static const char *const lp_entries[LP_SLOTS] = {
#define LP_FWD(slot, symbol, version, age, missing) [LP_S_##slot] = lp_entry_##slot,
#define LP_HOOK LP_FWD
#define LP_PRIVATE(symbol, missing) [LP_S_##symbol] = lp_entry_##symbol,
#define LP_REGISTER(number) [LP_S_verbs_register_driver_##number] = lp_entry_verbs_register_driver_##number,
#include "private.def"
#include "symbols.def"
#undef LP_FWD
#undef LP_HOOK
#undef LP_PRIVATE
#undef LP_REGISTER
};

static bool lp_found[LP_SLOTS];
static char *lp_path;

bool lp_forward_has(enum lp_slot slot) {
    return lp_found[slot];
}

const char *lp_forward_path(void) {
    return lp_path;
}

static bool lp_in_this_library(const void *address, const void *base) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_fbase == base;
}

static void *lp_lookup(void *real, size_t slot, const void *base) {
    void *address = NULL;

    if (lp_names[slot].version)
        address = dlvsym(real, lp_names[slot].symbol, lp_names[slot].version);
    /* A newer symbol may carry another version in a vendor's build; old ones differ in their arguments. */
    if (!address && lp_names[slot].newest)
        address = dlsym(real, lp_names[slot].symbol);
    return address && !lp_in_this_library(address, base) ? address : NULL;
}

bool lp_forward_init(void) {
    Dl_info self;
    struct link_map *map = NULL;
    const void *missing[LP_SLOTS];
    size_t missing_count = 0;

    if (!dladdr1((void *)lp_forward_init, &self, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return false;
    (void)dlopen(self.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);

    lp_path = lp_find_real();
    void *real = lp_path ? dlopen(lp_path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!real) {
        free(lp_path);
        lp_path = NULL;
    }
    for (size_t slot = 0; slot < LP_SLOTS; slot++) {
        void *address = real ? lp_lookup(real, slot, self.dli_fbase) : NULL;
        if (address) {
            lp_forward_table[slot] = (lp_fn)address;
            lp_found[slot] = true;
        } else {
            missing[missing_count++] = lp_entries[slot];
        }
    }
    (void)lp_hide_symbols(self.dli_fbase, map->l_ld, missing, missing_count);
    struct link_map *theirs = NULL;
    if (real && !dlinfo(real, RTLD_DI_LINKMAP, &theirs))
        (void)lp_hide_versions(self.dli_fbase, map->l_ld, (const void *)theirs->l_addr, theirs->l_ld,
                               "IBVERBS_");
    return real != NULL;
}
