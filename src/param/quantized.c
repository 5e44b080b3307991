#include "param/quantized.h"

#include "kernels/ops.h"

size_t quantized_stage_bytes(const Registry *r) {
    int64_t most = 0;
    for (int i = 0; i < r->n; i++)
        if (param_is_quantized(r->params[i]) && r->params[i]->count > most) most = r->params[i]->count;
    return (size_t)most * dtype_size(r->storage);
}

/* Returns the number of elements. If there is memory, sets the tensors' addresses. */
static int64_t lay(Registry *r) {
    int64_t at = 0;
    for (int i = 0; i < r->n; i++) {
        Param *p = r->params[i];
        if (!param_is_quantized(p)) continue;
        char *data = r->row_scales ? (char *)r->row_scales + (size_t)at * dtype_size(r->precise) : NULL;
        p->inverse = tensor_make(data, r->precise, 1, &p->rows);
        at += (p->rows + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    }
    return at;
}

void quantized_allocate(Registry *r) {
    r->row_scale_bytes = (size_t)lay(r) * dtype_size(r->precise);
    r->row_scales = device_alloc(r->device, r->row_scale_bytes, "the scales of quantized weights");
    lay(r);
}

/* Combines amaxes as integers: non-negative floats have the same order as their bit patterns, and NaN is
 * greater than all numbers. NCCL's maximum of floats does not preserve NaN. */
static void combine(const Registry *r, Comm *comm, Tensor *amax) {
    const Group ranks = mesh_group(&r->layout.mesh, 1u << AXIS_TP);
    if (comm && ranks.size > 1)
        comm_run(comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                   .reduction = COMM_MAX,
                                   .dtype = r->precise == F64 ? I64 : I32,
                                   .group = ranks,
                                   .site = "quantized",
                                   .in = amax->data,
                                   .out = amax->data,
                                   .n = tensor_count(amax),
                                   .device = r->device});
}

void quantized_cast(Registry *r, Comm *comm, Param *p, void *values) {
    Tensor x = tensor_make(values, r->storage, 2, (int64_t[]){p->rows, p->columns});
    call_run(&OPS[OP_row_amax], &(Call){.in = {&x}, .out = {&p->inverse}, .device = r->device});
    if (p->spec.tp_split == 1) combine(r, comm, &p->inverse);
    call_run(&OPS[OP_row_cast], &(Call){.in = {&x}, .out = {&p->value, &p->inverse}, .device = r->device});
}
