/* Code shared by the datasets that mask text (BERT, T5). A sample consists of consecutive sentences of one document
 * (data/masked_index.h). */
#pragma once

#include "data/dataset.h"
#include "data/masked_index.h"
#include "data/masking.h"

/* DataConfig.kind_config for datasets that mask text. */
typedef struct MaskedConfig {
    MaskTokens tokens;                /* the special tokens; their arrays are borrowed */
    double mask_prob, short_seq_prob; /* mask_prob in (0, 1), short_seq_prob in [0, 1] */
    bool binary_head;                 /* BERT: whether a sample is a pair of segments */
    int64_t decoder_sequence_length;  /* T5 only; the encoder has DataConfig.sequence_length positions */
} MaskedConfig;

typedef struct MaskedDataset {
    DatasetPart part;
    MaskedPlan plan;
    NpyArray index;
    MaskingConfig masking;
} MaskedDataset;

static inline const MaskedConfig *masked_config(const DatasetPart *p) { return p->config->kind_config; }
/* Opens a part. Special tokens occupy `reserved` positions in each sample. */
Err masked_open(DatasetPart *, MaskingConfig, int64_t reserved, int32_t min_sentences);
void masked_close(DatasetPart *);
void masked_describe(const DatasetPart *, json_t *members);
/* Returns a user error that names the token if the tokenizer lacks it (its id is -1). */
Err masked_need(const DatasetPart *, int64_t token, const char *name);

/* The tokens of a sample's sentences, concatenated. */
typedef struct MaskedText {
    int64_t *tokens, *ends; /* owned; ends: the end of each sentence */
    int64_t sentences, target;
    Mt19937 rng; /* numpy's RandomState(seed + sample) */
} MaskedText;
Err masked_text(const DatasetPart *, int64_t k, MaskedText *out);
void masked_text_free(MaskedText *);
