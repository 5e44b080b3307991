/* Opens the data that the options describe. Only data_options.c sets dataset configurations. */
#pragma once

#include "config/config.h"
#include "data/data.h"
#include "data/fim_dataset.h"
#include "data/masking.h"
#include "data/task_set.h"

/* The tokenizer properties that the data needs. An id is -1 if the tokenizer has no such token. */
typedef struct TokenFacts {
    int64_t eod, pad, vocab_size; /* If there is no tokenizer, the ids are -1 and the size is 0 */
    MaskTokens mask;              /* for --model bert and t5; its arrays must outlive the data */
    /* identifies the tokenizer in the index cache's file names; NULL if there is no tokenizer */
    const char *tokenizer_json;
    FimTokens fim;            /* for --fim-data */
    PreprocessEncode *encode; /* tokenizes texts, for records and --fim-data */
    FimDecode *decode;        /* for --fim-data */
    void *text_ctx;           /* the first argument of encode and decode */
    TaskLabels *labels;       /* for a task; set when the data is opened */
} TokenFacts;

/* Opens the data. If `read_only` is true, no file is changed. The lists of paths must outlive the data. */
Err data_open_options(const Config *, const TokenFacts *, bool read_only, Data **out);
