/* Computes the derived values like Megatron-LM: megatron/training/arguments.py (validate_args) and training.py
 * (get_optimizer_param_scheduler). The rules have bounded every option, so products cannot overflow. */
#include "config/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/machine.h"
#include "base/min_max.h"

int64_t config_model_ranks(const Config *c) {
    return c->tensor_model_parallel_size * c->pipeline_model_parallel_size * c->context_parallel_size;
}

int64_t config_expert_tensor_ranks(const Config *c) {
    const int64_t dense = c->tensor_model_parallel_size;
    return i64_is_set(c->num_experts) ? i64_or(c->expert_tensor_parallel_size, dense) : dense;
}

int64_t config_ranks(const Config *c) { return i64_or(c->ranks, config_model_ranks(c)); }

int64_t config_data_ranks(const Config *c) {
    const int64_t each = config_model_ranks(c);
    return each > 0 && config_ranks(c) % each == 0 ? config_ranks(c) / each : 1;
}

bool config_bf16_grads(const Config *c) {
    return c->grad_reduce_in_bf16 || c->main_grads_dtype == MAIN_GRADS_BF16;
}

int64_t config_decoder_layers(const Config *c) { return i64_or(c->decoder_num_layers, c->num_layers); }

int64_t config_layer_in_stack(const Config *c, int64_t layer) {
    return c->model == MODEL_t5 && layer >= c->num_layers ? layer - c->num_layers : layer;
}

int64_t config_token_types(const Config *c) {
    return i64_or(c->num_token_types, c->bert_binary_head ? 2 : 0);
}

bool config_is_hf_t5(const Config *c) {
    return c->model == MODEL_t5 && c->position_embedding_type == POSITION_RELATIVE &&
           c->normalization == NORM_RMS && !c->add_bias_linear && c->softmax_scale == 1;
}

int64_t config_main_layers(const Config *c) {
    return c->num_layers + (c->model == MODEL_t5 ? config_decoder_layers(c) : 0);
}

int64_t config_layers(const Config *c) { return config_main_layers(c) + c->mtp_num_layers; }

static AmountText stacks_text(const Config *c, int64_t first, int64_t decoder, const char *noun) {
    if (c->model != MODEL_t5) return amount(first, noun);
    AmountText both = {0};
    snprintf(both.s, sizeof both.s, "%lld encoder and %lld decoder %ss", (long long)first, (long long)decoder,
             noun);
    return both;
}

AmountText config_layers_text(const Config *c) {
    AmountText text = stacks_text(c, c->num_layers, config_decoder_layers(c), "layer");
    const size_t n = strlen(text.s);
    if (c->mtp_num_layers)
        snprintf(text.s + n, sizeof text.s - n, " and %s", amount(c->mtp_num_layers, "MTP layer").s);
    return text;
}

AmountText config_tokens_text(const Config *c) {
    return stacks_text(c, c->seq_length, c->decoder_seq_length, "token");
}

TokenizerText config_tokenizer_text(const Config *c) {
    const char *file = c->tokenizer_model ? c->tokenizer_model : c->vocab_file;
    TokenizerText text;
    snprintf(text.s, sizeof text.s, file ? "%s '%s'" : "%s", c->tokenizer_type, file);
    return text;
}

static int64_t padded_vocab(const Config *c, int64_t vocab_size) {
    if (i64_is_set(c->padded_vocab_size)) return c->padded_vocab_size;
    int64_t unit = c->make_vocab_size_divisible_by * c->tensor_model_parallel_size;
    return (vocab_size + unit - 1) / unit * unit;
}

