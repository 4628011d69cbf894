/* The last resort against hanging inside a library call: the process ends by itself after the deadline. */
#ifndef CLIENTS_WATCHDOG_H
#define CLIENTS_WATCHDOG_H

#include <stdint.h>

/* 10 s after deadline_s (which the program should keep by itself) exit with EXIT_ERROR; 0: never. */
void watchdog_start(const char *program, uint32_t deadline_s);

#endif
