#include "models/gpt.h"

#include "base/hash.h"
#include "kernels/ops.h"
#include "models/option_map.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/redistribute.h"
#include "ops/residual.h"

static bool recomputes(const Gpt *m, RecomputeModule module) {
    return m->derived->recompute_modules & 1u << module;
}

/* ---- forward ---- */

/* The residual stream: x, and what is still to be added to it (NULL: nothing), which the next norm does. */
typedef struct Stream {
    Tensor *x, *branch;
} Stream;

static Tensor *settled(Tape *t, Stream s) { return s.branch ? op_add(t, s.x, s.branch) : s.x; }

static Tensor *normed(Tape *t, const Norm *n, Stream *s) {
    Tensor *branch = s->branch;
    s->branch = NULL;
    return branch ? norm_forward_sum(t, n, &s->x, branch) : norm_forward(t, n, s->x);
}

typedef struct LayerRun {
    const Gpt *gpt;
    const ModelInput *input;
    int64_t first, count; /* layers of this block */
} LayerRun;

static Tensor *feed_forward(Tape *t, void *layer, Tensor *x_sbh) {
    const GptLayer *l = layer;
    return l->moe ? moe_forward(t, l->moe, x_sbh) : mlp_forward(t, &l->mlp, x_sbh);
}

static Stream layer_forward(Tape *t, const Gpt *m, GptLayer *l, const ModelInput *input, Stream s) {
    const Config *c = m->config;
    Tensor *h = normed(t, &l->input_norm, &s);
    h = attention_forward(t, &l->attention, input, &m->rope, h);
    s.branch = op_dropout(t, h, c->hidden_dropout, l->attention_dropout_site);
    h = normed(t, &l->mlp_norm, &s);
    const bool again = recomputes(m, l->moe ? RECOMPUTE_MOE : RECOMPUTE_MLP);
    h = again ? tape_block(t, feed_forward, l, h) : feed_forward(t, l, h);
    s.branch = op_dropout(t, h, c->hidden_dropout, l->mlp_dropout_site);
    return s;
}

static Stream layers_forward(Tape *t, const LayerRun *r, Stream s) {
    for (int64_t i = r->first; i < r->first + r->count; i++)
        s = layer_forward(t, r->gpt, &r->gpt->layers[i], r->input, s);
    return s;
}

static Tensor *layers_block(Tape *t, void *run, Tensor *x_sbh) {
    return settled(t, layers_forward(t, run, (Stream){x_sbh, NULL}));
}

/* Full recompute: "uniform" keeps the input of every chunk of n layers, "block" recomputes the first n layers
 * of each stage one by one. Generation keeps nothing, so it runs every layer as a block. Offloading excludes
 * recomputation, and pipelines: a layer's number is its place in the stage. */
static Stream layers_of_stage(Tape *t, const Gpt *m, const GptStage *stage, const ModelInput *input,
                              Stream s) {
    const Config *c = m->config;
    bool full = c->recompute_granularity == RECOMPUTE_FULL;
    int64_t n = c->recompute_num_layers, layers = stage->layers,
            chunk = full && c->recompute_method == RECOMPUTE_UNIFORM ? n : 1;
    for (int64_t i = 0; i < layers; i += chunk) {
        LayerRun *run = tape_alloc(t, sizeof *run);
        *run = (LayerRun){m, input, stage->first_layer + i, chunk < layers - i ? chunk : layers - i};
        const bool offloads = i < c->cpu_offloading_num_layers;
        bool block = input->cache || (full && (c->recompute_method == RECOMPUTE_UNIFORM || i < n));
        if (offloads) tape_offload_begin(t, i);
        s = block ? (Stream){tape_block(t, layers_block, run, settled(t, s)), NULL}
                  : layers_forward(t, run, s);
        if (offloads) tape_offload_end(t, i);
    }
    return s;
}

/* The word table is cut by rows over the tensor-parallel ranks, so that looking up gives partial sums. */
static Tensor *embed(Tape *t, const Gpt *m, const ModelInput *input) {
    const Spmd stream = m->registry->layout.sequence_parallel ? SPMD_V : SPMD_I;
    Tensor *x =
        op_redistribute(t, op_embedding(t, input->tokens, &m->word_embeddings->value), AXIS_TP, stream, 0);
    if (m->position_embeddings) {
        Tensor *p = op_embedding(t, input->position, &m->position_embeddings->value);
        x = op_add(t, x, stream == SPMD_V ? op_redistribute(t, p, AXIS_TP, SPMD_V, 0) : p);
    }
    return op_dropout(t, x, m->config->hidden_dropout, hash_name("embedding.dropout"));
}

