#include "train/resume_notes.h"

#include <stdlib.h>
#include <string.h>

static const char DATA[] = "the samples or their order change", BATCH[] = "the samples of each step change",
                  RATE[] = "the learning rates of the coming steps change",
                  DECAY[] = "the weight decay of the coming steps changes", UPDATE[] = "the updates change",
                  TOKENS[] = "the ids in the data must be this tokenizer's",
                  LENGTH[] =
                      "the last step changes, and with it the learning rate unless --lr-decay-iters or "
                      "--lr-decay-samples is given",
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
    {OPTION_split, DATA},
    {OPTION_mock_data, DATA},
    {OPTION_dataloader_type, DATA},
    {OPTION_reset_position_ids, DATA},
    {OPTION_reset_attention_mask, DATA},
    {OPTION_eod_mask_loss, DATA},
    {OPTION_tokenizer_type, TOKENS},
    {OPTION_tokenizer_model, TOKENS},
    {OPTION_vocab_file, TOKENS},
    {OPTION_merge_file, TOKENS},
    {OPTION_global_batch_size, BATCH},
    {OPTION_rampup_batch_size, BATCH},
    {OPTION_step_batch_size_schedule, BATCH},
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
};

static const char *consequence(int option) {
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++)
        if (CHANGES[i].option == option) return CHANGES[i].consequence;
    return config_option_class(option) == CLASS_NUMERIC ? ROUNDING : NULL;
}

/* A long value, such as the paths of a blend, is omitted. */
static void put_value(const json_t *value, Str *out) {
    enum { LONGEST = 60 };
    char *text = json_is_null(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    str_puts(out, !text ? "not given" : strlen(text) > LONGEST ? "another value" : text);
    free(text);
}

void resume_notes(const Config *c, const json_t *saved, Str *out) {
    Str text = {0};
    config_json(c, CLASS_RUN | CLASS_NUMERIC, &text);
    json_t *ours = json_loadb(text.s, text.len, 0, NULL);
    for (int i = 0; i < OPTIONS; i++) {
        const char *key = config_field_name(i), *name = CONFIG_ROWS[i].names;
        const json_t *here = key ? json_object_get(ours, key) : NULL,
                     *there = key ? json_object_get(saved, key) : NULL;
        if (!here || !there || json_equal(here, there) || !consequence(i)) continue;
        str_printf(out, "  note: --%.*s is ", (int)strcspn(name, "|"), name);
        put_value(here, out);
        str_puts(out, " here and ");
        put_value(there, out);
        str_printf(out, " in the checkpoint: %s\n", consequence(i));
    }
    json_decref(ours);
    str_free(&text);
}
