/* Parts of the results that all benches share. A result of --json begins with the members of bench_head. */
#pragma once

#include <jansson.h>

#include "run/launch.h"

enum { BENCH_TRANSPORT = 240 };

/* {"bench", "provenance", "device", "ranks", "transport", "threads"}. threads: of a rank, on the host. */
json_t *bench_head(const char *bench, const char *device, int ranks, const char *transport, int threads);
/* "NCCL 2.28.9, threads": the transport, and how the ranks run; "none" for one rank (NULL). */
const char *bench_transport(const Comm *, const char *transport, char text[BENCH_TRANSPORT]);
/* Writes a result, indented and with numbers of six digits. NULL: no file. */
Err bench_write(const char *path, const json_t *result);
