/* Computes the op gated_delta_rule of kernels/cpu/gated_delta_rule.c, which contains the formulas. */
#include "kernels/cuda/mamba/delta_tiles.cuh"
#include "kernels/cuda/mamba/gated_delta_rule.cuh"

extern "C" size_t cuda_plans_gated_delta_rule(const Call *c) {
    if (delta_tiles_can(c, c->in)) return delta_tiles_bytes(c);
    const RuleSizes z = rule_sizes((const DeltaRuleAttr *)c->attr, c->in);
    return (size_t)shared_scratch(z) * z.element;
}

template <typename T> static void forward(const Call *c) {
    Real<T> *end;
    const Rule<T> o = rule_of<T>((const DeltaRuleAttr *)c->attr, c->in,
                                 cuda_scratch(c->device, cuda_plans_gated_delta_rule(c)), &end);
    prepare_rule(c, o);
    const ChunkOutputs<T> out = {data_of<T>(c->out[0])};
    rule_chunks<T><<<column_blocks(c, o), THREADS, tile_bytes(o), stream_of(c)>>>(o, out);
    LAUNCHED();
}

extern "C" void cuda_gated_delta_rule(const Call *c) {
    same_type("gated_delta_rule", c->in[0], c->out[0]);
    if (delta_tiles_can(c, c->in))
        delta_tiles(c);
    else if (tensor_count(c->in[0]))
        STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}
