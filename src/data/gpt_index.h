/* The three indices that turn documents into shuffled samples of s + 1 tokens. Every element equals the
 * corresponding element in Megatron-LM (core/datasets/gpt_dataset.py, and build_sample_idx in helpers.cpp):
 *
 *   document_index  i32[E * n]         E epochs of the split's n sequences, shuffled
 *   sample_index    i32[samples+1, 2]  the start of each sample: a position in document_index, and an offset
 *                                      in the sequence at that position. Each sample begins with the last
 *                                      token of the preceding one. (i64 if there are more than 2^31-1
 *                                      positions)
 *   shuffle_index   u32[samples]       sample k of the run is row shuffle_index[k] of sample_index. (i64 if
 *                                      there are at least 2^32-2 samples)
 *
 * E is the smallest number of epochs with E * T >= num_samples * s + 1, where T is the number of tokens in the split.
 * If less than 80 % of the last epoch is needed, this epoch is shuffled separately and comes last, so that no document
 * is over-represented. One numpy RandomState(seed) shuffles the documents first and then the samples. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/npy.h"
#include "data/source.h"

typedef struct GptIndex {
    NpyArray document, sample, shuffle;
} GptIndex;

/* All properties of an index except its random order. */
typedef struct GptPlan {
    const TokenSource *source;
    int64_t begin, end; /* the split's range of sequences */
    int64_t sequence_length;
    int64_t tokens, epochs; /* T and E, as defined above */
    int64_t samples;
    /* How many samples are shuffled together; fewer than `samples` if the last epoch is shuffled separately. */
    int64_t joint_samples;
} GptPlan;

/* num_samples < 0 means one epoch. If drop_last is false, the last, shorter sample is kept; as in
 * Megatron-LM, the number of samples is then rounded up in single precision. Returns a user error if the
 * split has no tokens, or if the index does not fit into the machine's memory. */
Err gpt_plan(const TokenSource *, int64_t begin, int64_t end, int64_t num_samples, int64_t sequence_length,
             bool drop_last, GptPlan *out);
GptIndex gpt_index_build(const GptPlan *, uint32_t seed);
/* Returns true if an index from disk can belong to this plan. Checks that the types and shapes are correct,
 * and that every document occurs E times. Also checks that every sample starts at the correct position, and
 * occurs once in its part of the shuffle. */
bool gpt_index_valid(const GptPlan *, const GptIndex *);
void gpt_index_free(GptIndex *);
