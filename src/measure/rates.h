/* Predicts the time of an op of any size from times measured on a device. `bench rates` writes the file with these
 * times; `plan --rates` reads it.
 *
 * A rate's name is an op, the type of its first operand, and properties of the call that select a kernel. Examples are
 * "linear BF16 fixed" (sums in a fixed order), "fp8_gemm FP8 blocks" and "attention_grad BF16 causal deterministic". A
 * rate's size has one of these forms:
 *
 *     GEMM            [m, n, k]
 *     grouped GEMM    [m, n, k, experts], where m, or k of a weight's gradient, is the number of rows per expert
 *     attention       [queries * heads * samples, keys, head dim]; a window of w keys counts as 2 w keys if causal
 *     any other op    [bytes] (work_bytes)
 *
 * A time by bytes is interpolated linearly between measured sizes. Below the smallest and above the largest size,
 * bytes/s are constant, but no time is below the shortest time in the file.
 *
 * Other ops have a roofline with measured efficiencies. Let f(x) be the product of all x_i + tile, except that the tile
 * is not added to the number of experts. f(x) has terms for a GEMM's FLOPs, memory traffic and latency. On a GPU, the
 * tile is 128, the side of a tile; on a CPU, it is 8, the number of floats in a vector. The estimate is f(x) times the
 * sum of all measured times, divided by the sum of their f. Each measured time t(p) limits the estimate. If larger calls
 * are at least as efficient, then
 *
 *     t(x) <= t(p) f(max(x, p)) / f(p), and t(x) >= t(p) f(min(x, p)) / f(p), with elementwise max and min.
 *
 * Finally, the estimate is at least the time of every measured size that is not larger in any number, and at most the
 * time of every measured size that is not smaller in any number. If measured times increase with size, the result at a
 * measured size is thus the measured time. A prediction never decreases if a size or a measured time increases.
 *
 * An op without rates takes its roofline time, max(bytes / bytes per s, FLOPs / FLOP/s of a large GEMM). */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "kernels/ops.h"
#include "measure/links.h"

enum { RATES_VERSION = 1, RATES_MOST = 1 << 20, RATE_SIZES = 4, RATE_NAME = 64 };

/* A call's work, or a measured call. */
typedef struct Rate {
    char name[RATE_NAME];
    int sizes;
    double size[RATE_SIZES];
    double ns;
} Rate;

typedef struct Rates {
    char device[200];    /* the text of device_describe */
    char date[32];       /* of the measurement */
    double tile;         /* in the formula for GEMMs and attention */
    double launch_ns;    /* the host's time for starting an op; 0 if ops are synchronous */
    double copy;         /* bandwidth in GB/s, or 0 if not measured */
    double gemm[DTYPES]; /* GFLOP/s of a large GEMM, or 0 if not measured */
    Rate *rate;          /* [n], sorted by name and size */
    int n;
    double least_ns; /* the shortest time; set by rates_sort */
    Links links;
} Rates;

/* Returns the name and size of a call, with ns = 0. */
Rate rate_of(const OpDef *, const Call *);

/* How a time was predicted: between measured sizes, outside of measured sizes, without rates for the op. */
typedef enum RateSource { RATE_MEASURED, RATE_BEYOND, RATE_ROOF, RATE_NONE, RATE_SOURCES } RateSource;
/* Predicts a call's time in ns. RATE_NONE, with 0 ns, means that there is no roofline for its type either. */
double rates_time(const Rates *, const OpDef *, const Call *, RateSource *);

/* Sorts the rates, and replaces decreasing times by their mean if sizes are bytes. */
void rates_sort(Rates *);
/* Release the rates with rates_free, even after an error. */
Err rates_read(const char *path, Rates *);
/* Returns the members that rates_read reads. */
json_t *rates_json(const Rates *);
void rates_free(Rates *);
