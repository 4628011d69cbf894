/* The command line of rcflow. */
#ifndef RCFLOW_OPTIONS_H
#define RCFLOW_OPTIONS_H

#include "../common/settings.h"
#include "workload.h"

struct options {
    struct settings settings;
    struct workload workload; /* the client's counts; a server takes it over */
    bool events, new_api, cq_ex, cq_ex_batch, threads, split_cq;
};

/* Exits with EXIT_USAGE on a mistake, with 0 after --help. */
void options_parse(struct options *o, int argc, char **argv);

#endif
