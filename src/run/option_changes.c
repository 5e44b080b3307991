#include "run/option_changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

static const struct {
    int option;
    OptionChange change;
} CHANGES[] = {
    {OPTION_seed, CHANGES_ORDER},
    {OPTION_data_path, CHANGES_DATA},
    {OPTION_train_data_path, CHANGES_DATA},
    {OPTION_valid_data_path, CHANGES_DATA},
    {OPTION_test_data_path, CHANGES_DATA},
    {OPTION_train_data, CHANGES_DATA},
    {OPTION_valid_data, CHANGES_DATA},
    {OPTION_keep_last, CHANGES_DATA},
    {OPTION_split, CHANGES_DATA},
    {OPTION_mock_data, CHANGES_DATA},
    {OPTION_dataloader_type, CHANGES_DATA},
    {OPTION_data_sharding, CHANGES_DATA},
    {OPTION_mask_prob, CHANGES_DATA},
    {OPTION_short_seq_prob, CHANGES_DATA},
    {OPTION_mid_level_dataset_surplus, CHANGES_DATA},
    {OPTION_reset_position_ids, CHANGES_DATA},
    {OPTION_reset_attention_mask, CHANGES_DATA},
    {OPTION_eod_mask_loss, CHANGES_DATA},
    {OPTION_allow_ambiguous_pad_tokens, CHANGES_DATA},
    {OPTION_fim_data, CHANGES_DATA},
    {OPTION_fim_rate, CHANGES_DATA},
    {OPTION_fim_spm_rate, CHANGES_DATA},
    {OPTION_fim_split_sample, CHANGES_DATA},
    {OPTION_fim_fragment_rate, CHANGES_DATA},
    {OPTION_fim_no_prefix, CHANGES_DATA},
    {OPTION_fim_prefix_token, CHANGES_DATA},
    {OPTION_fim_middle_token, CHANGES_DATA},
    {OPTION_fim_suffix_token, CHANGES_DATA},
    {OPTION_fim_pad_token, CHANGES_DATA},
    {OPTION_fim_eod_token, CHANGES_DATA},
    {OPTION_tokenizer_type, CHANGES_TOKENS},
    {OPTION_tokenizer_model, CHANGES_TOKENS},
    {OPTION_vocab_file, CHANGES_TOKENS},
    {OPTION_merge_file, CHANGES_TOKENS},
    {OPTION_null_tokenizer_eod_id, CHANGES_TOKENS},
    {OPTION_null_tokenizer_pad_id, CHANGES_TOKENS},
    {OPTION_vocab_extra_ids, CHANGES_TOKENS},
    {OPTION_tokenizer_special_tokens, CHANGES_TOKENS},
    {OPTION_tiktoken_pattern, CHANGES_TOKENS},
    {OPTION_tiktoken_num_special_tokens, CHANGES_TOKENS},
    {OPTION_global_batch_size, CHANGES_BATCH},
    {OPTION_rampup_batch_size, CHANGES_BATCH},
    {OPTION_step_batch_size_schedule, CHANGES_BATCH},
    {OPTION_epochs, CHANGES_LENGTH},
    {OPTION_train_iters, CHANGES_LENGTH},
    {OPTION_train_samples, CHANGES_LENGTH},
    {OPTION_lr, CHANGES_RATE},
    {OPTION_min_lr, CHANGES_RATE},
    {OPTION_decoupled_lr, CHANGES_RATE},
    {OPTION_decoupled_min_lr, CHANGES_RATE},
    {OPTION_lr_decay_style, CHANGES_RATE},
    {OPTION_lr_wsd_decay_style, CHANGES_RATE},
    {OPTION_lr_decay_iters, CHANGES_RATE},
    {OPTION_lr_decay_samples, CHANGES_RATE},
    {OPTION_lr_wsd_decay_iters, CHANGES_RATE},
    {OPTION_lr_wsd_decay_samples, CHANGES_RATE},
    {OPTION_lr_warmup_fraction, CHANGES_RATE},
    {OPTION_lr_warmup_iters, CHANGES_RATE},
    {OPTION_lr_warmup_samples, CHANGES_RATE},
    {OPTION_lr_warmup_init, CHANGES_RATE},
    {OPTION_weight_decay, CHANGES_DECAY},
    {OPTION_start_weight_decay, CHANGES_DECAY},
    {OPTION_end_weight_decay, CHANGES_DECAY},
    {OPTION_weight_decay_incr_style, CHANGES_DECAY},
    {OPTION_apply_wd_to_qk_layernorm, CHANGES_DECAY},
    {OPTION_adam_beta1, CHANGES_UPDATE},
    {OPTION_adam_beta2, CHANGES_UPDATE},
    {OPTION_adam_eps, CHANGES_UPDATE},
    {OPTION_freeze_parameters, CHANGES_UPDATE},
    {OPTION_sgd_momentum, CHANGES_UPDATE},
    {OPTION_muon_momentum, CHANGES_UPDATE},
    {OPTION_muon_split_qkv, CHANGES_UPDATE},
    {OPTION_muon_nesterov, CHANGES_UPDATE},
    {OPTION_muon_scale_mode, CHANGES_UPDATE},
    {OPTION_muon_extra_scale_factor, CHANGES_UPDATE},
    {OPTION_muon_coefficient_type, CHANGES_UPDATE},
    {OPTION_muon_num_ns_steps, CHANGES_UPDATE},
    {OPTION_muon_tp_mode, CHANGES_UPDATE},
    {OPTION_muon_scalar_optimizer, CHANGES_UPDATE},
    {OPTION_lion_beta1, CHANGES_UPDATE},
    {OPTION_lion_beta2, CHANGES_UPDATE},
    {OPTION_clip_grad, CHANGES_UPDATE},
    {OPTION_mtp_loss_scaling_factor, CHANGES_UPDATE},
    {OPTION_mtp_detach_heads, CHANGES_UPDATE},
    {OPTION_qk_clip, CHANGES_UPDATE},
    {OPTION_qk_clip_alpha, CHANGES_UPDATE},
    {OPTION_qk_clip_threshold, CHANGES_UPDATE},
    {OPTION_moe_router_load_balancing_type, CHANGES_ROUTING},
    {OPTION_moe_aux_loss_coeff, CHANGES_ROUTING},
    {OPTION_moe_z_loss_coeff, CHANGES_ROUTING},
    {OPTION_moe_router_bias_update_rate, CHANGES_ROUTING},
    {OPTION_moe_router_quantile_balancing_ema, CHANGES_ROUTING},
    {OPTION_moe_input_jitter_eps, CHANGES_ROUTING},
    {OPTION_moe_router_force_load_balancing, CHANGES_ROUTING},
    {OPTION_moe_router_force_biased, CHANGES_ROUTING},
    {OPTION_hidden_dropout, CHANGES_DROPOUT},
    {OPTION_attention_dropout, CHANGES_DROPOUT},
    {OPTION_classifier_dropout, CHANGES_DROPOUT},
};

