/* Cross-entropy of each token. kernels/cpu/loss.c contains the formulas. On tensor-parallel ranks, the logits
 * are sharded by vocabulary (Megatron-LM core/tensor_parallel/cross_entropy.py), and the loss is I. The logits'
 * gradient overwrites the logits, which are the largest tensor in a step unless the logits are computed in
 * chunks. */
#include "ops/loss.h"

#include "base/fault.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "ops/linear_gemm.h"
#include "ops/redistribute.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void loss_backward(Tape *t, const Node *n, Need need) {
    Tensor *logits = n->call.in[0], *dlogits = tape_grad_in_place(t, logits, need);
    if (!dlogits) return;
    tape_call(t, &OPS[OP_cross_entropy_grad],
              (Call){.in = {tape_grad(t, n->call.out[0]), logits, n->call.in[1], n->call.out[1]},
                     .out = {dlogits},
                     .attr = n->call.attr});
}

/* The backward pass computes nothing, because the first operand's memory already contains its gradient. */
static void backward_done(Tape *t, const Node *n, Need need) {
    const Tensor *dloss = n->call.in[2];
    CHECK(tape_grad(t, n->call.out[0])->data == dloss->data,
          "cross_entropy: the loss's gradient differs from the gradient that the forward pass used");
    tape_grad_in_place(t, n->call.in[0], need);
}

/* An op on sharded logits. `shard` runs on each rank, and `join` computes the op's results from the gathered
 * results of all ranks, [n,2,b,s]. */
typedef struct ShardedOp {
    OpNumber shard, gather, join;
} ShardedOp;
static const ShardedOp LOSS = {OP_cross_entropy_shard, OP_cross_entropy_gather, OP_cross_entropy_join},
                       CORRECT = {OP_correct_shard, OP_correct_gather, OP_correct_join};

/* Each rank holds some columns of the logits. Every rank gathers and merges all ranks' results, in the same
 * order. */
static void forward_shards(Tape *t, ShardedOp op, Call call, Group tp) {
    Tensor *logits = call.in[0], *y = call.out[0];
    const int64_t b = y->dim[0], s = y->dim[1];
    Tensor *all = tape_scratch(t, (DType)y->dtype, 4, (int64_t[]){tp.size, 2, b, s});
    Tensor *own = tape_scratch(t, (DType)y->dtype, 3, (int64_t[]){2, b, s});
    CHECK(spmd_on(logits->spmd, AXIS_TP) == SPMD_V,
          "%s, axis tp: the logits must be V, sharded by vocabulary", OPS[op.shard].name);
    for (int i = 0; i < CALL_OUT && call.out[i]; i++)
        call.out[i]->spmd = spmd_with(logits->spmd, AXIS_TP, SPMD_I);
    all->spmd = own->spmd = spmd_with(logits->spmd, AXIS_TP, SPMD_P);
    tape_call(t, &OPS[op.shard], (Call){.in = {logits, call.in[1]}, .out = {own}, .attr = call.attr});
    tape_comm(t, &OPS[op.gather], (CommCall){.kind = COMM_ALL_GATHER, .group = tp}, own, all);
    tape_call(t, &OPS[op.join], (Call){.in = {all}, .out = {y, call.out[1]}});
    tape_drop(t, own);
    tape_drop(t, all);
}

static bool is_sharded(const Tape *t, const Tensor *logits) {
    return tape_axis(t, AXIS_TP) > 1 && spmd_on(logits->spmd, AXIS_TP) != SPMD_I;
}

/* Sets y [b,s] to 1 where the label has the largest logit, and to 0 elsewhere. */
static void correct(Tape *t, Tensor *logits, Tensor *label, const LossAttr *attr, Tensor *y) {
    const Call call = {.in = {logits, label}, .out = {y}, .attr = attr};
    if (is_sharded(t, logits)) {
        forward_shards(t, CORRECT, call, tape_group(t, 1 << AXIS_TP));
        return;
    }
    Tensor *own = tape_scratch(t, (DType)y->dtype, 4, (int64_t[]){1, 2, y->dim[0], y->dim[1]});
    own->spmd = y->spmd = logits->spmd;
    tape_call(t, &OPS[OP_correct_shard], (Call){.in = {logits, label}, .out = {own}, .attr = attr});
    tape_call(t, &OPS[OP_correct_join], (Call){.in = {own}, .out = {y}});
    tape_drop(t, own);
}

/* Returns whether the forward pass computes the gradient. In the exact lane, the forward pass cannot compute
 * the gradient, because lse must be rounded first. */
static bool at_once(const Tape *t, const Tensor *dloss) { return dloss && !tape_context(t)->exact; }

