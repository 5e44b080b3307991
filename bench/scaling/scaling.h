/* Scaling of a training step over numbers of ranks. Each number runs as a separate process (`bench train --ranks N`).
 * Rounds visit the numbers in alternately ascending and descending order, so a slow drift of the machine affects all
 * equally.
 *
 *   weak     the global batch is multiplied by the number of ranks
 *   strong   the global batch is constant
 *
 * The efficiency of a number of ranks is its tokens/s per rank, divided by the tokens/s per rank of the smallest
 * number in that round. The report states the interval of the median over the rounds (base/statistics.h); all
 * intervals hold simultaneously with a probability of 95 %. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { SCALING_POINTS = 32 };

typedef enum ScalingAxis { SCALING_DATA, SCALING_TENSOR, SCALING_CONTEXT, SCALING_PIPELINE } ScalingAxis;
extern const char *const SCALING_AXES[]; /* "data", ...; ends with NULL */

typedef struct BenchScaling {
    int axis; /* the ScalingAxis that additional ranks extend */
    bool strong;
    int64_t rounds;
    int64_t ranks[SCALING_POINTS]; /* ascending */
    int points;
    int64_t axis_size, batch; /* values for the smallest number of ranks */
    const char *threads;      /* --cpu-threads of every run; NULL: the value among the options */
    const char *json;         /* file for the results; NULL: none */
} BenchScaling;

/* The options that differ between runs: size of the axis and global batch for `ranks` ranks. */
int64_t scaling_axis_size(const BenchScaling *, int64_t ranks);
int64_t scaling_batch(const BenchScaling *, int64_t ranks);

/* Prints the results. `argv`: the command line, passed on to the children. */
Err bench_scaling(const BenchScaling *, char **argv);
