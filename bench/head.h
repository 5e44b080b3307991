/* The parts of a result that all benchmarks share. A --json file begins with the members of bench_head. */
#pragma once

#include <jansson.h>
#include <regex.h>

#include "run/launch.h"

enum { BENCH_TRANSPORT = 240 };

/* Returns {"bench", "provenance", "device", "ranks", "transport", "threads"}. `threads` is the number of host threads
 * per rank. */
json_t *bench_head(const char *bench, const char *device, int ranks, const char *transport, int threads);
/* Returns the transport and whether ranks are threads or processes, such as "NCCL 2.28.9, threads". Returns "none"
 * without a Comm (one rank). */
const char *bench_transport(const Comm *, const char *transport, char text[BENCH_TRANSPORT]);
/* Compiles the extended regular expression of --filter. NULL matches everything. Release with regfree, if there is no
 * error. */
Err bench_filter(const char *filter, regex_t *);
/* Returns the error for a filter that no op matches. */
Err bench_filter_unmatched(const char *filter);
/* Writes the result as indented JSON with six significant digits per number. Does nothing if `path` is
 * NULL. */
Err bench_write(const char *path, const json_t *result);
