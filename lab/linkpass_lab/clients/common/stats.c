#include "stats.h"

#include "clock.h"

#include <stdlib.h>
#include <string.h>

void stats_start(struct stats *s, uint64_t now, uint64_t now_unix) {
    stats_free(s);
    *s = (struct stats){.start_ns = now, .end_ns = now, .last_ns = now, .start_unix_ns = now_unix};
}

static void note_gap(struct stats *s, uint64_t now) {
    uint64_t ns = now > s->last_ns ? now - s->last_ns : 0;
    size_t at = s->gap_count;
    if (at == GAPS_KEPT) {
        if (ns <= s->gaps[GAPS_KEPT - 1].ns)
            return;
        at--;
    } else {
        s->gap_count++;
    }
    while (at > 0 && s->gaps[at - 1].ns < ns) {
        s->gaps[at] = s->gaps[at - 1];
        at--;
    }
    s->gaps[at] = (struct gap){.at_ns = s->last_ns, .ns = ns};
}

void stats_completion(struct stats *s, uint64_t now) {
    note_gap(s, now);
    s->completions++;
    s->last_ns = now;
}

static void add(struct buckets *b, uint64_t since_start, uint64_t bytes) {
    size_t at = since_start / (BUCKET_MS * NS_PER_MS);
    if (at >= b->room) {
        size_t room = at + 64 > b->room * 2 ? at + 64 : b->room * 2;
        uint64_t *more = realloc(b->bytes, room * sizeof(*more));
        if (!more)
            return; /* the picture loses a bucket; the totals stay right */
        memset(more + b->room, 0, (room - b->room) * sizeof(*more));
        b->bytes = more;
        b->room = room;
    }
    b->bytes[at] += bytes;
    if (b->count <= at)
        b->count = at + 1;
}

static uint64_t since(const struct stats *s, uint64_t now) {
    return now > s->start_ns ? now - s->start_ns : 0;
}

void stats_sent(struct stats *s, uint64_t now, uint64_t bytes) {
    s->tx_bytes += bytes;
    add(&s->tx, since(s, now), bytes);
}

void stats_received(struct stats *s, uint64_t now, uint64_t bytes) {
    s->rx_bytes += bytes;
    add(&s->rx, since(s, now), bytes);
}

void stats_end(struct stats *s, uint64_t now) {
    note_gap(s, now);
    s->end_ns = now;
}

static void write_buckets(const struct buckets *b, struct json *j, const char *key) {
    json_array(j, key);
    for (size_t i = 0; i < b->count; i++)
        json_u64(j, NULL, b->bytes[i]);
    json_end_array(j);
}

void stats_write(const struct stats *s, struct json *j) {
    uint64_t ns = s->end_ns - s->start_ns;
    json_seconds(j, "seconds", ns);
    json_seconds(j, "start_mono", s->start_ns);
    json_seconds(j, "end_mono", s->end_ns);
    json_seconds(j, "start_unix", s->start_unix_ns);
    json_u64(j, "completions", s->completions);
    json_u64(j, "tx_bytes", s->tx_bytes);
    json_u64(j, "rx_bytes", s->rx_bytes);
    json_double(j, "tx_mb_per_s", ns ? (double)s->tx_bytes * 1e3 / (double)ns : 0);
    json_double(j, "rx_mb_per_s", ns ? (double)s->rx_bytes * 1e3 / (double)ns : 0);
    json_array(j, "gaps");
    for (size_t i = 0; i < s->gap_count; i++) {
        json_object(j, NULL);
        json_seconds(j, "at", s->gaps[i].at_ns);
        json_seconds(j, "seconds", s->gaps[i].ns);
        json_end_object(j);
    }
    json_end_array(j);
    json_u64(j, "bucket_ms", BUCKET_MS);
    write_buckets(&s->tx, j, "tx_buckets");
    write_buckets(&s->rx, j, "rx_buckets");
}

void stats_free(struct stats *s) {
    free(s->tx.bytes);
    free(s->rx.bytes);
    s->tx = s->rx = (struct buckets){0};
}
