#include "models/gpt.h"

#include "base/hash.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/residual.h"

static bool recomputes(const Gpt *m, RecomputeModule module) {
    return m->derived->recompute_modules & 1u << module;
}

/* ---- forward ---- */

typedef struct LayerRun {
    const Gpt *gpt;
    const ModelInput *input;
    int64_t first, count; /* layers of this block */
} LayerRun;

static Tensor *mlp_block(Tape *t, void *self, Tensor *x_sbh) { return mlp_forward(t, self, x_sbh); }

static Tensor *layer_forward(Tape *t, const Gpt *m, GptLayer *l, const ModelInput *input, Tensor *x_sbh) {
    const Config *c = m->config;
    Tensor *h = norm_forward(t, &l->input_norm, x_sbh);
    h = attention_forward(t, &l->attention, input, &m->rope, h);
    h = op_dropout(t, h, c->hidden_dropout, l->attention_dropout_site);
    x_sbh = op_add(t, x_sbh, h);
    h = norm_forward(t, &l->mlp_norm, x_sbh);
    h = recomputes(m, RECOMPUTE_MLP) ? tape_block(t, mlp_block, &l->mlp, h) : mlp_forward(t, &l->mlp, h);
    h = op_dropout(t, h, c->hidden_dropout, l->mlp_dropout_site);
    return op_add(t, x_sbh, h);
}

static Tensor *layers_forward(Tape *t, void *self, Tensor *x_sbh) {
    const LayerRun *r = self;
    for (int64_t i = r->first; i < r->first + r->count; i++)
        x_sbh = layer_forward(t, r->gpt, &r->gpt->layers[i], r->input, x_sbh);
    return x_sbh;
}

/* Full recompute: "uniform" keeps the input of every chunk of n layers, "block" recomputes the first n layers
 * one by one. Generation keeps nothing, so it runs every layer as a block. */
static Tensor *decoder_forward(Tape *t, const Gpt *m, const ModelInput *input, Tensor *x_sbh) {
    const Config *c = m->config;
    bool full = c->recompute_granularity == RECOMPUTE_FULL;
    int64_t n = c->recompute_num_layers, layers = c->num_layers,
            chunk = full && c->recompute_method == RECOMPUTE_UNIFORM ? n : 1;
    for (int64_t i = 0; i < layers; i += chunk) {
        LayerRun *run = tape_alloc(t, sizeof *run);
        *run = (LayerRun){m, input, i, chunk < layers - i ? chunk : layers - i};
        bool block = input->cache || (full && (c->recompute_method == RECOMPUTE_UNIFORM || i < n));
        x_sbh = block ? tape_block(t, layers_forward, run, x_sbh) : layers_forward(t, run, x_sbh);
    }
    return x_sbh;
}

Tensor *gpt_forward(Tape *t, const Gpt *m, const ModelInput *input) {
    const Config *c = m->config;
    Tensor *x = op_embedding(t, input->tokens, &m->word_embeddings->value);
    if (m->position_embeddings)
        x = op_add(t, x, op_embedding(t, input->position, &m->position_embeddings->value));
    x = op_dropout(t, x, c->hidden_dropout, hash_name("embedding.dropout"));
    x = decoder_forward(t, m, input, x);
    x = norm_forward(t, &m->final_norm, x);
    return op_linear(t, x, &m->output->value, NULL);
}

Tensor *gpt_loss(Tape *t, const Gpt *m, const ModelInput *input, Tensor *labels_bs) {
    return op_cross_entropy(t, gpt_forward(t, m, input), labels_bs, m->derived->vocab_size);
}

/* ---- construction ---- */

/* Derived never says MLP_GELU: it has decided between the two forms. */
static const Activation ACTIVATION[] = {
    [MLP_GELU_TANH] = ACT_GELU_TANH,       [MLP_GELU_ERF] = ACT_GELU_ERF, [MLP_QUICK_GELU] = ACT_QUICK_GELU,
    [MLP_SQUARED_RELU] = ACT_SQUARED_RELU, [MLP_SWIGLU] = ACT_SWIGLU,
};

static Param *embedding_new(const Gpt *m, const char *name, int64_t rows, int64_t padded, int tp_split,
                            unsigned flags) {
    return param_add(m->registry, (ParamSpec){.name = name,
                                              .ndim = 2,
                                              .dim = {rows, m->config->hidden_size},
                                              .padded = padded,
                                              .tp_split = tp_split,
                                              .init = {INIT_NORMAL, m->derived->embedding_init_std},
                                              .flags = flags});
}