OptionChange option_change(int option) {
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++)
        if (CHANGES[i].option == option) return CHANGES[i].change;
    return config_option_class(option) == CLASS_NUMERIC ? CHANGES_ROUNDING : CHANGES_NOTHING;
}

const char *option_change_text(OptionChange change) {
    static const char *const TEXTS[] = {[CHANGES_NOTHING] = "nothing changes",
#define X(name, text) [CHANGES_##name] = text,
                                        OPTION_CHANGES(X)
#undef X
    };
    return TEXTS[change];
}

/* Appends a value. A real number is written with the fewest digits that read back as the same value. A long value, such
 * as the paths of a blend, is omitted. */
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

/* Appends an option and its value. An option --no-... or --disable-... is appended if its field is false. */
static void put_option(int option, const json_t *value, Str *out) {
    if (CONFIG_ROWS[option].type == ARG_OFF && json_is_boolean(value))
        value = json_boolean(!json_is_true(value));
    put_value(value, out);
}

void option_difference(int option, const json_t *here, const json_t *there, Str *out) {
    const char *name = CONFIG_ROWS[option].names;
    str_printf(out, "--%.*s is ", (int)strcspn(name, "|"), name);
    put_option(option, here, out);
    str_puts(out, ", but the checkpoint has ");
    put_option(option, there, out);
}
