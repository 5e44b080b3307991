/* Checks ranges (options.def) and rules (rules.def). Reports all violations as errors, and options that are
 * given but have no effect as notes. */
#include "config/config.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/min_max.h"

/* Returns whether d divides n. Returns true if d or n is missing or out of range, because another message
 * reports such a value. */
static bool divides(int64_t d, int64_t n) { return d <= 0 || n <= 0 || n % d == 0; }

static bool has_experts(const Config *c) { return i64_is_set(c->num_experts); }
static bool uses_fp8(const Config *c) { return c->fp8_format != FP8_NONE; }

/* Returns the model's number of layers; for T5, that of its larger stack. */
static int64_t most_layers(const Config *c) {
    return c->model == MODEL_t5 ? larger(c->num_layers, config_decoder_layers(c)) : c->num_layers;
}

static bool repeated(const TextList *list) {
    for (int64_t i = 1; i < list->count; i++)
        for (int64_t k = 0; k < i; k++)
            if (!strcmp(list->at[i], list->at[k])) return true;
    return false;
}

/* Returns the number of ranks that together store one copy of the experts. */
static int64_t expert_ranks(const Config *c) {
    return config_expert_tensor_ranks(c) * c->expert_model_parallel_size * c->pipeline_model_parallel_size;
}

static bool shards_data(const Config *c) {
    return c->use_megatron_fsdp ? c->data_parallel_sharding_strategy != SHARD_NONE
                                : c->use_distributed_optimizer;
}

bool config_shards_gradients(const Config *c) {
    const ShardingStrategy s = c->data_parallel_sharding_strategy;
    return c->use_megatron_fsdp && (s == SHARD_OPTIM_GRADS || s == SHARD_OPTIM_GRADS_PARAMS);
}

/* Returns whether the number of optimizer instances divides the replica counts of both dense and expert parameters. */
static bool divides_replicas(const Config *c) {
    const int64_t n = c->num_distributed_optimizer_instances, ranks = config_ranks(c);
    const int64_t dense =
        config_model_ranks(c) / (c->context_parallel_size > 0 ? c->context_parallel_size : 1);
    return dense <= 0 || expert_ranks(c) <= 0 ||
           (divides(n, ranks / dense) && divides(n, ranks / expert_ranks(c)));
}

/* Returns a divisor of the default MLP width (without --ffn-hidden-size). */
static int64_t ffn_default_unit(const Config *c) {
    return c->activation == MLP_SWIGLU ? 64 : c->hidden_size > 0 ? c->hidden_size * 4 : 0;
}

static int64_t expert_width_unit(const Config *c) {
    return i64_or(c->moe_ffn_hidden_size, i64_or(c->ffn_hidden_size, ffn_default_unit(c)));
}

/* Returns the head size; with latent attention, that of the head's rotated part. Returns -1 if it is undefined because
 * another rule is broken. */
static int64_t head_size(const Config *c) {
    int64_t head = c->multi_latent_attention ? c->qk_pos_emb_head_dim : c->kv_channels;
    if (!i64_is_set(head)) {
        if (c->hidden_size <= 0 || c->num_attention_heads <= 0) return -1;
        head = c->hidden_size / c->num_attention_heads;
    }
    return head > 0 && head <= 65536 ? head : -1;
}

/* Returns the number of rotated channels per head, or -1 if the number is undefined. */
static int64_t rotary_dim(const Config *c) {
    const int64_t head = head_size(c);
    if (head < 0 || !(c->rotary_percent >= 0 && c->rotary_percent <= 1)) return -1;
    return (int64_t)((double)head * c->rotary_percent);
}

static bool is_plain_rope(const Config *c) { return config_rotates(c) && !config_is_yarn(c); }

static bool sums_to_pairs(const Config *c) {
    const int64_t dim = rotary_dim(c);
    int64_t sum = 0;
    for (int64_t i = 0; i < c->mrope_section.count; i++) {
        const int64_t n = c->mrope_section.at[i];
        if (n < 1 || n > 65536) return false;
        sum += n;
    }
    return dim < 0 || 2 * sum == dim;
}

