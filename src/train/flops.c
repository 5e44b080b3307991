#include "train/flops.h"

double flops_per_step(const Config *c, const Derived *d, int64_t samples) {
    double h = (double)c->hidden_size, s = (double)c->seq_length, layers = (double)c->num_layers;
    double q = (double)(c->num_attention_heads * d->kv_channels),
           kv = (double)(d->num_query_groups * d->kv_channels);
    double matrices = d->activation == MLP_SWIGLU ? 3 : 2, moe = (double)d->num_moe_layers;
    double experts = moe > 0 ? (double)(c->moe_router_topk * d->moe_ffn_hidden_size + d->moe_shared_size) : 0;
    double mlps = matrices * h * ((layers - moe) * (double)d->ffn_hidden_size + moe * experts);
    double attention = h * (q + 2 * kv) + q * h;
    double per_token = 6 * (mlps + layers * attention + h * (double)d->padded_vocab_size);
    double per_sample = layers * 6 * q * s * s;
    return (double)samples * (s * per_token + per_sample);
}
