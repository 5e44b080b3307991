/* The data of fine-tuning: samples of labelled texts, or of questions with choices. Each choice of a question is a row
 * of a batch, and rows are numbered as samples (data/data.h).
 *
 *   training    each epoch is a permutation of all samples: torch.randperm with the seed + the epoch's number, as
 *               Megatron-LM's tasks/finetune_utils.py shuffles. Samples that do not fill the last batch are left out
 *               or, with keep_last, padding with weight 0 fills it
 *   validation  each file in its order, with padding at its end */
#ifndef ISOTRON_DATA_TASK_H
#define ISOTRON_DATA_TASK_H

#include "data/data.h"
#include "data/task_set.h"

typedef struct TaskConfig {
    TaskFormat format;
    int64_t choices; /* of a question; 1: samples have classes */
    const char *const *train, *const *valid;
    int num_train, num_valid;  /* num_train 0: evaluation only */
    const char *const *labels; /* if the format has none; 0: those of the training files, sorted */
    int num_labels;
    int64_t epochs;
    uint32_t seed;
    bool keep_last;
    /* samples, without their choices: of a step, and of a microbatch of all data-parallel ranks */
    int64_t batch, valid_batch;
    int64_t sequence_length;
    bool second_type;      /* tokens of the second text have type 1; else all have type 0 */
    int64_t cls, sep, pad; /* pad -1: padding is id 0, which no position attends to */
    PreprocessEncode *encode;
    void *encode_ctx;
} TaskConfig;

typedef struct Task Task;

/* Reads all files. The paths are borrowed. */
Err task_open(const TaskConfig *, Task **out);
void task_close(Task *); /* NULL is fine */
const TaskLabels *task_labels(const Task *);
int64_t task_choices(const Task *);
int64_t task_steps_per_epoch(const Task *); /* 0 without training files */
int64_t task_train_samples(const Task *);   /* of an epoch, before any is left out */
const Dataset *task_train(const Task *);    /* of all epochs; NULL without training files */
int task_valid_files(const Task *);
const Dataset *task_valid(const Task *, int file);
int64_t task_valid_samples(const Task *, int file);
const char *task_valid_name(const Task *, int file); /* the path */
const char *task_fingerprint(const Task *);          /* as data_fingerprint, of tokens and labels */

#endif