static bool even_head(const Config *c) {
    const int64_t head = head_size(c), plain = c->multi_latent_attention ? c->qk_head_dim : 0;
    return head < 0 || plain < 0 || (head + plain % 2) % 2 == 0;
}

/* Returns whether the model is a GPT in which layers with standard attention may use rotary positions. */
static bool has_rope_layers(const Config *c) {
    return c->model == MODEL_gpt && config_rotates(c) && !c->multi_latent_attention;
}

static bool even_rotary(const Config *c) {
    const int64_t dim = rotary_dim(c);
    return dim < 0 || (dim > 0 && dim % 2 == 0);
}

static bool valid_window(const Config *c) {
    const I64List *w = &c->window_size;
    if (c->model != MODEL_gpt) return true; /* other rules reject a window in these models */
    const int64_t most = 1 << 30;           /* the limit of max_position_embeddings */
    return w->count == 0 ||
           (w->count == 2 && w->at[0] >= -1 && w->at[0] <= most && (w->at[1] == 0 || w->at[1] == -1));
}

/* Returns the sequence length of a T5 decoder, or I64_UNSET for other models. */
static int64_t decoder_tokens(const Config *c) {
    return c->model == MODEL_t5 ? c->decoder_seq_length : I64_UNSET;
}

/* Returns the width of a Gated DeltaNet layer's activations. */
static int64_t delta_net_width(const Config *c) {
    return 4 * c->linear_num_key_heads * c->linear_key_head_dim +
           4 * c->linear_num_value_heads * (c->linear_value_head_dim + 1);
}

static int64_t mamba_heads(const Config *c) {
    const int64_t width = c->mamba_head_dim > 0 ? c->mamba_head_dim : 1;
    return i64_or(c->mamba_num_heads, i64_or(c->hidden_size, 0) * 2 / width);
}

/* Returns whether the upper bounds on the parameters and a microbatch's activations are low enough that no 64-bit
 * product of sizes and bytes overflows. The bounds themselves cannot overflow: integer terms are exact for sizes within
 * their ranges, and larger products are computed in double. */
static bool countable(const Config *c) {
    const double limit = 0x1p56;
    const int64_t h = i64_or(c->hidden_size, 1), heads = i64_or(c->num_attention_heads, 1),
                  s = i64_or(c->seq_length, 1) + i64_or(decoder_tokens(c), 0),
                  ffn = i64_or(c->ffn_hidden_size, 4 * h),
                  expert = 6 * i64_or(c->moe_ffn_hidden_size, ffn) + 2 * h + 4,
                  shared = i64_or(c->moe_shared_expert_intermediate_size, 0),
                  latent = i64_or(c->q_lora_rank, 0) + c->kv_lora_rank,
                  head = c->qk_head_dim + c->qk_pos_emb_head_dim + c->v_head_dim,
                  delta = config_has_delta_net(c) ? delta_net_width(c) : 0,
                  q = c->multi_latent_attention    ? heads * head + latent
                      : i64_is_set(c->kv_channels) ? heads * c->kv_channels
                                                   : h,
                  mamba = config_has_letter(c, 'M') ? 6 * mamba_heads(c) * (c->mamba_head_dim + 1) +
                                                          4 * c->mamba_num_groups * c->mamba_state_dim
                                                    : 0,
                  width = 4 * h + 8 * q + 6 * ffn + mamba + delta + i64_or(c->num_experts, 0) * expert +
                          6 * shared,
                  scores = heads * (c->attention_backend == BACKEND_UNFUSED ? s : 1),
                  rows = 2 * (i64_or(c->vocab_size, 1) + c->make_vocab_size_divisible_by) +
                         i64_or(c->padded_vocab_size, 0),
                  positions = i64_or(c->max_position_embeddings, s);
    const double layers = (double)i64_or(c->num_layers, 1) + (double)i64_or(c->decoder_num_layers, 1) +
                          (double)(2 * c->mtp_num_layers),
                 tokens = (double)i64_or(c->micro_batch_size, 1) * (double)s,
                 parameters = (layers * (double)width + (double)(rows + positions)) * (double)h,
                 activations = tokens * (layers * (double)(width + scores) + (double)rows);
    return parameters < limit && activations < limit;
}

