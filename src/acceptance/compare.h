/* Compares a stage with the last good run, and with the same stage on another NCCL library. The result is
 * added to the stage's evidence. */
#ifndef ISOTRON_ACCEPTANCE_COMPARE_H
#define ISOTRON_ACCEPTANCE_COMPARE_H

#include "acceptance/acceptance.h"

/* Reads the report (--json) of a run that passed. Its content is untrusted. */
Err compare_open_good(const char *path, struct json_t **out);
/* No-op without a good run. Rates that cannot be compared are added to the limits (outcome_limit). */
void compare_with_good(const Acceptance *, AcceptRow *);
void compare_libraries(const Acceptance *, AcceptRow *);

#endif
