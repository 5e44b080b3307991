/* The tape does not record this op, because only generation uses it. */
#include "ops/linear_heads.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_ops.h"

Tensor *op_linear_heads(Tape *t, Tensor *x, Tensor *w, bool transposed) {
    char a[100], b[100];
    const bool even = x->dim[0] == 1 || x->stride[0] == x->dim[1] * x->stride[1];
    CHECK(!tape_is_recording(t) && x->ndim == 5 && w->ndim == 3 && x->dim[2] == 1 && x->dim[3] == w->dim[0] &&
              x->dim[4] == w->dim[transposed ? 1 : 2] && even,
          "linear_heads: the shapes of x %s and w %s are not compatible", tensor_describe(x, a, sizeof a),
          tensor_describe(w, b, sizeof b));
    Tensor *y = tape_tensor(t, (DType)x->dtype, 5,
                            (int64_t[]){x->dim[0], x->dim[1], 1, x->dim[3], w->dim[transposed ? 2 : 1]});
    const LinearHeadsAttr attr = {tape_context(t)->batch_invariant, transposed};
    tape_run(t, &OPS[OP_linear_heads], (Call){.in = {x, w}, .out = {y}, .attr = &attr}, sizeof attr, NULL);
    return y;
}
