#include "train/attention_log.h"

#include <stdio.h>
#include <string.h>

#include "kernels/attr.h"
#include "kernels/ops.h"
#ifdef ISOTRON_CUDA
#include "kernels/cuda/attention/attention_path.h"
#endif

static const char MORE[] = "attention: and layers of other kinds, which this list is too short for\n";

/* NULL: not attention, or not on a GPU. */
static const char *path_of(const OpDef *op, const Call *c) {
    if (!c->device->cuda) return NULL;
    if (op->number == OP_attention_unfused || op->number == OP_attention_unfused_grad)
        return "own kernels, which keep all probabilities in memory: --attention-backend unfused";
#ifdef ISOTRON_CUDA
    if (op->number == OP_attention || op->number == OP_attention_grad) return attention_path(c);
#endif
    return NULL;
}

void attention_log(void *log, const OpDef *op, const Call *c) {
    char *text = ((AttentionLog *)log)->text, line[500], window[60] = "";
    const size_t room = sizeof((AttentionLog *)log)->text - strlen(text);
    const char *path = path_of(op, c);
    if (!path) return;
    const AttentionAttr *a = c->attr;
    const bool backward = op->number == OP_attention_grad || op->number == OP_attention_unfused_grad;
    if (a->window_left != WINDOW_OFF)
        snprintf(window, sizeof window, " in a window of %lld keys", (long long)a->window_left + 1);
    const int n =
        snprintf(line, sizeof line, "attention%s, %s: %s\n", window, backward ? "backward" : "forward", path);
    if (strstr(text, line) || strstr(text, MORE)) return;
    strcat(text, (size_t)n + sizeof MORE <= room ? line : MORE); /* for which room is left */
}
