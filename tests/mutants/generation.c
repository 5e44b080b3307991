/* Planted bugs in generation, which unit/infer/test_generate.c must find: it compares with passes over entire texts. */
#include "mutants/mutants.h"
#include "ops/paged_attention.h"

static AttentionAttr changed(AttentionAttr attr) {
    if (mutant_is_named(M_cache_ignores_window)) attr.window_left = WINDOW_OFF;
    return attr;
}

HOOK(Tensor *, op_paged_attention, Tape *t, const PagedInputs *inputs, const Pages *pages,
     AttentionAttr attr) {
    return __real_op_paged_attention(t, inputs, pages, changed(attr));
}

HOOK(Tensor *, op_rope_paged_attention, Tape *t, const PagedInputs *inputs, Tensor *cos, Tensor *sin,
     const Pages *pages, AttentionAttr attr, RopeAttr rope) {
    return __real_op_rope_paged_attention(t, inputs, cos, sin, pages, changed(attr), rope);
}
