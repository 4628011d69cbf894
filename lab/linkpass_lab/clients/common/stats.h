/* What a run leaves behind about time: the longest gaps between completions, and bytes per 100 ms. */
#ifndef CLIENTS_STATS_H
#define CLIENTS_STATS_H

#include "json.h"

#include <stddef.h>
#include <stdint.h>

#define GAPS_KEPT 20
#define BUCKET_MS 100

struct gap {
    uint64_t at_ns; /* monotonic time of the completion before the gap */
    uint64_t ns;
};

struct buckets {
    uint64_t *bytes;
    size_t count, room;
};

struct stats {
    uint64_t start_ns, end_ns, start_unix_ns;
    uint64_t last_ns; /* the last completion; the start until there is one */
    uint64_t completions;
    struct gap gaps[GAPS_KEPT]; /* longest first */
    size_t gap_count;
    struct buckets tx, rx;
    uint64_t tx_bytes, rx_bytes;
};

void stats_start(struct stats *s, uint64_t now_ns, uint64_t now_unix_ns);
void stats_completion(struct stats *s, uint64_t now_ns);
void stats_sent(struct stats *s, uint64_t now_ns, uint64_t bytes);
void stats_received(struct stats *s, uint64_t now_ns, uint64_t bytes);
/* The time from the last completion to the end counts as a gap too: a job that died in one shows it. */
void stats_end(struct stats *s, uint64_t now_ns);
void stats_write(const struct stats *s, struct json *j);
void stats_free(struct stats *s);

#endif
