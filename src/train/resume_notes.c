#include "train/resume_notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/args.h"
#include "optim/schedule.h"

static const char DATA[] = "the samples or their order change", BATCH[] = "the samples of each step change",
                  RATE[] = "the learning rates of the remaining steps change",
                  DECAY[] = "the weight decay of the remaining steps changes",
                  UPDATE[] = "the updates change", TOKENS[] = "the ids in the data must be this tokenizer's",
                  LENGTH[] = "the last step changes",
                  DROPOUT[] = "the dropout of the remaining steps changes",
                  ROUTING[] = "the routing of the remaining steps changes",
                  ROUNDING[] = "values are rounded otherwise";

static const struct {
    int option;
    const char *consequence;
} CHANGES[] = {
    {OPTION_seed, "the order of the data and the dropout change"},
    {OPTION_data_path, DATA},
    {OPTION_train_data_path, DATA},
    {OPTION_valid_data_path, DATA},
    {OPTION_test_data_path, DATA},
    {OPTION_train_data, DATA},
    {OPTION_valid_data, DATA},
    {OPTION_keep_last, DATA},
    {OPTION_split, DATA},
    {OPTION_mock_data, DATA},
    {OPTION_dataloader_type, DATA},
    {OPTION_data_sharding, DATA},
    {OPTION_mask_prob, DATA},
    {OPTION_short_seq_prob, DATA},
    {OPTION_mid_level_dataset_surplus, DATA},
    {OPTION_reset_position_ids, DATA},
    {OPTION_reset_attention_mask, DATA},
    {OPTION_eod_mask_loss, DATA},
    {OPTION_allow_ambiguous_pad_tokens, DATA},
    {OPTION_tokenizer_type, TOKENS},
    {OPTION_tokenizer_model, TOKENS},
    {OPTION_vocab_file, TOKENS},
    {OPTION_merge_file, TOKENS},
    {OPTION_null_tokenizer_eod_id, TOKENS},
    {OPTION_null_tokenizer_pad_id, TOKENS},
    {OPTION_vocab_extra_ids, TOKENS},
    {OPTION_tokenizer_special_tokens, TOKENS},
    {OPTION_tiktoken_pattern, TOKENS},
    {OPTION_tiktoken_num_special_tokens, TOKENS},
    {OPTION_global_batch_size, BATCH},
    {OPTION_rampup_batch_size, BATCH},
    {OPTION_step_batch_size_schedule, BATCH},
    {OPTION_epochs, LENGTH},
    {OPTION_train_iters, LENGTH},
    {OPTION_train_samples, LENGTH},
    {OPTION_lr, RATE},
    {OPTION_min_lr, RATE},
    {OPTION_decoupled_lr, RATE},
    {OPTION_decoupled_min_lr, RATE},
    {OPTION_lr_decay_style, RATE},
    {OPTION_lr_wsd_decay_style, RATE},
    {OPTION_lr_decay_iters, RATE},
    {OPTION_lr_decay_samples, RATE},
    {OPTION_lr_wsd_decay_iters, RATE},
    {OPTION_lr_wsd_decay_samples, RATE},
    {OPTION_lr_warmup_fraction, RATE},
    {OPTION_lr_warmup_iters, RATE},
    {OPTION_lr_warmup_samples, RATE},
    {OPTION_lr_warmup_init, RATE},
    {OPTION_weight_decay, DECAY},
    {OPTION_start_weight_decay, DECAY},
    {OPTION_end_weight_decay, DECAY},
    {OPTION_weight_decay_incr_style, DECAY},
    {OPTION_apply_wd_to_qk_layernorm, DECAY},
    {OPTION_adam_beta1, UPDATE},
    {OPTION_adam_beta2, UPDATE},
    {OPTION_adam_eps, UPDATE},
    {OPTION_sgd_momentum, UPDATE},
    {OPTION_clip_grad, UPDATE},
    {OPTION_moe_router_load_balancing_type, ROUTING},
    {OPTION_moe_aux_loss_coeff, ROUTING},
    {OPTION_moe_z_loss_coeff, ROUTING},
    {OPTION_moe_router_bias_update_rate, ROUTING},
    {OPTION_moe_input_jitter_eps, ROUTING},
    {OPTION_hidden_dropout, DROPOUT},
    {OPTION_attention_dropout, DROPOUT},
    {OPTION_classifier_dropout, DROPOUT},
};

