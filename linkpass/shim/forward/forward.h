/*
 * The way to the real libibverbs: one slot for each symbol of symbols.def and private.def, filled once when
 * this library is loaded.
 */
#ifndef LP_FORWARD_H
#define LP_FORWARD_H

#include <stdbool.h>
#include <stddef.h>

enum lp_slot {
#define LP_FWD(slot, symbol, version, age, missing) LP_S_##slot,
#define LP_HOOK(slot, symbol, version, age, missing) LP_S_##slot,
#include "symbols.def"
#undef LP_FWD
#undef LP_HOOK
#define LP_PRIVATE(symbol, missing) LP_S_##symbol,
#define LP_REGISTER(number) LP_S_verbs_register_driver_##number,
#include "private.def"
#undef LP_PRIVATE
#undef LP_REGISTER
    LP_SLOTS
};

typedef void (*lp_fn)(void);

/* Written by lp_forward_init() only; an entry is never NULL (it may be a function that fails with
 * EOPNOTSUPP). */
extern lp_fn lp_forward_table[LP_SLOTS];

/* The real function of that name, with the type that verbs.h gives it: LP_REAL(ibv_alloc_pd)(context). */
#define LP_REAL(name) ((__typeof__(&(name)))lp_forward_table[LP_S_##name])

/* Public functions newer than the headers that this is compiled with (rdma-core 44). */
struct ibv_pd;
struct ibv_mr_init_attr;
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);

/* True if the real library has the symbol. */
bool lp_forward_has(enum lp_slot slot);

/*
 * Load the real library and fill the table.  Symbols that it lacks are taken out of this library's own symbol
 * table, so that dlsym() answers as the real library's handle would.  Returns false (with the table full of
 * functions that fail) when no real library was found.  Call once, before other threads exist or use verbs.
 */
bool lp_forward_init(void);

/* The file that lp_forward_init() loaded, or NULL. */
const char *lp_forward_path(void);

/*
 * Path of the real libibverbs.so.1, never this library or a copy of it: LINKPASS_REAL_IBVERBS, else where the
 * loader would look (run paths of the program, LD_LIBRARY_PATH, ld.so.cache, default folders).  NULL: none.
 * The caller frees the string.
 */
char *lp_find_real(void);

/* Look a library up in a copy of ld.so.cache; calls accept() for each path until it says true.
 * Bounds-checked. */
bool lp_ldcache_find(const void *cache, size_t size, const char *soname,
                     bool (*accept)(const char *path, void *arg), void *arg);

/*
 * Hide every symbol that is defined at one of these addresses, in the library that maps at base, from later
 * look-ups. False when the table can't be read or changed (then the symbols stay).
 */
bool lp_hide_symbols(const void *base, const void *dynamic, const void *const *addresses, size_t count);

/*
 * Hide the version nodes that begin with prefix and that the other library doesn't define: what is loaded
 * later and needs one of them is then refused by the loader, as it would be with the other library alone.
 */
bool lp_hide_versions(const void *base, const void *dynamic, const void *other_base,
                      const void *other_dynamic, const char *prefix);

#endif
