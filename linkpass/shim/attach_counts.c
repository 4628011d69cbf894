/* LINKPASS_DEBUG: what this library saw, one line to standard error when the process ends. */
#include "attach.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

extern struct lp_counts lp_closed_counts;

static void lp_add_qp(uintptr_t key, void *value, void *arg) {
    (void)key;
    lp_counts_fold(arg, &((struct lp_qp *)value)->counts);
}

static void lp_add_cq(uintptr_t key, void *value, void *arg) {
    (void)key;
    lp_counts_fold(arg, &((struct lp_cq *)value)->counts);
}

static void lp_add_srq(uintptr_t key, void *value, void *arg) {
    (void)key;
    lp_counts_fold(arg, &((struct lp_srq *)value)->counts);
}

static void lp_add_context(uintptr_t key, void *value, void *arg) {
    (void)key;
    lp_counts_fold(arg, &((struct lp_context *)value)->counts);
}

static struct stat lp_stderr; /* as it was at the start: a daemon may have something else there at its end */

void lp_note_stderr(void) {
    if (fstat(STDERR_FILENO, &lp_stderr))
        lp_stderr = (struct stat){0};
}

void lp_dump_counts(void) {
    struct lp_counts all = {0};

    lp_counts_fold(&all, &lp_closed_counts);
    lp_map_each(&lp_contexts, lp_add_context, &all);
    lp_map_each(&lp_qps, lp_add_qp, &all);
    lp_map_each(&lp_cqs, lp_add_cq, &all);
    lp_map_each(&lp_srqs, lp_add_srq, &all);
    if (!atomic_load(&lp_contexts.table))
        return; /* a process that opened no device (a shell, say) has nothing to tell */
    const char *path = lp_forward_path();
    struct stat status;
    if (fstat(STDERR_FILENO, &status) || status.st_dev != lp_stderr.st_dev ||
        status.st_ino != lp_stderr.st_ino)
        return;
    dprintf(STDERR_FILENO,
            "linkpass: pid=%d attached=%s real=%s send=%llu recv=%llu complete=%llu refused=%llu\n",
            (int)getpid(), lp_attached ? "yes" : "no", path ? path : "none", (unsigned long long)all.send,
            (unsigned long long)all.recv, (unsigned long long)all.complete, (unsigned long long)all.refused);
}
