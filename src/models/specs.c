#include "models/specs.h"

#include <math.h>

#include "base/fault.h"
#include "models/option_map.h"
#include "nn/lm_head.h"

ActivationAttr spec_activation(const Config *c, bool routed) {
    const MlpActivation kind = c->derived.activation;
    return (ActivationAttr){.kind = map_activation(kind),
                            .limit =
                                routed || kind != MLP_SWIGLU ? f64_or(c->activation_func_clamp_value, 0) : 0,
                            .offset = c->glu_linear_offset};
}

NormAttr spec_norm(const Config *c) {
    return (NormAttr){.rms = c->normalization == NORM_RMS,
                      .no_gain = !c->norm_weight,
                      .no_bias = !c->norm_bias,
                      .one_plus = c->apply_layernorm_1p,
                      .eps = c->norm_epsilon};
}

bool spec_recomputes(const Config *c, RecomputeModule module) {
    return c->derived.recompute_modules & 1u << module;
}

EmbeddingSpec *spec_words(const Config *c, Arena *arena) {
    EmbeddingSpec *s = arena_alloc(arena, sizeof *s);
    *s = (EmbeddingSpec){
        .vocab = c->derived.vocab_size,
        .padded_vocab = c->derived.padded_vocab_size,
        .hidden = c->hidden_size,
        .positions = c->position_embedding_type == POSITION_LEARNED ? c->derived.max_position_embeddings : 0,
        .normed = c->embedding_layernorm,
        .norm = spec_norm(c),
        .init_std = c->derived.embedding_init_std,
        .dropout = c->hidden_dropout,
        .dropout_site = "embedding.dropout",
        .multiplier = c->scale_embedding ? sqrt((double)c->hidden_size) : c->embedding_multiplier,
        .rounded = c->scale_embedding,
        .scale = c->use_mup ? c->mup_embedding_mult : 1,
    };
    return s;
}

/* Returns whether --first-last-layers-bf16 excludes a layer from FP8, like is_first_last_bf16_layer in
 * Megatron-LM core/fp8_utils.py. In T5, --first-last-layers-bf16 applies to the first and last layers of both
 * stacks. */
static bool is_in_bf16(const Config *c, int64_t layer) {
    const bool decodes = c->model == MODEL_t5 && layer >= c->num_layers;
    const int64_t n = decodes ? config_decoder_layers(c) : c->num_layers, i = config_layer_in_stack(c, layer);
    return c->first_last_layers_bf16 && i < n &&
           (i < c->num_layers_at_start_in_bf16 || i >= n - c->num_layers_at_end_in_bf16);
}

static const QuantRule *quant_rules(const PrecisionRules *rules, Arena *arena) {
    QuantRule *out = arena_alloc(arena, (size_t)rules->count * sizeof *out);
    for (int i = 0; i < rules->count; i++) {
        const PrecisionRule *r = &rules->at[i];
        out[i] = (QuantRule){r->pattern, map_fp8_format(r->format), map_fp8_recipe(r->recipe),
                             r->overrides_fp8, r->overrides_bf16};
    }
    return out;
}

static QuantSpec quant_of(const Config *c, bool in_bf16, Arena *arena) {
    const bool ruled = c->te_precision_config_file && c->fp8_format != FP8_NONE;
    return (QuantSpec){.format = in_bf16 ? QUANT_OFF : map_fp8_format(c->fp8_format),
                       .recipe = map_fp8_recipe(c->fp8_recipe),
                       .margin = c->fp8_margin,
                       .history = c->fp8_amax_history_len,
                       .most_recent = c->fp8_amax_compute_algo == AMAX_MOST_RECENT,
                       .wgrad = c->fp8_wgrad,
                       .emulated = c->fp8_emulated,
                       .fixed_order = c->batch_invariant_mode,
                       .keep_weights = c->fp8_keep_weights,
                       .store_weights = c->fp8_param_gather,
                       .weights = map_quantization(c->quantization),
                       .keep_inputs = c->fp8_keep_inputs,
                       .rules = ruled ? quant_rules(&c->precision_rules, arena) : NULL,
                       .n_rules = ruled ? c->precision_rules.count : 0};
}

QuantSpec spec_quant(const Config *c, int64_t layer, Arena *arena) {
    return quant_of(c, is_in_bf16(c, layer), arena);
}

/* ---- layers ---- */

static BranchId kind_of(char letter) {
    BranchId kind = 0;
    while (kind < BRANCH_KINDS && BRANCHES[kind].letter != letter) kind++;
    CHECK(kind < BRANCH_KINDS, "no kind of branch has the letter '%c'", letter);
    return kind;
}

_Static_assert((int)MTP_BRANCHES <= (int)LAYER_BRANCHES, "an MTP layer is one layer with several branches");

