#include "nn/mamba.h"

#include <math.h>

#include "models/specs.h"

/* The numbers are those of MambaMixer in Megatron-LM core/ssm/mamba_mixer.py. */
void mamba_spec(const LayerPlace *p, BranchSpec *out) {
    enum { TAPS = 4, CHUNK = 128 };
    const Config *c = p->config;
    MambaSpec *s = arena_alloc(p->arena, sizeof *s);
    *s = (MambaSpec){
        .hidden = c->hidden_size,
        .heads = c->derived.mamba_heads,
        .taps = TAPS,
        .scan = {.groups = c->mamba_num_groups,
                 .head_dim = c->mamba_head_dim,
                 .state = c->mamba_state_dim,
                 .chunk = CHUNK,
                 .least = c->mamba_dt_min,
                 .most = HUGE_VAL},
        .epsilon = 1e-5,
        .in_init_std = c->derived.init_std,
        .out_init_std = c->derived.output_init_std,
        .quant = spec_quant(c, p->layer, p->arena),
    };
    out->spec = s;
}