static bool valid_window_pattern(const Config *c) {
    if (!c->window_attn_skip_freq || c->num_layers < 1 || c->num_layers > 65536) return true;
    bool *windowed = mem_zero((size_t)c->num_layers, sizeof *windowed);
    bool valid = config_layer_pattern(c->window_attn_skip_freq, c->num_layers, windowed);
    free(windowed);
    return valid;
}

static bool valid_rope_pattern(const Config *c) {
    if (!c->no_rope_freq || c->model == MODEL_t5 || c->num_layers < 1 || c->num_layers > 65536) return true;
    bool *rotated = mem_zero((size_t)c->num_layers, sizeof *rotated);
    bool valid = config_rotated_layers(c, rotated);
    free(rotated);
    return valid;
}

static bool valid_linear_pattern(const Config *c) {
    if (!config_has_delta_net(c) || c->model == MODEL_t5 || c->num_layers < 1 || c->num_layers > 65536)
        return true;
    bool *linear = mem_zero((size_t)c->num_layers, sizeof *linear);
    bool valid = config_linear_layers(c, linear);
    free(linear);
    return valid;
}

static bool valid_rope_factors(const Config *c, const TextList *factors) {
    for (int64_t i = 0; i < factors->count; i++) {
        char *end;
        const double x = strtod(factors->at[i], &end);
        if (end == factors->at[i] || *end || !(x > 0) || !isfinite(x)) return false;
    }
    const int64_t dim = rotary_dim(c);
    return dim < 0 || factors->count == dim / 2;
}

/* ---- context parallelism ---- */

static bool valid_context_comm(const Config *c) {
    const TextList *types = &c->cp_comm_type;
    for (int64_t i = 0; i < types->count; i++)
        if (enum_find(ContextComm_spellings, types->at[i]) < 0) return false;
    return types->count == 1 || (types->count == c->num_layers && most_layers(c) == c->num_layers);
}

static bool communicates_by(const Config *c, ContextComm type) {
    for (int64_t i = 0; c->context_parallel_size > 1 && i < c->cp_comm_type.count; i++)
        if (enum_find(ContextComm_spellings, c->cp_comm_type.at[i]) == (int)type) return true;
    return false;
}

static bool valid_hierarchy(const Config *c) {
    const I64List *sizes = &c->hierarchical_context_parallel_sizes;
    if (sizes->count == 0) return !communicates_by(c, CONTEXT_A2A_P2P);
    const int64_t cp = c->context_parallel_size;
    return sizes->count == 2 && sizes->at[0] >= 1 && cp % sizes->at[0] == 0 &&
           sizes->at[1] == cp / sizes->at[0];
}

/* Returns whether a tensor-parallel rank's heads can be distributed evenly over `ranks` context-parallel ranks, in
 * groups of equal size. */
static bool deals_heads(const Config *c, int64_t ranks) {
    const int64_t heads = c->num_attention_heads, tp = c->tensor_model_parallel_size,
                  all_groups = c->group_query_attention ? c->num_query_groups : heads;
    if (ranks < 1 || heads < 1 || tp < 1 || all_groups < 1 || heads % tp || heads % all_groups) return true;
    const int64_t groups = all_groups < tp ? 1 : all_groups / tp, per_group = heads / tp / groups;
    return groups % ranks == 0 || (ranks % groups == 0 && per_group % (ranks / groups) == 0);
}

/* Returns whether all tensor-parallel ranks can hold the same number of Q, K and V rows if there are fewer query groups
 * than ranks. */
static bool cuts_groups(const Config *c) {
    const int64_t heads = c->num_attention_heads, tp = c->tensor_model_parallel_size;
    if (!c->group_query_attention || c->num_query_groups >= tp || heads < 1 || tp < 1) return true;
    const int64_t head = i64_or(c->kv_channels, c->hidden_size / heads);
    /* another rule requires that tp divides the number of heads */
    return head < 1 || head > 65536 || 2 * c->num_query_groups * head % tp == 0;
}

