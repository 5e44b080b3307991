/* y[s,b] = w[id[b,s]]. In the backward pass, row v of dw is the sum of dy over the tokens with id v, in the
 * canonical order (kernels/ops.def). The backward pass overwrites or accumulates dw. */
#include "ops/embedding.h"

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void embedding_backward(Tape *t, const Node *n, Need need) {
    Tensor *dw = tape_grad_out(t, n->call.in[1], need);
    if (dw)
        tape_call(
            t, &OPS[OP_embedding_grad],
            (Call){.in = {tape_grad(t, n->call.out[0]), n->call.in[0]}, .out = {dw}, .attr = n->call.attr});
}

Tensor *op_embedding(Tape *t, Tensor *id, Tensor *w) {
    Tensor *y = tape_tensor(t, (DType)w->dtype, 3, (int64_t[]){id->dim[1], id->dim[0], w->dim[1]});
    EmbeddingAttr attr = {.total = w->dim[0]};
    if (w->cut == 1 && tape_axis(t, AXIS_TP) > 1) {
        Group tp = tape_group(t, 1 << AXIS_TP);
        attr = (EmbeddingAttr){.first = tp.rank * w->dim[0], .total = tp.size * w->dim[0]};
    }
    tape_run(t, &OPS[OP_embedding], (Call){.in = {id, w}, .out = {y}, .attr = &attr}, sizeof attr,
             embedding_backward);
    return y;
}
