/* Deliberate defects, to show that the explorer would find them. Compiled in only for tests
 * (LINKPASS_MUTANTS). */
#ifndef LINKPASS_MUTANT_H
#define LINKPASS_MUTANT_H

enum lp_mutant {
    LP_M_NONE = 0,
    LP_M_NO_FENCE_LEADER,   /* the model's leader reads its mark without fencing */
    LP_M_NO_FENCE_FOLLOWER, /* likewise the follower */
    LP_M_EARLY_REPLAY,      /* the follower accepts and both replay before receives are posted */
    LP_M_PSN_SHORT,         /* one packet too few proves execution */
    LP_M_PSN_LONG,          /* one packet too many is asked for */
    LP_M_OLD_OFFER,         /* an offer that is older than the present epoch is taken up */
    LP_M_WRONG_MARK,        /* settles against the newest mark, not the one of the base epoch */
    LP_M_RETRANSMITS,       /* packets that are posted again are counted again */
    LP_M_READ_ONE_PACKET,   /* a READ counts its request, not its response packets */
    LP_M_FENCE_BLIND,       /* a fenced request that was executed proves nothing */
    LP_M_OVERTAKE,          /* completions of executed requests don't wait for a READ before them */
    LP_M_RECV_TWICE,        /* consumed receives are posted again */
    LP_M_ATOMIC_REPLAY,     /* an executed atomic whose result is lost is replayed */
    LP_M_MAILS_FORGOTTEN,   /* the shim's own packets aren't counted */
    LP_M_REPLAY_ALL,        /* everything unacknowledged is replayed, executed or not */
    LP_M_TRUST_ALL,         /* an untrusted PSN's unknown WRITEs are taken as not executed */
    LP_M_WRONG_FAILURE, /* after a failure, executed requests behind the failed one are called successes */
    LP_M_COUNT
};

#ifdef LINKPASS_MUTANTS
extern int lp_mutant; /* enum lp_mutant; set by the tests' driver */
#define LP_MUTANT(which) (lp_mutant == (which))
#else
#define LP_MUTANT(which) 0
#endif

#endif