static bool deals_heads_to_context(const Config *c) {
    const I64List *sizes = &c->hierarchical_context_parallel_sizes;
    return (!communicates_by(c, CONTEXT_A2A) || deals_heads(c, c->context_parallel_size)) &&
           (!communicates_by(c, CONTEXT_A2A_P2P) || sizes->count != 2 || deals_heads(c, sizes->at[0]));
}

/* Returns whether any layer passes keys around a ring of ranks. */
static bool rings(const Config *c) {
    const I64List *sizes = &c->hierarchical_context_parallel_sizes;
    return communicates_by(c, CONTEXT_P2P) ||
           (communicates_by(c, CONTEXT_A2A_P2P) && (sizes->count != 2 || sizes->at[1] != 1));
}

/* ---- experts ---- */

static bool valid_moe_pattern(const Config *c) {
    if (!has_experts(c) || c->num_layers < 1 || c->num_layers > 65536) return true;
    bool *moe = mem_zero((size_t)c->num_layers, sizeof *moe);
    bool valid = c->moe_layer_freq && config_moe_pattern(c->moe_layer_freq, c->num_layers, moe);
    free(moe);
    return valid;
}

static bool valid_groups(const Config *c) {
    const int64_t n = c->moe_router_num_groups, best = c->moe_router_group_topk;
    if (!i64_is_set(n) || n < 1 || !i64_is_set(best) || best < 1 || !has_experts(c)) return true;
    const int64_t scores = c->moe_router_group_score_topk, size = c->num_experts / n;
    return c->num_experts % n == 0 && best <= n && c->moe_router_topk <= best * size &&
           (i64_is_set(scores) ? scores <= size : c->moe_router_topk % best == 0);
}

static bool has_loss(const Config *c, LoadBalancing type) {
    const TextList *types = &c->moe_router_load_balancing_type, *coeffs = &c->moe_aux_loss_coeff;
    for (int64_t i = 0; i < types->count && i < coeffs->count; i++)
        if (enum_find(LoadBalancing_spellings, types->at[i]) == (int)type && strtod(coeffs->at[i], NULL) > 0)
            return true;
    return false;
}

static bool divides_quantiles(const Config *c) {
    const int64_t n =
        c->num_experts; /* factors are reduced mod n, because their product can exceed 63 bits */
    return c->moe_router_topk < n &&
           i64_or(c->micro_batch_size, 1) % n * (c->seq_length % n) % n * c->moe_router_topk % n == 0;
}

static bool balances_over_samples(const Config *c) {
    return has_loss(c, BALANCE_AUX) || has_loss(c, BALANCE_GLOBAL_AUX) ||
           config_balances_by(c, BALANCE_SINKHORN) || config_balances_by(c, BALANCE_QUANTILE);
}

static bool valid_balancing(const Config *c) {
    const TextList *types = &c->moe_router_load_balancing_type, *coeffs = &c->moe_aux_loss_coeff;
    unsigned seen = 0;
    for (int64_t i = 0; i < types->count; i++) {
        const int type = enum_find(LoadBalancing_spellings, types->at[i]);
        if (type < 0 || seen & 1u << type || (type >= BALANCE_SINKHORN && types->count > 1)) return false;
        seen |= 1u << type;
    }
    for (int64_t i = 0; i < coeffs->count; i++) {
        char *end;
        const double coeff = strtod(coeffs->at[i], &end);
        if (end == coeffs->at[i] || *end || !(coeff >= 0 && coeff <= 1e6)) return false;
        if (coeff > 0 && seen == 1u << BALANCE_SINKHORN) return false;
    }
    return coeffs->count == types->count || (coeffs->count == 1 && strtod(coeffs->at[0], NULL) == 0);
}

/* ---- hybrid models ---- */

