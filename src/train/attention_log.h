/* The implementations of attention on a GPU, and the reasons, from a dry run. */
#pragma once

#include "tensor/call.h"

/* A line for each direction of each kind of layer, in the order of their first calls; "" if there is none. If
 * not all fit, the last line reports that. */
typedef struct AttentionLog {
    char text[4000];
} AttentionLog;

/* A TapeTrace for a null device that plans for a GPU; other devices add nothing. `log` is an AttentionLog. */
void attention_log(void *log, const OpDef *, const Call *);
