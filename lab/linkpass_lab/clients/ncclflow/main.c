/* ncclflow: see options.c for what it does, run.h for how it is put together. */
#include "../common/clock.h"
#include "../common/watchdog.h"
#include "run.h"

#include <string.h>

static void close_down(struct run *r) {
    if (r->control.fd >= 0)
        control_finish(&r->control, 2 * NS_PER_S);
    for (uint64_t i = 0; i < r->count; i++)
        connection_destroy(&r->connections[i]);
    if (r->pd)
        ibv_dealloc_pd(r->pd);
    device_close(&r->device);
    stats_free(&r->stats);
}

int main(int argc, char **argv) {
    static struct run r;
    options_parse(&r.options, argc, argv);
    r.job = r.options.job;
    r.is_client = r.options.settings.host != NULL;
    r.begun_ns = now_ns();
    r.control.fd = -1;
    verdict_init(&r.verdict);
    watchdog_start("ncclflow", r.options.settings.deadline_s);
    int rc = completion_log_open(&r.log, r.options.settings.log_path);
    if (rc)
        usage_error("ncclflow", "cannot write %s: %s", r.options.settings.log_path, strerror(rc));
    if (session_open(&r) == 0)
        engine_run(&r);
    if (completion_log_close(&r.log))
        fprintf(stderr, "ncclflow: the completion log %s is incomplete\n", r.options.settings.log_path);
    report_write(&r, stdout);
    verdict_print(&r.verdict, "ncclflow", stderr);
    enum exit_code code = verdict_exit(&r.verdict);
    close_down(&r);
    return code;
}
