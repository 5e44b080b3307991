/* Muon's update (Jordan et al., 2024) for weights with PARAM_MATRIX, as in Megatron-LM
 * core/optimizer/emerging_optimizers.py and in NVIDIA's Emerging-Optimizers. Muon replaces the singular values of a
 * moving average of the gradients with numbers near 1, and scales the result by a factor that depends on the matrix's
 * size.
 *
 *   m = beta m + (1 - beta) g,  u = m, or u = beta m + (1 - beta) g with --muon-nesterov p -= lr (scale NS(u) +
 *                               weight_decay p)
 *   NS: x = u / |u|, where |u| is the Frobenius norm. Each step then replaces x with a x + (b A + c A^2) x, where
 *       A = x x^T and (a, b, c) depend on the step. If x^T x is smaller than x x^T, A = x^T x, and x becomes a
 *       x + x (b A + c A^2).
 *
 * Each expert's weight is a separate matrix. With --muon-no-split-qkv, a fused QKV weight is one matrix;
 * otherwise, q, k and v of all heads form one matrix each. Every other weight is one matrix; for example, a
 * gated MLP's gate and up-projection together form one matrix. Sums of squares are exact (base/exact_sum.h). If
 * ranks have shards of a weight, --muon-tp-mode selects the computation:
 *
 *   `duplicated`   gathers u, and computes NS of the full matrix on each rank.
 *   `distributed`  computes each rank's shard of NS; |u| and A (over the sharded dimension) are sums over ranks.
 *   `blockwise`    computes NS of each rank's shard, so the result depends on the number of ranks. */
#pragma once

#include "config/config.h"
#include "param/param.h"
#include "param/sync.h"

typedef struct Muon Muon;

/* Allocates memory for the largest weight that this rank updates. The arguments must outlive the Muon. Returns NULL if
 * no parameter has PARAM_MATRIX. */
Muon *muon_new(const Config *, Registry *, Sync *);
void muon_free(Muon *);
size_t muon_bytes(const Muon *); /* returns 0 for NULL */

/* The flat slices of a weight's gradient, momentum and master. */
typedef struct MuonSlices {
    Tensor grad, momentum, master;
} MuonSlices;
/* Updates the momentum and the master. `numbers` contains the StepNumbers. All ranks that hold shards of the
 * weight must call this function. */
void muon_update(const Muon *, const Param *, MuonSlices, Tensor *numbers);
