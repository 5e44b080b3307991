/* Cross-entropy per token; formulas in kernels/cpu/loss.c. dlogits is written over the logits, the largest
 * tensor of a step. */
#include "ops/loss.h"

#include "base/fault.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

static void backward(Tape *t, const Node *n, Need need) {
    Tensor *logits = n->call.in[0], *dlogits = tape_grad_in_place(t, logits, need);
    if (!dlogits) return;
    tape_call(t, &OPS[OP_cross_entropy_grad],
              (Call){.in = {tape_grad(t, n->call.out[0]), logits, n->call.in[1], n->call.out[1]},
                     .out = {dlogits},
                     .attr = n->call.attr});
}

Tensor *op_cross_entropy(Tape *t, Tensor *logits, Tensor *label, int64_t vocab) {
    CHECK(logits->ndim == 3 && vocab >= 1 && vocab <= logits->dim[2], "cross_entropy: %lld of %lld columns",
          (long long)vocab, (long long)logits->dim[2]);
    CHECK(label->dim[0] == logits->dim[1] && label->dim[1] == logits->dim[0],
          "cross_entropy: logits of %lld positions of %lld samples", (long long)logits->dim[0],
          (long long)logits->dim[1]);
    const DType precise = logits->dtype == F64 ? F64 : F32;
    const LossAttr attr = {.vocab = vocab};
    Tensor *loss = tape_tensor(t, precise, 2, label->dim), *lse = tape_tensor(t, precise, 2, label->dim);
    tape_run(t, &OPS[OP_cross_entropy], (Call){.in = {logits, label}, .out = {loss, lse}, .attr = &attr},
             sizeof attr, backward);
    return loss;
}
