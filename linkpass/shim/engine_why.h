/* Why a queue pair isn't protected, counted. */
#ifndef LP_ENGINE_WHY_H
#define LP_ENGINE_WHY_H

#include <stdint.h>

enum lp_why {
    LP_WHY_NOT = 0, /* it is */
    LP_WHY_NO_AGENT,
    LP_WHY_KIND,       /* enum lp_unprotected */
    LP_WHY_OPERATIONS, /* LP_OTHER_OPERATIONS */
    LP_WHY_SRQ,
    LP_WHY_TIMESTAMPS,
    LP_WHY_CHANNEL,
    LP_WHY_UNKNOWN_OBJECT,
    LP_WHY_MEMORY,
    LP_WHY_NO_GID,
    LP_WHY_TO_ITSELF,
    LP_WHY_WINDOWS,
    LP_WHY_DIRECT,
    LP_WHYS
};

void lp_why_count(enum lp_why why);
uint64_t lp_why_counted(enum lp_why why);
const char *lp_why_text(enum lp_why why);
/* One line a reason on standard error; for LINKPASS_DEBUG. */
void lp_why_dump(void);

#endif
