/* The source of GPT tokens: an IndexedDataset, or Megatron-LM's mock data (MockGPTLowLevelDataset in
 * core/datasets/gpt_dataset.py). Mock data has 100000 sequences, whose lengths are default_rng(0).integers(1,
 * 4096). Sequence i of length l is 1, 2, .., l-1 (modulo the vocabulary) and the end-of-document token. */
#ifndef ISOTRON_DATA_GPT_SOURCE_H
#define ISOTRON_DATA_GPT_SOURCE_H

#include <stdint.h>

#include "base/err.h"
#include "data/indexed.h"

typedef struct GptSource {
    char *prefix;           /* owned, as the user wrote it; NULL: mock data */
    IndexedDataset indexed; /* unless mock */
    int32_t *mock_lengths;  /* owned; NULL unless mock */
    int64_t sequences, vocab_size, eod;
} GptSource;

/* prefix NULL: mock data, for which vocab_size >= 1 and eod are needed. Shared read-only by all splits and
 * threads. */
Err gpt_source_open(const char *prefix, int64_t vocab_size, int64_t eod, GptSource *out);
void gpt_source_close(GptSource *);
int32_t gpt_source_length(const GptSource *, int64_t sequence);
void gpt_source_tokens(const GptSource *, int64_t sequence, int64_t begin, int64_t count, int64_t *out);

#endif