static GptLayer layer_new(const Gpt *m, int64_t i, NormAttr norm) {
    const Config *c = m->config;
    const Derived *d = m->derived;
    Registry *r = m->registry;
    const char *layer = arena_printf(r->arena, "decoder.layers.%lld", (long long)i);
    AttentionSpec attention = {
        .name = arena_printf(r->arena, "%s.self_attention", layer),
        .layer = (int)i,
        .hidden = c->hidden_size,
        .heads = c->num_attention_heads,
        .groups = d->num_query_groups,
        .head_dim = d->kv_channels,
        .qkv_bias = c->add_bias_linear || c->add_qkv_bias,
        .proj_bias = c->add_bias_linear,
        .qk_norm = c->qk_layernorm,
        .norm = norm,
        .qk_norm_decays = c->apply_wd_to_qk_layernorm,
        .rotary_interleaved = c->rotary_interleaved,
        .rotary_dim = d->rotary_dim,
        .window_left = d->layer_windowed[i] ? d->window_left : WINDOW_OFF,
        .window_right = 0, /* causal, whatever the right reach of --window-size */
        .dropout = c->attention_dropout,
        .qkv_init_std = d->init_std,
        .proj_init_std = d->output_init_std,
        .unfused = c->attention_backend == BACKEND_UNFUSED,
        .recompute = recomputes(m, RECOMPUTE_CORE_ATTN),
    };
    MlpSpec mlp = {
        .name = arena_printf(r->arena, "%s.mlp", layer),
        .hidden = c->hidden_size,
        .ffn = d->ffn_hidden_size,
        .activation = ACTIVATION[d->activation],
        .bias = c->add_bias_linear,
        .fc1_init_std = d->init_std,
        .fc2_init_std = d->output_init_std,
    };
    GptLayer l;
    l.input_norm = norm_new(r, arena_printf(r->arena, "%s.input_layernorm", layer), c->hidden_size, norm);
    l.attention = attention_new(r, attention);
    l.mlp_norm = norm_new(r, arena_printf(r->arena, "%s.pre_mlp_layernorm", layer), c->hidden_size, norm);
    l.mlp = mlp_new(r, mlp);
    l.attention_dropout_site = hash_name(arena_printf(r->arena, "%s.attention_dropout", layer));
    l.mlp_dropout_site = hash_name(arena_printf(r->arena, "%s.mlp_dropout", layer));
    return l;
}

Gpt *gpt_new(const Config *c, const Derived *d, const Layout *layout) {
    Registry *r = registry_new(layout);
    Gpt *m = arena_alloc(r->arena, sizeof *m);
    *m = (Gpt){.config = c, .derived = d, .registry = r};
    NormAttr norm = {
        .rms = c->normalization == NORM_RMS, .one_plus = c->apply_layernorm_1p, .eps = c->norm_epsilon};
    m->word_embeddings = embedding_new(m, "embedding.word_embeddings.weight", d->vocab_size,
                                       d->padded_vocab_size, 0, PARAM_EMBEDDING);
    if (c->position_embedding_type == POSITION_LEARNED)
        m->position_embeddings =
            embedding_new(m, "embedding.position_embeddings.weight", d->max_position_embeddings,
                          d->max_position_embeddings, SPLIT_NONE, 0); /* Megatron-LM: not decoupled */
    m->layers = arena_alloc(r->arena, (size_t)c->num_layers * sizeof *m->layers);
    for (int64_t i = 0; i < c->num_layers; i++) m->layers[i] = layer_new(m, i, norm);
    m->final_norm = norm_new(r, "decoder.final_layernorm", c->hidden_size, norm);
    m->output = m->word_embeddings;
    if (c->untie_embeddings_and_output_weights) {
        m->output =
            embedding_new(m, "output_layer.weight", d->vocab_size, d->padded_vocab_size, 0, PARAM_EMBEDDING);
        m->output->spec.init.value =
            d->init_std; /* a linear layer's, whatever --embedding-init-method-std says */
    }
    return m;
}

void gpt_allocate(Gpt *m, Device *device, DType storage, int64_t positions) {
    const Config *c = m->config;
    registry_allocate(m->registry, device, storage);
    m->device = device;
    if (!m->derived->rotary_dim) return;
    RopeSpec rope = {
        .dim = m->derived->rotary_dim,
        .positions = positions,
        .base = c->rotary_base,
        .interpolation =
            f64_is_set(c->rotary_seq_len_interpolation_factor) ? c->rotary_seq_len_interpolation_factor : 1,
    };
    if (c->use_rope_scaling) {
        rope.llama3.factor = c->rope_scaling_factor;
        rope.llama3.low = c->rope_scaling_low_freq_factor;
        rope.llama3.high = c->rope_scaling_high_freq_factor;
        rope.llama3.original = (double)c->rope_scaling_original_max_position_embeddings;
    }
    m->rope = rope_table_new(device, m->registry->precise, &rope);
}

void gpt_free(Gpt *m) {
    if (!m) return;
    if (m->rope.cos.data) rope_table_free(m->device, &m->rope);
    registry_free(m->registry); /* the model itself lives in the registry's arena */
}
