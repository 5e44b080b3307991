/* A run's configuration: a field for each option (generated from options.def), values derived from the options, and the
 * rules that options must satisfy. Options have Megatron-LM's spellings, defaults and meanings.
 *
 *     Args args;
 *     args_init(&args, arena, "isotron pretrain [options]", NULL);
 *     Err e = config_parse(&config, &args, USE_PRETRAIN, CHECK_MODEL | CHECK_TRAIN, argc, argv);
 *     if (args.help) ...               args_help appends the text
 *     else if (e.code) ...             args.problems has a line for every broken rule
 *     else config_finish(&config, arena, vocab_size);
 *
 * A Config is plain data and can be copied. The strings and lists in a Config belong to the arena of the
 * parse. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/amount.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "config/args.h"
#include "config/enums.h"

/* OPTION_<field> is the index of a row in options.def (group rows included). */
enum {
#define OPTGROUP(constant, title)                      OPTION_GROUP_##constant,
#define OPT(type, field, fallback, class, names, help) OPTION_##field,
#include "config/options.def"
    OPTIONS
};

/* The groups in options.def. */
typedef enum ConfigGroup {
#define OPTGROUP(constant, title) GROUP_##constant,
#define OPT(type, field, fallback, class, names, help)
#include "config/options.def"
    GROUPS
} ConfigGroup;

/* The commands that read options (the rows in uses.def). USE_ALL represents a command that reads every option. */
typedef enum ConfigUse {
#define USE(constant, command, groups, classes) USE_##constant,
#include "config/uses.def"
    USE_ALL
} ConfigUse;
bool config_uses(int use, int64_t option);
/* Returns the command's name, such as "bench train", for messages. */
const char *config_use_name(ConfigUse);

typedef enum ConfigClass {
    CLASS_ARCH = 1,
    CLASS_NUMERIC = 2,
    CLASS_LAYOUT = 4,
    CLASS_RUN = 8,
    CLASS_ALL = 15
} ConfigClass;

/* Flags that are combined with an option's class. ALSO means that the command reads this option, but not the other
 * options in its group. EXCEPT means that the command reads the group, but not this option. */
#define CLASS_ALSO(use)   (UINT64_C(1) << (8 + (use)))
#define CLASS_EXCEPT(use) (UINT64_C(1) << (32 + (use)))
#define ALSO(command)     CLASS_ALSO(USE_##command)
#define EXCEPT(command)   CLASS_EXCEPT(USE_##command)
#define NOT_INFERENCE     (EXCEPT(GENERATE) | EXCEPT(SERVE) | EXCEPT(BENCH_INFER))

/* A global batch size, and the number of consumed samples at which it takes effect. */
typedef struct BatchStep {
    int64_t from_samples, size;
} BatchStep;