static bool is_hybrid(const Config *c) { return c->hybrid_layer_pattern; }

static bool has_attention(const Config *c) { return !is_hybrid(c) || strpbrk(c->hybrid_layer_pattern, "*+"); }

static bool valid_hybrid_pattern(const Config *c) {
    if (!is_hybrid(c)) return true;
    const size_t n = strcspn(c->hybrid_layer_pattern, "/");
    return strspn(c->hybrid_layer_pattern, "MG*+-E|") == n &&
           config_hybrid_letters(c->hybrid_layer_pattern, NULL) > 0;
}

/* Checks the parts after slashes, each of which describes the same MTP layer. */
static bool valid_mtp_pattern(const Config *c) {
    const char *slash = is_hybrid(c) ? strchr(c->hybrid_layer_pattern, '/') : NULL,
               *first = slash ? slash + 1 : "";
    const size_t n = strcspn(first, "/");
    const char *routed = memchr(first, 'E', n);
    for (const char *at = slash; at; at = strchr(at + 1, '/'))
        if (strcspn(at + 1, "/") != n || strncmp(at + 1, first, n) || strspn(at + 1, "MG*+-E") != n)
            return false;
    return !slash || (n > 0 && n <= MTP_BRANCHES && config_hybrid_depths(slash) <= MTP_LAYERS &&
                      !(routed && memchr(routed + 1, 'E', (size_t)(first + n - routed - 1))));
}

static bool fits_mtp_pattern(const Config *c) {
    return !is_hybrid(c) || c->mtp_num_layers == config_hybrid_depths(c->hybrid_layer_pattern);
}

static bool fits_hybrid_layers(const Config *c) {
    return !is_hybrid(c) || c->num_layers == config_hybrid_letters(c->hybrid_layer_pattern, NULL);
}

/* Returns the number of stages that the pattern describes, or 1 if it does not describe stages. */
static int64_t hybrid_stages(const Config *c) {
    int64_t n = 1;
    for (const char *s = is_hybrid(c) ? c->hybrid_layer_pattern : ""; *s; s++) n += *s == '|';
    return n;
}

/* Returns whether a tensor-parallel rank's heads can be distributed evenly over the context-parallel ranks, so that a
 * rank has entire groups or a part of one group. */
static bool deals_mamba_heads(const Config *c) {
    const int64_t tp = c->tensor_model_parallel_size, cp = c->context_parallel_size,
                  groups = tp > 0 ? c->mamba_num_groups / tp : 0;
    return tp < 1 || cp < 1 || groups < 1 ||
           (mamba_heads(c) % (tp * cp) == 0 && (groups % cp == 0 || cp % groups == 0));
}

/* Like deals_mamba_heads, for Gated DeltaNet's value heads and key heads. */
static bool deals_delta_heads(const Config *c) {
    const int64_t tp = c->tensor_model_parallel_size, cp = c->context_parallel_size,
                  keys = tp > 0 ? c->linear_num_key_heads / tp : 0;
    return tp < 1 || cp < 1 || keys < 1 ||
           (c->linear_num_value_heads % (tp * cp) == 0 && (keys % cp == 0 || cp % keys == 0));
}

static bool known(const TextList *words, const char *const *spellings) {
    for (int64_t i = 0; i < words->count; i++)
        if (enum_find(spellings, words->at[i]) < 0) return false;
    return true;
}

static bool recomputes(const Config *c, RecomputeModule module) {
    return config_lists(&c->recompute_modules, RecomputeModule_spellings, (int)module);
}

static bool offloads(const Config *c, OffloadedModule module) {
    return c->fine_grained_activation_offloading &&
           config_lists(&c->offload_modules, OffloadedModule_spellings, (int)module);
}

static bool offloads_experts(const Config *c) {
    return offloads(c, OFFLOADED_EXPERT_FC1) || offloads(c, OFFLOADED_MOE_ACT);
}

static bool valid_batch_steps(const Config *c) { return config_batch_steps(c, NULL, 0) > 0; }

