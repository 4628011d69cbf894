/* What the probing copy of the shim has seen. */
#ifndef PROBE_H
#define PROBE_H

#include <stdint.h>

struct probe {
    int contexts, pds, mrs, channels, cqs, srqs, qps, kept; /* alive now; destructions that were refused */
    int sends, recvs, srq_recvs, notifies, batches, opaque, ex_polls, modifies, queries;
    int cq_events, async_events, known_completions;
    uint64_t last_wr_id, mr_iova;
    uint32_t last_length, last_rkey;
    int last_opcode, mr_access;
    unsigned int last_flags;
    uint8_t last_byte;
};

__attribute__((visibility("default"))) struct probe *probe_seen(void);

#endif
