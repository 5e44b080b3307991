/* Tests that the defaults of a run's options are Megatron-LM's, and that each name is unique. */
#include <stdio.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "config/config.h"

/* Copied by hand from Megatron-LM's arguments.py and config dataclasses (core 0.19), not from options.def. */
static const struct {
    const char *flag, *value;
} MEGATRON[] = {
    {"num-layers", "none"},
    {"hidden-size", "none"},
    {"ffn-hidden-size", "none"},
    {"decoder-num-layers", "none"},
    {"decoder-seq-length", "none"},
    {"num-attention-heads", "none"},
    {"kv-channels", "none"},
    {"mtp-num-layers", "0"},
    {"mtp-loss-scaling-factor", "0.1"},
    {"mtp-use-repeated-layer", "false"},
    {"group-query-attention", "false"},
    {"num-query-groups", "1"},
    {"seq-length", "none"},
    {"max-position-embeddings", "none"},
    {"position-embedding-type", "learned_absolute"},
    {"relative-attention-num-buckets", "32"},
    {"relative-attention-max-distance", "128"},
    {"rotary-base", "10000"},
    {"rotary-percent", "1"},
    {"rotary-interleaved", "false"},
    {"rotary-seq-len-interpolation-factor", "none"},
    {"rope-type", "none"},
    {"rotary-scaling-factor", "1"},
    {"yarn-original-max-position-embeddings", "4096"},
    {"yarn-beta-fast", "32"},
    {"yarn-beta-slow", "1"},
    {"mrope-section", "none"},
    {"no-yarn-correction-range-round-to-int", "false"},
    {"mscale", "1"},
    {"mscale-all-dim", "0"},
    {"use-rope-scaling", "false"},
    {"rope-scaling-factor", "8"},
    {"normalization", "LayerNorm"},
    {"norm-epsilon", "1e-05"},
    {"apply-layernorm-1p", "false"},
    {"disable-bias-linear", "false"},
    {"activation-func-clamp-value", "none"},
    {"glu-linear-offset", "0"},
    {"add-qkv-bias", "false"},
    {"qk-layernorm", "false"},
    {"qk-l2-norm", "false"},
    {"multi-latent-attention", "false"},
    {"q-lora-rank", "none"},
    {"kv-lora-rank", "32"},
    {"qk-head-dim", "128"},
    {"qk-pos-emb-head-dim", "64"},
    {"v-head-dim", "128"},
    {"window-size", "none"},
    {"window-attn-skip-freq", "none"},
    {"softmax-type", "vanilla"},
    {"untie-embeddings-and-output-weights", "false"},
    {"make-vocab-size-divisible-by", "128"},
    {"padded-vocab-size", "none"},
    {"hidden-dropout", "0.1"},
    {"attention-dropout", "0.1"},
    {"seed", "1234"},
    {"init-method-std", "0.02"},
    {"embedding-init-method-std", "none"},
    {"micro-batch-size", "none"},
    {"global-batch-size", "none"},
    {"rampup-batch-size", "none"},
    {"step-batch-size-schedule", "none"},
    {"train-iters", "none"},
    {"train-samples", "none"},
    {"exit-interval", "none"},
    {"exit-duration-in-mins", "none"},
    {"exit-signal-handler", "false"},
    {"skip-train", "false"},
    {"calculate-per-token-loss", "false"},
    {"no-check-for-nan-in-loss-and-grad", "false"},
    {"loss-scale", "none"},
    {"initial-loss-scale", "4294967296"},
    {"min-loss-scale", "1"},
    {"loss-scale-window", "1000"},
    {"hysteresis", "2"},
    {"attention-softmax-in-fp32", "false"},
    {"accumulate-allreduce-grads-in-fp32", "false"},
    {"grad-reduce-in-bf16", "false"},
    {"main-grads-dtype", "fp32"},
    {"attention-backend", "auto"},
    {"batch-invariant-mode", "false"},
    {"optimizer", "adam"},
    {"adam-beta1", "0.9"},
    {"adam-beta2", "0.999"},
    {"adam-eps", "1e-08"},
    {"sgd-momentum", "0.9"},
    {"clip-grad", "1"},
    {"lr", "none"},
    {"min-lr", "0"},
    {"decoupled-lr", "none"},
    {"decoupled-min-lr", "none"},
    {"lr-decay-style", "linear"},
    {"lr-wsd-decay-style", "exponential"},
    {"lr-decay-iters", "none"},
    {"lr-decay-samples", "none"},
    {"lr-wsd-decay-iters", "none"},
    {"lr-wsd-decay-samples", "none"},
    {"lr-warmup-fraction", "none"},
    {"lr-warmup-iters", "0"},
    {"lr-warmup-samples", "0"},
    {"lr-warmup-init", "0"},
    {"weight-decay", "0.01"},
    {"start-weight-decay", "none"},
    {"end-weight-decay", "none"},
    {"weight-decay-incr-style", "constant"},
    {"apply-wd-to-qk-layernorm", "false"},
    {"override-opt_param-scheduler", "false"},
    {"use-checkpoint-opt_param-scheduler", "false"},
    {"data-path", "none"},
    {"split", "none"},
    {"train-data-path", "none"},
    {"valid-data-path", "none"},
    {"test-data-path", "none"},
    {"mock-data", "false"},
    {"data-cache-path", "none"},
    {"bert-no-binary-head", "false"},
    {"no-mmap-bin-files", "false"},
    {"num-workers", "2"},
    {"dataloader-type", "single"},
    {"no-data-sharding", "false"},
    {"reset-position-ids", "false"},
    {"reset-attention-mask", "false"},
    {"eod-mask-loss", "false"},
    {"allow-ambiguous-pad-tokens", "false"},
    {"mid-level-dataset-surplus", "0.005"},
    {"mask-prob", "0.15"},
    {"fim-data", "false"},
    {"fim-rate", "0.5"},
    {"fim-spm-rate", "0.5"},
    {"fim-split-sample", "none"},
    {"fim-fragment-rate", "none"},
    {"fim-no-prefix", "none"},
    {"fim-prefix-token", "<fim_prefix>"},
    {"fim-middle-token", "<fim_middle>"},
    {"fim-suffix-token", "<fim_suffix>"},
    {"fim-pad-token", "<fim_pad>"},
    {"fim-eod-token", "<|endoftext|>"},
    {"short-seq-prob", "0.1"},
    {"tokenizer-type", "none"},
    {"tokenizer-model", "none"},
    {"vocab-file", "none"},
    {"merge-file", "none"},
    {"vocab-size", "none"},
    {"save", "none"},
    {"save-interval", "none"},
    {"save-retain-interval", "none"},
    {"no-save-optim", "false"},
    {"no-save-rng", "false"},
    {"load", "none"},
    {"ckpt-step", "none"},
    {"no-load-optim", "false"},
    {"no-load-rng", "false"},
    {"finetune", "false"},
    {"pretrained-checkpoint", "none"},
    {"task", "none"}, /* this and the next four are from tasks/main.py, which core 0.19 no longer has */
    {"train-data", "none"},
    {"valid-data", "none"},
    {"epochs", "none"},
    {"keep-last", "false"},
    {"use-checkpoint-args", "false"},
    {"exit-on-missing-checkpoint", "false"},
    {"log-interval", "100"},
    {"tensorboard-dir", "none"},
    {"tensorboard-log-interval", "1"},
    {"log-params-norm", "false"},
    {"moe-per-layer-logging", "false"},
    {"log-num-zeros-in-grad", "false"},
    {"log-throughput", "false"},
    {"log-validation-ppl-to-tensorboard", "false"},
    {"log-timers-to-tensorboard", "false"},
    {"no-log-loss-scale-to-tensorboard", "false"},
    {"log-world-size-to-tensorboard", "false"},
    {"log-progress", "false"},
    {"timing-log-level", "0"},
    {"timing-log-option", "minmax"},
    {"eval-global-batch-size", "none"},
    {"eval-iters", "100"},
    {"eval-interval", "none"},
    {"recompute-granularity", "none"},
    {"recompute-method", "none"},
    {"recompute-num-layers", "none"},
    {"recompute-modules", "none"},
    {"cpu-offloading-num-layers", "0"},
    {"tensor-model-parallel-size", "1"},
    {"pipeline-model-parallel-size", "1"},
    {"num-layers-per-virtual-pipeline-stage", "none"},
    {"num-virtual-stages-per-pipeline-rank", "none"},
    {"decoder-first-pipeline-num-layers", "none"},
    {"decoder-last-pipeline-num-layers", "none"},
    {"account-for-embedding-in-pipeline-split", "false"},
    {"account-for-loss-in-pipeline-split", "false"},
    {"pipeline-model-parallel-layout", "none"},
    {"microbatch-group-size-per-virtual-pipeline-stage", "none"},
    {"context-parallel-size", "1"},
    {"cp-comm-type", "p2p"},
    {"hierarchical-context-parallel-sizes", "none"},
    {"expert-model-parallel-size", "1"},
    {"expert-tensor-parallel-size", "none"},
    {"sequence-parallel", "false"},
    {"use-distributed-optimizer", "false"},
    {"use-nccl-ub", "false"},
    {"overlap-grad-reduce", "false"},
    {"overlap-param-gather", "false"},
    {"no-overlap-p2p-communication", "false"},
    {"moe-shared-expert-overlap", "false"},
    {"overlap-dispatch-backward-with-experts-wgrad", "false"},
    {"num-distributed-optimizer-instances", "1"},
    {"ddp-bucket-size", "none"},
    {"ddp-num-buckets", "none"},
    {"use-megatron-fsdp", "false"},
    {"data-parallel-sharding-strategy", "optim_grads_params"},
    {"no-position-embedding", "false"},
    {"no-rope-freq", "none"},
    {"no-bias-gelu-fusion", "false"},
    {"num-experts", "none"},
    {"moe-layer-freq", "1"},
    {"moe-ffn-hidden-size", "none"},
    {"moe-router-topk", "2"},
    {"moe-router-score-function", "softmax"},
    {"moe-router-pre-softmax", "false"},
    {"moe-router-topk-scaling-factor", "none"},
    {"moe-router-num-groups", "none"},
    {"moe-router-group-topk", "none"},
    {"moe-router-enable-expert-bias", "false"},
    {"moe-router-bias-update-rate", "0.001"},
    {"moe-router-load-balancing-type", "aux_loss"},
    {"moe-router-quantile-balancing-ema", "0"},
    {"moe-aux-loss-coeff", "0"},
    {"moe-z-loss-coeff", "none"},
    {"moe-input-jitter-eps", "none"},
    {"moe-expert-capacity-factor", "none"},
    {"moe-pad-expert-input-to-capacity", "false"},
    {"moe-token-drop-policy", "probs"},
    {"moe-shared-expert-intermediate-size", "none"},
    {"moe-shared-expert-gate", "false"},
    {"moe-router-force-load-balancing", "false"},
    {"moe-router-force-biased", "none"},
    {"moe-apply-probs-on-input", "false"},
    {"moe-latent-size", "none"},
    {"moe-token-dispatcher-type", "allgather"},
    {"exit-signal", "SIGTERM"},
    {"fp8-format", "none"},
    {"fp8-recipe", "delayed"},
    {"fp8-margin", "0"},
    {"fp8-amax-history-len", "1"},
    {"fp8-amax-compute-algo", "most_recent"},
    {"no-fp8-wgrad", "false"},
    {"first-last-layers-bf16", "false"},
    {"num-layers-at-start-in-bf16", "1"},
    {"num-layers-at-end-in-bf16", "1"},
    {"use-precision-aware-optimizer", "false"},
    {"exp-avg-dtype", "fp32"},
    {"exp-avg-sq-dtype", "fp32"},
    {"null-tokenizer-eod-id", "none"},
    {"null-tokenizer-pad-id", "-1"},
    {"vocab-extra-ids", "0"},
    {"tokenizer-special-tokens", "none"},
    {"tiktoken-pattern", "none"},
    {"tiktoken-num-special-tokens", "1000"},
    {"async-save", "false"},
    {"log-memory-to-tensorboard", "false"},
    {"cross-entropy-loss-fusion", "false"},
    {"cross-entropy-fusion-impl", "native"},
    {"distributed-timeout-minutes", "10"},
    {"distributed-backend", "nccl"},
    {"distributed-timeout-seconds-after-init", "none"},
    {"cuda-graph-impl", "none"},
    {"temperature", "1"},
    {"top-p", "0"},
    {"cache-mla-latents", "false"},
    {"qk-clip", "false"},
    {"qk-clip-alpha", "0.5"},
    {"qk-clip-threshold", "100"},
    {"log-max-attention-logit", "false"},
};
/* The defaults of these options differ from Megatron-LM's, because runs are deterministic here, and
 * generation samples from all tokens. */