static bool divisible_batches(const Config *c) {
    int64_t n = config_batch_steps(c, NULL, 0);
    if (n <= 0 || !i64_is_set(c->micro_batch_size)) return true;
    BatchStep *steps = mem_zero((size_t)n, sizeof *steps);
    n = config_batch_steps(c, steps, n);
    bool divisible = true;
    for (int64_t i = 0; i < n; i++)
        divisible &= divides(c->micro_batch_size * config_data_ranks(c), steps[i].size);
    free(steps);
    return divisible;
}

static bool divisible_evaluation(const Config *c) {
    return !i64_is_set(c->eval_global_batch_size) || !i64_is_set(c->micro_batch_size) ||
           divides(c->micro_batch_size * config_data_ranks(c), c->eval_global_batch_size);
}

static bool warmup_is_shorter(const Config *c, int64_t warmup, int64_t decay, int64_t train) {
    decay = i64_or(decay, train);
    return f64_is_set(c->lr_warmup_fraction) || decay <= 0 || warmup < decay;
}

static bool uneven_pipeline(const Config *c) {
    return i64_is_set(c->decoder_first_pipeline_num_layers) ||
           i64_is_set(c->decoder_last_pipeline_num_layers);
}

static bool is_hf_tokenizer(const char *type) {
    return !strcmp(type, "HuggingFaceTokenizer") || !strcmp(type, "GPT2BPETokenizer") ||
           !strncmp(type, "BertWordPiece", 13);
}

static bool per_split_data(const Config *c) {
    return c->train_data_path.count || c->valid_data_path.count || c->test_data_path.count;
}

static bool is_number(int option) {
    return CONFIG_ROWS[option].type == ARG_I64 || CONFIG_ROWS[option].type == ARG_F64;
}

/* If the option's value is out of its range, adds a message and returns false. */
static bool check_range(const Config *c, int option, Args *args) {
    const Arg *row = &CONFIG_ROWS[option];
    const ConfigRange r = config_range(option);
    const void *value = config_value(c, option);
    const bool whole = row->type == ARG_I64;
    if (whole ? !i64_is_set(*(const int64_t *)value) : !f64_is_set(*(const double *)value)) return true;
    const double v = whole ? (double)*(const int64_t *)value : *(const double *)value;
    if (v >= r.low && v <= r.high) return true;
    Str shown = {0};
    arg_print(row, value, &shown);
    const int name = (int)arg_name_len(row);
    if (isinf(r.high))
        args_problem(args, "--%.*s must be at least %.16g, not %s.", name, row->names, r.low, shown.s);
    else
        args_problem(args, "--%.*s must be from %.16g to %.16g, not %s.", name, row->names, r.low, r.high,
                     shown.s);
    str_free(&shown);
    return false;
}

/* Clamps a number to its range, so that no rule's condition overflows. check_range has already reported the
 * violation. */
static void clamp_to_range(Config *c, int option) {
    const ConfigRange r = config_range(option);
    void *value = (char *)c + CONFIG_ROWS[option].offset;
    int64_t *whole = value;
    double *real = value;
    if (CONFIG_ROWS[option].type == ARG_F64)
        *real = f64_is_set(*real) ? fmin(fmax(*real, r.low), r.high) : *real;
    else if (i64_is_set(*whole) && (double)*whole < r.low)
        *whole = (int64_t)r.low;
    else if (i64_is_set(*whole) && (double)*whole > r.high)
        *whole = (int64_t)r.high;
}

/* Returns the least common multiple of the number of ranks that share a copy of the dense parameters and the number
 * that share a copy of the experts. */
static int64_t fitting_ranks(const Config *c) {
    const int64_t dense = config_model_ranks(c), experts = expert_ranks(c);
    int64_t a = dense, b = experts;
    while (b) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a ? dense / a * experts : 0;
}

