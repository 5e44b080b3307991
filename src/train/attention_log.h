/* In a dry run, lists the attention implementations that a GPU would use, and the reasons. */
#pragma once

#include "tensor/call.h"

/* The list has a line for each pass (forward and backward) of each kind of attention layer, in the order of the
 * first calls. The text is empty if there is no attention layer. If a line does not fit, the last line states
 * that lines are missing. */
typedef struct AttentionLog {
    char text[4000];
} AttentionLog;

/* A TapeTrace for a null device that plans for a GPU. For other devices, the function adds nothing. `log` is an
 * AttentionLog. */
void attention_log(void *log, const OpDef *, const Call *);