/* Values derived from the options by config_finish. Sizes describe the full model, not one rank's part. */
typedef struct Derived {
    int64_t ffn_hidden_size, kv_channels, num_query_groups, max_position_embeddings;
    double width_ratio;   /* ratio of the hidden size to the base model's; 1 without --use-mup */
    double softmax_scale; /* factor that multiplies the attention scores */
    int64_t rotary_dim;   /* number of rotated channels per head; 0 without rope */
    int64_t vocab_size, padded_vocab_size; /* 0 if neither the options nor the tokenizer defines a size */
    MlpActivation activation;              /* the resolved activation, never MLP_GELU */
    int64_t window_left;                   /* number of earlier tokens in a sliding window, or -1 if there is
                                              no limit */
    const bool *layer_windowed;            /* [config_layers] */
    const bool *layer_rotated;             /* [config_layers] */
    const double *rope_divisor;            /* [rotary_dim / 2] divisors of rotary frequencies; NULL if none */
    double rope_base, rope_amplitude; /* base of rotary frequencies; factor applied to rotated channels */
    const bool *layer_moe;            /* [config_layers] */
    const bool *layer_linear; /* [config_layers]: which layers are Gated DeltaNet, without a pattern */
    const char *letters;      /* [num_layers]: --hybrid-layer-pattern without |; NULL without a pattern */
    const char
        *letters_ahead;  /* the branches of an MTP layer in --hybrid-layer-pattern; NULL if there are none */
    int64_t mamba_heads; /* number of Mamba-2 heads */
    const ContextComm *layer_context_comm; /* [config_layers] */
    int64_t num_moe_layers;                /* number of MoE layers, excluding MTP layers */
    /* MLP widths of a routed expert and of the shared expert; moe_shared_size is 0 without a shared expert */
    int64_t moe_ffn_hidden_size, moe_shared_size;
    double aux_loss_coeff[BALANCE_SINKHORN]; /* [LoadBalancing]; 0 means that the loss is not used */
    bool sinkhorn, quantile;                 /* whether --moe-router-load-balancing-type lists these values */
    double logits_scaling;
    bool output_bias; /* whether a GPT's or T5's output layer has a bias; BERT's always has one */
    /* output_init_std is init_std / sqrt(the number of branches) */
    double init_std, output_init_std, embedding_init_std;
    unsigned recompute_modules; /* one bit per RecomputeModule; 0 unless recomputation is selective */

    int64_t choices; /* samples per question: one for each answer choice, or 1 without choices */
    int64_t data_parallel_size;
    int64_t cpu_threads; /* number of threads per rank; 0 means one per core */
    /* Batch sizes and schedule lengths are in samples, as in Megatron-LM. The batch sizes are the values of
     * the options, multiplied by `choices`. global_batch_size is the last size in the schedule. */
    int64_t micro_batch_size, global_batch_size;
    int64_t eval_samples;         /* number of samples per evaluation */
    const BatchStep *batch_steps; /* [num_batch_steps], ascending; the first begins at 0 samples */
    int64_t num_batch_steps;
    int64_t train_iters, train_samples; /* 0 if neither option is given */
    /* number of samples to train on; exceeds train_samples if the last step needs more samples */
    int64_t samples_needed;
    double lr_warmup_steps;
    /* numbers of samples; lr_wsd_decay_steps is 0 if its option is not given */
    int64_t lr_decay_steps, lr_wsd_decay_steps, wd_incr_steps;
    double start_weight_decay, end_weight_decay;
    /* learning rates for the embedding and output layer; the defaults are lr and min_lr */
    double decoupled_lr, decoupled_min_lr;
    double rescaled_lr, rescaled_min_lr; /* learning rates for PARAM_RESCALED */
    const char *split;    /* --split; NULL if training, validation and test data have separate paths */
    uint64_t random_seed; /* seed for sampling */
} Derived;

/* The maximum value of --mtp-num-layers, and the maximum number of letters of an MTP layer. */
enum { MTP_LAYERS = 7, MTP_BRANCHES = 8 };

/* A matcher of --te-precision-config-file: the first matcher whose pattern matches a linear layer's name replaces the
 * layer's format and recipe. FP8_NONE means that the layer does not use FP8. */
typedef struct PrecisionRule {
    const char *pattern; /* for fnmatch, with FNM_NOESCAPE */
    Fp8Format format;
    Fp8Recipe recipe;
    bool overrides_fp8, overrides_bf16; /* applies to layers that would, or would not, use FP8 */
} PrecisionRule;
typedef struct PrecisionRules {
    PrecisionRule *at;
    int count;
} PrecisionRules;

/* The values of all options. A field without a value is I64_UNSET, NaN, NULL or an empty list (args.h). */
typedef struct Config {
#define CONFIG_flag                                        bool
#define CONFIG_off                                         bool
#define CONFIG_i64                                         int64_t
#define CONFIG_f64                                         double
#define CONFIG_text                                        const char *
#define CONFIG_texts                                       TextList
#define CONFIG_i64s                                        I64List
#define OPT(type, field, fallback, class, names, help)     CONFIG_##type field;
#define OPTENUM(type, field, fallback, class, names, help) type field;
#include "config/options.def"
    unsigned char given[OPTIONS];   /* 0 if the field has its default, nonzero if the user gave the option */
    PrecisionRules precision_rules; /* empty without --te-precision-config-file */
    Derived derived;
} Config;

#define config_given(config, field) ((config)->given[OPTION_##field] != 0)

