/* The samples of fine-tuning: labelled texts, or questions with choices. Each choice of a question is a row of a batch,
 * and rows are numbered as samples (data/data.h).
 *
 *   training    each epoch is a permutation of all samples: torch.randperm with the seed + the epoch's number, as
 *               Megatron-LM's tasks/finetune_utils.py shuffles. An incomplete last batch is left out or, with
 *               keep_last, filled with padding of weight 0
 *   validation  each file in its order, with padding at its end */
#pragma once

#include "data/dataset.h"
#include "data/task_set.h"

/* DataConfig.kind_config of a task. The padding is DataConfig.pad; -1: id 0, which no position attends to. */
typedef struct TaskConfig {
    TaskFormat format;
    int64_t choices;          /* of a question; 1: samples have classes */
    const char *const *names; /* of classes, if the format has none; 0: those of the training files, sorted */
    int num_names;
    int64_t epochs;
    bool keep_last;
    /* samples, without their choices: of a step, and of a microbatch of all data-parallel ranks */
    int64_t batch, valid_batch;
    bool second_type; /* tokens of the second text have type 1; else all have type 0 */
    int64_t cls, sep;
    PreprocessEncode *encode;
    void *encode_ctx;
    TaskLabels *labels; /* set by data_open; the caller's, to release with task_labels_free */
} TaskConfig;
