#include "bench/train/family.h"

#include "base/fault.h"

const char *const FAMILY_NAMES[FAMILY_COUNT] = {
#define FAMILY(constant, name) name,
    FAMILIES
#undef FAMILY
};

/* One more than the family; 0: none. */
static const unsigned char FAMILY_OF[OP_COUNT] = {
#define IN(op, family) [OP_##op] = 1 + FAMILY_##family
    IN(linear, GEMM),
    IN(linear_dgrad, GEMM),
    IN(linear_wgrad, GEMM),
    IN(bias, ELEMENTWISE),
    IN(amax, FP8),
    IN(fp8_scale, FP8),
    IN(fp8_own_scale, FP8),
    IN(quantize, FP8),
    IN(fp8_codes, FP8),
    IN(fp8_product, GEMM),
    IN(norm, NORM),
    IN(norm_grad, NORM),
    IN(add_norm, NORM),
    IN(activation, ACTIVATION),
    IN(activation_grad, ACTIVATION),
    IN(rope, ATTENTION),
    IN(embedding, EMBEDDING),
    IN(embedding_grad, EMBEDDING),
    IN(dropout, ELEMENTWISE),
    IN(jitter, MOE),
    IN(attention, ATTENTION),
    IN(attention_grad, ATTENTION),
    IN(attention_unfused, ATTENTION),
    IN(attention_unfused_grad, ATTENTION),
    IN(attention_merge, ATTENTION),
    IN(attention_sink, ATTENTION),
    IN(attention_sink_grad, ATTENTION),
    IN(route, MOE),
    IN(route_grad, MOE),
    IN(sinkhorn, MOE),
    IN(expert_count, MOE),
    IN(router_loss, MOE),
    IN(router_loss_grad, MOE),
    IN(expert_bias, MOE),
    IN(dispatch, MOE),
    IN(drop, MOE),
    IN(arrival, MOE),
    IN(permute, MOE),
    IN(unpermute, MOE),
    IN(scale_rows, MOE),
    IN(scale_rows_grad, MOE),
    IN(grouped_linear, GEMM),
    IN(grouped_linear_dgrad, GEMM),
    IN(grouped_linear_wgrad, GEMM),
    IN(cross_entropy, LOSS),
    IN(cross_entropy_grad, LOSS),
    IN(cross_entropy_with_grad, LOSS),
    IN(cross_entropy_shard, LOSS),
    IN(cross_entropy_join, LOSS),
    IN(weighted_sum, LOSS),
    IN(copy, ELEMENTWISE),
    IN(add, ELEMENTWISE),
    IN(fill, ELEMENTWISE),
    IN(snap, ELEMENTWISE),
    IN(adamw, OPTIMIZER),
    IN(sgd, OPTIMIZER),
    IN(clip, OPTIMIZER),
    IN(sum_squares, OPTIMIZER),
    IN(count_zeros, OPTIMIZER),
#undef IN
};

OpFamily family_of(OpNumber op) {
    CHECK(FAMILY_OF[op], "the op %s is in no family: add it to bench/train/family.c", OPS[op].name);
    return (OpFamily)(FAMILY_OF[op] - 1);
}
