#include "train/flops.h"

double flops_per_step(const Config *c, const Derived *d, int64_t samples) {
    double h = (double)c->hidden_size, s = (double)c->seq_length, layers = (double)c->num_layers;
    double q = (double)(c->num_attention_heads * d->kv_channels),
           kv = (double)(d->num_query_groups * d->kv_channels);
    double mlp = (d->activation == MLP_SWIGLU ? 3 : 2) * h * (double)d->ffn_hidden_size;
    double attention = h * (q + 2 * kv) + q * h;
    double per_token = 6 * (layers * (mlp + attention) + h * (double)d->padded_vocab_size);
    double per_sample = layers * 6 * q * s * s;
    return (double)samples * (s * per_token + per_sample);
}
