/* The sample index of masked datasets. A sample consists of consecutive sentences of one document. Every
 * element equals the corresponding element in Megatron-LM (core/datasets/helpers.cpp, build_mapping):
 *
 *   u32[samples, 3]   first sentence, last sentence + 1, target length in tokens
 *
 * Each document with at least min_sentences sentences is divided into samples. A sample ends once it has min_sentences
 * sentences and its target length, unless only one sentence would remain. The target is max_length or, with probability
 * short_probability, a uniformly random length from 2 to max_length (std::mt19937). A document with several sentences
 * is skipped if one of them is longer than 512 tokens. Whole epochs are added until there are num_samples samples. All
 * samples are then shuffled (std::mt19937_64, seed + 1). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/npy.h"
#include "data/source.h"

typedef struct MaskedPlan {
    const TokenSource *source;
    int64_t begin, end;  /* the split's range of documents */
    int64_t num_samples; /* a negative number means one epoch */
    int32_t max_length;  /* >= 2 */
    int32_t min_sentences;
    double short_probability; /* [0, 1] */
    uint32_t seed;
    /* masked_plan computes the following members. */
    int64_t tokens, samples, samples_per_epoch; /* samples_per_epoch: samples in the first epoch */
    uint64_t digest;                            /* hash of the samples, independent of their order */
} MaskedPlan;

/* Computes the plan. Returns a user error if no document yields a sample, or if the index does not fit into the
 * machine's memory. */
Err masked_plan(MaskedPlan *);
NpyArray masked_index_build(const MaskedPlan *);
/* Returns whether an array from disk consists of the plan's samples, in any order. */
bool masked_index_valid(const MaskedPlan *, const NpyArray *);
