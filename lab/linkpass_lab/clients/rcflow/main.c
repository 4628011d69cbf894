/* rcflow: see options.c for what it does, flow.h for how it is put together. */
#include "../common/clock.h"
#include "../common/watchdog.h"
#include "flow.h"

#include <stdlib.h>
#include <string.h>

static void close_down(struct flow *f) {
    if (f->control.fd >= 0)
        control_finish(&f->control, 2 * NS_PER_S);
    objects_destroy(&f->objects);
    for (uint64_t q = 0; f->initiators && q < f->workload.qps; q++)
        initiator_destroy(&f->initiators[q]);
    receive_slots_destroy(&f->slots);
    memory_destroy(&f->own);
    stats_free(&f->stats);
    free(f->initiators);
    free(f->responders);
    free(f->last_report);
    free(f->last_grant);
}

int main(int argc, char **argv) {
    static struct flow f;
    options_parse(&f.options, argc, argv);
    f.workload = f.options.workload;
    f.is_client = f.options.settings.host != NULL;
    f.begun_ns = now_ns();
    f.control.fd = -1;
    verdict_init(&f.verdict);
    pthread_mutex_init(&f.kick_lock, NULL);
    pthread_cond_init(&f.kick, NULL);
    watchdog_start("rcflow", f.options.settings.deadline_s);
    int rc = completion_log_open(&f.log, f.options.settings.log_path);
    if (rc)
        usage_error("rcflow", "cannot write %s: %s", f.options.settings.log_path, strerror(rc));
    if (session_open(&f) == 0)
        engine_run(&f);
    if (completion_log_close(&f.log))
        fprintf(stderr, "rcflow: the completion log %s is incomplete\n", f.options.settings.log_path);
    report_write(&f, stdout);
    verdict_print(&f.verdict, "rcflow", stderr);
    enum exit_code code = verdict_exit(&f.verdict);
    close_down(&f);
    return code;
}
