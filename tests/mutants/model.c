/* Planted bugs in how modules use ops and collectives. */
#include <string.h>

#include "kernels/ops.h"
#include "models/stack.h"
#include "mutants/mutants.h"
#include "ops/expert_parallel.h"
#include "nn/norm.h"
#include "ops/gate.h"
#include "ops/join_heads.h"
#include "ops/loss.h"
#include "ops/redistribute.h"
#include "ops/rope.h"
#include "ops/take_parts.h"
#include "ops/take_row.h"
#include "tape/tape.h"
#include "tape/tape_ops.h"

/* ---- sums over tensor-parallel ranks ---- */

/* Keeps this rank's partial result instead of the sum of all. */
static void keep_own(Tape *t, Tensor *in, Tensor *out) {
    tape_call(t, &OPS[OP_copy], (Call){.in = {in}, .out = {out}});
}

/* The output of row-parallel linear layers. */
HOOK(void, redistribute_run, Tape *t, Tensor *in, Tensor *out, Axis axis, ReshardKind move, int dim) {
    const bool sums = move == MOVE_REDUCE, scatters = move == MOVE_REDUCE_SCATTER;
    if (mutant_is(M_row_output_not_summed) && sums) {
        keep_own(t, in, out);
        return;
    }
    if (mutant_is(M_row_output_sliced) && scatters) move = MOVE_SLICE;
    __real_redistribute_run(t, in, out, axis, move, dim);
    if (mutant_is(M_row_output_summed_twice) && sums) __real_redistribute_run(t, out, out, axis, move, dim);
}

/* The input gradient of column-parallel linear layers. */
HOOK(PendingReshard, redistribute_start, Tape *t, Tensor *in, Tensor *out, Axis axis, ReshardKind move,
     int dim) {
    if (mutant_is(M_column_gradient_sliced) && move == MOVE_REDUCE_SCATTER) move = MOVE_SLICE;
    if (!mutant_is(M_column_gradient_not_summed) || move != MOVE_REDUCE)
        return __real_redistribute_start(t, in, out, axis, move, dim);
    keep_own(t, in, out);
    return (PendingReshard){.out = out};
}

/* The vocabulary-parallel embedding. */
HOOK(Tensor *, op_redistribute, Tape *t, Tensor *x, Axis axis, Spmd to, int dim) {
    if (!mutant_is(M_embedding_not_summed) || spmd_on(x->spmd, axis) != SPMD_P || to != SPMD_I)
        return __real_op_redistribute(t, x, axis, to, dim);
    Tensor *y = tape_alias(t, x);
    y->spmd = spmd_with(x->spmd, axis, to);
    return y;
}

/* With more ranks than query groups, a rank uses the key and value of the next group. */
HOOK(Tensor *, op_take_heads, Tape *t, Tensor *x, Axis axis, int64_t first, int64_t heads, int64_t d,
     Spmd to) {
    if (mutant_is(M_other_group) && heads == 1) first = (first + x->dim[2] / 2) % x->dim[2];
    return __real_op_take_heads(t, x, axis, first, heads, d, to);
}

/* The pooler reads the first position of the last rank instead of that of the first rank. */
HOOK(Tensor *, op_take_row, Tape *t, Tensor *x, int64_t row) {
    const bool gathered = spmd_on(x->spmd, AXIS_TP) == SPMD_I && x->dim[0] == tape_axis(t, AXIS_TP);
    if (mutant_is(M_pooler_of_other_rank) && gathered) row = x->dim[0] - 1;
    return __real_op_take_row(t, x, row);
}

/* ---- flows ---- */

/* Skips the final norm if the encoder ends at the end of a stage. */
HOOK(Tensor *, stack_end, Tape *t, const Stack *m, int64_t first, int64_t n, const Feed *feed, Stream s) {
    const bool encoder = !strcmp(m->spec->name, "encoder");
    return mutant_is(M_encoded_not_normed) && encoder ? stack_output(t, m, first, n, feed, s)
                                                      : __real_stack_end(t, m, first, n, feed, s);
}