Tensor *op_cross_entropy(Tape *t, Tensor *logits, Tensor *label, int64_t vocab) {
    return op_cross_entropy_of(t, logits, label, vocab, NULL);
}

static void check_sizes(Tape *t, const Tensor *x, int64_t columns, const Tensor *label, int64_t vocab) {
    const int ranks = tape_axis(t, AXIS_TP);
    CHECK(x->ndim == 3 && vocab >= 1 && vocab <= columns * ranks,
          "cross_entropy: the vocabulary is %lld, but the logits have %lld columns", (long long)vocab,
          (long long)columns * ranks);
    CHECK(label->dim[0] == x->dim[1] && label->dim[1] == x->dim[0],
          "cross_entropy: the logits have %lld positions and %lld samples, but the labels have another shape",
          (long long)x->dim[0], (long long)x->dim[1]);
}

static DType precise_type(const Tensor *x) { return x->dtype == F64 ? F64 : F32; }

Tensor *op_cross_entropy_of(Tape *t, Tensor *logits, Tensor *label, int64_t vocab, Tensor *dloss) {
    check_sizes(t, logits, logits->dim[2], label, vocab);
    const DType precise = precise_type(logits);
    LossAttr attr = {.vocab = vocab};
    Tensor *loss = tape_tensor(t, precise, 2, label->dim), *lse = tape_tensor(t, precise, 2, label->dim);
    const Call call = {.in = {logits, label}, .out = {loss, lse}, .attr = &attr};
    if (is_sharded(t, logits)) {
        Group tp = tape_group(t, 1 << AXIS_TP);
        attr.first = tp.rank * logits->dim[2];
        forward_shards(t, LOSS, call, tp);
        tape_record(t, &OPS[OP_cross_entropy], call, sizeof attr, loss_backward);
    } else if (tape_is_recording(t) && at_once(t, dloss)) {
        const Call both = {.in = {logits, label, dloss}, .out = {loss, lse, logits}, .attr = &attr};
        Call node = both; /* recorded without the output that overwrites the logits */
        tape_check(t, &OPS[OP_cross_entropy_with_grad], &both);
        tape_call(t, &OPS[OP_cross_entropy_with_grad], both);
        node.out[2] = NULL;
        tape_record(t, &OPS[OP_cross_entropy], node, sizeof attr, backward_done);
    } else {
        tape_run(t, &OPS[OP_cross_entropy], call, sizeof attr, loss_backward);
    }
    return loss;
}

Tensor *op_correct(Tape *t, Tensor *logits, Tensor *label, int64_t vocab) {
    check_sizes(t, logits, logits->dim[2], label, vocab);
    const bool sharded = is_sharded(t, logits);
    const LossAttr attr = {vocab, sharded ? tape_group(t, 1 << AXIS_TP).rank * logits->dim[2] : 0};
    Tensor *y = tape_tensor(t, precise_type(logits), 2, label->dim);
    correct(t, logits, label, &attr, y);
    return y;
}

/* ---- after a linear layer, in chunks ---- A chunk consists of consecutive positions of all samples, so that its rows
 * of x are contiguous. A chunk's gradients are computed while its logits are in memory. The gradient of w is summed
 * over the chunks. The gradient of x overwrites the rows of x. */

typedef struct Chunks {
    Tensor *x, *w; /* x is R over tensor-parallel ranks */
    Tensor *label, *dloss, *loss;
    Tensor *correct; /* NULL if not needed */
    Tensor dx;       /* in x's memory: this rank's summand of the gradient */
    Tensor dw;       /* data is NULL if dw is not needed; all chunks but the first add to dw */
    LossAttr attr;
    SoftcapAttr softcap; /* 0 if there is no softcap */
    LinearGemm gemm;
} Chunks;

/* Returns positions [first, first + n) of x along dimension `axis`. */
static Tensor part_of(const Tensor *x, int axis, int64_t first, int64_t n) {
    Tensor part = *x;
    part.data = tensor_at(x, first * x->stride[axis]);
    part.dim[axis] = n;
    return part;
}

/* Returns a contiguous tensor for the ops: x itself, or, if x is not contiguous, new memory that the caller must free
 * with tape_drop. */
static Tensor *packed(Tape *t, Tensor *x) {
    if (tensor_is_contiguous(x)) return x;
    Tensor *copy = tape_scratch(t, (DType)x->dtype, x->ndim, x->dim);
    copy->spmd = x->spmd;
    return copy;
}

static Tensor *packed_copy(Tape *t, Tensor *x) {
    Tensor *copy = packed(t, x);
    if (copy != x) tape_call(t, &OPS[OP_copy], (Call){.in = {x}, .out = {copy}});
    return copy;
}