static LayerSpec layer_spec(const LayerPlace *p, const char *letters) {
    static void (*const SPECS[])(const LayerPlace *, BranchSpec *) = {
#define BRANCH(kind, ...) kind##_spec,
#include "nn/branches.def"
#undef BRANCH
    };
    const Config *c = p->config;
    LayerSpec l = {.parallel = c->parallel_residual != PARALLEL_NONE};
    for (; *letters; letters++) {
        CHECK(l.n < LAYER_BRANCHES, "a layer has more than %d branches", LAYER_BRANCHES);
        const bool shares = l.n && c->parallel_residual == PARALLEL_ONE_NORM;
        BranchSpec *b = &l.branch[l.n++];
        *b = (BranchSpec){.kind = kind_of(*letters),
                          .norms = shares ? NORM_SHARED : map_norms(c->norm_placement, c->model),
                          .norm = spec_norm(c),
                          .multiplier = c->residual_multiplier,
                          .dropout = c->hidden_dropout,
                          .recompute_norm = spec_recomputes(c, RECOMPUTE_LAYERNORM),
                          .offloads = map_offloaded_modules(c)};
        SPECS[b->kind](p, b);
    }
    return l;
}

static const char *default_letters(const Config *c, int64_t layer) {
    static const char LETTERS[][2] = {
#define BRANCH(kind, letter, ...) {letter},
#include "nn/branches.def"
#undef BRANCH
    };
    if (c->derived.letters_ahead && layer >= c->num_layers) return c->derived.letters_ahead;
    if (c->derived.letters) return LETTERS[kind_of(c->derived.letters[layer])];
    const bool routed = c->derived.layer_moe[layer];
    if (c->derived.layer_linear[layer]) return routed ? "GE" : "G-";
    if (c->multi_latent_attention) return routed ? "+E" : "+-";
    return routed ? "*E" : "*-";
}

StackSpec spec_stack(const Config *c, const StackShape *shape, Arena *arena) {
    StackSpec s = {.name = shape->name,
                   .input = shape->input,
                   .positions = shape->positions,
                   .hidden = c->hidden_size,
                   .layer = arena_alloc(arena, (size_t)shape->layers * sizeof *s.layer),
                   .n = shape->layers,
                   .below = shape->below,
                   .has_final = map_norms(c->norm_placement, c->model) != NORM_SUM,
                   .final = spec_norm(c),
                   .recomputed = c->recompute_num_layers,
                   .offloaded = c->cpu_offloading_num_layers,
                   .offloaded_modules = map_offloaded_modules(c),
                   .offloaded_least = c->min_offloaded_tensor_size};
    if (c->recompute_granularity == RECOMPUTE_FULL)
        s.recompute = c->recompute_method == RECOMPUTE_UNIFORM ? RECOMPUTES_CHUNKS : RECOMPUTES_FIRST;
    for (int64_t i = 0; i < s.n; i++) {
        const LayerPlace place = {c, shape, shape->below + i, arena};
        s.layer[i] = layer_spec(&place, (shape->letters ? shape->letters : default_letters)(c, place.layer));
    }
    return s;
}

/* --embedding-init-method-std does not apply to an untied output layer, which is initialized like a linear layer,
 * unless --use-mup is given. */
HeadSpec spec_lm_head(const Config *c, const EmbeddingSpec *words, Arena *arena) {
    LmHeadSpec *h = arena_alloc(arena, sizeof *h);
    *h = (LmHeadSpec){
        .vocab = c->derived.vocab_size,
        .padded_vocab = c->derived.padded_vocab_size,
        .hidden = c->hidden_size,
        .words = c->untie_embeddings_and_output_weights ? NULL : words,
        .init_std = c->use_mup ? c->derived.embedding_init_std : c->derived.init_std,
        .chunked = c->cross_entropy_loss_fusion && c->cross_entropy_fusion_impl == CROSS_ENTROPY_LINEAR,
        .shared = c->mtp_num_layers > 0,
        .chunk = c->cross_entropy_chunk_size,
        .scaling = c->derived.logits_scaling,
        .bias = c->derived.output_bias,
        .softcap = f64_or(c->final_logit_softcapping, 0),
        .quant = c->fp8_output_proj ? quant_of(c, false, arena) : (QuantSpec){.format = QUANT_OFF},
    };
    h->quant.store_weights &= !h->words;
    return (HeadSpec){.ops = &lm_head,
                      .spec = h,
                      .outputs = h->vocab,
                      .width = h->padded_vocab,
                      .loss = {{.name = "lm loss", .extent = EXTENT_POSITIONS, .weights = FIELD_loss_mask}},
                      .n_losses = 1};
}