/* Returns the value that replaces %:name in a message. It is computed from several options. */
static int64_t derived_value(const Config *c, const char *name, size_t len) {
    const struct {
        const char *name;
        int64_t value;
    } values[] = {{":data-parallel-size", config_data_ranks(c)},
                  {":ranks", config_ranks(c)},
                  {":decay-iters", i64_or(c->lr_decay_iters, c->train_iters)},
                  {":decay-samples", i64_or(c->lr_decay_samples, c->train_samples)},
                  {":fitting-ranks", fitting_ranks(c)},
                  {":expert-tensor-ranks", config_expert_tensor_ranks(c)},
                  {":expert-ranks", expert_ranks(c)}};
    const size_t n = sizeof values / sizeof *values;
    size_t i = 0;
    while (i < n && (strlen(values[i].name) != len || strncmp(values[i].name, name, len))) i++;
    CHECK(i < n, "a rule names no value: %s", name);
    return values[i].value;
}

/* Appends the message, with each %name replaced by the option's value and each %:name by a derived value. */
static void fill_in_values(const Config *given, const Config *c, const char *message, Str *out) {
    while (*message) {
        size_t plain = strcspn(message, "%");
        str_add(out, message, plain);
        message += plain;
        if (!*message) return;
        const bool derived = message[1] == ':';
        size_t name = 1 + derived;
        while (isalnum((unsigned char)message[name]) || message[name] == '-' || message[name] == '_') name++;
        if (derived) {
            str_printf(out, "%lld", (long long)derived_value(c, message + 1, name - 1));
            message += name;
            continue;
        }
        int option = config_find(message + 1, name - 1);
        CHECK(option >= 0, "a rule names no option: %s", message);
        Str value = {0};
        arg_print(&CONFIG_ROWS[option], config_value(given, option), &value);
        str_add(out, value.s, value.len < 200 ? value.len : 200);
        str_free(&value);
        message += name;
    }
}

/* Returns whether a message names an option whose value could not be read or is out of its range. A rule that
 * is broken only because of an invalid value is not reported. */
static bool follows_from_bad(const Config *c, const char *message) {
    for (const char *s = message; (s = strstr(s, "--")); s++) {
        size_t n = 0;
        while (isalnum((unsigned char)s[2 + n]) || s[2 + n] == '-' || s[2 + n] == '_') n++;
        const int option = config_find(s + 2, n);
        if (option >= 0 && c->given[option] == ARG_BAD) return true;
    }
    return false;
}

static void check_rules(const Config *given, const Config *c, unsigned checks, Args *args) {
    const struct {
        unsigned check;
        bool holds;
        const char *idle; /* IDLE: name of the option that has no effect; NULL if a broken rule is an error */
        const char *message;
    } rules[] = {
#define RULE(check, condition, message)         {CHECK_##check, (condition), NULL, message},
#define IDLE(check, condition, option, message) {CHECK_##check, (condition), option, message},
#include "config/rules.def"
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].holds || (rules[i].check & checks) != rules[i].check) continue;
        if (follows_from_bad(c, rules[i].message) || (rules[i].idle && follows_from_bad(c, rules[i].idle)))
            continue;
        Str message = {0};
        fill_in_values(given, c, rules[i].message, &message);
        if (rules[i].idle)
            args_remark(args, REMARK_IDLE, rules[i].idle, "%s", message.s);
        else
            args_problem(args, "%s", message.s);
        str_free(&message);
    }
}

void config_check_ranges(const Config *c, Args *args) {
    for (int i = 0; i < OPTIONS; i++)
        if (is_number(i) && c->given[i] != ARG_BAD) check_range(c, i, args);
}

void config_check(const Config *c, unsigned checks, Args *args) {
    if (!checks) return;
    Config clamped = *c;
    for (int i = 0; i < OPTIONS; i++) {
        if (!is_number(i)) continue;
        if (c->given[i] != ARG_BAD && !check_range(c, i, args)) clamped.given[i] = ARG_BAD;
        clamp_to_range(&clamped, i);
    }
    args_check_texts(args, "tokenizer-special-tokens", &c->tokenizer_special_tokens);
    args_check_texts(args, "stop", &c->stop);
    check_rules(c, &clamped, checks, args);
    config_check_unused(&clamped, checks, args);
}
