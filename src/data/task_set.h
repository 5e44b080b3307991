/* A task's tokenized samples and file formats. The formats and the cleaning of text follow Megatron-LM
 * tasks/{glue,race} and tasks/data_utils.py (removed in 2025-07). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "data/preprocess.h"

/* Class names. A sample stores the index of its class's name. */
typedef struct TaskLabels {
    char **at; /* owned */
    int64_t n;
    bool open; /* whether to add new names; if false, a new name is an error */
} TaskLabels;
void task_labels_free(TaskLabels *);

/* The tokens of a text, as a range of TaskSet.ids. */
typedef struct TaskText {
    int64_t first, count;
} TaskText;

/* A sequence of one or two texts. */
typedef struct TaskRow {
    TaskText a, b;
    bool is_pair;
} TaskRow;

typedef struct TaskSet {
    int64_t choices; /* number of rows per sample */
    int64_t samples, rows, tokens;
    int64_t *label; /* [samples] */
    TaskRow *row;   /* [samples * choices] */
    int32_t *ids;   /* [tokens] */
} TaskSet;
void task_set_free(TaskSet *);

/* The file formats of a task:
 *   mnli    a header, then lines with at least 11 columns: texts in columns 9 and 10, the label in the last
 *   qqp     a header, then lines with 6 columns: texts in columns 4 and 5, the label in the last
 *   race    JSON Lines {"article", "questions", "options", "answers"}, or a folder of such files, *.txt
 *   labels  lines "label<TAB>text" or "label<TAB>text<TAB>text" */
typedef enum TaskFormat {
    TASK_FORMAT_MNLI,
    TASK_FORMAT_QQP,
    TASK_FORMAT_RACE,
    TASK_FORMAT_LABELS
} TaskFormat;

/* Returns a format's classes as a NULL-terminated list, or NULL if the format does not define classes. */
const char *const *task_format_labels(TaskFormat);
/* Adds the samples in a file or folder. A malformed line is a user error whose message names the line. */
Err task_read(TaskFormat, const char *path, PreprocessEncode *, void *ctx, TaskLabels *, TaskSet *);
