/* Parts of the results that all benches share. A result of --json begins with the members of bench_head. */
#pragma once

#include <jansson.h>

#include "run/launch.h"

enum { BENCH_TRANSPORT = 240 };

/* {"bench", "provenance", "device", "ranks", "transport", "threads"}. threads: host threads per rank. */
json_t *bench_head(const char *bench, const char *device, int ranks, const char *transport, int threads);
/* The transport and how the ranks run, such as "NCCL 2.28.9, threads"; "none" for NULL (one rank). */
const char *bench_transport(const Comm *, const char *transport, char text[BENCH_TRANSPORT]);
/* Writes an indented result with six significant digits per number. path NULL: does nothing. */
Err bench_write(const char *path, const json_t *result);
