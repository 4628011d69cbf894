#include "names.h"

#include <infiniband/verbs.h>
#include <stddef.h>

#define NAME(x) [IBV_WC_##x] = #x

static const char *const STATUSES[] = {
    NAME(SUCCESS),
    NAME(LOC_LEN_ERR),
    NAME(LOC_QP_OP_ERR),
    NAME(LOC_EEC_OP_ERR),
    NAME(LOC_PROT_ERR),
    NAME(WR_FLUSH_ERR),
    NAME(MW_BIND_ERR),
    NAME(BAD_RESP_ERR),
    NAME(LOC_ACCESS_ERR),
    NAME(REM_INV_REQ_ERR),
    NAME(REM_ACCESS_ERR),
    NAME(REM_OP_ERR),
    NAME(RETRY_EXC_ERR),
    NAME(RNR_RETRY_EXC_ERR),
    NAME(LOC_RDD_VIOL_ERR),
    NAME(REM_INV_RD_REQ_ERR),
    NAME(REM_ABORT_ERR),
    NAME(INV_EECN_ERR),
    NAME(INV_EEC_STATE_ERR),
    NAME(FATAL_ERR),
    NAME(RESP_TIMEOUT_ERR),
    NAME(GENERAL_ERR),
    NAME(TM_ERR),
    NAME(TM_RNDV_INCOMPLETE),
};

const char *status_name(int status) {
    if (status < 0 || (size_t)status >= sizeof(STATUSES) / sizeof(*STATUSES) || !STATUSES[status])
        return "UNKNOWN";
    return STATUSES[status];
}
