/* GPTDataset and MockGPTDataset (Megatron-LM core/datasets/gpt_dataset.py): sample k in one split of one source.
 *
 *   text            s + 1 tokens from sample_index row shuffle_index[k] (gpt_index.h), padded with the pad id
 *   tokens          text[0 : s]; the pad id becomes 0
 *   labels          text[1 : s+1]; the pad id becomes 0
 *   loss_mask       1, but 0 if the label was the pad id or, with eod_mask_loss, if the token is eod
 *   position_ids    0 .. s-1; with reset_position_ids, positions restart at 0 after each eod
 *   document_start  the first position that each position may attend to: 0 or, with reset_attention_mask, the position
 *                   after the last preceding eod (Megatron-LM stores an [s, s] mask)
 *
 * A sample depends only on (seed, k) and the data. */
#pragma once

#include "data/dataset.h"
#include "data/gpt_index.h"

typedef struct GptDataset {
    DatasetPart part;
    GptPlan plan;
    GptIndex index;
} GptDataset;

/* Opens the part. Dataset kinds that modify the text of GPT samples also call this function. */
Err gpt_open(DatasetPart *);
void gpt_close(DatasetPart *);
/* Sets *text to the s + 1 tokens of sample k, and *n to the number of tokens before the padding. The caller frees
 * *text. */
Err gpt_text(const DatasetPart *, int64_t k, int64_t **text, int64_t *n);
void gpt_fill(const DataConfig *, const int64_t *text, Sample *out);

extern const DatasetKind gpt_dataset;
