/* Finds the checkpoint that a run loads, reads its options, and checks that the run's options describe the
 * checkpoint's model. */
#pragma once

#include <jansson.h>

#include "ckpt/ckpt.h"
#include "config/config.h"

typedef struct Source {
    char *dir;    /* owned; NULL if there is no checkpoint */
    int64_t step; /* -1 means the newest checkpoint */
    bool weights_only;
} Source;

/* Finds the checkpoint in the folder given by --load or, if there is none, in the folder given by
 * --pretrained-checkpoint. If there is an error, the caller has nothing to free. */
Err source_find(const Config *, Source *);
void source_free(Source *);
/* Returns an error if --load is a folder without a checkpoint, unless the run may start from scratch.
 * Megatron-LM always starts from scratch, even if the path is mistyped. */
Err source_check_missing(const Config *);
/* Checks that the options that determine the model are equal to those in `state`, the state of the checkpoint
 * in `dir`. With weights_only, options that do not affect the weights may differ. An error lists every option
 * that differs, and ends with `remedy` or, if `remedy` is NULL, with the options to set. */
Err source_check_model(const Config *, const json_t *state, const char *dir, bool weights_only,
                       const char *remedy);
/* Calls source_check_model, and checks the vocabulary size. */
Err source_check(const Config *, const Ckpt *, const char *dir, bool weights_only, const char *remedy);
/* Copies the model options that the user did not set from the checkpoint given by --load or
 * --pretrained-checkpoint. If neither a tokenizer nor --vocab-size is set, also copies the tokenizer options.
 * With --use-checkpoint-args, the folder given by --load need not contain a checkpoint yet. */
Err source_args(Config *, Arena *, Str *notes);
/* Copies the options in the given classes from `from`, except options that the user set. If `from` is NULL, copies no
 * options. */
Err source_restore(Config *, Arena *, const json_t *from, unsigned classes, Str *notes);
/* Returns the options in the given classes. The caller owns the object. */
json_t *source_options(const Config *, unsigned classes);
