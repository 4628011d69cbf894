#include "completion_log.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

int completion_log_open(struct completion_log *log, const char *path) {
    log->file = NULL;
    if (!path)
        return 0;
    log->file = fopen(path, "wb");
    if (!log->file)
        return errno;
    setvbuf(log->file, NULL, _IOFBF, 1 << 18);
    return fwrite("LPCLOG1\n", 1, 8, log->file) == 8 ? 0 : EIO;
}

void completion_log_add(struct completion_log *log, uint64_t at_ns, uint64_t seq, uint32_t qp,
                        uint32_t byte_len, int is_receive, int op, int status) {
    if (!log->file)
        return;
    unsigned char record[32] = {0};
    at_ns = htole64(at_ns);
    seq = htole64(seq);
    qp = htole32(qp);
    byte_len = htole32(byte_len);
    uint16_t code = htole16((uint16_t)status);
    memcpy(record, &at_ns, 8);
    memcpy(record + 8, &seq, 8);
    memcpy(record + 16, &qp, 4);
    memcpy(record + 20, &byte_len, 4);
    record[24] = (unsigned char)is_receive;
    record[25] = (unsigned char)op;
    memcpy(record + 26, &code, 2);
    fwrite(record, 1, sizeof(record), log->file);
}

int completion_log_close(struct completion_log *log) {
    if (!log->file)
        return 0;
    int bad = ferror(log->file);
    if (fclose(log->file) != 0 || bad)
        return EIO;
    log->file = NULL;
    return 0;
}