static Stream hidden(Tape *t, const Gpt *m, const GptStage *stage, const ModelInput *input, Tensor *x_sbh) {
    if (stage->embedding) x_sbh = embed(t, m, input);
    return layers_of_stage(t, m, stage, input, (Stream){x_sbh, NULL});
}

/* -> logits [s, b, v], over tensor-parallel ranks cut by vocabulary */
static Tensor *head(Tape *t, const Gpt *m, Stream s) {
    const unsigned sequence = m->registry->layout.sequence_parallel ? LINEAR_SEQUENCE : 0;
    return op_linear(t, normed(t, &m->final_norm, &s), &m->output->value, NULL, LINEAR_GATHER_IN | sequence);
}

int64_t gpt_loss_positions(const Gpt *m, int64_t s, int64_t b, DType storage) {
    const Config *c = m->config;
    if (!c->cross_entropy_loss_fusion || c->cross_entropy_fusion_impl != CROSS_ENTROPY_LINEAR) return 0;
    const int64_t columns = m->derived->padded_vocab_size / m->registry->layout.mesh.size[AXIS_TP];
    return linear_loss_positions(s, b, c->cross_entropy_chunk_size, (size_t)columns * dtype_size(storage));
}

/* -> loss [b, s]. Chunks of logits need to know their gradients at once. */
static Tensor *head_loss(Tape *t, const Gpt *m, const ModelInput *input, Stream s, Tensor *labels_bs) {
    const int64_t vocab = m->derived->vocab_size,
                  positions =
                      gpt_loss_positions(m, labels_bs->dim[1], labels_bs->dim[0], tape_context(t)->dtype);
    if (!positions || (tape_records(t) && !input->dloss))
        return op_cross_entropy_of(t, head(t, m, s), labels_bs, vocab, input->dloss);
    const LinearLoss how = {vocab, positions, m->registry->layout.sequence_parallel, input->dloss};
    return op_linear_cross_entropy(t, normed(t, &m->final_norm, &s), &m->output->value, labels_bs, how);
}

Tensor *gpt_stage(Tape *t, const Gpt *m, int stage, const ModelInput *input, Tensor *x_sbh,
                  Tensor *labels_bs) {
    const Stream s = hidden(t, m, &m->stages[stage], input, x_sbh);
    return m->stages[stage].head ? head_loss(t, m, input, s, labels_bs) : settled(t, s);
}

SpmdType gpt_boundary(const Gpt *m, int64_t b, int64_t dim[3]) {
    const Layout *l = &m->registry->layout;
    const int *size = l->mesh.size;
    const bool cut = l->sequence_parallel && size[AXIS_TP] > 1;
    SpmdType type = 0;
    dim[0] = m->config->seq_length / size[AXIS_CP] / (cut ? size[AXIS_TP] : 1);
    dim[1] = b;
    dim[2] = m->config->hidden_size;
    if (cut) type = spmd_with(type, AXIS_TP, SPMD_V);
    if (size[AXIS_CP] > 1) type = spmd_with(type, AXIS_CP, SPMD_V);
    return size[AXIS_DP] > 1 ? spmd_with(type, AXIS_DP, SPMD_V) : type;
}

Tensor *gpt_forward(Tape *t, const Gpt *m, const ModelInput *input) {
    return head(t, m, hidden(t, m, &m->stages[0], input, NULL));
}

Tensor *gpt_loss(Tape *t, const Gpt *m, const ModelInput *input, Tensor *labels_bs) {
    return gpt_stage(t, m, 0, input, NULL, labels_bs);
}

/* ---- construction ---- */

static const char WORD_EMBEDDINGS[] = "embedding.word_embeddings.weight";

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

static double or_else(double given, double otherwise) { return f64_is_set(given) ? given : otherwise; }

double gpt_router_loss_coeff(const Gpt *m, int loss) { return map_loss_coeff(m->config, m->derived, loss); }

