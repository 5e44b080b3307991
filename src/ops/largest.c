#include "ops/largest.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_ops.h"

Tensor *op_largest(Tape *t, Tensor *x, int64_t n) {
    CHECK(!tape_is_recording(t) && x->ndim == 3, "largest: x has %d dimensions", x->ndim);
    Tensor *index = tape_tensor(t, I64, 2, x->dim);
    tape_call(t, &OPS[OP_largest], (Call){.in = {x}, .out = {index}, .attr = &(LargestAttr){n}});
    return index;
}
