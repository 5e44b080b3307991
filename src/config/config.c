/* This file and check.c call each other: config_parse calls check.c, and check.c reads the option rows in
 * this file. */
#include "config/config.h"

#include <string.h>

#define ROW_flag  ARG_FLAG
#define ROW_off   ARG_OFF
#define ROW_i64   ARG_I64
#define ROW_f64   ARG_F64
#define ROW_text  ARG_TEXT
#define ROW_texts ARG_TEXTS
#define ROW_i64s  ARG_I64S

const Arg CONFIG_ROWS[OPTIONS] = {
#define OPTGROUP(constant, title) {.names = title, .type = ARG_GROUP},
#define OPT(type, field, fallback, class, names, help)                                                       \
    {names, ROW_##type, offsetof(Config, field), #fallback, NULL, help, false},
#define OPTENUM(enumeration, field, fallback, class, names, help)                                            \
    {names, ARG_ENUM, offsetof(Config, field), #fallback, enumeration##_spellings, help, false},
#include "config/options.def"
};

static const Foreign MEGATRON[] = {
#define NOTED(reason, options)   {FOREIGN_NOTED, NULL, NULL, options, reason},
#define REFUSED(reason, options) {FOREIGN_REFUSED, NULL, NULL, options, reason},
#include "config/megatron.def"
#define VALUE(option, values, ours, reason) {FOREIGN_NOTED, option, ours, values, reason},
#define NO_VALUE(option, values, reason)    {FOREIGN_REFUSED, option, NULL, values, reason},
#include "config/rules.def"
};

/* Every enum must be as large as an int, because the parser stores choices as int. */
#define OPT(type, field, fallback, class, names, help)
#define OPTENUM(enumeration, field, fallback, class, names, help)                                            \
    _Static_assert(sizeof(((Config *)0)->field) == sizeof(int), #field);
#include "config/options.def"

static const struct {
    const char *field;
    ConfigClass class;
    ConfigRange range;
} FIELDS[OPTIONS] = {
#define OPTGROUP(constant, title) {NULL, 0, {0, 0}},
#define OPT(type, field, fallback, class, names, help)                                                       \
    {#field, (ConfigClass)((CLASS_##class) & CLASS_ALL), {0, 0}},
#define OPTNUM(type, field, fallback, low, high, class, names, help)                                         \
    {#field, (ConfigClass)((CLASS_##class) & CLASS_ALL), {(double)(low), (double)(high)}},
#include "config/options.def"
};

const char *config_field_name(int option) { return FIELDS[option].field; }
ConfigClass config_option_class(int option) { return FIELDS[option].class; }
ConfigRange config_range(int option) { return FIELDS[option].range; }

const void *config_value(const Config *c, int option) { return (const char *)c + CONFIG_ROWS[option].offset; }

int config_find(const char *name, size_t n) {
    for (int i = 0; i < OPTIONS; i++) {
        const Arg *row = &CONFIG_ROWS[i];
        if (row->type != ARG_GROUP && *row->names == *name && !strncmp(row->names, name, n) &&
            arg_name_len(row) == n)
            return i;
    }
    return -1;
}

ArgTable config_table(Config *c, ConfigUse use) {
    return (ArgTable){.rows = CONFIG_ROWS,
                      .count = OPTIONS,
                      .foreign = MEGATRON,
                      .num_foreign = sizeof MEGATRON / sizeof *MEGATRON,
                      .foreign_use = use == USE_PRETRAIN || use == USE_FINETUNE || use == USE_BENCH_TRAIN ||
                                             use == USE_PARITY || use == USE_ALL
                                         ? FOREIGN_READ
                                     : use == USE_GENERATE || use == USE_SERVE ? FOREIGN_ON_LINE
                                                                               : FOREIGN_UNUSED,
                      .notes_unread =
                          use == USE_GENERATE || use == USE_SERVE, /* as in Megatron-LM's inference scripts */
                      .accepts = config_uses,
                      .use = (int)use,
                      .command = config_use_name(use),
                      .target = c,
                      .given = c->given};
}

void config_defaults(Config *c, Arena *arena) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < OPTIONS; i++) arg_default(&CONFIG_ROWS[i], (char *)c + CONFIG_ROWS[i].offset, arena);
}

/* Sets the schedule of --overlap-moe-expert-parallel-comm. */
static void overlap_experts(Config *c) {
    if (!c->overlap_moe_expert_parallel_comm || config_given(c, interleaved_microbatches) ||
        config_shards_gradients(c))
        return;
    c->interleaved_microbatches = 2;
    c->interleave_forward_backward =
        c->pipeline_schedule != SCHEDULE_GPIPE && c->pipeline_schedule != SCHEDULE_ZERO_BUBBLE;
}

void config_complete(Config *c, Args *args) {
    config_read_paths(c, args);
    config_read_precision(c, args);
    if (!c->tokenizer_type && c->vocab_file &&
        c->model != MODEL_gpt) /* as in pretrain_bert.py and pretrain_t5.py */
        c->tokenizer_type = "BertWordPieceLowerCase";
    else if (!c->tokenizer_type && c->vocab_file && c->merge_file) /* as in pretrain_gpt.py */
        c->tokenizer_type = "GPT2BPETokenizer";
    if (c->hybrid_layer_pattern && !i64_is_set(c->num_layers)) /* as in Megatron-LM's validate_args */
        c->num_layers = config_hybrid_letters(c->hybrid_layer_pattern, NULL);
    if (c->hybrid_layer_pattern && !c->mtp_num_layers) /* the same */
        c->mtp_num_layers = config_hybrid_depths(c->hybrid_layer_pattern);
    if (config_has_letter(c, '+')) c->multi_latent_attention = true; /* the same */
    if (c->optimizer == OPTIMIZER_DIST_MUON)                         /* as in Megatron-LM's validate_args */
        c->optimizer = OPTIMIZER_MUON, c->use_distributed_optimizer = true;
    overlap_experts(c);
}

Err config_parse(Config *c, Args *args, ConfigUse use, unsigned checks, int argc, char **argv) {
    memset(c, 0, sizeof *c);
    args_use(args, config_table(c, use));
    args_line(args, argc, argv);
    if (args->help) return ERR_OK;
    config_complete(c, args);
    config_check(c, checks, args);
    return args_end(args);
}
