#include "ops/context_attention.h"

#include "base/fault.h"
#include "ops/attention.h"
#include "ops/ulysses.h"

/* Attention between the blocks. The ranks have q, k and v of a zigzag slice of `group` in the order of
 * positions. */
static Tensor *between(Tape *t, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink,
                       AttentionAttr attr, Group group, bool gather, bool unfused) {
    if (group.size == 1) return op_attention(t, q, k, v, first_key, sink, attr, unfused);
    attr.query = slice_zigzag(q->dim[0] * group.size, group.size, group.rank);
    if (gather) return context_gather(t, q, k, v, first_key, sink, attr, group, unfused);
    CHECK(!unfused, "attention: a ring sees some keys at a time, the unfused kernel needs all of them");
    return context_ring(t, q, k, v, first_key, sink, attr, group);
}

/* An exchange changes which dimension is sharded; the type stays V. */
static void check_rows(const Tensor *x, int dim, int64_t rows) {
    CHECK(x->dim[dim] == rows, "op 'attention', axis cp: an operand has %lld rows, not %lld",
          (long long)x->dim[dim], (long long)rows);
}

Tensor *op_context_attention(Tape *t, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink,
                             AttentionAttr attr, ContextPlan plan, bool unfused) {
    const int ranks = tape_axis(t, AXIS_CP);
    if (ranks == 1) return op_attention(t, q, k, v, first_key, sink, attr, unfused);
    const int64_t s = q->dim[0], g = q->dim[2], r = q->dim[3];
    CHECK(s == k->dim[0] && s % 2 == 0, "attention, axis cp: %lld queries and %lld keys are no two chunks",
          (long long)s, (long long)k->dim[0]);
    const Group cp = tape_group(t, 1 << AXIS_CP), block = group_inner(&cp, plan.exchange),
                blocks = group_outer(&cp, plan.exchange);
    if (block.size == 1) return between(t, q, k, v, first_key, sink, attr, blocks, plan.gather, unfused);
    CHECK(g % block.size == 0 || (block.size % g == 0 && r % (block.size / g) == 0),
          "attention, axis cp: %lld groups of %lld heads cannot be dealt to %d ranks", (long long)g,
          (long long)r, block.size);
    const int64_t first = block.rank * (g * r / block.size);
    attr.first_head += first, attr.first_sink += first;
    q = op_seq_to_heads(t, q, block);
    k = op_seq_to_heads(t, k, block);
    v = op_seq_to_heads(t, v, block);
    if (first_key) first_key = exchange_ids(t, first_key, block);
    check_rows(q, 0, block.size * s), check_rows(k, 0, block.size * s), check_rows(v, 0, block.size * s);
    if (first_key) check_rows(first_key, 1, block.size * s);
    Tensor *y = between(t, q, k, v, first_key, sink, attr, blocks, plan.gather, unfused);
    y = op_heads_to_seq(t, y, block, g, r);
    check_rows(y, 0, s);
    return y;
}
