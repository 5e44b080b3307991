#include "ops/quantized.h"

#include "kernels/ops.h"
#include "tape/tape_ops.h"

/* Returns the largest |x| of each token over all ranks, because each rank has only some of the token's
 * columns. */
static Tensor *whole_amax(Tape *t, Tensor *x) {
    Tensor *amax = tape_scratch(t, x->dtype == F64 ? F64 : F32, 1, (int64_t[]){tensor_rows(x)});
    tape_call(t, &OPS[OP_row_amax], (Call){.in = {x}, .out = {amax}});
    Tensor bits = tensor_make(amax->data, amax->dtype == F64 ? I64 : I32, 1, amax->dim);
    tape_comm(
        t, &OPS[OP_amax_all_reduce],
        (CommCall){.kind = COMM_ALL_REDUCE, .reduction = COMM_MAX, .group = tape_group(t, 1u << AXIS_TP)},
        &bits, &bits);
    return amax;
}

void quantized_forward(Tape *t, const LinearAttr *attr, const Tensor *inverse, Call call) {
    Tensor *x = call.in[0];
    const bool shards_rows =
        call.in[1]->dtype == F8E4M3 && call.in[1]->cut == 2 && spmd_on(call.in[1]->spmd, AXIS_TP) == SPMD_V;
    call.in[3] = (Tensor *)inverse;
    call.in[4] = shards_rows ? whole_amax(t, x) : NULL;
    call.attr = attr;
    tape_call(t, &OPS[OP_linear_quantized], call);
    if (call.in[4]) tape_drop(t, call.in[4]);
}
