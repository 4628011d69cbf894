/* Where the process meets this library: constructor, environment, opening and closing of devices. */
#include "attach.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct lp_hooks lp_no_hooks;
const struct lp_hooks *lp_hooks = &lp_no_hooks;
bool lp_attached;
bool lp_debug;

static pthread_mutex_t lp_adopting = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local unsigned int lp_depth;

void lp_hooks_set(const struct lp_hooks *hooks) {
    lp_hooks = hooks ? hooks : &lp_no_hooks;
}

bool lp_enter(void) {
    return lp_depth++ == 0 && lp_attached;
}

void lp_leave(void) {
    lp_depth--;
}

bool lp_outermost(void) {
    return lp_depth == 0 && lp_attached;
}

static bool lp_told_off(void) {
    const char *wish = secure_getenv("LINKPASS");

    return wish && (!strcasecmp(wish, "off") || !strcasecmp(wish, "no") || !strcmp(wish, "0"));
}

static void lp_before_fork(void) {
    pthread_mutex_lock(&lp_adopting);
    lp_map_lock();
    lp_pool_lock();
}

static void lp_after_fork(void) {
    lp_pool_unlock();
    lp_map_unlock();
    pthread_mutex_unlock(&lp_adopting);
}

__attribute__((constructor(101))) static void lp_load(void) {
    const bool real = lp_forward_init();

    lp_debug = secure_getenv("LINKPASS_DEBUG") != NULL;
    lp_attached = real && !lp_told_off();
    if (lp_debug)
        lp_note_stderr();
    if (lp_attached)
        (void)pthread_atfork(lp_before_fork, lp_after_fork, lp_after_fork);
}

__attribute__((destructor)) static void lp_unload(void) {
    if (lp_debug)
        lp_dump_counts();
}

static struct lp_context *lp_new_context(struct ibv_context *real) {
    struct lp_context *context = calloc(1, sizeof(*context));

    if (!context)
        return NULL;
    context->real = real;
    context->ops = real->ops;
    if (real->device)
        snprintf(context->name, sizeof(context->name), "%s", real->device->name);
    if (!lp_map_put(&lp_contexts, LP_KEY(real), context)) {
        free(context);
        return NULL;
    }
    lp_patch_ops(context);
    lp_patch_extended(context);
    LP_RUN(context_created, context);
    return context;
}

struct lp_context *lp_adopt(struct ibv_context *real) {
    if (!lp_attached || !real)
        return NULL;
    struct lp_context *context = lp_context_of(real);
    if (context)
        return context;
    pthread_mutex_lock(&lp_adopting);
    context = lp_context_of(real);
    if (!context)
        context = lp_new_context(real);
    pthread_mutex_unlock(&lp_adopting);
    return context;
}

struct ibv_context *lp_hook_ibv_open_device(struct ibv_device *device) {
    lp_enter();
    struct ibv_context *real = LP_REAL(ibv_open_device)(device);
    lp_leave();
    (void)lp_adopt(real);
    return real;
}

struct ibv_context *lp_hook_ibv_import_device(int cmd_fd) {
    lp_enter();
    struct ibv_context *real = LP_REAL(ibv_import_device)(cmd_fd);
    lp_leave();
    (void)lp_adopt(real);
    return real;
}

int lp_hook_ibv_close_device(struct ibv_context *real) {
    const bool outermost = lp_enter();
    struct lp_context *context = outermost ? lp_map_take(&lp_contexts, LP_KEY(real)) : NULL;

    if (context)
        LP_RUN(context_destroying, context);
    int result = LP_REAL(ibv_close_device)(real);
    lp_leave();
    if (context && result && lp_map_put(&lp_contexts, LP_KEY(real), context)) {
        LP_RUN(context_created, context);
    } else if (context) {
        lp_context_gone(context);
    }
    return result;
}
