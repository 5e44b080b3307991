/* Cross-entropy per token; formulas in kernels/cpu/loss.c. Over tensor-parallel ranks the logits are cut by
 * vocabulary (Megatron-LM core/tensor_parallel/cross_entropy.py) and the loss is invariant. dlogits is
 * written over the logits, the largest tensor of a step. */
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

/* The logits are their gradient already. */
static void backward_done(Tape *t, const Node *n, Need need) {
    const Tensor *dloss = n->call.in[2];
    CHECK(tape_grad(t, n->call.out[0])->data == dloss->data,
          "cross_entropy: the loss gets another gradient than was announced");
    tape_grad_in_place(t, n->call.in[0], need);
}

static const OpDef GATHER = {.name = "cross_entropy_gather"};

/* Each rank has some columns: their log-sums and labels' logits are gathered and joined in the same order
 * everywhere. */
static void forward_shards(Tape *t, Call call, Group tp) {
    Tensor *logits = call.in[0], *loss = call.out[0], *lse = call.out[1];
    const int64_t b = loss->dim[0], s = loss->dim[1];
    Tensor *all = tape_scratch(t, (DType)loss->dtype, 4, (int64_t[]){tp.size, 2, b, s});
    Tensor *own = tape_scratch(t, (DType)loss->dtype, 3, (int64_t[]){2, b, s});
    CHECK(spmd_on(logits->spmd, AXIS_TP) == SPMD_V,
          "cross_entropy, axis tp: the logits must be V, cut by vocabulary");
    loss->spmd = lse->spmd = spmd_with(logits->spmd, AXIS_TP, SPMD_I);
    all->spmd = own->spmd = spmd_with(logits->spmd, AXIS_TP, SPMD_P);
    tape_call(t, &OPS[OP_cross_entropy_shard],
              (Call){.in = {logits, call.in[1]}, .out = {own}, .attr = call.attr});
    tape_comm(t, &GATHER, (CommCall){.kind = COMM_ALL_GATHER, .group = tp}, own, all);
    tape_call(t, &OPS[OP_cross_entropy_join], (Call){.in = {all}, .out = {loss, lse}});
    tape_drop(t, own);
    tape_drop(t, all);
}

Tensor *op_cross_entropy(Tape *t, Tensor *logits, Tensor *label, int64_t vocab) {
    return op_cross_entropy_of(t, logits, label, vocab, NULL);
}

Tensor *op_cross_entropy_of(Tape *t, Tensor *logits, Tensor *label, int64_t vocab, Tensor *dloss) {
    const int ranks = tape_axis(t, AXIS_TP);
    CHECK(logits->ndim == 3 && vocab >= 1 && vocab <= logits->dim[2] * ranks,
          "cross_entropy: %lld of %lld columns", (long long)vocab, (long long)logits->dim[2] * ranks);
    CHECK(label->dim[0] == logits->dim[1] && label->dim[1] == logits->dim[0],
          "cross_entropy: logits of %lld positions of %lld samples", (long long)logits->dim[0],
          (long long)logits->dim[1]);
    const DType precise = logits->dtype == F64 ? F64 : F32;
    LossAttr attr = {.vocab = vocab};
    Tensor *loss = tape_tensor(t, precise, 2, label->dim), *lse = tape_tensor(t, precise, 2, label->dim);
    const Call call = {.in = {logits, label}, .out = {loss, lse}, .attr = &attr};
    if (ranks > 1) {
        Group tp = tape_group(t, 1 << AXIS_TP);
        attr.first = tp.rank * logits->dim[2];
        forward_shards(t, call, tp);
        tape_record(t, &OPS[OP_cross_entropy], call, sizeof attr, backward);
    } else if (dloss && tape_records(t) && !tape_context(t)->exact) { /* exact: lse goes to its grid first */
        const Call both = {.in = {logits, label, dloss}, .out = {loss, lse, logits}, .attr = &attr};
        Call node = both; /* the node that several ranks have */
        tape_check(t, &OPS[OP_cross_entropy_with_grad], &both);
        tape_call(t, &OPS[OP_cross_entropy_with_grad], both);
        node.out[2] = NULL;
        tape_record(t, &OPS[OP_cross_entropy], node, sizeof attr, backward_done);
    } else {
        tape_run(t, &OPS[OP_cross_entropy], call, sizeof attr, backward);
    }
    return loss;
}
