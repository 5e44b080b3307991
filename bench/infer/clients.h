/* Measures the HTTP server with clients that wait for their answers (load.h). Then generates the same
 * requests without HTTP, to determine the server's share of the time. */
#pragma once

#include "bench/infer/session.h"

/* Appends a row for each measured time and each number of clients, with the members that are known before the
 * measurement. */
void clients_facts(const Session *, json_t *rows);
/* Prints the results, and appends rows on rank 0. All ranks must call this function, and all get the same error. */
Err clients_measure(const Session *, json_t *rows);
