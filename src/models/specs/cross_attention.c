#include "models/specs.h"
#include "nn/cross_attention.h"

/* Cross-attention has no position embedding and no window: every query attends to all keys. */
void cross_attention_spec(const LayerPlace *p, BranchSpec *out) {
    CrossAttentionSpec *s = arena_alloc(p->arena, sizeof *s);
    *s = (CrossAttentionSpec){spec_attention(p), p->stack->encoder_positions};
    s->attention.rope = (RopeSpec){0};
    s->attention.relative = (RelativeSpec){.name = NULL};
    s->attention.window_left = s->attention.window_right = WINDOW_OFF;
    out->spec = s;
}
