#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    OPT_OPS = OPT_FIRST_OWN,
    OPT_WINDOW,
    OPT_SGES,
    OPT_MRS,
    OPT_SRQ,
    OPT_NEW_API,
    OPT_CQ_EX,
    OPT_CQ_EX_BATCH,
    OPT_THREADS,
    OPT_SPLIT_CQ,
    OPT_FENCE,
    OPT_SQ_SIG_ALL,
    OPT_SOLICITED
};

static const char HELP_USE[] =
    "rcflow - RC traffic of which every byte and every completion is checked\n"
    "\n"
    "SYNOPSIS\n"
    "  rcflow [options]           server: waits for one client, runs one job, ends\n"
    "  rcflow [options] HOST      client: HOST is the server's management address\n"
    "\n"
    "The client's workload counts; a server needs its device, limits and interface options only.\n"
    "\n"
    "WORKLOAD (the client's)\n"
    "      --ops LIST         operations with optional weights, e.g. write:4,send_imm,fetch_add:2\n"
    "                         of: write write_imm send send_imm read fetch_add cmp_swp all;\n"
    "                         default: write,write_imm,send,send_imm,read\n"
    "  -s, --size LIST        message sizes: one, a list (0,1,4096,4097) or a range (0-64k); default 4096\n"
    "  -n, --iters N          requests per queue pair and direction; default 1000\n"
    "  -D, --duration S       run for S seconds instead (decimals allowed)\n"
    "  -q, --qp N             queue pairs; default 1\n"
    "  -b, --bidirectional    both ends send\n"
    "  -t, --tx-depth N       requests under way per queue pair; default 32\n"
    "      --window N         requests not yet verified by the peer, at most; default 2 x depth\n"
    "  -r, --rx-depth N       receives posted per queue pair; default: the window. Fewer make RNR NAKs.\n"
    "  -l, --post-list N      requests per post call; default 1\n"
    "  -Q, --cq-mod N         signal every N-th request only; default 1\n"
    "  -I, --inline N         send payloads of up to N bytes inline; default 0\n"
    "      --sges N           SGEs per request and receive; default 1\n"
    "      --mrs N            memory regions that the buffers are spread over; default 1\n"
    "      --srq              one shared receive queue; what lies behind a message in its receive isn't "
    "checked\n"
    "      --fence            fence the request after each READ or atomic\n"
    "      --sq-sig-all       queue pairs that signal every request by themselves\n"
    "      --solicited        solicited events (with -e and --split-cq)\n"
    "\n"
    "INTERFACES (each end's own)\n"
    "  -e, --events           sleep on the completion channel instead of polling\n"
    "      --new-api          post with ibv_wr_* (ibv_create_qp_ex) instead of ibv_post_send\n"
    "      --cq-ex            poll with ibv_start_poll (ibv_create_cq_ex) instead of ibv_poll_cq\n"
    "      --cq-ex-batch      the same, taking several completions at a time by ibv_next_poll\n"
    "      --split-cq         separate completion queues for sends and receives\n"
    "      --threads          one thread posts, another polls\n"
    "\n";

static const char HELP_RESULT[] =
    "\n"
    "RESULT\n"
    "  One JSON object on standard output. Exit code 0: everything right. 1: an error that the job was told "
    "of\n"
    "  (error.name, error.status, error.side). 2: usage. 3: a violation - wrong bytes, or a completion that "
    "is\n"
    "  lost, repeated, reordered or wrong; see violations[].\n"
    "\n"
    "CHECKS\n"
    "  Every request is a function of (seed, queue pair, direction, number), so the receiving end knows what "
    "must\n"
    "  come. SENDs and immediates are checked as they are received; plain WRITEs when a later receive or "
    "the\n"
    "  sender's report says that they are done, before their slot may be used again; an idle slot that "
    "changes is\n"
    "  a write executed twice or late. Atomics form a chain: each result tells whether one was lost or "
    "repeated.\n"
    "  Local buffers are spoilt as soon as the job was told that it may have them back.\n";

