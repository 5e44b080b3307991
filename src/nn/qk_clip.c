#include "nn/qk_clip.h"

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "param/bucket.h"

static void clip_rows(const QkClip *c, Registry *r, const QkClipRows *part) {
    const Param *p = part->weight;
    const FlatRange held = param_part_held(r, p);
    if (!param_is_trained(p) || held.end <= held.begin) return;
    Tensor masters =
        registry_slice(r, FLAT_MASTERS, r->masters, p->bucket, held.begin, held.end - held.begin);
    const QkClipAttr attr = {.first = param_global_row(p, 0) * p->columns + held.begin - p->offset,
                             .columns = p->columns,
                             .rows = part->rows,
                             .begin = part->begin,
                             .end = part->end,
                             .heads = c->heads,
                             .threshold = c->threshold,
                             .exponent = part->exponent};
    call_run(
        &OPS[OP_qk_clip],
        &(Call){.in = {&masters, (Tensor *)c->max}, .out = {&masters}, .attr = &attr, .device = r->device});
}

static void after_update(void *self, Registry *r) {
    const QkClip *c = self;
    for (int i = 0; i < c->n; i++) clip_rows(c, r, &c->part[i]);
}

static const StateKind QK_CLIP = {.after_update = after_update};

void qk_clip_add(Registry *r, QkClip *c) { state_add(r, &QK_CLIP, c); }