/* Bits that select the rules to check. A rule in rules.def is checked if all bits of its CHECK_ constant are set. */
typedef enum ConfigCheck {
    CHECK_TRAIN = 1,
    CHECK_PASSES = 512, /* rules about the inference engine's passes */
    CHECK_INFER = 2 | CHECK_PASSES,
    CHECK_GENERATE = 128 | CHECK_INFER,
    CHECK_SERVE = 256 | CHECK_INFER,
    CHECK_BENCH_INFER = 1024 | CHECK_PASSES,
    CHECK_DATA = 4,
    CHECK_LAYOUT = 8, /* rules about how layers are split across ranks, and about the pipeline schedule */
    CHECK_MODEL = 16 | CHECK_LAYOUT,
    CHECK_TASK = 64,
    CHECK_STRICT = 32, /* command-line options without effect, even Megatron-LM's, are errors */
    CHECK_ANY = 0,
} ConfigCheck;

void config_defaults(Config *, Arena *);
/* Returns the option table whose target is the Config, for commands that add more tables. */
ArgTable config_table(Config *, ConfigUse);
/* Sets the defaults, reads the `--config` files and then the command line, and checks the ranges of numbers
 * and the rules that `checks` selects. The caller initializes `args` and may have added tables. `args` then contains
 * all problems and notes. */
Err config_parse(Config *, Args *args, ConfigUse, unsigned checks, int argc, char **argv);
/* Reads files that options name, and sets options that follow from other options, as Megatron-LM's validate_args does.
 * config_parse calls this function after the command line has been read. */
void config_complete(Config *, Args *);
/* Appends a message for each out-of-range number, each broken rule, and each option without effect (rules.def). If
 * `checks` is 0, appends no messages. */
void config_check(const Config *, unsigned checks, Args *args);
/* Appends only the messages about out-of-range numbers. */
void config_check_ranges(const Config *, Args *args);
/* Appends only the messages for options that have no effect. */
void config_check_unused(const Config *, unsigned checks, Args *args);

/* Computes `derived`. The Config must satisfy the rules that CHECK_MODEL selects (and CHECK_TRAIN for training).
 * `vocab_size` is the tokenizer's vocabulary size, or 0 if there is no tokenizer. The option vocab-size takes
 * precedence over this size. Arrays belong to the arena. */
void config_finish(Config *, Arena *, int64_t vocab_size);
/* Returns whether positions are relative biases or ALiBi, so that texts have no maximum length. */
bool config_is_unlimited(const Config *);
bool config_rotates(const Config *);           /* whether queries and keys are rotated (RoPE) */
bool config_is_yarn(const Config *);           /* whether YaRN determines the rotary frequencies */
bool config_measures_scores(const Config *);   /* whether a step measures the largest attention scores */
int64_t config_layers(const Config *);         /* total number of layers; all stacks share one numbering */
int64_t config_main_layers(const Config *);    /* number of layers, excluding the MTP layers */
int64_t config_decoder_layers(const Config *); /* number of T5 decoder layers */
int64_t config_layer_in_stack(const Config *,
                              int64_t layer); /* index of the layer within its stack; a T5 has two stacks */
int64_t config_token_types(const Config *);   /* number of BERT token types; 0 if there are none */
/* Returns whether a T5 is Hugging Face's variant (ckpt/hf/t5.def) rather than Megatron-LM's. With tied embeddings, this
 * variant has no bias in the output layer and divides the logits by sqrt(hidden-size). No option selects the variant,
 * because other options imply it. */
bool config_is_hf_t5(const Config *);
/* such as "2 layers" or, for a T5, "2 encoder and 3 decoder layers" */
AmountText config_layers_text(const Config *);
AmountText config_tokens_text(const Config *); /* the length of a sample, such as "512 tokens" */
/* Returns the tokenizer's type, followed by its file in quotes if an option names one. Use the text as a function
 * argument. */
typedef struct TokenizerText {
    char s[1000];
} TokenizerText;
TokenizerText config_tokenizer_text(const Config *);
int64_t config_ranks(const Config *);               /* number of ranks in the run */
bool config_bf16_grads(const Config *);             /* whether main gradients are bf16 (in the bf16 lane) */
int64_t config_model_ranks(const Config *);         /* number of ranks that share one copy of the dense
                                                       parameters */
int64_t config_data_ranks(const Config *);          /* data-parallel size; 1 if it would not be an integer */
int64_t config_expert_tensor_ranks(const Config *); /* number of ranks that share the weights of one expert */
/* Resets all parallelism options to their defaults, so that the Config describes the same run on one rank. */
void config_on_one_rank(Config *, Arena *);
/* Returns the global batch size after `consumed` samples have been consumed. */
int64_t config_batch_size(const Config *, int64_t consumed);

