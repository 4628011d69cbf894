/* The command line of ncclflow. */
#ifndef NCCLFLOW_OPTIONS_H
#define NCCLFLOW_OPTIONS_H

#include "../common/settings.h"
#include "job.h"

struct options {
    struct settings settings;
    struct job job; /* the client's counts */
    bool inline_cts;
};

void options_parse(struct options *o, int argc, char **argv);

#endif
