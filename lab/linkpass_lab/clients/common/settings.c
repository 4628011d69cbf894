#include "settings.h"

#include "verdict.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char SETTINGS_HELP[] =
    "CONNECTION (as perftest names them, where it has them)\n"
    "  -d, --ib-dev NAME      RDMA device; default: the first one\n"
    "  -x, --gid-index N      index in the port's GID table; default: the first IPv4 GID, else 0\n"
    "  -i, --ib-port N        port of the device; default 1\n"
    "  -p, --port N           TCP port of the control connection; default 18515\n"
    "  -m, --mtu BYTES        path MTU: 256 512 1024 2048 4096; default: the smaller of the ports' active "
    "ones\n"
    "  -u, --qp-timeout N     ACK timeout, 4.096 us x 2^N\n"
    "      --retry N          transport retries (retry_cnt), 0 to 7\n"
    "      --rnr-retry N      receiver-not-ready retries, 0 to 7; 7: for ever\n"
    "      --min-rnr N        receiver-not-ready timer code, 0 to 31; default 12 (0.64 ms)\n"
    "  -o, --outs N           outstanding READs and atomics per queue pair; default 16\n"
    "\n"
    "TIME LIMITS (seconds)\n"
    "      --wait S           how long to wait for the other side to appear; default 30\n"
    "      --deadline S       end the whole run with an error after S; default 0: none\n"
    "      --stall S          end with STALLED after S without any progress; default 100; 0: never\n"
    "      --peer-timeout S   end with PEER_LOST when the control connection is dead for S; default 30\n"
    "\n"
    "POLLING\n"
    "      --spin             never sleep while polling; default: after 1 ms without news, naps of 0.1 ms\n"
    "\n"
    "OUTPUT\n"
    "      --log FILE         time of every completion, binary (read it with completion_log.py)\n"
    "      --seed N           seed of payloads and of the mix; default 1; the client's counts\n"
    "  -h, --help             this text\n";

void settings_defaults(struct settings *s, const char *program) {
    *s = (struct settings){
        .program = program,
        .gid_index = -1,
        .ib_port = 1,
        .timeout = 14,
        .retry = 6,
        .rnr_retry = 7,
        .min_rnr = 12,
        .rd_atomic = 16,
        .tcp_port = 18515,
        .wait_s = 30,
        .stall_s = 100, /* longer than the 60 s after which a migration gives up */
        .peer_timeout_s = 30,
        .seed = 1,
    };
}

void usage_error(const char *program, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, args);
    fprintf(stderr, " (see %s --help)\n", program);
    va_end(args);
    exit(EXIT_USAGE);
}

uint64_t option_number(const char *program, const char *name, const char *text, uint64_t low, uint64_t high) {
    char *end = NULL;
    errno = 0;
    uint64_t value = strtoull(text, &end, 0);
    int shift = *end == 'k' || *end == 'K'   ? 10
                : *end == 'm' || *end == 'M' ? 20
                : *end == 'g' || *end == 'G' ? 30
                                             : 0;
    if (shift)
        end++;
    if (errno || end == text || *end || *text == '-' || (shift && value > UINT64_MAX >> shift) ||
        value << shift < low || value << shift > high)
        usage_error(program, "%s needs a number from %" PRIu64 " to %" PRIu64 ", not '%s'", name, low, high,
                    text);
    return value << shift;
}

bool settings_option(struct settings *s, int option, const char *value) {
    const char *p = s->program;
    switch (option) {
    case 'd':
        s->device = value;
        return true;
    case 'x':
        s->gid_index = (int)option_number(p, "--gid-index", value, 0, 65535);
        return true;
    case 'i':
        s->ib_port = (uint32_t)option_number(p, "--ib-port", value, 1, 255);
        return true;
    case 'p':
        s->tcp_port = (uint16_t)option_number(p, "--port", value, 1, 65535);
        return true;
    case 'm':
        s->mtu = (uint32_t)option_number(p, "--mtu", value, 256, 4096);
        if (s->mtu & (s->mtu - 1))
            usage_error(p, "--mtu needs 256, 512, 1024, 2048 or 4096, not '%s'", value);
        return true;
    case 'u':
        s->timeout = (uint32_t)option_number(p, "--qp-timeout", value, 0, 31);
        return true;
    case 'o':
        s->rd_atomic = (uint32_t)option_number(p, "--outs", value, 1, 128);
        return true;
    case OPT_RETRY:
        s->retry = (uint32_t)option_number(p, "--retry", value, 0, 7);
        return true;
    case OPT_RNR_RETRY:
        s->rnr_retry = (uint32_t)option_number(p, "--rnr-retry", value, 0, 7);
        return true;
    case OPT_MIN_RNR:
        s->min_rnr = (uint32_t)option_number(p, "--min-rnr", value, 0, 31);
        return true;
    case OPT_DEADLINE:
        s->deadline_s = (uint32_t)option_number(p, "--deadline", value, 0, 1000000);
        return true;
    case OPT_STALL:
        s->stall_s = (uint32_t)option_number(p, "--stall", value, 0, 1000000);
        return true;
    case OPT_PEER_TIMEOUT:
        s->peer_timeout_s = (uint32_t)option_number(p, "--peer-timeout", value, 1, 100000);
        return true;
    case OPT_WAIT:
        s->wait_s = (uint32_t)option_number(p, "--wait", value, 0, 1000000);
        return true;
    case OPT_LOG:
        s->log_path = value;
        return true;
    case OPT_SEED:
        s->seed = option_number(p, "--seed", value, 0, UINT64_MAX);
        return true;
    case OPT_SPIN:
        s->spin = true;
        return true;
    default:
        return false;
    }
}