static const char HELP_BUGS[] =
    "\n"
    "KNOWN FAULTS OF PROVIDERS, which this program reports as violations or errors\n"
    "  rxe of rdma-core 44 and others, fixed upstream in part: --cq-ex-batch (ibv_end_poll after ENOENT "
    "skips\n"
    "  entries: rdma-core pull requests 1512, 1617); --new-api with several SGEs (wrong length: 1744) and "
    "with\n"
    "  several inline buffers (sends nothing: 1751). --new-api --sges 1, inline or not, is right.\n"
    "  rdma_rxe of Linux 6.1: when packets are lost, an atomic among WRITEs or SENDs can complete well "
    "without its\n"
    "  result: a repeated plain ACK is taken for the atomic's. Atomics alone, or with READs only, are "
    "right.\n";

static void help(void) {
    fputs(HELP_USE, stdout);
    fputs(SETTINGS_HELP, stdout);
    fputs(HELP_RESULT, stdout);
    fputs(HELP_BUGS, stdout);
    exit(0);
}

static void parse_op(const char *p, struct workload *w, char *item) {
    static const char *const WORDS[OP_KINDS] = {"write", "write_imm", "send",   "send_imm",
                                                "read",  "fetch_add", "cmp_swp"};
    char *colon = strchr(item, ':');
    uint64_t weight = 1;
    if (colon) {
        *colon = 0;
        weight = option_number(p, "--ops", colon + 1, 0, 1000);
    }
    bool found = false;
    for (int op = 0; op < OP_KINDS; op++)
        if (strcasecmp(item, WORDS[op]) == 0 || strcasecmp(item, "all") == 0) {
            w->weights[op] = weight;
            found = true;
        }
    if (!found)
        usage_error(p, "--ops has no operation '%s'", item);
}

static void each_item(const char *p, const char *list, struct workload *w,
                      void (*take)(const char *, struct workload *, char *)) {
    char *copy = strdup(list), *rest = copy;
    for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ","))
        take(p, w, item);
    free(copy);
}

static void parse_size(const char *p, struct workload *w, char *item) {
    char *dash = strchr(item, '-');
    if (dash && dash != item) {
        *dash = 0;
        if (w->size_count)
            usage_error(p, "--size takes a list or a range, not both");
        w->sizes[0] = option_number(p, "--size", item, 0, 1u << 30);
        w->sizes[1] = option_number(p, "--size", dash + 1, 0, 1u << 30);
        return;
    }
    if (w->size_count == SIZES_MAX)
        usage_error(p, "--size takes at most %d sizes", SIZES_MAX);
    w->sizes[w->size_count++] = option_number(p, "--size", item, 0, 1u << 30);
}

static uint64_t parse_duration(const char *p, const char *text) {
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds > 0 && seconds < 1e7))
        usage_error(p, "--duration needs seconds above 0, not '%s'", text);
    return (uint64_t)(seconds * 1000 + 0.5);
}

static bool workload_option(struct workload *w, const char *p, int option, const char *value) {
    switch (option) {
    case OPT_OPS:
        for (int op = 0; op < OP_KINDS; op++)
            w->weights[op] = 0;
        each_item(p, value, w, parse_op);
        return true;
    case 's':
        w->size_count = 0;
        each_item(p, value, w, parse_size);
        return true;
    case 'n':
        w->iterations = option_number(p, "--iters", value, 1, 1ull << 39);
        return true;
    case 'D':
        w->duration_ms = parse_duration(p, value);
        return true;
    case 'q':
        w->qps = option_number(p, "--qp", value, 1, QPS_MAX);
        return true;
    case 'b':
        w->bidirectional = 1;
        return true;
    case 't':
        w->depth = option_number(p, "--tx-depth", value, 1, 16384);
        return true;
    case OPT_WINDOW:
        w->window = option_number(p, "--window", value, 1, 65536);
        return true;
    case 'r':
        w->rx_depth = option_number(p, "--rx-depth", value, 1, 65536);
        return true;
    case 'l':
        w->post_list = option_number(p, "--post-list", value, 1, 16384);
        return true;
    case 'Q':
        w->signal_every = option_number(p, "--cq-mod", value, 1, 65536);
        return true;
    case 'I':
        w->inline_max = option_number(p, "--inline", value, 0, 65536);
        return true;
    case OPT_SGES:
        w->sges = option_number(p, "--sges", value, 1, SGES_MAX);
        return true;
    case OPT_MRS:
        w->mrs = option_number(p, "--mrs", value, 1, MRS_MAX);
        return true;
    case OPT_SRQ:
        w->srq = 1;
        return true;
    case OPT_FENCE:
        w->fence = 1;
        return true;
    case OPT_SQ_SIG_ALL:
        w->sq_sig_all = 1;
        return true;
    case OPT_SOLICITED:
        w->solicited = 1;
        return true;
    default:
        return false;
    }
}

