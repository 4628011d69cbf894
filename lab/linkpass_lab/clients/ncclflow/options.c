#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_MAX_REQUESTS = OPT_FIRST_OWN, OPT_NO_FLUSH, OPT_NO_INLINE, OPT_ADAPTIVE };

static const char HELP_USE[] =
    "ncclflow - the traffic of NCCL's InfiniBand transport, every byte and completion checked\n"
    "\n"
    "SYNOPSIS\n"
    "  ncclflow [options]         server: waits for one client, runs one job, ends\n"
    "  ncclflow [options] HOST    client: HOST is the server's management address; the client sends\n"
    "\n"
    "JOB (the client's counts)\n"
    "  -c, --connections N    connections in each direction; default 1\n"
    "  -q, --qp N             queue pairs per connection, 1 to 4: each message is striped over them; default "
    "1\n"
    "  -g, --group N          up to N receives announced and answered together, 1 to 8; default 1\n"
    "  -s, --size RANGE       message sizes, one or LOW-HIGH; default 0-65536\n"
    "  -n, --iters N          requests per connection; default 500\n"
    "  -D, --duration S       run for S seconds instead (decimals allowed)\n"
    "  -b, --bidirectional    connections in both directions\n"
    "      --max-requests N   requests under way per connection; the fifo has 2 N slots; default 32\n"
    "      --adaptive N       messages above N bytes are written first and announced by an empty IMM (what "
    "NCCL\n"
    "                         does with adaptive routing, N = 8192); default 0: never\n"
    "      --no-flush         no loopback READ after a receive\n"
    "      --no-inline        clear-to-send entries not inline (this end's own)\n"
    "\n";

static const char HELP_RESULT[] =
    "\n"
    "DEFAULTS LIKE NCCL'S\n"
    "  --qp-timeout 20 (4.3 s) and --retry 7. Attention: Soft-RoCE takes 7 for \"for ever\".\n"
    "\n"
    "TRAFFIC\n"
    "  The receiver posts one empty receive per queue pair and writes a clear-to-send entry (address, size, "
    "rkey,\n"
    "  tag, index) into the sender's fifo: unsignaled, but for the first slot. The sender polls its fifo, "
    "matches\n"
    "  tags, and answers on every queue pair with WRITEs and one WRITE_WITH_IMM, whose value is the size; "
    "for a\n"
    "  group it is a bit per receive, and the sizes are its payload. Then the receiver flushes by a READ of "
    "one\n"
    "  byte over a queue pair connected to itself.\n"
    "\n"
    "RESULT\n"
    "  One JSON object on standard output. Exit code 0: everything right. 1: an error that the job was told "
    "of.\n"
    "  2: usage. 3: a violation - wrong bytes or sizes, or a completion that is lost, repeated or "
    "reordered.\n";

static void help(void) {
    fputs(HELP_USE, stdout);
    fputs(SETTINGS_HELP, stdout);
    fputs(HELP_RESULT, stdout);
    exit(0);
}

static void parse_sizes(const char *p, struct job *j, const char *text) {
    char *low = strdup(text), *dash = strchr(low, '-');
    if (dash && dash != low)
        *dash++ = 0;
    j->size_low = option_number(p, "--size", low, 0, 1u << 30);
    j->size_high = dash ? option_number(p, "--size", dash, 0, 1u << 30) : j->size_low;
    free(low);
}

static uint64_t parse_duration(const char *p, const char *text) {
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds > 0 && seconds < 1e7))
        usage_error(p, "--duration needs seconds above 0, not '%s'", text);
    return (uint64_t)(seconds * 1000 + 0.5);
}

static void own_option(struct options *o, int option, const char *value) {
    const char *p = o->settings.program;
    struct job *j = &o->job;
    switch (option) {
    case 'c':
        j->connections = option_number(p, "--connections", value, 1, CONNECTIONS_MAX);
        break;
    case 'q':
        j->lanes = option_number(p, "--qp", value, 1, LANES_MAX);
        break;
    case 'g':
        j->group = option_number(p, "--group", value, 1, GROUP_MAX);
        break;
    case 's':
        parse_sizes(p, j, value);
        break;
    case 'n':
        j->iterations = option_number(p, "--iters", value, 1, 1ull << 32);
        break;
    case 'D':
        j->duration_ms = parse_duration(p, value);
        break;
    case 'b':
        j->bidirectional = 1;
        break;
    case OPT_MAX_REQUESTS:
        j->max_requests = option_number(p, "--max-requests", value, 1, 256);
        break;
    case OPT_ADAPTIVE:
        j->adaptive_over = option_number(p, "--adaptive", value, 0, 1u << 30);
        break;
    case OPT_NO_FLUSH:
        j->flush = 0;
        break;
    default:
        o->inline_cts = false;
    }
}

static void complete(struct options *o) {
    struct job *j = &o->job;
    const struct settings *s = &o->settings;
    if (j->iterations && j->duration_ms)
        usage_error(s->program, "--iters and --duration exclude each other");
    if (!j->iterations && !j->duration_ms)
        j->iterations = 500;
    j->seed = s->seed;
    j->mtu = s->mtu;
    j->timeout = s->timeout;
    j->retry = s->retry;
    j->rnr_retry = s->rnr_retry;
    j->min_rnr = s->min_rnr;
    j->rd_atomic = s->rd_atomic;
    const char *fault = job_fault(j);
    if (fault)
        usage_error(s->program, "%s", fault);
}

void options_parse(struct options *o, int argc, char **argv) {
    static const struct option LONG[] = {SETTINGS_LONG,
                                         {"connections", required_argument, NULL, 'c'},
                                         {"qp", required_argument, NULL, 'q'},
                                         {"group", required_argument, NULL, 'g'},
                                         {"size", required_argument, NULL, 's'},
                                         {"iters", required_argument, NULL, 'n'},
                                         {"duration", required_argument, NULL, 'D'},
                                         {"bidirectional", no_argument, NULL, 'b'},
                                         {"max-requests", required_argument, NULL, OPT_MAX_REQUESTS},
                                         {"adaptive", required_argument, NULL, OPT_ADAPTIVE},
                                         {"no-flush", no_argument, NULL, OPT_NO_FLUSH},
                                         {"no-inline", no_argument, NULL, OPT_NO_INLINE},
                                         {0}};
    memset(o, 0, sizeof(*o));
    settings_defaults(&o->settings, "ncclflow");
    o->settings.timeout = 20; /* NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT as NCCL has them by default */
    o->settings.retry = 7;
    o->inline_cts = true;
    o->job = (struct job){
        .connections = 1, .lanes = 1, .max_requests = 32, .group = 1, .size_high = 65536, .flush = 1};
    int c;
    while ((c = getopt_long(argc, argv, SETTINGS_SHORT "c:q:g:s:n:D:b", LONG, NULL)) != -1) {
        if (c == 'h')
            help();
        if (c == '?')
            usage_error("ncclflow", "see the message above");
        if (!settings_option(&o->settings, c, optarg))
            own_option(o, c, optarg);
    }
    if (argc - optind > 1)
        usage_error("ncclflow", "one HOST at most, not also '%s'", argv[optind + 1]);
    o->settings.host = argv[optind];
    complete(o);
}
