/* Names of completion statuses, as the specification abbreviates them. */
#ifndef CLIENTS_NAMES_H
#define CLIENTS_NAMES_H

const char *status_name(int wc_status); /* "RETRY_EXC_ERR"; "UNKNOWN" beyond the known ones */

#endif
