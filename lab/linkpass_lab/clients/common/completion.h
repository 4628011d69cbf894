/* A completion as a value: filled from ibv_wc or from an extended CQ, checked without any verbs call.
 * Opcodes and statuses are the numbers of <infiniband/verbs.h>; imm is in host order. */
#ifndef CLIENTS_COMPLETION_H
#define CLIENTS_COMPLETION_H

#include <stdbool.h>
#include <stdint.h>

struct completion {
    uint64_t wr_id;
    int status, opcode;
    uint32_t byte_len, imm, qp_num, vendor_err;
    bool has_imm;
};

#endif