static RouterSpec router_spec(const Gpt *m, const char *name) {
    const Config *c = m->config;
    const Derived *d = m->derived;
    const bool groups = i64_is_set(c->moe_router_num_groups);
    RouterSpec r = {
        .name = name,
        .hidden = c->hidden_size,
        .experts = c->num_experts,
        .topk = c->moe_router_topk,
        .route = {.score = map_score(c->moe_router_score_function),
                  .groups = groups ? c->moe_router_num_groups : 0,
                  .group_topk = groups ? c->moe_router_group_topk : 0,
                  .scaling = or_else(c->moe_router_topk_scaling_factor, 1)},
        .bias = c->moe_router_enable_expert_bias,
        .sinkhorn = d->sinkhorn,
        .jitter = or_else(c->moe_input_jitter_eps, 0),
        .init_std = d->init_std,
    };
    if (r.route.score == ROUTER_TOPK_SOFTMAX && (c->moe_router_pre_softmax || d->sinkhorn))
        r.route.score = d->sinkhorn && r.topk == 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
    for (int i = 0; i < ROUTER_LOSSES; i++) r.loss_coeff[i] = gpt_router_loss_coeff(m, i);
    return r;
}

static Moe *experts_new(const Gpt *m, MlpSpec mlp) {
    const Config *c = m->config;
    Registry *r = m->registry;
    Moe *moe = arena_alloc(r->arena, sizeof *moe);
    *moe = moe_new(r, (MoeSpec){
                          .name = mlp.name,
                          .router = router_spec(m, arena_printf(r->arena, "%s.router", mlp.name)),
                          .ffn = m->derived->moe_ffn_hidden_size,
                          .shared_ffn = m->derived->moe_shared_size,
                          .shared_gate = c->moe_shared_expert_gate,
                          .activation = mlp.activation,
                          .fc1_init_std = mlp.fc1_init_std,
                          .fc2_init_std = mlp.fc2_init_std,
                          .capacity_factor = or_else(c->moe_expert_capacity_factor, 0),
                          .pad = c->moe_pad_expert_input_to_capacity,
                          .drop_by_position = c->moe_token_drop_policy == DROP_POSITION,
                          .all_to_all = c->moe_token_dispatcher_type == DISPATCH_ALLTOALL,
                      });
    return moe;
}

static ContextPlan context_plan(const Config *c, ContextComm comm) {
    const I64List *sizes = &c->hierarchical_context_parallel_sizes;
    const int64_t exchange = comm == CONTEXT_A2A                       ? c->context_parallel_size
                             : comm == CONTEXT_A2A_P2P && sizes->count ? sizes->at[0]
                                                                       : 1;
    return (ContextPlan){(int)exchange, comm == CONTEXT_ALLGATHER};
}

/* Megatron-LM core/fp8_utils.py is_first_last_bf16_layer. */
static QuantSpec quant_spec(const Config *c, int64_t layer) {
    const bool bf16 = c->first_last_layers_bf16 && (layer < c->num_layers_at_start_in_bf16 ||
                                                    layer >= c->num_layers - c->num_layers_at_end_in_bf16);
    return (QuantSpec){.format = bf16 ? QUANT_OFF : map_fp8_format(c->fp8_format),
                       .recipe = map_fp8_recipe(c->fp8_recipe),
                       .margin = c->fp8_margin,
                       .history = c->fp8_amax_history_len,
                       .most_recent = c->fp8_amax_compute_algo == AMAX_MOST_RECENT,
                       .wgrad = c->fp8_wgrad,
                       .emulated = c->fp8_emulated,
                       .keep_inputs = c->fp8_keep_inputs};
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
        .sink = map_softmax(c->softmax_type),
        .dropout = c->attention_dropout,
        .qkv_init_std = d->init_std,
        .proj_init_std = d->output_init_std,
        .softmax_init_std = d->init_std,
        .quant = quant_spec(c, i),
        .context = context_plan(c, d->layer_context_comm[i]),
        .unfused = c->attention_backend == BACKEND_UNFUSED,
        .recompute = recomputes(m, RECOMPUTE_CORE_ATTN),
    };
    MlpSpec mlp = {
        .name = arena_printf(r->arena, "%s.mlp", layer),
        .hidden = c->hidden_size,
        .ffn = d->ffn_hidden_size,
        .activation = map_activation(d->activation),
        .bias = c->add_bias_linear,
        .fc1_init_std = d->init_std,
        .fc2_init_std = d->output_init_std,
        .quant = quant_spec(c, i),
    };
    GptLayer l = {0};
    registry_begin_unit(r);
    l.input_norm = norm_new(r, arena_printf(r->arena, "%s.input_layernorm", layer), c->hidden_size, norm);
    l.attention = attention_new(r, attention);
    l.mlp_norm = norm_new(r, arena_printf(r->arena, "%s.pre_mlp_layernorm", layer), c->hidden_size, norm);
    if (d->layer_moe[i])
        l.moe = experts_new(m, mlp);
    else
        l.mlp = mlp_new(r, mlp);
    l.attention_dropout_site = hash_name(arena_printf(r->arena, "%s.attention_dropout", layer));
    l.mlp_dropout_site = hash_name(arena_printf(r->arena, "%s.mlp_dropout", layer));
    return l;
}