static const char *consequence(int option) {
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++)
        if (CHANGES[i].option == option) return CHANGES[i].consequence;
    return config_option_class(option) == CLASS_NUMERIC ? ROUNDING : NULL;
}

bool resume_may_change(int option) { return consequence(option); }

/* A real has as few digits as read back to it. A long value, such as the paths of a blend, is omitted. */
static void put_value(const json_t *value, Str *out) {
    enum { LONGEST = 60, DIGITS_MOST = 17 };
    char text[32];
    if (json_is_real(value)) {
        const double x = json_real_value(value);
        for (int digits = 1; digits <= DIGITS_MOST; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, x);
            if (strtod(text, NULL) == x) break;
        }
        str_puts(out, text);
        return;
    }
    char *other = json_is_null(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
    str_puts(out, !other ? "none" : strlen(other) > LONGEST ? "another value" : other);
    free(other);
}

/* --no-... and --disable-... are true where their fields are false. */
static void put_option(int option, const json_t *value, Str *out) {
    if (CONFIG_ROWS[option].type == ARG_OFF && json_is_boolean(value))
        value = json_boolean(!json_is_true(value));
    put_value(value, out);
}

void resume_difference(int option, const json_t *here, const json_t *there, Str *out) {
    const char *name = CONFIG_ROWS[option].names;
    str_printf(out, "--%.*s is ", (int)strcspn(name, "|"), name);
    put_option(option, here, out);
    str_puts(out, ", and the checkpoint has ");
    put_option(option, there, out);
}

/* Whether learning rates and weight decay change. */
typedef struct Schedules {
    bool rate, decay;
} Schedules;

static Schedules differ(const Trainer *r, const Config *old, const Derived *was, int64_t coming) {
    const Config *c = r->config;
    const Derived *d = r->derived;
    const int64_t at = r->schedule_samples + coming;
    const double lr = schedule_lr(c, d, c->lr, c->min_lr, at),
                 decoupled = schedule_lr(c, d, d->decoupled_lr, d->decoupled_min_lr, at);
    return (Schedules){
        .rate = lr != schedule_lr(old, was, old->lr, old->min_lr, at) ||
                decoupled != schedule_lr(old, was, was->decoupled_lr, was->decoupled_min_lr, at),
        .decay = schedule_weight_decay(c, d, at) != schedule_weight_decay(old, was, at),
    };
}

static bool concerns_schedules(int option) {
    const char *then = consequence(option);
    return then == RATE || then == DECAY || then == LENGTH || then == BATCH;
}

/* Compares the remaining steps with those that the checkpoint's values of these options would give. If these values are not
 * valid with the other options, both schedules count as changed. */
static Schedules changed_by(const Trainer *r, const json_t *values) {
    enum { POINTS = 10000 };
    const Derived *d = r->derived;
    Arena *arena = arena_new();
    Config old = *r->config;
    Derived was;
    Args args;
    Str ignored = {0};
    Schedules sum = {true, true};
    char *text = json_dumps(values, 0);
    args_init(&args, arena, "", NULL);
    for (int i = 0; i < OPTIONS; i++)
        if (config_field_name(i) && json_object_get(values, config_field_name(i))) old.given[i] = 0;
    const Err e = config_from_json(&old, arena, text, strlen(text), CLASS_ALL, &ignored);
    if (!e.code) config_check(&old, CHECK_MODEL | CHECK_TRAIN, &args);
    if (!e.code && !args.num_problems) {
        config_finish(&old, arena, d->vocab_size, &was);
        const int64_t left = d->samples_needed - r->consumed_samples, batch = d->global_batch_size,
                      stride = left / POINTS > batch ? left / POINTS : batch;
        sum = (Schedules){false, false};
        for (int64_t k = 0; k < left; k += stride) {
            const Schedules here = differ(r, &old, &was, k);
            sum.rate |= here.rate, sum.decay |= here.decay;
        }
    }
    args_free(&args);
    str_free(&ignored);
    free(text);
    arena_free(arena);
    return sum;
}

