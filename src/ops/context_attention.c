#include "ops/context_attention.h"

#include "base/fault.h"
#include "ops/attention.h"
#include "ops/ulysses.h"
#include "tape/tape_ops.h"

/* Computes attention across the blocks of ranks. Each rank in `group` has q, k and v for its zigzag slice, in
 * position order. */
static Tensor *between(Tape *t, const AttentionInputs *x, AttentionAttr attr, Group group, bool gather,
                       bool unfused) {
    if (group.size == 1) return op_attention(t, x, attr, unfused);
    attr.query = slice_zigzag(x->q->dim[0] * group.size, group.size, group.rank);
    if (gather) return context_gather(t, x, attr, group, unfused);
    CHECK(!unfused,
          "attention: a ring processes only some keys at a time, but the unfused kernel needs all keys");
    return context_ring(t, x, attr, group);
}

/* Checks the number of rows. The SPMD type is V both before and after an exchange, so it does not show which dimension
 * is sharded. */
static void check_rows(const Tensor *x, int dim, int64_t rows) {
    CHECK(x->dim[dim] == rows, "op 'attention', axis cp: an operand has %lld rows, not %lld",
          (long long)x->dim[dim], (long long)rows);
}

/* Returns this rank's block. Sets *blocks to the group of ranks that have the same index within their
 * blocks. */
static Group block_of(const Tape *t, ContextPlan plan, Group *blocks) {
    const Group cp = tape_group(t, 1 << AXIS_CP);
    *blocks = group_outer(&cp, plan.exchange);
    return group_inner(&cp, plan.exchange);
}

bool context_exchange(Tape *t, Tensor **qkv, int64_t g, int64_t d, ContextPlan plan) {
    if (tape_axis(t, AXIS_CP) == 1) return false;
    Group blocks;
    const Group block = block_of(t, plan, &blocks);
    if (block.size == 1 || g % block.size) return false;
    Tensor *x = *qkv;
    const int64_t s = x->dim[0], heads = tensor_width(x) / (g * d);
    Tensor *all = tape_view(t, x, 0, 5, (int64_t[]){s, x->dim[1], g, heads, d},
                            (int64_t[]){x->stride[0], x->stride[1], heads * d, d, 1});
    *qkv = op_seq_to_heads(t, all, block);
    check_rows(*qkv, 0, block.size * s);
    return true;
}

Tensor *op_context_attention(Tape *t, const AttentionInputs *inputs, AttentionAttr attr, ContextPlan plan,
                             bool unfused) {
    const int ranks = tape_axis(t, AXIS_CP);
    if (ranks == 1) return op_attention(t, inputs, attr, unfused);
    AttentionInputs x = *inputs;
    Group blocks;
    const Group block = block_of(t, plan, &blocks);
    const int n = x.exchanged ? block.size : 1;
    const int64_t s = x.q->dim[0] / n, keys = x.k->dim[0] / n, g = x.q->dim[2] * n, r = x.q->dim[3];
    CHECK(s % 2 == 0 && keys % 2 == 0, "attention, axis cp: %lld queries and %lld keys are not two chunks",
          (long long)s, (long long)keys);
    if (block.size == 1) return between(t, &x, attr, blocks, plan.gather, unfused);
    CHECK(g % block.size == 0 || (block.size % g == 0 && r % (block.size / g) == 0),
          "attention, axis cp: %lld groups of %lld heads cannot be distributed over %d ranks", (long long)g,
          (long long)r, block.size);
    const int64_t first = block.rank * (g * r / block.size);
    attr.first_head += first, attr.first_local += first;
    if (!x.exchanged) {
        x.q = op_seq_to_heads(t, x.q, block);
        x.k = op_seq_to_heads(t, x.k, block);
        x.v = op_seq_to_heads(t, x.v, block);
    }
    if (x.first_key) x.first_key = exchange_ids(t, x.first_key, block);
    check_rows(x.q, 0, block.size * s), check_rows(x.k, 0, block.size * keys);
    check_rows(x.v, 0, block.size * keys);
    if (x.first_key) check_rows(x.first_key, 1, block.size * s);
    Tensor *y = between(t, &x, attr, blocks, plan.gather, unfused);
    y = op_heads_to_seq(t, y, block, g, r);
    check_rows(y, 0, s);
    return y;
}
