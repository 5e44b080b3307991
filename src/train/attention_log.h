/* Lists, in a dry run, the attention implementations that a GPU would use, and why. */
#pragma once

#include "tensor/call.h"

/* There is one line for each direction of each kind of attention layer, in the order of the first calls. The
 * text is "" if there is no such layer. If a line does not fit, the last line states that lines are missing. */
typedef struct AttentionLog {
    char text[4000];
} AttentionLog;

/* A TapeTrace for a null device that plans for a GPU. The function adds nothing for other devices. `log` is an
 * AttentionLog. */
void attention_log(void *log, const OpDef *, const Call *);
