#include "param/fp8_weights.h"

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "param/bucket.h"

void fp8_weight_add(Registry *r, Param *p, Fp8Weight w) {
    if (!p->fp8) p->fp8 = arena_alloc(r->arena, sizeof *p->fp8);
    *p->fp8 = w;
}

Tensor fp8_weight_rows(const Param *buffer, int64_t row, int64_t n) {
    const Tensor *all = &buffer->master;
    const DType type = (DType)all->dtype;
    return tensor_make((char *)all->data + row * all->dim[1] * (int64_t)dtype_size(type), type, 2,
                       (int64_t[]){n, all->dim[1]});
}

/* ---- memory: all amaxes (first those of dense weights), combined in one message each, followed by the scales ---- */

static int64_t take(Registry *r, Tensor *t, int64_t at, int64_t n) {
    const size_t each = dtype_size(r->precise);
    *t = tensor_make(r->fp8_scales ? (char *)r->fp8_scales + (size_t)at * each : NULL, r->precise, 1, &n);
    return at + (n + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
}

static int64_t rows_of_each(const Param *p) { return p->rows / p->fp8->matrices; }

static int64_t blocks_of(const Param *p) {
    return p->fp8->matrices * fp8_blocks_count(p->fp8->blocks, rows_of_each(p), p->columns);
}

static int64_t lay_amaxes(Registry *r, bool expert, int64_t at) {
    for (int i = 0; i < r->n; i++) {
        Param *p = r->params[i];
        if (p->fp8 && p->spec.expert == expert) at = take(r, &p->fp8->amaxes, at, blocks_of(p));
    }
    return at;
}

/* Returns the number of elements. If there is memory, sets the tensors' addresses. */
static int64_t lay(Registry *r) {
    int64_t at = r->fp8_dense_amaxes = lay_amaxes(r, false, 0);
    at = r->fp8_amaxes = lay_amaxes(r, true, at);
    for (int i = 0; i < r->n; i++) {
        Param *p = r->params[i];
        Fp8Weight *w = p->fp8;
        if (!w) continue;
        at = take(r, &w->inverse, at, blocks_of(p));
        w->inverse_turned = w->inverse;
        if (w->blocks != FP8_WHOLE)
            at = take(r, &w->inverse_turned, at,
                      w->matrices * fp8_blocks_count(w->blocks, p->columns, rows_of_each(p)));
    }
    return at;
}

void fp8_weights_allocate(Registry *r) {
    r->fp8_scale_bytes = (size_t)lay(r) * dtype_size(r->precise);
    r->fp8_scales = device_alloc(r->device, r->fp8_scale_bytes, "the scales of FP8 weights");
    lay(r);
}

/* ---- casts ---- */

static Fp8PartAttr part_attr(const Registry *r, const Param *p, FlatRange part) {
    return (Fp8PartAttr){.matrices = p->fp8->matrices,
                         .rows = rows_of_each(p),
                         .columns = p->columns,
                         .first = part.begin - p->offset,
                         .blocks = p->fp8->blocks,
                         .rounded = r->storage};
}

static void find_amaxes(const Registry *r, const Param *p) {
    const FlatRange part = param_part_held(r, p);
    const Fp8PartAttr attr = part_attr(r, p, part);
    if (part.end <= part.begin) return;
    Tensor x = registry_slice(r, FLAT_MASTERS, r->masters, p->bucket, part.begin, part.end - part.begin);
    call_run(&OPS[OP_fp8_amax_part],
             &(Call){.in = {&x}, .out = {&p->fp8->amaxes}, .attr = &attr, .device = r->device});
}

/* Casts this rank's part. Computes the scales of all blocks even if this rank holds no part of the weight. */
static void cast(const Registry *r, const Param *p) {
    FlatRange part = param_part_held(r, p);
    if (part.end < part.begin) part.begin = part.end = p->offset;
    const Fp8PartAttr attr = part_attr(r, p, part);
    const int64_t n = part.end - part.begin;
    Fp8Weight *w = p->fp8;
    Tensor x = tensor_make(NULL, r->precise, 1, &n), y = tensor_make(NULL, F8E4M3, 1, &n), row;
    if (n) x = registry_slice(r, FLAT_MASTERS, r->masters, p->bucket, part.begin, n);
    if (n) y = registry_slice(r, FLAT_FP8, r->fp8, p->bucket, part.begin, n);
    if (w->history) row = fp8_weight_rows(w->history, w->row, w->matrices);
    call_run(&OPS[OP_fp8_cast_part],
             &(Call){.in = {&x, &w->amaxes, w->history ? &row : NULL},
                     .out = {&y, &w->inverse, w->blocks == FP8_WHOLE ? NULL : &w->inverse_turned},
                     .attr = &attr,
                     .device = r->device});
}

/* Combines a group's amaxes as integers, because non-negative floats have the same order as their bit patterns. NCCL's
 * maximum of floats does not preserve NaN. */
static void combine(const Registry *r, Comm *comm, Group group, Tensor *amaxes) {
    if (comm && group.size > 1)
        comm_run(comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                   .reduction = COMM_MAX,
                                   .dtype = r->precise == F64 ? I64 : I32,
                                   .group = group,
                                   .site = "fp8_weights",
                                   .in = amaxes->data,
                                   .out = amaxes->data,
                                   .n = tensor_count(amaxes),
                                   .device = r->device});
}

/* Combines `n` amaxes from element `first` on, which belong to weights like `p`. A block belongs to one rank along the
 * axis of its shards; only the amax of an entire weight is combined over this axis. */
static void combine_all(const Registry *r, Comm *comm, const Param *p, int64_t first, int64_t n) {
    if (!p || p->fp8->history) return;
    Tensor amaxes =
        tensor_make((char *)r->fp8_scales + (size_t)first * dtype_size(r->precise), r->precise, 1, &n);
    const Axis shards = p->spec.expert ? AXIS_ETP : AXIS_TP;
    combine(r, comm, r->buckets[p->bucket].inner, &amaxes);
    if (p->fp8->blocks == FP8_WHOLE) combine(r, comm, mesh_group(&r->layout.mesh, 1u << shards), &amaxes);
}

/* All ranks in a group must call this function, even those that hold no part of a weight. */
void fp8_weights_cast(Registry *r, Comm *comm) {
    Tensor all = tensor_make(r->fp8_scales, r->precise, 1, &r->fp8_amaxes);
    const FillAttr zero = {0};
    const Param *any[2] = {NULL, NULL}; /* [expert] */
    if (!r->fp8_amaxes) return;
    call_run(&OPS[OP_fill], &(Call){.out = {&all}, .attr = &zero, .device = r->device});
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        if (p->fp8) find_amaxes(r, any[p->spec.expert] = p);
    }
    combine_all(r, comm, any[0], 0, r->fp8_dense_amaxes);
    combine_all(r, comm, any[1], r->fp8_dense_amaxes, r->fp8_amaxes - r->fp8_dense_amaxes);
    for (int i = 0; i < r->n; i++)
        if (r->params[i]->fp8) cast(r, r->params[i]);
}
