/* The samples of masked datasets: runs of sentences of one document (Megatron-LM core/datasets/helpers.cpp,
 * build_mapping), equal to Megatron-LM's in every element:
 *
 *   u32[samples, 3]   first sentence, end, target length in tokens
 *
 * Each document that has enough sentences gives samples until its end: sentences are added until the target length is
 * reached, but never so that a single sentence is left over. The target is max_length, or, with the short probability,
 * a uniform length from 2 to max_length (std::mt19937). A document with several sentences, one of which is longer than
 * 512 tokens, gives no sample. Whole epochs are added until there are num_samples. All samples are then shuffled
 * (std::mt19937_64, seed + 1). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/npy.h"
#include "data/source.h"

typedef struct MaskedPlan {
    const TokenSource *source;
    int64_t begin, end;  /* documents of the split */
    int64_t num_samples; /* < 0: one epoch */
    int32_t max_length;  /* >= 2 */
    int32_t min_sentences;
    double short_probability; /* [0, 1] */
    uint32_t seed;
    /* Computed by masked_plan: */
    int64_t tokens, samples, samples_per_epoch; /* of the first epoch */
    uint64_t digest;                            /* of the samples in any order */
} MaskedPlan;

/* A user error if no document gives a sample, or if the index cannot fit the machine's memory. */
Err masked_plan(MaskedPlan *);
NpyArray masked_index_build(const MaskedPlan *);
/* Whether an array from disk holds the plan's samples. The order is not checked. */
bool masked_index_valid(const MaskedPlan *, const NpyArray *);
