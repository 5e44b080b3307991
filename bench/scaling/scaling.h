/* Measures how a training step scales with the number of ranks. Each number of ranks is measured in a
 * separate process (`bench train --ranks N`). Odd rounds measure the numbers of ranks in ascending order, and
 * even rounds in descending order, so that a slow drift of the machine's speed affects all numbers equally.
 *
 *   weak     the global batch is multiplied by the number of ranks
 *   strong   the global batch is constant
 *
 * The efficiency at N ranks is the tokens/s per rank, divided by the tokens/s per rank at the smallest number
 * of ranks in the same round. The report contains a confidence interval of the median over the rounds
 * (base/statistics.h). All intervals hold simultaneously with a probability of 95 %. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { SCALING_POINTS = 32 };

typedef enum ScalingAxis { SCALING_DATA, SCALING_TENSOR, SCALING_CONTEXT, SCALING_PIPELINE } ScalingAxis;
extern const char *const SCALING_AXES[]; /* "data" and the other axes; the list ends with NULL */

typedef struct BenchScaling {
    int axis; /* the ScalingAxis whose size grows with the number of ranks */
    bool strong;
    int64_t rounds;
    int64_t ranks[SCALING_POINTS]; /* in ascending order */
    int points;
    int64_t axis_size, batch; /* axis size and global batch size in the smallest run */
    const char *threads;      /* --cpu-threads of every run; NULL for the value on the command line */
    const char *json;         /* file for the results, or NULL */
} BenchScaling;

/* Return the two options that differ between runs: the axis size, and the global batch size of a run with `ranks`
 * ranks. */
int64_t scaling_axis_size(const BenchScaling *, int64_t ranks);
int64_t scaling_batch(const BenchScaling *, int64_t ranks);

/* Prints the results. `argv` is the command line, which is passed to the child processes. */
Err bench_scaling(const BenchScaling *, char **argv);
