/* Chooses which samples a data-parallel rank gets in each micro-step. Source: Megatron-LM
 * training/datasets/data_samplers.py.
 *
 *   single  all samples in order, beginning at consumed_samples. A micro-step consists of mbs * dp consecutive samples,
 *           and rank r gets the r-th block of mbs samples. The samples of a global batch do not depend on mbs and dp.
 *   cyclic  endless epochs over the samples that fill whole micro-steps. The order of an epoch is
 *           torch.randperm, seeded with the epoch's number. With sharding, each rank permutes a separate,
 *           contiguous bucket of samples. Without sharding, all ranks share one permutation. As in
 *           Megatron-LM, the order depends on mbs and dp.
 *
 * If deal > 0, samples are assigned to ranks as if mbs were `deal`. A rank then gets the same samples in the same order
 * for any mbs (--batch-invariant-mode).
 *
 * Without sharding, the last samples of an epoch may fill the micro-batches of only some ranks. In Megatron-LM, those
 * ranks then run one micro-step more than the others. In Isotron, all ranks run the same number of micro-steps. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef enum SamplerKind { SAMPLER_SINGLE, SAMPLER_CYCLIC } SamplerKind;

typedef struct SamplerConfig {
    SamplerKind kind;
    int64_t total_samples, consumed_samples; /* totals over all ranks, not per rank */
    int64_t micro_batch_size;
    int dp_rank, dp_size;
    bool keep_last;        /* single only: whether to include a partial last micro-step (drop_last=False) */
    bool no_data_sharding; /* cyclic only */
    int64_t deal;
} SamplerConfig;

typedef struct Sampler Sampler;

/* Opens a sampler. Returns a user error if no sample remains. A cyclic sampler also returns an error if
 * consumed_samples is not a multiple of mbs * dp (of deal * dp if deal > 0). */
Err sampler_open(const SamplerConfig *, Sampler **out);
void sampler_free(Sampler *); /* NULL is fine */
/* Sets `indices` to this rank's next micro-batch, which has up to micro_batch_size samples. Returns false at the end of
 * the data. A cyclic sampler has no end. With keep_last, the last micro-batch of a rank may be shorter or empty. */
bool sampler_next(Sampler *, int64_t *indices, int64_t *count);
/* Returns how many samples all ranks together have consumed, including samples in a partial micro-step. A resumed run
 * continues after this number of samples. */
int64_t sampler_consumed(const Sampler *);
