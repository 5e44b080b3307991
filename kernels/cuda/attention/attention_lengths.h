/* The lengths of padded samples in the form that cuDNN needs: one number for each (sample, group) pair. */
#pragma once

#include "base/zigzag.h"
#include "tensor/call.h"

/* Describes pairs [first, first + count) of a call. The number of queries includes padding, because padding
 * queries also attend to the keys. */
typedef struct PaddedPairs {
    const int64_t *lengths; /* lengths of the samples */
    SequenceSlice key;
    int64_t first, count, groups, queries, keys;
} PaddedPairs;

/* Writes the numbers of queries and of keys for each of the `count` pairs. */
void attention_put_lengths(const Call *, const PaddedPairs *, int32_t *queries, int32_t *keys);
/* For pairs without a key, attention_clear_blind sets the rows of x [rows,b,g,r,width] to 0 (x may be NULL),
 * and attention_clear_blind_lse sets the rows of lse [b,g,r,rows] to -inf, because cuDNN does not write all of
 * these rows. */
void attention_clear_blind(const Call *, const PaddedPairs *, const Tensor *x);
void attention_clear_blind_lse(const Call *, const PaddedPairs *, const Tensor *lse);