static bool interface_option(struct options *o, int option) {
    bool *flag = option == 'e'               ? &o->events
                 : option == OPT_NEW_API     ? &o->new_api
                 : option == OPT_CQ_EX       ? &o->cq_ex
                 : option == OPT_CQ_EX_BATCH ? &o->cq_ex_batch
                 : option == OPT_THREADS     ? &o->threads
                 : option == OPT_SPLIT_CQ    ? &o->split_cq
                                             : NULL;
    if (flag)
        *flag = true;
    return flag != NULL;
}

static void complete(struct options *o) {
    struct workload *w = &o->workload;
    const struct settings *s = &o->settings;
    if (w->iterations == 0 && w->duration_ms == 0)
        w->iterations = 1000;
    if (w->iterations && w->duration_ms)
        usage_error(s->program, "--iters and --duration exclude each other");
    if (w->window == 0)
        w->window = 2 * w->depth;
    if (w->rx_depth == 0)
        w->rx_depth = w->window;
    o->cq_ex |= o->cq_ex_batch;
    w->seed = s->seed;
    w->mtu = s->mtu;
    w->timeout = s->timeout;
    w->retry = s->retry;
    w->rnr_retry = s->rnr_retry;
    w->min_rnr = s->min_rnr;
    w->rd_atomic = s->rd_atomic;
    const char *fault = workload_fault(w);
    if (fault)
        usage_error(s->program, "%s", fault);
}

void options_parse(struct options *o, int argc, char **argv) {
    static const struct option LONG[] = {SETTINGS_LONG,
                                         {"ops", required_argument, NULL, OPT_OPS},
                                         {"size", required_argument, NULL, 's'},
                                         {"iters", required_argument, NULL, 'n'},
                                         {"duration", required_argument, NULL, 'D'},
                                         {"qp", required_argument, NULL, 'q'},
                                         {"bidirectional", no_argument, NULL, 'b'},
                                         {"tx-depth", required_argument, NULL, 't'},
                                         {"window", required_argument, NULL, OPT_WINDOW},
                                         {"rx-depth", required_argument, NULL, 'r'},
                                         {"post-list", required_argument, NULL, 'l'},
                                         {"cq-mod", required_argument, NULL, 'Q'},
                                         {"inline", required_argument, NULL, 'I'},
                                         {"sges", required_argument, NULL, OPT_SGES},
                                         {"mrs", required_argument, NULL, OPT_MRS},
                                         {"srq", no_argument, NULL, OPT_SRQ},
                                         {"fence", no_argument, NULL, OPT_FENCE},
                                         {"sq-sig-all", no_argument, NULL, OPT_SQ_SIG_ALL},
                                         {"solicited", no_argument, NULL, OPT_SOLICITED},
                                         {"events", no_argument, NULL, 'e'},
                                         {"new-api", no_argument, NULL, OPT_NEW_API},
                                         {"cq-ex", no_argument, NULL, OPT_CQ_EX},
                                         {"cq-ex-batch", no_argument, NULL, OPT_CQ_EX_BATCH},
                                         {"threads", no_argument, NULL, OPT_THREADS},
                                         {"split-cq", no_argument, NULL, OPT_SPLIT_CQ},
                                         {0}};
    memset(o, 0, sizeof(*o));
    settings_defaults(&o->settings, "rcflow");
    o->workload =
        (struct workload){.qps = 1, .depth = 32, .sges = 1, .mrs = 1, .signal_every = 1, .post_list = 1};
    o->workload.size_count = 1;
    o->workload.sizes[0] = 4096;
    for (int op = OP_WRITE; op <= OP_READ; op++)
        o->workload.weights[op] = 1;
    int c;
    while ((c = getopt_long(argc, argv, SETTINGS_SHORT "s:n:D:q:bt:r:l:Q:I:e", LONG, NULL)) != -1) {
        if (c == 'h')
            help();
        if (c == '?')
            usage_error("rcflow", "see the message above");
        if (!settings_option(&o->settings, c, optarg) && !workload_option(&o->workload, "rcflow", c, optarg))
            interface_option(o, c);
    }
    if (argc - optind > 1)
        usage_error("rcflow", "one HOST at most, not also '%s'", argv[optind + 1]);
    o->settings.host = argv[optind];
    complete(o);
}
