/* y = x w_e^T for the rows of each expert e. The backward pass overwrites or accumulates dx and dw. The
 * backward pass can compute dw while the rows' gradients are sent back to the ranks of their tokens
 * (ops/expert_parallel.c). */
#include "ops/grouped.h"

#include "base/fault.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

typedef struct ExpertGradient {
    Tensor *dy, *x, *offset, *dw;
    LinearAttr attr;
} ExpertGradient;

static void weight_gradient(Tape *t, void *arg) {
    const ExpertGradient *g = arg;
    tape_call(t, &OPS[OP_grouped_linear_wgrad],
              (Call){.in = {g->dy, g->x, g->offset}, .out = {g->dw}, .attr = &g->attr});
    tape_grad_drop(t, g->dy);
}

static void bias_gradient(Tape *t, const Node *n, Tensor *dy, Need need) {
    Tensor *bias = n->call.in[3], *scale = n->call.in[4];
    if (!bias) return;
    Tensor *dbias = tape_grad_out(t, bias, need), *dscale = scale ? tape_grad_out(t, scale, need) : NULL;
    if (dbias || dscale)
        tape_call(t, &OPS[OP_grouped_bias_grad],
                  (Call){.in = {dy, bias, n->call.in[2], scale}, .out = {dbias, dscale}});
}

static void grouped_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *w = n->call.in[1], *offset = n->call.in[2],
           *dy = tape_grad(t, n->call.out[0]);
    const LinearAttr *attr = n->call.attr;
    bias_gradient(t, n, dy, need);
    Tensor *dx = tape_grad_out(t, x, need), *dw = tape_grad_out(t, w, need);
    if (dx)
        tape_call(t, &OPS[OP_grouped_linear_dgrad], (Call){.in = {dy, w, offset}, .out = {dx}, .attr = attr});
    if (!dw) return;
    const ExpertGradient rest = {tape_grad_keep(t, n->call.out[0]), x, offset, dw, *attr};
    if (need == NEED_ALL && tape_context(t)->postpones_experts && tape_overlaps(t, AXIS_EP))
        tape_postpone(t, n, weight_gradient, &rest, sizeof rest);
    else
        weight_gradient(t, (void *)&rest);
}

Tensor *op_grouped_linear(Tape *t, Tensor *x, Tensor *w, GroupedBias b, Tensor *offset) {
    const int64_t experts = offset->dim[0] - 1;
    CHECK(x->ndim == 3 && x->dim[1] == 1 && x->dim[2] == w->dim[1] && w->dim[0] % experts == 0,
          "grouped_linear: the width of x is %lld, but the weight of %lld experts is [%lld, %lld]",
          (long long)tensor_width(x), (long long)experts, (long long)w->dim[0], (long long)w->dim[1]);
    const LinearAttr attr = {.fixed_order = tape_context(t)->batch_invariant};
    if (w->cut == 2 && tape_axis(t, AXIS_ETP) > 1 && tape_group(t, 1u << AXIS_ETP).rank > 0)
        b = (GroupedBias){.bias_eo = NULL};
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){x->dim[0], 1, w->dim[0] / experts});
    tape_run(
        t, &OPS[OP_grouped_linear],
        (Call){.in = {x, w, offset, b.bias_eo, b.bias_eo ? b.scale_r11 : NULL}, .out = {y}, .attr = &attr},
        sizeof attr, grouped_backward);
    return y;
}