/* Computes losses from logits. Unless dloss is NULL, the logits' gradient then overwrites the logits. */
static void losses(Tape *t, Call call, Tensor *dloss) {
    Tensor *logits = call.in[0], *label = call.in[1], *lse = call.out[1];
    if (tape_axis(t, AXIS_TP) == 1 && at_once(t, dloss)) {
        call.in[2] = dloss, call.out[2] = logits;
        tape_check(t, &OPS[OP_cross_entropy_with_grad], &call);
        tape_call(t, &OPS[OP_cross_entropy_with_grad], call);
        return;
    }
    if (tape_axis(t, AXIS_TP) > 1) {
        forward_shards(t, LOSS, call, tape_group(t, 1 << AXIS_TP));
    } else {
        tape_check(t, &OPS[OP_cross_entropy], &call);
        tape_call(t, &OPS[OP_cross_entropy], call);
    }
    if (dloss)
        tape_call(t, &OPS[OP_cross_entropy_grad],
                  (Call){.in = {dloss, logits, label, lse}, .out = {logits}, .attr = call.attr});
}

/* Copies the result from packed memory to its destination, and frees the packed memory. */
static void unpack(Tape *t, Tensor *packed, Tensor *place) {
    if (packed == place) return;
    tape_call(t, &OPS[OP_copy], (Call){.in = {packed}, .out = {place}});
    tape_drop(t, packed);
}

static void chunk_correct(Tape *t, Chunks *c, Tensor *logits, Tensor *label, int64_t first, int64_t n) {
    if (!c->correct) return;
    Tensor part = part_of(c->correct, 1, first, n), *own = packed(t, &part);
    correct(t, logits, label, &c->attr, own);
    c->correct->spmd = part.spmd = own->spmd;
    unpack(t, own, &part);
}

static void chunk_losses(Tape *t, Chunks *c, Tensor *logits, int64_t first, int64_t n) {
    Tensor label = part_of(c->label, 1, first, n), loss = part_of(c->loss, 1, first, n), dloss;
    Tensor *own_label = packed_copy(t, &label);
    chunk_correct(t, c, logits, own_label, first, n);
    Tensor *own_loss = packed(t, &loss), *own_dloss = NULL,
           *lse = tape_scratch(t, (DType)loss.dtype, 2, loss.dim);
    if (c->dloss) {
        dloss = part_of(c->dloss, 1, first, n);
        own_dloss = packed_copy(t, &dloss);
    }
    losses(t, (Call){.in = {logits, own_label}, .out = {own_loss, lse}, .attr = &c->attr}, own_dloss);
    c->loss->spmd = loss.spmd = own_loss->spmd;
    if (own_dloss) tape_drop_unless(t, own_dloss, &dloss);
    tape_drop(t, lse);
    unpack(t, own_loss, &loss);
    tape_drop_unless(t, own_label, &label);
}

/* Like chunk_losses, but caps the logits first. The gradient of the uncapped logits overwrites the logits. */
static void capped_chunk_losses(Tape *t, Chunks *c, Tensor *logits, int64_t first, int64_t n) {
    if (c->softcap.cap == 0) {
        chunk_losses(t, c, logits, first, n);
        return;
    }
    Tensor *capped = tape_scratch(t, (DType)logits->dtype, 3, logits->dim);
    const Call call = {.in = {logits}, .out = {capped}, .attr = &c->softcap};
    tape_check(t, &OPS[OP_softcap], &call);
    tape_call(t, &OPS[OP_softcap], call);
    chunk_losses(t, c, capped, first, n);
    if (c->dloss)
        tape_call(t, &OPS[OP_softcap_grad],
                  (Call){.in = {capped, logits}, .out = {logits}, .attr = &c->softcap});
    tape_drop(t, capped);
}

/* Computes the gradient of w first, because the gradient of x overwrites the rows of x. */
static void chunk_gradients(Tape *t, Chunks *c, const LinearGemm *gemm, Tensor *dlogits, Tensor *x,
                            int64_t first, int64_t n) {
    GemmGradient g = linear_gemm_gradient(t, gemm, dlogits, dlogits->spmd, true, c->dw.data);
    if (c->dw.data) {
        linear_gemm_dw(t, gemm, &g, x, &c->dw, NULL);
        c->dw.flags |= TENSOR_ACCUM;
    }
    Tensor dx = part_of(&c->dx, 0, first, n);
    linear_gemm_dx(t, gemm, &g, c->w, &dx);
    quantize_drop(t, &g.values);
}

