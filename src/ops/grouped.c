/* y = x w_e^T for the rows of each expert e. The backward pass overwrites or accumulates dx and dw. The
 * backward pass can compute dw while the rows' gradients are sent back to the ranks of their tokens
 * (ops/expert_parallel.c). */
#include "ops/grouped.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/grouped_gemm.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

typedef struct ExpertGradient {
    GroupedGradient g;
    const GroupedGemm *gemm;
    Tensor *x, *dw;
} ExpertGradient;

static void weight_gradient(Tape *t, void *arg) {
    ExpertGradient *r = arg;
    grouped_gemm_dw(t, r->gemm, &r->g, r->x, r->dw);
    quantize_drop(t, &r->g.values);
    tape_grad_drop(t, r->g.dy);
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
    Tensor *x = n->call.in[0], *w = n->call.in[1], *dy = tape_grad(t, n->call.out[0]);
    const GroupedGemm *gemm = n->call.attr;
    bias_gradient(t, n, dy, need);
    Tensor *dx = tape_grad_out(t, x, need), *dw = tape_grad_out(t, w, need);
    GroupedGradient g = grouped_gemm_gradient(t, gemm, dy, n->call.out[0]->spmd, dx, dw);
    if (dx) grouped_gemm_dx(t, gemm, &g, w, dx);
    if (!dw) {
        quantize_drop(t, &g.values);
        return;
    }
    g.dy = tape_grad_keep(t, n->call.out[0]);
    ExpertGradient rest = {g, gemm, x, dw};
    if (need == NEED_ALL && tape_context(t)->postpones_experts && tape_overlaps(t, AXIS_EP))
        tape_postpone(t, n, weight_gradient, &rest, sizeof rest);
    else
        weight_gradient(t, &rest);
}

Tensor *op_grouped_linear(Tape *t, Tensor *x, GroupedLayer l, Tensor *offset) {
    const int64_t experts = offset->dim[0] - 1;
    Tensor *w = l.w_eoi;
    CHECK(x->ndim == 3 && x->dim[1] == 1 && x->dim[2] == w->dim[1] && w->dim[0] % experts == 0,
          "grouped_linear: the width of x is %lld, but the weight of %lld experts is [%lld, %lld]",
          (long long)tensor_width(x), (long long)experts, (long long)w->dim[0], (long long)w->dim[1]);
    GroupedGemm gemm = {.linear.fixed_order = tape_context(t)->batch_invariant,
                        .quantiser = l.quantiser,
                        .rows.offset = offset};
    if (w->cut == 2 && tape_axis(t, AXIS_ETP) > 1 && tape_group(t, 1u << AXIS_ETP).rank > 0) l.bias_eo = NULL;
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){x->dim[0], 1, w->dim[0] / experts});
    const Call call = {
        .in = {x, w, offset, l.bias_eo, l.bias_eo ? l.scale_r11 : NULL}, .out = {y}, .attr = &gemm};
    tape_check(t, &OPS[OP_grouped_linear], &call);
    grouped_gemm_forward(t, &gemm, call);
    tape_record(t, &OPS[OP_grouped_linear], call, sizeof gemm, grouped_backward);
    return y;
}
