/* The samples of a data-parallel rank in each micro-step (Megatron-LM training/datasets/data_samplers.py).
 *
 *   single  global order from consumed_samples on: a micro-step takes mbs * dp consecutive samples, rank r
 *           the r-th mbs of them. The samples of a global batch do not depend on how it is split.
 *   cyclic  endless epochs over the samples that fill whole micro-steps, each in the order of torch.randperm
 *           seeded with the epoch's number. With sharding every rank permutes its own contiguous bucket;
 *           without it all ranks share one permutation. The order depends on mbs and dp, as upstream.
 *
 * deal > 0 deals samples as if micro-batches had that many: a rank gets the same samples in the same order for
 * any mbs, which only sets how many of them form a micro-batch (--batch-invariant-mode).
 *
 * One difference from upstream concerns an epoch without sharding whose samples fill whole micro-batches but
 * not a whole micro-step. Upstream lets some ranks run one micro-step more than others; here every rank takes
 * the same number. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef enum SamplerKind { SAMPLER_SINGLE, SAMPLER_CYCLIC } SamplerKind;

typedef struct SamplerConfig {
    SamplerKind kind;
    int64_t total_samples, consumed_samples; /* global, all ranks together */
    int64_t micro_batch_size;
    int dp_rank, dp_size;
    bool keep_last;        /* single only: also deal the last, partial micro-step (drop_last=False) */
    bool no_data_sharding; /* cyclic only */
    int64_t deal;
} SamplerConfig;

typedef struct Sampler Sampler;

/* A user error if no sample is left, or (cyclic) if consumed_samples is not a multiple of a micro-step
 * (deal: of that number times the ranks). */
Err sampler_open(const SamplerConfig *, Sampler **out);
void sampler_free(Sampler *); /* NULL is fine */
/* The next micro-batch of this rank: up to micro_batch_size indices. False at the end, which only `single`
 * has; with keep_last the last micro-batch of a rank may be shorter, or empty. */
bool sampler_next(Sampler *, int64_t *indices, int64_t *count);
/* The number of samples that all ranks have used, to resume from; those of a partial micro-step count. */
int64_t sampler_consumed(const Sampler *);
