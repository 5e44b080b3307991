/* Collectives between ranks that are threads, in host memory and fp32, for a C++ harness that includes no other header
 * of the program. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CommRow {
    char name[64]; /* "all_reduce/ranks:4/bytes:1048576" */
    int collective, ranks;
    int64_t bytes; /* bytes of the larger buffer of a rank */
} CommRow;

enum { COMM_ROWS = 48 };
/* Fills rows, and returns their number. */
int comm_rows(CommRow rows[COMM_ROWS]);
/* Runs the collective `times` times on all ranks: rank 0 as often as next(arg) is true, which must be `times`. All
 * ranks have run it once before the first call of next. */
void comm_row_run(const CommRow *, int64_t times, bool (*next)(void *), void *arg);

#ifdef __cplusplus
}
#endif
