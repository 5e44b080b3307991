/* Samples for fine-tuning: labelled texts, or questions with choices. Each choice for a question is a separate row in a
 * batch, and data/data.h counts each row as a sample.
 *
 *   training    each epoch is a permutation of all samples: torch.randperm with the seed plus the epoch's
 *               number, as in Megatron-LM's tasks/finetune_utils.py. An incomplete last batch is dropped, or filled
 *               with padding of weight 0 if keep_last is set.
 *   validation  each file's samples in order, followed by padding */
#pragma once

#include "data/dataset.h"
#include "data/task_set.h"

/* DataConfig.kind_config for a task. Padding tokens have the id DataConfig.pad, or 0 if DataConfig.pad is -1.
 * No position attends to padding. */
typedef struct TaskConfig {
    TaskFormat format;
    int64_t choices;          /* choices per question; 1 if samples have classes */
    const char *const *names; /* names of the classes, for formats that do not define them */
    int num_names;
    int64_t epochs;
    bool keep_last;
    /* The number of samples per training step and per validation microbatch, on all data-parallel ranks together. A
     * question counts once, not once per choice. */
    int64_t batch, valid_batch;
    bool second_type; /* whether the second text's tokens have type 1; if false, all tokens have type 0 */
    int64_t cls, sep;
    PreprocessEncode *encode;
    void *encode_ctx;
    TaskLabels *labels; /* set by data_open; the caller frees them with task_labels_free */
} TaskConfig;
