/* Defines the effects of options whose values differ between a run and the checkpoint that the run loads. */
#pragma once

#include <jansson.h>

#include "base/str.h"

/* The effects of a different value: X(name, text of the note). */
#define OPTION_CHANGES(X)                                                                                    \
    X(ORDER, "the order of the data and the dropout change")                                                 \
    X(DATA, "the samples or their order change")                                                             \
    X(BATCH, "the samples of each step change")                                                              \
    X(RATE, "the learning rates of the remaining steps change")                                              \
    X(DECAY, "the weight decay of the remaining steps changes")                                              \
    X(UPDATE, "the updates of the parameters change")                                                        \
    X(TOKENS, "the token ids in the data must be those of this tokenizer")                                   \
    X(LENGTH, "the last step changes")                                                                       \
    X(DROPOUT, "the dropout of the remaining steps changes")                                                 \
    X(ROUTING, "the routing of the remaining steps changes")                                                 \
    X(ROUNDING, "values are rounded differently")

typedef enum OptionChange {
    /* also used for options that change the model, because a different value of such an option is an error */
    CHANGES_NOTHING,
#define X(name, text) CHANGES_##name,
    OPTION_CHANGES(X)
#undef X
} OptionChange;

OptionChange option_change(int option);
const char *option_change_text(OptionChange);
/* Appends text such as "--hidden-size is 128, but the checkpoint has 64". */
void option_difference(int option, const json_t *here, const json_t *there, Str *out);
