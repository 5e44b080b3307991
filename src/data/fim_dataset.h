/* GPTFIMDataset (Megatron-LM training/datasets/fim_dataset.py): the samples of a GPTDataset, rearranged so that a model
 * learns to fill in the middle of a text ("Efficient Training of Language Models to Fill in the Middle", Bavarian et
 * al., 2022).
 *
 *   A segment is the part of a sample's text between two eod tokens. With probability `rate`, the segment's
 *   text (without special tokens) is split at two random characters, and the three pieces are encoded again
 *   in this order:
 *     PSM  prefix-token prefix suffix-token suffix middle-token middle
 *     SPM  prefix-token suffix-token suffix middle-token prefix middle, with probability spm_rate
 *   A segment that contains the token `split` is not rearranged as a whole, but is selected with probability
 *   `rate`. In a selected segment, each fragment between two `split` tokens is rearranged with probability
 *   fragment_rate. A segment or fragment whose text begins with no_prefix is unchanged. Empty segments and fragments
 *   are dropped together with the token that ends them, except that the last segment may be empty. The rearranged text
 *   is truncated to the previous length, or padded with the token `pad`.
 *
 * Megatron-LM draws from one generator in the order in which samples are read. In Isotron, draws depend only
 * on the seed, the sample's number, and the position in the sample. Word 0 of a Philox block decides whether
 * a segment is rearranged. Words 1 and 2 choose the two characters, and word 3 selects SPM. */
#pragma once

#include "data/dataset.h"
#include "data/preprocess.h"

/* Decodes `n` tokens to text, omitting special tokens. The caller must free the text. Thread-safe. */
typedef Err FimDecode(void *ctx, const int32_t *tokens, size_t n, char **text, size_t *bytes);

typedef struct FimTokens {
    int64_t prefix, middle, suffix, pad, eod;
    int64_t split; /* separates the fragments of a segment; -1 if segments are not split */
} FimTokens;

/* DataConfig.kind_config for this dataset. */
typedef struct FimConfig {
    FimTokens tokens;
    double rate, spm_rate, fragment_rate; /* each in [0, 1] */
    const char *no_prefix;                /* borrowed; NULL means that any text can be rearranged */
    PreprocessEncode *encode;
    FimDecode *decode;
    void *ctx;
} FimConfig;
