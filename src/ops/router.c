/* The selection of experts has no gradient, but the probabilities of the selected experts do
 * (kernels/cpu/router.c). The backward pass overwrites or accumulates dx, dlogits and dw. */
#include "ops/router.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/gather_tokens.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static DType precise(const Tensor *x) { return x->dtype == F64 ? F64 : F32; }

/* ---- logits ---- */

static void logits_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *w = n->call.in[1], *bias = n->call.in[2], *dy = tape_grad(t, n->call.out[0]);
    Tensor *dx = tape_grad_out(t, x, need), *dw = tape_grad_out(t, w, need),
           *dbias = bias ? tape_grad_out(t, bias, need) : NULL;
    if (dx) tape_call(t, &OPS[OP_linear_dgrad], (Call){.in = {dy, w}, .out = {dx}, .attr = n->call.attr});
    const LinearAttr attr = {.fixed_order = true, .by_chunks = !tape_context(t)->batch_invariant};
    if (dw || dbias)
        tape_call(t, &OPS[OP_linear_wgrad], (Call){.in = {dy, x}, .out = {dw, dbias}, .attr = &attr});
}

Tensor *op_gate_logits(Tape *t, Tensor *x, Tensor *w, Tensor *bias) {
    CHECK(x->ndim == 3 && w->ndim == 2 && x->dim[2] == w->dim[1],
          "gate_logits: the width of x is %lld, but the weight needs %lld", (long long)tensor_width(x),
          (long long)tensor_width(w));
    /* A token's experts must not depend on the microbatch's other tokens or on the layout. */
    const LinearAttr attr = {.fixed_order = true};
    Tensor *y = tape_tensor(t, precise(x), 3, (int64_t[]){x->dim[0], x->dim[1], w->dim[0]});
    tape_run(t, &OPS[OP_linear], (Call){.in = {x, w, bias}, .out = {y}, .attr = &attr}, sizeof attr,
             logits_backward);
    return y;
}

/* ---- choice ---- */

static void route_backward(Tape *t, const Node *n, Need need) {
    Tensor *logits = n->call.in[0], *const *out = n->call.out, *dlogits = tape_grad_out(t, logits, need);
    if (!dlogits) return;
    tape_call(
        t, &OPS[OP_route_grad],
        (Call){.in = {tape_grad(t, out[0]), logits, out[0], out[1]}, .out = {dlogits}, .attr = n->call.attr});
}

Routing op_route(Tape *t, Tensor *logits, Tensor *select, Tensor *bias, int64_t k, RouteAttr attr) {
    const int64_t experts = tensor_width(logits), dim[] = {logits->dim[0], logits->dim[1], k};
    CHECK(logits->ndim == 3 && k >= 1 && k <= experts, "route: cannot choose %lld of %lld experts",
          (long long)k, (long long)experts);
    CHECK(attr.groups <= 1 ||
              (experts % attr.groups == 0 && attr.group_topk <= attr.groups && attr.group_scores >= 1 &&
               attr.group_scores <= experts / attr.groups && k <= attr.group_topk * (experts / attr.groups)),
          "route: cannot choose %lld of %lld experts from %lld of %lld groups whose score is a sum of %lld "
          "scores",
          (long long)k, (long long)experts, (long long)attr.group_topk, (long long)attr.groups,
          (long long)attr.group_scores);
    if (select) tokens_check_same(t, "route", select, logits);
    Routing r = {tape_tensor(t, (DType)logits->dtype, 3, dim), tape_tensor(t, I64, 3, dim)};
    tape_run(t, &OPS[OP_route],
             (Call){.in = {logits, select, bias}, .out = {r.probs, r.expert}, .attr = &attr}, sizeof attr,
             route_backward);
    return r;
}

static void random_backward(Tape *t, const Node *n, Need need) {
    Tensor *dlogits = tape_grad_out(t, n->call.in[0], need);
    if (dlogits) tape_call(t, &OPS[OP_copy], (Call){.in = {tape_grad(t, n->call.out[0])}, .out = {dlogits}});
}

Tensor *op_random_logits(Tape *t, Tensor *logits, RandomLogits kind, double std, uint64_t site) {
    RandomLogitsAttr attr = {kind,
                             std,
                             {.seed = tape_context(t)->seed,
                              .site = site,
                              .first_sample = tape_microbatch(t)->first_sample,
                              .seq_total = logits->dim[0]}};
    attr.index.slice = tape_slice(t, logits, &attr.index.seq_total);
    Tensor *y = tape_tensor(t, (DType)logits->dtype, 3, logits->dim);
    tape_run(t, &OPS[OP_random_logits], (Call){.in = {logits}, .out = {y}, .attr = &attr}, sizeof attr,
             random_backward);
    return y;
}

Tensor *op_sinkhorn(Tape *t, Tensor *logits) {
    tokens_check_whole(t, "sinkhorn", logits);
    Tensor *scores = tape_tensor(t, (DType)logits->dtype, 3, logits->dim);
    scores->spmd = logits->spmd;
    tape_call(t, &OPS[OP_sinkhorn], (Call){.in = {logits}, .out = {scores}});
    return scores;
}

/* ---- balance ---- */

Tensor *op_quantile(Tape *t, Tensor *logits, Tensor *bias, int64_t k) {
    const QuantileAttr attr = {k};
    const int64_t tokens = tensor_rows(logits), experts = tensor_width(logits), dim[] = {1, experts + 1};
    CHECK(k < experts && tokens * k % experts == 0,
          "quantile: %lld tokens cannot be divided equally if %lld of %lld experts are chosen",
          (long long)tokens, (long long)k, (long long)experts);
    tokens_check_whole(t, "quantile", logits);
    Tensor *sum = tape_tensor(t, F64, 2, dim);
    tape_call(t, &OPS[OP_quantile], (Call){.in = {logits, bias}, .out = {sum}, .attr = &attr});
    return sum;
}

void op_expert_count(Tape *t, const Routing *r, Tensor *count) {
    const Call call = {.in = {r->expert}, .out = {count}};
    tape_check(t, &OPS[OP_expert_count], &call);
    tape_call(t, &OPS[OP_expert_count], call);
}

static void loss_backward(Tape *t, const Node *n, Need need) {
    Tensor *logits = n->call.in[0], *dlogits = tape_grad_out(t, logits, need);
    if (!dlogits) return;
    tape_call(t, &OPS[OP_router_loss_grad],
              (Call){.in = {logits, tape_grad(t, n->call.out[0]), n->call.in[1]},
                     .out = {dlogits},
                     .attr = n->call.attr});
}

Tensor *op_router_loss(Tape *t, Tensor *logits, Tensor *count, RouterLossAttr attr) {
    CHECK((attr.kind == ROUTER_Z) == !count,
          "router_loss: the balance loss needs counts, and the z-loss must have none");
    attr.ranks = tape_axis(t, AXIS_TP) * tape_axis(t, AXIS_CP);
    Tensor *loss = tape_tensor(t, F64, 1, (int64_t[]){1});
    /* this part of the loss is only reported, and only the sum of all ranks' parts is rounded */
    tape_grad_off_grid(loss);
    tape_run(t, &OPS[OP_router_loss], (Call){.in = {logits, count}, .out = {loss}, .attr = &attr},
             sizeof attr, loss_backward);
    return loss;
}
