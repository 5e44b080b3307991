/* Which samples a data-parallel rank takes in each micro-step (Megatron-LM
 * training/datasets/data_samplers.py).
 *
 *   single  global order from consumed_samples on: a micro-step takes mbs * dp consecutive samples, rank r
 *           the r-th mbs of them. The samples of a global batch do not depend on how it is split.
 *   cyclic  endless epochs over the samples that fill whole micro-steps, each in the order of torch.randperm
 *           seeded with the epoch's number. With sharding every rank permutes a contiguous bucket of its
 *           own; without, all ranks deal out one permutation. The order depends on mbs and dp, as upstream.
 *
 * one_by_one deals as with micro-batches of one sample, whatever mbs is: a rank gets the same samples in the
 * same order, and mbs only says how many of them make a micro-batch (--batch-invariant-mode).
 *
 * One difference from upstream: without sharding, upstream lets some ranks run one micro-step further than
 * others in an epoch when the samples fill whole micro-batches but not a whole micro-step; here every rank
 * takes the same number. */
#ifndef ISOTRON_DATA_SAMPLER_H
#define ISOTRON_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef enum SamplerKind { SAMPLER_SINGLE, SAMPLER_CYCLIC } SamplerKind;

typedef struct SamplerConfig {
    SamplerKind kind;
    int64_t total_samples, consumed_samples; /* global, all ranks together */
    int64_t micro_batch_size;
    int dp_rank, dp_size;
    bool keep_last;        /* single only: give out the last, partial micro-step (drop_last=False) */
    bool no_data_sharding; /* cyclic only */
    bool one_by_one;
} SamplerConfig;

typedef struct Sampler Sampler;

/* A user error if no sample is left, or if (cyclic) consumed_samples is not a whole number of micro-steps
 * (one_by_one: of samples for every rank). */
Err sampler_open(const SamplerConfig *, Sampler **out);
void sampler_free(Sampler *); /* NULL is fine */
/* The next micro-batch of this rank: up to micro_batch_size indices. False at the end, which only `single`
 * has; with keep_last a rank's last micro-batch can be shorter, or empty. */
bool sampler_next(Sampler *, int64_t *indices, int64_t *count);
/* Samples that all ranks together have taken, to resume from; counts a partial micro-step as its samples. */
int64_t sampler_consumed(const Sampler *);

#endif