static void run_chunk(Tape *t, Chunks *c, int64_t first, int64_t n) {
    Tensor x = part_of(c->x, 0, first, n);
    Tensor *logits = tape_scratch(t, (DType)x.dtype, 3, (int64_t[]){n, x.dim[1], c->w->dim[0]});
    LinearGemm gemm = c->gemm;
    const Call call = {.in = {&x, c->w}, .out = {logits}, .attr = &gemm};
    tape_check(t, &OPS[OP_linear], &call);
    linear_gemm_forward(t, &gemm, call);
    capped_chunk_losses(t, c, logits, first, n);
    if (c->dloss) chunk_gradients(t, c, &gemm, logits, &x, first, n);
    tape_drop(t, logits);
}

/* Returns x gathered along its positions over the tensor-parallel ranks (SPMD type R), or x itself if x is not
 * sharded. */
static Tensor *gathered(Tape *t, Tensor *x, bool is_cut) {
    if (!is_cut) return x;
    Tensor *all = tape_scratch(t, (DType)x->dtype, 3,
                               (int64_t[]){x->dim[0] * tape_axis(t, AXIS_TP), x->dim[1], x->dim[2]});
    all->spmd = spmd_with(x->spmd, AXIS_TP, SPMD_R);
    redistribute_run(t, x, all, AXIS_TP, MOVE_GATHER, 0);
    return all;
}

/* Sums the gradients of x over the ranks. The result is in x's memory. */
static void sum_gradient(Tape *t, Tensor *x, Tensor *summands, bool is_cut) {
    Tensor dx = *x;
    dx.spmd = spmd_dual_type(x->spmd);
    redistribute_run(t, summands, &dx, AXIS_TP, is_cut ? MOVE_REDUCE_SCATTER : MOVE_REDUCE, 0);
}

static void run_chunks(Tape *t, Chunks *c, int64_t positions) {
    const int64_t s = c->x->dim[0];
    QuantValues w = {.kept = 0};
    if (s % positions == 0)
        w = linear_gemm_share_w(t, &c->gemm, c->w, positions * c->x->dim[1], c->dloss != NULL);
    for (int64_t first = 0; first < s; first += positions)
        run_chunk(t, c, first, positions < s - first ? positions : s - first);
    quantize_drop(t, &w);
}

Tensor *op_linear_cross_entropy(Tape *t, Tensor *x, Tensor *w, Tensor *label, LinearLoss how) {
    const int ranks = tape_axis(t, AXIS_TP);
    const bool is_cut = ranks > 1 && how.sequence, records = tape_is_recording(t);
    CHECK(how.positions > 0 && (how.dloss || !records),
          "linear_cross_entropy: a chunk has %lld positions, or the tape records, but dloss is %s",
          (long long)how.positions, how.dloss ? "known" : "not known");
    Chunks c = {.w = w,
                .label = label,
                .dloss = records ? how.dloss : NULL,
                .loss = tape_tensor(t, precise_type(x), 2, label->dim),
                .attr = {.vocab = how.vocab},
                .softcap = {how.softcap},
                .gemm = {.linear.fixed_order = tape_context(t)->batch_invariant, .quantiser = how.quantiser}};
    const Call node = {.in = {x, label, how.dloss, w}, .out = {c.loss}, .attr = &c.attr};
    Tensor *all_x = gathered(t, x, is_cut), as_r = *all_x;
    check_sizes(t, all_x, w->dim[0], label, how.vocab);
    if (ranks > 1) {
        /* converting I to R moves no data, but makes the backward pass reduce dx */
        as_r.spmd = spmd_with(as_r.spmd, AXIS_TP, SPMD_R);
        c.attr.first = tape_group(t, 1 << AXIS_TP).rank * w->dim[0];
    }
    c.x = &as_r, c.dx = as_r, c.dx.spmd = spmd_dual_type(as_r.spmd);
    if (how.correct) c.correct = *how.correct = tape_tensor(t, precise_type(x), 2, label->dim);
    tape_early_grads_begin(t, &OPS[OP_cross_entropy], &node);
    Tensor *dw = records ? tape_grad_out(t, w, NEED_DW) : NULL;
    if (dw) c.dw = *dw;
    run_chunks(t, &c, how.positions);
    if (records && ranks > 1) sum_gradient(t, x, &c.dx, is_cut);
    tape_drop_unless(t, all_x, x);
    tape_early_grads_end(t, &OPS[OP_cross_entropy], node, sizeof c.attr, backward_done);
    return c.loss;
}

int64_t linear_loss_positions(int64_t s, int64_t b, int64_t tokens, size_t token_bytes) {
    if (tokens) return tokens <= b ? 1 : tokens / b < s ? tokens / b : s;
    int64_t chunks = 1;
    while (chunks < s && (size_t)((s + chunks - 1) / chunks * b) * token_bytes > LINEAR_LOSS_BYTES)
        chunks *= 2;
    return (s + chunks - 1) / chunks;
}