static Param *word_table(const Gpt *m, const char *name, double init_std) {
    Param *p =
        embedding_new(m, name, m->derived->vocab_size, m->derived->padded_vocab_size, 0, PARAM_EMBEDDING);
    p->spec.init.value = init_std;
    return p;
}

static void stage_new(Gpt *m, const GptStage *stage, NormAttr norm) {
    const Config *c = m->config;
    const Derived *d = m->derived;
    if (stage->embedding) {
        m->word_embeddings = word_table(m, WORD_EMBEDDINGS, d->embedding_init_std);
        if (c->position_embedding_type == POSITION_LEARNED) {
            m->position_embeddings =
                embedding_new(m, "embedding.position_embeddings.weight", d->max_position_embeddings,
                              d->max_position_embeddings, SPLIT_NONE, 0); /* Megatron-LM: not decoupled */
            m->position_embeddings->spec.invariant = true;
        }
    }
    for (int64_t i = stage->first_layer; i < stage->first_layer + stage->layers; i++)
        m->layers[i] = layer_new(m, i, norm);
    if (!stage->head) return;
    registry_begin_unit(m->registry);
    m->final_norm = norm_new(m->registry, "decoder.final_layernorm", c->hidden_size, norm);
    if (c->untie_embeddings_and_output_weights)
        m->output = word_table(m, "output_layer.weight", d->init_std); /* a linear layer's, whatever
                                                                           --embedding-init-method-std says */
    else if (m->word_embeddings)
        m->output = m->word_embeddings;
    else {
        m->output = word_table(m, WORD_EMBEDDINGS, d->embedding_init_std);
        m->output->spec.flags |= PARAM_TIED_COPY;
    }
}

Gpt *gpt_new(const Config *c, const Derived *d, const GptPlace *place) {
    const GptStage everything = {.layers = c->num_layers, .embedding = true, .head = true};
    const GptPlace whole = {layout_single(), &everything, 1};
    if (!place) place = &whole;
    Registry *r = registry_new(&place->layout);
    Gpt *m = arena_alloc(r->arena, sizeof *m);
    *m = (Gpt){.config = c, .derived = d, .registry = r, .n_stages = place->n_stages};
    NormAttr norm = {
        .rms = c->normalization == NORM_RMS, .one_plus = c->apply_layernorm_1p, .eps = c->norm_epsilon};
    m->stages = arena_alloc(r->arena, (size_t)place->n_stages * sizeof *m->stages);
    m->layers = arena_alloc(r->arena, (size_t)c->num_layers * sizeof *m->layers);
    for (int i = 0; i < place->n_stages; i++) {
        m->stages[i] = place->stages[i];
        stage_new(m, &m->stages[i], norm);
    }
    if (m->word_embeddings && !m->output && !c->untie_embeddings_and_output_weights)
        m->word_embeddings->spec.flags |= PARAM_TIED;
    return m;
}

/* ---- routers ---- */

static void allocate_counters(Gpt *m) {
    const int64_t layers = m->derived->num_moe_layers, experts = layers ? m->config->num_experts : 0;
    const int64_t each = router_counters(&(RouterSpec){.experts = experts});
    if (!layers) return;
    m->counters = tensor_make(NULL, F64, 2, (int64_t[]){layers, each});
    m->counters.data = device_alloc(m->device, tensor_bytes(&m->counters), "router counters");
    for (int64_t i = 0, moe = 0; i < m->config->num_layers; i++) {
        if (!m->derived->layer_moe[i]) continue;
        if (m->layers[i].moe)
            m->layers[i].moe->router.counters =
                tensor_make((double *)m->counters.data + moe * each, F64, 1, &each);
        moe++;
    }
}

