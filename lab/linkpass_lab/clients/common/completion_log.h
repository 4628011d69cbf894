/* The completion log: a file of fixed 32-byte little-endian records after an 8-byte magic "LPCLOG1\n".
 * Record: u64 monotonic ns, u64 sequence, u32 queue pair, u32 byte_len, u8 kind (0 own request, 1 receive),
 * u8 operation, u16 status, u32 zero. completion_log.py reads it. */
#ifndef CLIENTS_COMPLETION_LOG_H
#define CLIENTS_COMPLETION_LOG_H

#include <stdint.h>
#include <stdio.h>

struct completion_log {
    FILE *file; /* NULL: no log wanted */
};

/* 0, or an errno value. A NULL path opens nothing. */
int completion_log_open(struct completion_log *log, const char *path);
void completion_log_add(struct completion_log *log, uint64_t at_ns, uint64_t seq, uint32_t qp,
                        uint32_t byte_len, int is_receive, int op, int status);
int completion_log_close(struct completion_log *log);

#endif