static Schedules changed_by_all(const Trainer *r, const json_t *saved) {
    json_t *some = json_object();
    for (int i = 0; i < OPTIONS; i++) {
        json_t *there = concerns_schedules(i) ? json_object_get(saved, config_field_name(i)) : NULL;
        if (there) json_object_set(some, config_field_name(i), there);
    }
    const Schedules all = changed_by(r, some);
    json_decref(some);
    return all;
}

/* all: what changes if all such options have the values of the checkpoint. */
static void put_consequence(const Trainer *r, int option, const json_t *there, Schedules all, Str *out) {
    const char *then = consequence(option);
    Schedules changed = {false, false};
    if (concerns_schedules(option)) {
        json_t *one = json_object();
        json_object_set(one, config_field_name(option), (json_t *)there);
        changed = changed_by(r, one);
        changed.rate &= all.rate, changed.decay &= all.decay;
        json_decref(one);
    }
    if (then == RATE && !changed.rate)
        then = "the learning rates of the remaining steps do not change";
    else if (then == DECAY && !changed.decay)
        then = "the weight decay of the remaining steps does not change";
    str_puts(out, then);
    if (changed.rate && then != RATE) str_puts(out, ", and so do the learning rates");
    if (changed.decay && then != DECAY) str_puts(out, ", and so does the weight decay");
    str_puts(out, "\n");
}

static void put_progress(const Trainer *r, const json_t *state, Str *out) {
    const json_t *there = json_object_get(json_object_get(state, "progress"), "scheduler_samples");
    const long long was = json_integer_value(there), is = r->schedule_samples;
    if (!r->config->load_optim)
        str_puts(
            out,
            "  note: --no-load-optim: the optimizer, the loss scale and the schedules of learning rate and "
            "weight decay start anew\n");
    else if (there && was != is)
        str_printf(out,
                   "  note: --override-opt_param-scheduler: the schedules of learning rate and weight decay "
                   "continue at sample %lld; those of the checkpoint are at %lld\n",
                   is, was);
}

static bool names_data(int option) {
    return option == OPTION_data_path || option == OPTION_train_data_path || option == OPTION_train_data ||
           option == OPTION_valid_data || option == OPTION_valid_data_path ||
           option == OPTION_test_data_path || option == OPTION_mock_data;
}

void resume_notes(const Trainer *r, const json_t *state, Str *out) {
    const Config *c = r->config;
    const json_t *saved = json_object_get(state, "config");
    const char *there_data = json_string_value(json_object_get(state, "data")); /* older ones have none */
    bool same_names = true;
    Str text = {0};
    config_json(c, CLASS_RUN | CLASS_NUMERIC | CLASS_ARCH, &text);
    json_t *ours = json_loadb(text.s, text.len, 0, NULL);
    const Schedules all = changed_by_all(r, saved);
    for (int i = 0; i < OPTIONS; i++) {
        const char *key = config_field_name(i), *then = consequence(i);
        const json_t *here = key ? json_object_get(ours, key) : NULL,
                     *there = key ? json_object_get(saved, key) : NULL;
        const bool implied = i == OPTION_train_iters && c->task != TASK_NONE; /* by --epochs */
        if (!here || !there || json_equal(here, there) || !then || implied) continue;
        str_puts(out, "  note: ");
        resume_difference(i, here, there, out);
        str_puts(out, ": ");
        put_consequence(r, i, there, all, out);
        same_names &= !names_data(i);
    }
    put_progress(r, state, out);
    if (r->data_fingerprint && there_data && same_names && strcmp(r->data_fingerprint, there_data))
        str_printf(out, "  note: the data files have changed since the checkpoint: %s\n", DATA);
    json_decref(ours);
    str_free(&text);
}