void config_on_one_rank(Config *c, Arena *arena) {
    Derived *d = &c->derived;
    Config fresh;
    ConfigGroup group = GROUPS;
    config_defaults(&fresh, arena);
#define OPTGROUP(constant, title) group = GROUP_##constant;
#define OPT(type, field, fallback, class, names, help)                                                       \
    if (group == GROUP_PARALLEL) c->field = fresh.field, c->given[OPTION_##field] = 0;
#include "config/options.def"
    d->padded_vocab_size = padded_vocab(c, d->vocab_size);
    d->data_parallel_size = 1;
    d->cpu_threads = c->cpu_threads;
}

static int64_t ffn_default(const Config *c) {
    return c->activation == MLP_SWIGLU ? c->hidden_size * 8 / 3 / 64 * 64 : 4 * c->hidden_size;
}

/* Copies the flag of the last main layer to the MTP layers. */
static void set_mtp_layers(const Config *c, bool *layer) {
    for (int64_t i = config_main_layers(c); i < config_layers(c); i++) layer[i] = layer[i - 1];
}

static void windows(const Config *c, Arena *arena, Derived *d) {
    bool *windowed = arena_alloc(arena, (size_t)config_layers(c) * sizeof *windowed);
    bool any = c->window_size.count == 2;
    d->window_left = any ? c->window_size.at[0] : -1;
    for (int64_t i = 0; i < config_layers(c); i++) windowed[i] = any;
    if (any && c->window_attn_skip_freq)
        CHECK(config_layer_pattern(c->window_attn_skip_freq, config_main_layers(c), windowed), "'%s'",
              c->window_attn_skip_freq);
    set_mtp_layers(c, windowed);
    d->layer_windowed = windowed;
}

bool config_is_unlimited(const Config *c) {
    return c->position_embedding_type == POSITION_RELATIVE || c->position_embedding_type == POSITION_ALIBI;
}

bool config_rotates(const Config *c) {
    return c->multi_latent_attention || c->position_embedding_type == POSITION_ROPE ||
           c->position_embedding_type == POSITION_YARN;
}

bool config_is_yarn(const Config *c) {
    return c->multi_latent_attention ? c->rope_type != ROPE_TYPE_ROPE
                                     : c->position_embedding_type == POSITION_YARN;
}

bool config_rotated_layers(const Config *c, bool *out) {
    for (int64_t i = 0; i < config_main_layers(c); i++) out[i] = config_rotates(c);
    if (!config_rotates(c) || !c->no_rope_freq) return true;
    if (!config_layer_pattern(c->no_rope_freq, config_main_layers(c), out)) return false;
    const bool is_list = strpbrk(c->no_rope_freq, "[(");
    for (int64_t i = 0; i < config_main_layers(c); i++) out[i] ^= is_list;
    return true;
}

/* Returns YaRN's factor for rotated channels, which scales attention scores for longer contexts (Peng et al., 2023). */
static double yarn_scale(const Config *c, double mscale) {
    return 0.1 * mscale * log(fmax(c->rotary_scaling_factor, 1)) + 1;
}

static double softmax_scale(const Config *c, int64_t head) {
    const double m = c->multi_latent_attention ? yarn_scale(c, c->mscale_all_dim) : 1;
    if (c->use_mup && !c->multi_latent_attention)
        return f64_or(c->softmax_scale,
                      sqrt(f64_or(c->mup_base_head_dim, 1)) / pow((double)head, c->mup_attn_scale_power));
    return f64_or(c->softmax_scale, m * m / sqrt((double)head));
}

/* Returns the rotary base for dynamic NTK scaling, as transformers computes it for a sample of seq_length
 * tokens. */
static double dynamic_base(const Config *c, int64_t dim) {
    const double stretch = (double)c->seq_length / (double)c->rope_scaling_original_max_position_embeddings;
    if (stretch <= 1) return c->rotary_base;
    return c->rotary_base * pow(c->rope_dynamic_factor * stretch - c->rope_dynamic_factor + 1,
                                (double)dim / (double)(dim - 2));
}

static void rotations(const Config *c, Arena *arena, Derived *d) {
    bool *rotated = arena_alloc(arena, (size_t)config_layers(c) * sizeof *rotated);
    CHECK(config_rotated_layers(c, rotated), "'%s'", c->no_rope_freq);
    set_mtp_layers(c, rotated);
    d->layer_rotated = rotated;
    d->rope_amplitude =
        config_is_yarn(c)
            ? f64_or(c->rope_attention_factor, yarn_scale(c, c->mscale) / yarn_scale(c, c->mscale_all_dim))
            : 1;
    d->rope_base = f64_is_set(c->rope_dynamic_factor) ? dynamic_base(c, d->rotary_dim) : c->rotary_base;
    if (!c->rope_short_factor.count) return;
    const double original = (double)c->rope_scaling_original_max_position_embeddings,
                 stretch = (double)d->max_position_embeddings / original;
    const TextList *factors = c->seq_length > c->rope_scaling_original_max_position_embeddings
                                  ? &c->rope_long_factor
                                  : &c->rope_short_factor;
    double *divisor = arena_alloc(arena, (size_t)factors->count * sizeof *divisor);
    for (int64_t i = 0; i < factors->count; i++) divisor[i] = strtod(factors->at[i], NULL);
    d->rope_divisor = divisor;
    d->rope_amplitude =
        f64_or(c->rope_attention_factor, stretch > 1 ? sqrt(1 + log(stretch) / log(original)) : 1);
}

static void context(const Config *c, Arena *arena, Derived *d) {
    const TextList *types = &c->cp_comm_type;
    ContextComm *comm = arena_alloc(arena, (size_t)config_layers(c) * sizeof *comm);
    for (int64_t i = 0; i < config_layers(c); i++) {
        const int64_t at = smaller(config_layer_in_stack(c, i), types->count - 1);
        comm[i] = (ContextComm)enum_find(ContextComm_spellings, types->at[at]);
    }
    d->layer_context_comm = comm;
}

bool config_lists(const TextList *words, const char *const *spellings, int choice) {
    for (int64_t i = 0; i < words->count; i++)
        if (enum_find(spellings, words->at[i]) == choice) return true;
    return false;
}

bool config_measures_scores(const Config *c) { return c->qk_clip || c->log_max_attention_logit; }

bool config_balances_by(const Config *c, LoadBalancing type) {
    return config_lists(&c->moe_router_load_balancing_type, LoadBalancing_spellings, (int)type);
}

int64_t config_group_scores(const Config *c) {
    return i64_or(c->moe_router_group_score_topk, c->moe_router_topk / c->moe_router_group_topk);
}

static void experts(const Config *c, Arena *arena, Derived *d) {
    bool *moe = arena_alloc(arena, (size_t)config_layers(c) * sizeof *moe);
    d->layer_moe = moe;
    if (!i64_is_set(c->num_experts)) return;
    if (d->letters)
        for (int64_t i = 0; i < c->num_layers; i++) moe[i] = d->letters[i] == 'E';
    else
        CHECK(config_moe_pattern(c->moe_layer_freq, config_main_layers(c), moe), "'%s'", c->moe_layer_freq);
    set_mtp_layers(c, moe);
    for (int64_t i = c->num_layers; i < config_layers(c) && d->letters_ahead; i++)
        moe[i] = strchr(d->letters_ahead, 'E');
    for (int64_t i = 0; i < config_main_layers(c); i++) d->num_moe_layers += moe[i];
    d->moe_ffn_hidden_size = i64_or(c->moe_ffn_hidden_size, d->ffn_hidden_size);
    d->moe_shared_size = i64_or(c->moe_shared_expert_intermediate_size, 0);
    for (int64_t i = 0; i < c->moe_router_load_balancing_type.count && i < c->moe_aux_loss_coeff.count; i++) {
        const int type = enum_find(LoadBalancing_spellings, c->moe_router_load_balancing_type.at[i]);
        if (type < BALANCE_SINKHORN) d->aux_loss_coeff[type] = strtod(c->moe_aux_loss_coeff.at[i], NULL);
    }
    d->sinkhorn = config_balances_by(c, BALANCE_SINKHORN);
    d->quantile = config_balances_by(c, BALANCE_QUANTILE);
}

bool config_has_delta_net(const Config *c) {
    return c->hybrid_layer_pattern ? config_has_letter(c, 'G')
                                   : c->experimental_attention_variant == VARIANT_GDN;
}

bool config_linear_layers(const Config *c, bool *out) {
    memset(out, 0, (size_t)config_main_layers(c) * sizeof *out);
    const bool linear = config_has_delta_net(c) && !c->hybrid_layer_pattern && c->linear_attention_freq;
    return !linear || config_layer_pattern(c->linear_attention_freq, config_main_layers(c), out);
}

static void linear_attention(const Config *c, Arena *arena, Derived *d) {
    bool *linear = arena_alloc(arena, (size_t)config_layers(c) * sizeof *linear);
    CHECK(config_linear_layers(c, linear), "'%s'", c->linear_attention_freq);
    set_mtp_layers(c, linear);
    d->layer_linear = linear;
}

static void hybrid(const Config *c, Arena *arena, Derived *d) {
    d->mamba_heads = i64_or(c->mamba_num_heads, 2 * c->hidden_size / c->mamba_head_dim);
    if (!c->hybrid_layer_pattern) return;
    char *letters = arena_alloc(arena, strlen(c->hybrid_layer_pattern) + 1);
    config_hybrid_letters(c->hybrid_layer_pattern, letters);
    d->letters = letters;
    const char *slash = strchr(c->hybrid_layer_pattern, '/');
    if (slash) d->letters_ahead = arena_printf(arena, "%.*s", (int)strcspn(slash + 1, "/"), slash + 1);
}

static void model(const Config *c, Arena *arena, int64_t vocab_size, Derived *d) {
    hybrid(c, arena, d);
    d->ffn_hidden_size = i64_or(c->ffn_hidden_size, ffn_default(c));
    d->kv_channels = c->multi_latent_attention
                         ? c->qk_head_dim + c->qk_pos_emb_head_dim
                         : i64_or(c->kv_channels, c->hidden_size / c->num_attention_heads);
    d->softmax_scale = softmax_scale(c, d->kv_channels);
    d->num_query_groups = c->group_query_attention ? c->num_query_groups : c->num_attention_heads;
    const int64_t decoder = c->model == MODEL_t5 ? i64_or(c->decoder_seq_length, 0) : 0;
    d->max_position_embeddings =
        i64_or(c->max_position_embeddings, c->seq_length > decoder ? c->seq_length : decoder);
    const int64_t rotated = c->multi_latent_attention ? c->qk_pos_emb_head_dim : d->kv_channels;
    d->rotary_dim = config_rotates(c) ? (int64_t)((double)rotated * c->rotary_percent) : 0;
    d->vocab_size = i64_or(c->vocab_size, vocab_size);
    d->padded_vocab_size = padded_vocab(c, d->vocab_size);
    /* Megatron-LM disables bias_gelu_fusion if there are no biases. Megatron-LM's unfused GELU uses erf. */
    bool by_bias = c->activation == MLP_GELU;
    const bool fused = c->add_bias_linear && c->bias_gelu_fusion;
    d->activation = !by_bias ? c->activation : fused ? MLP_GELU_TANH : MLP_GELU_ERF;
    const bool tied_t5 = c->model == MODEL_t5 && !c->untie_embeddings_and_output_weights;
    const bool scaled = tied_t5 && config_is_hf_t5(c);
    d->width_ratio =
        c->use_mup ? (double)c->hidden_size / (double)i64_or(c->mup_base_hidden_size, c->hidden_size) : 1;
    d->logits_scaling = f64_or(c->logits_scaling, scaled ? sqrt((double)c->hidden_size) : 1);
    if (c->use_mup) d->logits_scaling *= c->mup_output_mult == 1 ? d->width_ratio : 1 / c->mup_output_mult;
    d->output_bias = c->add_output_layer_bias || (tied_t5 && !scaled);
    d->init_std = c->init_method_std / sqrt(d->width_ratio);
    d->output_init_std = d->init_std / sqrt((d->letters ? 1.0 : 2.0) * (double)c->num_layers);
    d->embedding_init_std = f64_or(c->embedding_init_method_std, c->init_method_std);
    windows(c, arena, d);
    rotations(c, arena, d);
    linear_attention(c, arena, d);
    context(c, arena, d);
    experts(c, arena, d);
    if (c->recompute_granularity == RECOMPUTE_SELECTIVE) {
        static const char *const fallback[] = {"core_attn"};
        const char *const *names = c->recompute_modules.count ? c->recompute_modules.at : fallback;
        int64_t n = c->recompute_modules.count ? c->recompute_modules.count : 1;
        for (int64_t i = 0; i < n; i++)
            d->recompute_modules |= 1u << enum_find(RecomputeModule_spellings, names[i]);
    }
}

/* Returns the number of steps that start before `samples` samples have been consumed. Sets *end to the number of
 * samples that these steps consume. */
static int64_t steps_before(const Derived *d, int64_t samples, int64_t *end) {
    int64_t consumed = 0, count = 0;
    for (int64_t i = 0; i < d->num_batch_steps; i++) {
        const int64_t size = d->batch_steps[i].size;
        const bool next = i + 1 < d->num_batch_steps && d->batch_steps[i + 1].from_samples < samples;
        const int64_t until = next ? d->batch_steps[i + 1].from_samples : samples;
        if (until <= consumed) continue; /* the last batch may extend beyond `until` */
        const int64_t n = (until - consumed + size - 1) / size;
        count += n;
        consumed += n * size;
    }
    *end = consumed;
    return count;
}

/* Computes the run's length as Megatron-LM's update_train_iters does. With step-batch-size-schedule, the last step may
 * exceed train-samples. Otherwise, the run trains only on complete batches within train-samples. */
static void length_in_samples(const Config *c, Derived *d) {
    int64_t end, steps = steps_before(d, c->train_samples, &end);
    const bool excess = end > c->train_samples;
    d->train_iters = steps - (excess && !c->step_batch_size_schedule);
    d->samples_needed = excess && c->step_batch_size_schedule ? end : c->train_samples;
}

static void schedule(const Config *c, Arena *arena, Derived *d) {
    int64_t capacity = config_batch_steps(c, NULL, 0);
    CHECK(capacity > 0, "the rules accepted invalid batch size options");
    BatchStep *steps = arena_alloc(arena, (size_t)capacity * sizeof *steps);
    d->num_batch_steps = config_batch_steps(c, steps, capacity);
    for (int64_t i = 0; i < d->num_batch_steps; i++) steps[i].size *= d->choices;
    d->batch_steps = steps;
    d->global_batch_size = steps[d->num_batch_steps - 1].size;
    d->micro_batch_size =
        i64_is_set(c->micro_batch_size) ? c->micro_batch_size * d->choices : d->global_batch_size;

    d->eval_samples = c->eval_iters * i64_or(c->eval_global_batch_size, d->global_batch_size);

    bool by_samples = i64_is_set(c->train_samples);
    int64_t batch = by_samples ? 1 : d->global_batch_size;
    d->train_samples = by_samples ? c->train_samples : i64_or(c->train_iters, 0) * batch;
    d->train_iters = i64_or(c->train_iters, 0);
    d->samples_needed = d->train_samples;
    if (by_samples) length_in_samples(c, d);
    int64_t decay = by_samples ? c->lr_decay_samples : c->lr_decay_iters;
    int64_t wsd = by_samples ? c->lr_wsd_decay_samples : c->lr_wsd_decay_iters;
    int64_t warmup = by_samples ? c->lr_warmup_samples : c->lr_warmup_iters;
    d->lr_decay_steps = i64_is_set(decay) ? decay * batch : d->train_samples;
    d->lr_wsd_decay_steps = i64_or(wsd, 0) * batch;
    d->lr_warmup_steps = f64_is_set(c->lr_warmup_fraction) ? c->lr_warmup_fraction * (double)d->lr_decay_steps
                                                           : (double)(warmup * batch);
    d->wd_incr_steps = d->train_samples;
}

/* Returns the number of host threads per rank, where 0 means all cores. If several ranks use GPUs, they share the
 * host's cores evenly, because parameters are initialized on the host. If several ranks run on the CPU, each has one
 * thread. */
static int64_t threads_of_rank(const Config *c) {
    if (config_ranks(c) == 1) return 0;
    const int64_t share = c->device == ON_CUDA ? machine_threads() / config_ranks(c) : 1;
    return share > 1 ? share : 1;
}

void config_finish(Config *c, Arena *arena, int64_t vocab_size) {
    enum { RACE_CHOICES = 4 };
    Derived *d = &c->derived;
    *d = (Derived){.choices = c->task == TASK_RACE ? RACE_CHOICES : 1};
    model(c, arena, vocab_size, d);
    schedule(c, arena, d);
    d->decoupled_lr = f64_or(c->decoupled_lr, c->lr);
    d->decoupled_min_lr = f64_or(c->decoupled_min_lr, c->min_lr);
    const double rescale = c->optimizer == OPTIMIZER_SGD ? d->width_ratio : 1 / d->width_ratio;
    d->rescaled_lr = c->lr * rescale, d->rescaled_min_lr = c->min_lr * rescale;
    bool constant = c->weight_decay_incr_style == WD_CONSTANT;
    d->start_weight_decay = constant ? c->weight_decay : c->start_weight_decay;
    d->end_weight_decay = constant ? c->weight_decay : c->end_weight_decay;
    bool per_split = c->train_data_path.count || c->valid_data_path.count || c->test_data_path.count;
    d->split = per_split ? NULL : c->split ? c->split : c->mock_data ? "1,1,1" : "969, 30, 1";
    d->data_parallel_size = config_data_ranks(c);
    d->cpu_threads = c->cpu_threads ? c->cpu_threads : threads_of_rank(c);
    d->random_seed = (uint64_t)i64_or(c->random_seed, c->seed);
}