void gpt_zero_counters(Gpt *m) {
    const FillAttr zero = {0};
    if (m->counters.data)
        call_run(&OPS[OP_fill], &(Call){.out = {&m->counters}, .attr = &zero, .device = m->device});
}

void gpt_update_expert_bias(Gpt *m) {
    const Config *c = m->config;
    for (int64_t i = 0; c->moe_router_enable_expert_bias && i < c->num_layers; i++)
        if (m->layers[i].moe)
            router_update_bias(&m->layers[i].moe->router, m->device, c->moe_router_bias_update_rate);
}

enum { LAYER_LINEARS = 4 };

/* Those that may be FP8; zero if another rank's. */
static const Linear *linear_of(const Gpt *m, int64_t layer, int k) {
    const GptLayer *l = &m->layers[layer];
    const Linear *const linears[LAYER_LINEARS] = {&l->attention.qkv, &l->attention.proj, &l->mlp.fc1,
                                                  &l->mlp.fc2};
    return linears[k];
}

void gpt_end_step_scales(Gpt *m, Comm *comm) {
    for (int64_t i = 0; i < m->config->num_layers; i++)
        for (int k = 0; k < LAYER_LINEARS; k++)
            quantize_end_step(linear_of(m, i, k)->quantiser, m->device, &m->registry->layout, comm);
}

void gpt_keep_fp8_weights(Gpt *m, const RunContext *run, int64_t tokens) {
    for (int64_t i = 0; i < m->config->num_layers; i++)
        for (int k = 0; k < LAYER_LINEARS; k++) {
            const Linear *l = linear_of(m, i, k);
            if (l->quantiser &&
                !quantize_emulation(run, l->quantiser->spec, tokens, l->weight->columns, l->weight->rows))
                m->fp8_bytes += quantize_keep(l->quantiser, l->weight, m->device);
        }
}

void gpt_take_fp8_weights(Gpt *m, Comm *comm, bool training) {
    for (int64_t i = 0; m->fp8_bytes && i < m->config->num_layers; i++)
        for (int k = 0; k < LAYER_LINEARS; k++) {
            const Linear *l = linear_of(m, i, k);
            quantize_take_kept(l->quantiser, l->weight, m->device, &m->registry->layout, comm, training);
        }
}

int64_t gpt_fp8_linears(const Gpt *m, const RunContext *run, int64_t tokens, const char **emulation) {
    int64_t n = 0;
    *emulation = NULL;
    for (int64_t i = 0; i < m->config->num_layers; i++)
        for (int k = 0; k < LAYER_LINEARS; k++) {
            const Linear *l = linear_of(m, i, k);
            if (!l->quantiser) continue;
            n++;
            if (!*emulation)
                *emulation =
                    quantize_emulation(run, l->quantiser->spec, tokens, l->weight->columns, l->weight->rows);
        }
    return n;
}

double gpt_router_loss(const Gpt *m, const double *counters, int loss) {
    const int64_t layers = m->derived->num_moe_layers, each = m->counters.dim[1];
    double sum = 0;
    for (int64_t i = 0; i < layers; i++) sum += counters[(i + 1) * each - ROUTER_LOSSES + loss];
    return sum / (double)layers;
}

/* ---- memory ---- */

void gpt_allocate(Gpt *m, Device *device, DType storage, int64_t positions) {
    const Config *c = m->config;
    registry_allocate(m->registry, device, storage);
    m->device = device;
    allocate_counters(m);
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
    for (int64_t i = 0; m->fp8_bytes && i < m->config->num_layers; i++)
        for (int k = 0; k < LAYER_LINEARS; k++)
            quantize_release_kept(linear_of(m, i, k)->quantiser, m->device);
    if (m->rope.cos.data) rope_table_free(m->device, &m->rope);
    if (m->counters.data) device_release(m->device, m->counters.data, tensor_bytes(&m->counters));
    registry_free(m->registry); /* the model itself lives in the registry's arena */
}