/* ---- further tokens ---- */

HOOK(Tensor *, op_join_heads, Tape *t, Tensor *a, Tensor *b) {
    const bool swaps = mutant_is(M_mtp_state_first) && a->dim[2] * a->dim[3] == 1;
    return __real_op_join_heads(t, swaps ? b : a, swaps ? a : b);
}

/* ---- formulas ---- */

static RopeAttr rope_attr(RopeAttr a) {
    if (mutant_is(M_rope_interleaved)) a.interleaved = !a.interleaved;
    return a;
}

HOOK(Tensor *, op_rope, Tape *t, Tensor *x, Tensor *cos, Tensor *sin, Tensor *position, RopeAttr a) {
    return __real_op_rope(t, x, cos, sin, position, rope_attr(a));
}

HOOK(Tensor *, op_rope_in_place, Tape *t, Tensor *x, int64_t groups, int64_t all, int64_t n, Tensor *cos,
     Tensor *sin, Tensor *position, RopeAttr a) {
    const bool computes = tape_context(t)->device->kind != DEVICE_NULL && sin->dtype == F64;
    if (mutant_is(M_temperature_of_keys) && computes && ((double *)sin->data)[tensor_count(sin) - 1] == 0)
        n = all - 1;
    return __real_op_rope_in_place(t, x, groups, all, n, cos, sin, position, rope_attr(a));
}

/* Normalizes heads again, after their gate. */
HOOK(Tensor *, op_gate, Tape *t, Tensor *x, Tensor *z, GateAttr a) {
    Tensor *y = __real_op_gate(t, x, z, a);
    return mutant_is(M_delta_gate_first) && a.silu ? norm_forward(t, &(Norm){.attr.rms = true}, y) : y;
}

HOOK(Tensor *, op_take_parts, Tape *t, Tensor *w, const RowRange *range, int parts) {
    const RowRange first = {0, range->n};
    return __real_op_take_parts(t, w, mutant_is(M_delta_first_heads) && parts == 1 ? &first : range, parts);
}

HOOK(Tensor *, op_cross_entropy_of, Tape *t, Tensor *logits, Tensor *label, int64_t vocab, Tensor *dloss) {
    if (mutant_is(M_vocab_padding_counted)) vocab = logits->dim[2] * tape_axis(t, AXIS_TP);
    return __real_op_cross_entropy_of(t, logits, label, vocab, dloss);
}

/* ---- experts ---- */

/* Multiplies the gradient of an auxiliary loss, which every tensor-parallel rank computes, by the number of
 * these ranks. */
HOOK(void, tape_seed, Tape *t, Tensor *y, double dy) {
    if (mutant_is(M_moe_aux_times_tp)) dy *= tape_axis(t, AXIS_TP);
    __real_tape_seed(t, y, dy);
}

HOOK(Routing, op_drop, Tape *t, const Routing *r, int64_t experts, DispatchAttr a) {
    if (mutant_is(M_moe_capacity_larger)) a.capacity++;
    if (mutant_is(M_moe_drops_by_position)) a.by_position = !a.by_position;
    return __real_op_drop(t, r, experts, a);
}

/* ---- recomputation ---- */

typedef struct Again {
    BlockFn *fn;
    void *self;
    int runs;
} Again;

/* In the recomputation of a block, the first half of its input replaces the second half. */
static Tensor *run_again(Tape *t, void *self, Tensor *x) {
    Again *a = self;
    Place *place = mutant_place();
    const bool again = a->runs++ > 0;
    const size_t half = tensor_bytes(x) / 2;
    if (again && mutant_is(M_recompute_other_input)) memcpy((char *)x->data + half, x->data, half);
    place->blocks = again;
    Tensor *y = a->fn(t, a->self, x);
    place->blocks = 0;
    return y;
}

HOOK(Tensor *, tape_block, Tape *t, BlockFn *fn, void *self, Tensor *x) {
    Again *a = tape_alloc(t, sizeof *a);
    *a = (Again){fn, self, 0};
    return __real_tape_block(t, run_again, a, x);
}
