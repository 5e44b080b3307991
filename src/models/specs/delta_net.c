#include "nn/delta_net.h"

#include "models/specs.h"

/* The numbers are those of GatedDeltaNet in Megatron-LM core/ssm/gated_delta_net/gdn.py. */
void delta_net_spec(const LayerPlace *p, BranchSpec *out) {
    enum { CHUNK = 64 };
    const Config *c = p->config;
    DeltaNetSpec *s = arena_alloc(p->arena, sizeof *s);
    *s = (DeltaNetSpec){
        .hidden = c->hidden_size,
        .heads = c->linear_num_value_heads,
        .taps = c->linear_conv_kernel_dim,
        .rule = {.key_heads = c->linear_num_key_heads,
                 .key_dim = c->linear_key_head_dim,
                 .value_dim = c->linear_value_head_dim,
                 .chunk = CHUNK,
                 .normalize = true,
                 .eps = 1e-6},
        .norm = spec_norm(c),
        .recompute_norm = spec_recomputes(c, RECOMPUTE_GDN_NORM_OUT),
        .in_init_std = c->derived.init_std,
        .out_init_std = c->derived.output_init_std,
        .quant = spec_quant(c, p->layer, p->arena),
    };
    out->spec = s;
}
