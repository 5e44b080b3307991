/* The checkpoint that a run loads: where it is, whether it is of the model that the options describe, and
 * the options in it. */
#pragma once

#include <jansson.h>

#include "ckpt/ckpt.h"
#include "config/config.h"

typedef struct Source {
    char *dir;    /* owned; NULL: there is no checkpoint */
    int64_t step; /* -1: the newest */
    bool weights_only;
} Source;

/* Finds --load or, while that is empty, --pretrained-checkpoint. On an error there is nothing to free. */
Err source_find(const Config *, Source *);
void source_free(Source *);
/* The error of a --load without a checkpoint, unless a run may start from scratch there. Megatron-LM always starts from
 * scratch, so a mistyped path costs a day. */
Err source_check_missing(const Config *);
/* The options that determine what the model computes must be equal to those in the state of the checkpoint in
 * `dir`; with weights_only lengths and dropout may differ. An error names every different option. */
Err source_check_model(const Config *, const json_t *state, const char *dir, bool weights_only);
/* The same, and the vocabulary. */
Err source_check(const Config *, const Ckpt *, const char *dir, bool weights_only);
/* Sets the model options that the user did not give from the checkpoint in --load (or
 * --pretrained-checkpoint). If neither a tokenizer nor --vocab-size is given, also sets the tokenizer's. With
 * --use-checkpoint-args there may be no checkpoint yet. */
Err source_args(Config *, Arena *, Str *notes);
/* Sets the options of these classes that the user did not give from an object of options; NULL: none. */
Err source_restore(Config *, Arena *, const json_t *from, unsigned classes, Str *notes);
/* The options of these classes. The caller owns the object. */
json_t *source_options(const Config *, unsigned classes);
