/* GPTDataset and MockGPTDataset (Megatron-LM core/datasets/gpt_dataset.py): sample k of a split of one
 * source.
 *
 *   text            s + 1 tokens from sample_index row shuffle_index[k] (gpt_index.h), padded with the pad id
 *   tokens          text[0 : s]; the pad id becomes 0
 *   labels          text[1 : s+1]; the pad id becomes 0
 *   loss_mask       1; 0 where the label was the pad id, and with eod_mask_loss where the token is eod
 *   position_ids    0 .. s-1; with reset_position_ids they restart at 0 after each eod
 *   document_start  the first position that a position may attend to: 0, or with reset_attention_mask the one
 *                   after the last eod before it (upstream's [s, s] mask in s numbers)
 *
 * A sample depends on (seed, k) and the data alone. */
#ifndef ISOTRON_DATA_GPT_DATASET_H
#define ISOTRON_DATA_GPT_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "data/batch.h"
#include "data/blend.h"
#include "data/gpt_index.h"

typedef struct GptConfig {
    int64_t sequence_length; /* s */
    uint32_t seed;
    int64_t vocab_size; /* an id outside [0, vocab_size) is a user error; 0: not checked */
    int64_t eod, pad;   /* -1: none */
    bool eod_mask_loss, reset_position_ids, reset_attention_mask;
    bool keep_last_partial_validation; /* upstream's drop_last_partial_validation_sequence off */
    /* The index cache. NULL: <prefix>/cache/GPTDataset_indices, and no cache for mock data. If ranks share a
     * folder, one must build before the others start. */
    const char *cache_dir;
    /* Other facts in Megatron-LM's description, and so in the cache's file names: */
    const char *split;        /* as the user wrote it; NULL if each split has its own data */
    const SplitRange *ranges; /* [SPLIT_COUNT], NULL with split NULL */
    /* the tokenizer's identifiers, an object of strings and numbers; NULL: null */
    const char *tokenizer_json;
} GptConfig;

typedef struct GptDataset {
    const GptSource *source; /* borrowed */
    const GptConfig *config; /* borrowed */
    DataSplit split;
    int64_t num_samples; /* number requested; < 0: one epoch */
    GptPlan plan;
    GptIndex index;
} GptDataset;

/* Builds the indices of `split` over sequences [begin, end) of the source, or maps them from the cache if it
 * has all of them. A damaged cache is rebuilt. */
Err gpt_dataset_open(const GptSource *, const GptConfig *, DataSplit split, int64_t begin, int64_t end,
                     int64_t num_samples, GptDataset *out);
void gpt_dataset_close(GptDataset *);
int64_t gpt_dataset_length(const GptDataset *); /* samples, >= num_samples */
/* Sample k of [0, length). A user error if an id is outside the vocabulary. Any thread may call. */
Err gpt_dataset_get(const GptDataset *, int64_t k, Sample *out);

/* Upstream's unique description: the JSON object whose MD5 names the cache, with members indented by depth +
 * 1 levels. */
Err gpt_dataset_describe(const GptDataset *, int depth, Str *out);
/* <dir>/<md5 of description>-<class>-<split>-<what> (owned by the caller) */
char *gpt_cache_path(const char *dir, const char *md5, const char *class_name, DataSplit split,
                     const char *what);
/* Whether the content of the description file is exactly this text. */
bool gpt_cache_describes(const char *path, const Str *description);

#endif