/* Returns the options in `classes` as {"field": value, ...}, in options.def order. An unset value is null. The caller
 * frees the object. */
struct json_t *config_object(const Config *, unsigned classes);
/* Appends the object that config_object returns, as JSON text. */
void config_json(const Config *, unsigned classes, Str *out);
/* Sets the options in `classes` from the JSON text (config_json) in a checkpoint. Ignores unknown names. An
 * option that the user gave keeps its value; if the checkpoint has a different value, a note reports the
 * difference. Returns an error if a type or value is invalid. */
Err config_from_json(Config *, Arena *, const char *json, size_t n, unsigned classes, Str *notes);

/* Appends the text of docs/reference/options.md. */
void config_options_md(Str *out);

/* The rows in options.def, for loops over all options. */
extern const Arg CONFIG_ROWS[OPTIONS];
const char *config_field_name(int option); /* the field's name, such as "num_layers"; NULL for a group row */
ConfigClass config_option_class(int option);
/* A number's allowed range [low, high]. Either bound may be infinite. */
typedef struct ConfigRange {
    double low, high;
} ConfigRange;
ConfigRange config_range(int option);
const void *config_value(const Config *, int option);
int config_find(const char *name, size_t n); /* index of the row whose first spelling is `name`, or -1 */

/* Returns whether any of the words is a spelling or synonym of the constant `choice` (enum_find). */
bool config_lists(const TextList *words, const char *const *spellings, int choice);
/* Returns whether --moe-router-load-balancing-type names this type. */
bool config_balances_by(const Config *, LoadBalancing);
/* Returns the number of experts whose scores are added to compute a group's score (RouteAttr.group_scores).
 * The options that define the expert groups must be set. */
int64_t config_group_scores(const Config *);
/* Sets out[i] to whether layer i has rotary embeddings, according to --no-rope-freq. Returns false if the value of
 * --no-rope-freq is not a pattern. */
bool config_rotated_layers(const Config *, bool *out);
/* Fills out[n] from "N" (every N-th entry is false, the others are true) or from an expression such as
 * "([1,1,0]+[1])*2" with exactly n entries. Returns false for any other text (pattern.c). */
bool config_layer_pattern(const char *text, int64_t n, bool *out);
/* Computes the inverse of config_layer_pattern. Returns text such as "[1,0,1]", which belongs to the arena. */
const char *config_pattern_text(Arena *, const bool *layer, int64_t n);
/* For a model without a hybrid pattern, sets out[config_main_layers] to whether each layer is Gated DeltaNet. Returns
 * false if the value of --linear-attention-freq is not a pattern. */
bool config_linear_layers(const Config *, bool *out);
/* Returns whether the model may have Gated DeltaNet layers. */
bool config_has_delta_net(const Config *);
/* Returns whether ranks shard gradients (ZeRO-2 and ZeRO-3). */
bool config_shards_gradients(const Config *);
/* Sets the options for data paths from the files that --data-args-path and --per-split-data-args-path name. */
void config_read_paths(Config *, Args *);
/* Sets precision_rules from the file that --te-precision-config-file names. */
void config_read_precision(Config *, Args *);
/* Returns how many letters --hybrid-layer-pattern contains before its first slash. Writes them to `out` unless it is
 * NULL. */
int64_t config_hybrid_letters(const char *pattern, char *out);
/* Returns the number of MTP layers that --hybrid-layer-pattern describes. */
int64_t config_hybrid_depths(const char *pattern);
/* Returns whether the hybrid pattern contains the letter. */
bool config_has_letter(const Config *, char letter);
/* Like config_layer_pattern, except that "N" sets layers 0, N, 2N, ... to true (--moe-layer-freq). */
bool config_moe_pattern(const char *text, int64_t n, bool *out);
/* Writes at most `capacity` steps of a run's batch-size schedule, and returns their number. If capacity is 0, returns
 * an upper bound on this number. Returns -1 if step-batch-size-schedule or rampup-batch-size is invalid (batch.c). */
int64_t config_batch_steps(const Config *, BatchStep *out, int64_t capacity);
