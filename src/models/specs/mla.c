#include "nn/mla.h"

#include "models/specs.h"

void mla_spec(const LayerPlace *p, BranchSpec *out) {
    const Config *c = p->config;
    MlaSpec *s = arena_alloc(p->arena, sizeof *s);
    *s = (MlaSpec){
        .attention = spec_attention(p),
        .q_rank = i64_or(c->q_lora_rank, 0),
        .kv_rank = c->kv_lora_rank,
        .rotated = c->qk_pos_emb_head_dim,
        .value = c->v_head_dim,
        .recompute_up = spec_recomputes(c, RECOMPUTE_MLA_UP_PROJ),
        .caches_latents = c->cache_mla_latents,
    };
    s->attention.rotary_interleaved = c->mla_rotary_interleaved;
    s->attention.norm.eps = f64_or(c->latent_norm_epsilon, c->norm_epsilon);
    out->spec = s;
}
