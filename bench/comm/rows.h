/* fp32 collectives in host memory between ranks that run as threads, for a C++ harness that includes no other header of
 * the program. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CommRow {
    char name[64]; /* for example "all_reduce/ranks:4/bytes:1048576" */
    int collective, ranks;
    int64_t bytes; /* size of a rank's larger buffer */
} CommRow;

enum { COMM_ROWS = 48 };
/* Fills `rows` and returns the number of rows. */
int comm_rows(CommRow rows[COMM_ROWS]);
/* Runs the collective `times` times on all ranks. Before each run, rank 0 calls next(arg); next must return true
 * `times` times. Before the first call of next, each rank runs the collective once. */
void comm_row_run(const CommRow *, int64_t times, bool (*next)(void *), void *arg);

#ifdef __cplusplus
}
#endif
