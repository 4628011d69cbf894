/* Where the real libibverbs.so.1 is: the places where the loader would have looked, less ourselves. */
#include "forward.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LP_SONAME "libibverbs.so.1"
#define LP_LD_CACHE "/etc/ld.so.cache"

/* Stands in the read-only data of this library and of every copy of it; how one recognises a file as
 * ourselves. */
__attribute__((used, visibility("hidden"))) const char lp_marker[] =
    "LinkPass verbs shim: this is not libibverbs";

/* Default folders of the distributions that ship rdma-core, tried after ld.so.cache. */
static const char *const lp_folders[] = {
#if defined(__x86_64__)
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
#elif defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
#endif
    "/usr/lib64",
    "/lib64",
    "/usr/local/lib",
    "/usr/lib",
    "/lib",
};

static bool lp_same_machine(const unsigned char *file, size_t size) {
    const ElfW(Ehdr) *theirs = (const void *)file;
    const ElfW(Ehdr) *ours = NULL;
    Dl_info info;

    if (dladdr(lp_marker, &info))
        ours = info.dli_fbase;
    return ours && size > sizeof(*theirs) && !memcmp(theirs->e_ident, ours->e_ident, EI_DATA + 1) &&
           theirs->e_machine == ours->e_machine;
}

/* A file that can be loaded here and isn't this library. */
static bool lp_is_real(const char *path) {
    struct stat status;
    bool real = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_size > 0) {
        size_t size = (size_t)status.st_size;
        void *file = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file != MAP_FAILED) {
            real = lp_same_machine(file, size) && !memmem(file, size, lp_marker, sizeof(lp_marker) - 1);
            munmap(file, size);
        }
    }
    close(fd);
    return real;
}

static char *lp_try_folder(const char *folder) {
    char *path = NULL;

    if (!*folder || asprintf(&path, "%s/" LP_SONAME, folder) < 0)
        return NULL;
    if (lp_is_real(path))
        return path;
    free(path);
    return NULL;
}

static bool lp_is_default(const char *folder) {
    for (size_t i = 0; i < sizeof(lp_folders) / sizeof(lp_folders[0]); i++)
        if (!strcmp(folder, lp_folders[i]))
            return true;
    return false;
}

/* The program's run paths and LD_LIBRARY_PATH, in the loader's own order; default folders come after the
 * cache. */
static char *lp_try_search_path(void) {
    void *program = dlopen(NULL, RTLD_NOW);
    Dl_serinfo size, *info;
    char *path = NULL;

    if (!program || dlinfo(program, RTLD_DI_SERINFOSIZE, &size))
        return NULL;
    info = malloc(size.dls_size);
    if (!info)
        return NULL;
    *info = size;
    if (!dlinfo(program, RTLD_DI_SERINFOSIZE, info) && !dlinfo(program, RTLD_DI_SERINFO, info)) {
        for (unsigned int i = 0; i < info->dls_cnt && !path; i++)
            if (!lp_is_default(info->dls_serpath[i].dls_name))
                path = lp_try_folder(info->dls_serpath[i].dls_name);
    }
    free(info);
    return path;
}

static bool lp_accept(const char *candidate, void *arg) {
    char **path = arg;

    if (!lp_is_real(candidate))
        return false;
    *path = strdup(candidate);
    return true;
}

static char *lp_try_cache(void) {
    struct stat status;
    char *path = NULL;
    int fd = open(LP_LD_CACHE, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return NULL;
    if (!fstat(fd, &status) && status.st_size > 0) {
        size_t size = (size_t)status.st_size;
        void *cache = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (cache != MAP_FAILED) {
            (void)lp_ldcache_find(cache, size, LP_SONAME, lp_accept, &path);
            munmap(cache, size);
        }
    }
    close(fd);
    return path;
}

/* One that is in the process already, by LD_PRELOAD or by a run path that goes before ours. */
static int lp_look_loaded(struct dl_phdr_info *info, size_t size, void *arg) {
    const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;

    (void)size;
    return base && !strncmp(base + 1, LP_SONAME, sizeof(LP_SONAME) - 1) && lp_accept(info->dlpi_name, arg);
}

static char *lp_try_loaded(void) {
    char *path = NULL;

    (void)dl_iterate_phdr(lp_look_loaded, &path);
    return path;
}

char *lp_find_real(void) {
    const char *wish = secure_getenv("LINKPASS_REAL_IBVERBS");
    char *path;

    if (wish && *wish) {
        if (*wish == '/' && lp_is_real(wish))
            return strdup(wish);
        fprintf(stderr,
                "linkpass: LINKPASS_REAL_IBVERBS=%s is not an absolute path of a libibverbs; ignored\n",
                wish);
    }
    if ((path = lp_try_loaded()) || (path = lp_try_search_path()) || (path = lp_try_cache()))
        return path;
    for (size_t i = 0; i < sizeof(lp_folders) / sizeof(lp_folders[0]); i++)
        if ((path = lp_try_folder(lp_folders[i])))
            return path;
    return NULL;
}
