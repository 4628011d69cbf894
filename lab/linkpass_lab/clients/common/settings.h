/* Options that both clients have: device, addresses, connection attributes, limits on time, output. */
#ifndef CLIENTS_SETTINGS_H
#define CLIENTS_SETTINGS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

struct settings {
    const char *program;
    const char *host; /* NULL: this is the server */
    const char *device;
    const char *log_path;
    int gid_index;         /* -1: the first IPv4-mapped GID, else index 0 */
    uint32_t ib_port, mtu; /* mtu in bytes; 0: the port's active MTU */
    uint32_t timeout, retry, rnr_retry, min_rnr, rd_atomic;
    uint16_t tcp_port;
    uint32_t wait_s, deadline_s, stall_s, peer_timeout_s;
    uint64_t seed;
    bool spin; /* never nap while polling */
};

enum {
    OPT_RETRY = 256,
    OPT_RNR_RETRY,
    OPT_MIN_RNR,
    OPT_DEADLINE,
    OPT_STALL,
    OPT_PEER_TIMEOUT,
    OPT_WAIT,
    OPT_LOG,
    OPT_SEED,
    OPT_SPIN,
    OPT_FIRST_OWN
};

#define SETTINGS_SHORT "d:x:i:p:m:u:o:h"
#define SETTINGS_LONG                                                                                        \
    {"ib-dev", required_argument, NULL, 'd'}, {"gid-index", required_argument, NULL, 'x'},                   \
        {"ib-port", required_argument, NULL, 'i'}, {"port", required_argument, NULL, 'p'},                   \
        {"mtu", required_argument, NULL, 'm'}, {"qp-timeout", required_argument, NULL, 'u'},                 \
        {"outs", required_argument, NULL, 'o'}, {"retry", required_argument, NULL, OPT_RETRY},               \
        {"rnr-retry", required_argument, NULL, OPT_RNR_RETRY},                                               \
        {"min-rnr", required_argument, NULL, OPT_MIN_RNR},                                                   \
        {"deadline", required_argument, NULL, OPT_DEADLINE}, {"stall", required_argument, NULL, OPT_STALL},  \
        {"peer-timeout", required_argument, NULL, OPT_PEER_TIMEOUT},                                         \
        {"wait", required_argument, NULL, OPT_WAIT}, {"log", required_argument, NULL, OPT_LOG},              \
        {"seed", required_argument, NULL, OPT_SEED}, {"spin", no_argument, NULL, OPT_SPIN}, {                \
        "help", no_argument, NULL, 'h'                                                                       \
    }

extern const char SETTINGS_HELP[];

void settings_defaults(struct settings *s, const char *program);
/* True when the option was one of these. */
bool settings_option(struct settings *s, int option, const char *value);
/* Print to stderr and exit with EXIT_USAGE. */
void usage_error(const char *program, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
/* A whole number in [low, high], with an optional k, m or g (powers of 1024); a usage error otherwise. */
uint64_t option_number(const char *program, const char *name, const char *text, uint64_t low, uint64_t high);

#endif
