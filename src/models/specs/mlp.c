#include "nn/mlp.h"

#include "models/option_map.h"
#include "models/specs.h"

void mlp_spec(const LayerPlace *p, BranchSpec *out) {
    const Config *c = p->config;
    const Derived *d = &c->derived;
    MlpSpec *s = arena_alloc(p->arena, sizeof *s);
    *s = (MlpSpec){
        .hidden = c->hidden_size,
        .ffn = d->ffn_hidden_size,
        .activation = spec_activation(c, false),
        .bias = c->add_bias_linear || c->add_mlp_bias,
        .fc1_init_std = d->init_std,
        .fc2_init_std = d->output_init_std,
        .quant = spec_quant(c, p->layer, p->arena),
    };
    out->spec = s;
    out->recompute = spec_recomputes(c, RECOMPUTE_MLP);
}