static const char *const OTHER_DEFAULT[] = {"tokenizer-hf-include-special-tokens", "no-deterministic-mode",
                                            "top-k"};

TEST(defaults_are_megatrons) {
    Arena *arena = arena_new();
    Config c;
    config_defaults(&c, arena);
    for (size_t i = 0; i < sizeof MEGATRON / sizeof MEGATRON[0]; i++) {
        Str value = {0};
        int option = config_find(MEGATRON[i].flag, strlen(MEGATRON[i].flag));
        if (option < 0) fail_msg("there is no --%s", MEGATRON[i].flag);
        arg_print(&CONFIG_ROWS[option], config_value(&c, option), &value);
        if (strcmp(value.s, MEGATRON[i].value)) fail_msg("--%s is %s", MEGATRON[i].flag, value.s);
        str_free(&value);
    }
    assert_true(c.deterministic_mode); /* differs from Megatron-LM's default */
    assert_true(c.lane == LANE_FP32 && c.activation == MLP_GELU);
    assert_true(c.add_bias_linear && c.load_optim && c.save_rng && c.check_for_nan_in_loss_and_grad &&
                c.mmap_bin_files);
    arena_free(arena);
}

static bool is_megatrons(const char *flag) {
    for (size_t i = 0; i < sizeof MEGATRON / sizeof *MEGATRON; i++)
        if (config_find(MEGATRON[i].flag, strlen(MEGATRON[i].flag)) == config_find(flag, strlen(flag)))
            return true;
    for (size_t i = 0; i < sizeof OTHER_DEFAULT / sizeof *OTHER_DEFAULT; i++)
        if (!strcmp(OTHER_DEFAULT[i], flag)) return true;
    return false;
}

TEST(help_marks_the_options_that_megatron_lacks) {
    for (int i = 0; i < OPTIONS; i++) {
        const Arg *row = &CONFIG_ROWS[i];
        char flag[100];
        if (row->type == ARG_GROUP) continue;
        snprintf(flag, sizeof flag, "%.*s", (int)arg_name_len(row), row->names);
        if (is_megatrons(flag) == !strstr(row->help, "not in Megatron-LM")) continue;
        fail_msg("--%s: is it in Megatron-LM? Then MEGATRON has its default. Else its help says so.", flag);
    }
}

TEST(spellings_are_unique) {
    for (int i = 0; i < OPTIONS; i++) {
        if (CONFIG_ROWS[i].type == ARG_GROUP) continue;
        char flag[100], *c;
        assert_int_equal(config_find(CONFIG_ROWS[i].names, arg_name_len(&CONFIG_ROWS[i])), i);
        snprintf(flag, sizeof flag, "%s",
                 config_field_name(i)); /* the name of the field must not be another option */
        for (c = flag; *c; c++) *c = *c == '_' ? '-' : *c;
        int other = config_find(flag, strlen(flag));
        assert_true(other < 0 || other == i);
    }
}
