/* y[s,b] = w[id[b,s]]. Backward: row v of dw gets the sum of dy over the tokens with id v, in the canonical
 * order of kernels/ops.def; it is added to the main gradient. */
#include "ops/embedding.h"

#include "kernels/ops.h"

static void backward(Tape *t, const Node *n, Need need) {
    Tensor *dw = tape_grad_out(t, n->call.in[1], need);
    if (dw)
        tape_call(t, &OPS[OP_embedding_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), n->call.in[0]}, .out = {dw}});
}

Tensor *op_embedding(Tape *t, Tensor *id, Tensor *w) {
    Tensor *y = tape_tensor(t, (DType)w->dtype, 3, (int64_t[]){id->dim[1], id->dim[0], w->dim[1]});
    tape_run(t, &OPS[OP_embedding], (Call){.in = {id, w}, .out = {y}}, 0, backward);
    return y;
}
