#include "train/attention_log.h"

#include <stdio.h>
#include <string.h>

#include "kernels/attr.h"
#include "kernels/ops.h"

static const char MORE[] = "attention: this list has no space for the other kinds of layers\n";

static bool is_unfused(const OpDef *op) {
    return op->number == OP_attention_unfused || op->number == OP_attention_unfused_grad;
}

static bool is_backward(const OpDef *op) {
    return op->number == OP_attention_grad || op->number == OP_attention_unfused_grad;
}

void attention_log(void *log, const OpDef *op, const Call *c) {
    char *text = ((AttentionLog *)log)->text, line[500], window[60] = "";
    const size_t room = sizeof((AttentionLog *)log)->text - strlen(text);
    const bool attends = is_unfused(op) || op->number == OP_attention || op->number == OP_attention_grad;
    const char *path = attends ? call_path(op, c) : NULL;
    if (!path) return;
    const AttentionAttr *a = c->attr;
    if (a->window_left != WINDOW_OFF)
        snprintf(window, sizeof window, " in a window of %lld keys", (long long)a->window_left + 1);
    if (a->chunk_size) snprintf(window, sizeof window, " in chunks of %lld keys", (long long)a->chunk_size);
    const int n = snprintf(
        line, sizeof line, "attention%s, %s: %s%s\n", window, is_backward(op) ? "backward" : "forward", path,
        is_unfused(op) ? ", which keep all probabilities in memory: --attention-backend unfused" : "");
    if (strstr(text, line) || strstr(text, MORE)) return;
    strcat(text, (size_t)n + sizeof MORE <= room ? line : MORE); /* the check reserves room for MORE */
}
