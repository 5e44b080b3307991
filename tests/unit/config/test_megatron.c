/* Tests command lines of Megatron-LM with options and values that do not exist here, and the messages about
 * them. */
#include <stdio.h>
#include <string.h>

#include "unit/config/parse.h"
#include "unit/err.h"

/* Options and values of Megatron-LM that have no effect here, and the beginnings of the notes about them. */
static const char *const NOTED[][2] = {
    {"--no-rope-fusion --no-masked-softmax-fusion", "--no-rope-fusion and --no-masked-softmax-fusion have no "
                                                    "effect: Fusion does not change what is computed."},
    {"--transformer-impl local", "--transformer-impl has no effect: Isotron has only one implementation"},
    {"--dist-ckpt-format torch_dist", "--dist-ckpt-format has no effect: Isotron has only one checkpoint "
                                      "format"},
    {"--position-embedding-type mrope --mrope-section 2 3 3",
     "--position-embedding-type mrope is treated as rope: The three positions of a text token are equal."},
    {"--position-embedding-type mrope --mrope-section 8",
     "--mrope-section has no effect: the three positions of a text token are equal."},
    {"--main-params-dtype fp32", "--main-params-dtype has no effect"},
    {"--attention-backend fused", "--attention-backend fused is treated as flash"},
    {"--attention-backend local", "--attention-backend local is treated as unfused"},
    {"--cuda-graph-impl transformer_engine", "transformer_engine is treated as none"},
    {"--recompute-activations --recompute-modules gdp_qkv mhc mlp",
     "--recompute-modules gdp_qkv and --recompute-modules mhc have no effect: Only core_attn"},
    {"--optimizer-cpu-offload --no-pin-cpu-grads",
     "--no-pin-cpu-grads has no effect: --optimizer-cpu-offload uses"},
    {"--distribute-saved-activations --activation-offload-fraction 1",
     "--distribute-saved-activations and --activation-offload-fraction have no effect: To save memory"},
    {"--moe-layer-recompute", "--moe-layer-recompute has no effect: To save memory"},
    {"--moe-token-dispatcher-type flex", "--moe-token-dispatcher-type flex is treated as alltoall"},
    {"--position-embedding-type rope --no-position-embedding", "--no-position-embedding has no effect"},
    {"--swiglu --no-bias-gelu-fusion", "--no-bias-gelu-fusion has no effect with --activation swiglu"},
    {"--rotary-base 500000", "has no effect without --position-embedding-type rope"},
    {"--moe-ffn-hidden-size 8", "--moe-ffn-hidden-size has no effect without --num-experts"},
    /* options with the same reason share a line, wherever the code reports them */
    {"--moe-router-topk 1 --expert-tensor-parallel-size 2 --moe-ffn-hidden-size 8",
     "--expert-tensor-parallel-size, --moe-ffn-hidden-size and --moe-router-topk have no effect without "
     "--num-experts.\n"},
    {"--rotary-percent 0.5 --rotary-interleaved --rotary-base 5",
     "--rotary-base, --rotary-percent and --rotary-interleaved have no effect without "
     "--position-embedding-type rope.\n"},
    {"--no-load-rng --no-save-rng",
     "--no-save-rng and --no-load-rng have no effect: checkpoints contain no random state"},
    {"--async-save --adam-beta1 0.5 --adam-eps 1 --save-interval 5 --optimizer sgd",
     "--adam-beta1 and --adam-eps have no effect without --optimizer adam or muon.\n"
     "--save-interval and --async-save have no effect without --save.\n"},
    {"--expert-tensor-parallel-size 2", "--expert-tensor-parallel-size has no effect without --num-experts"},
    {"--num-experts 8 --disable-bias-linear --moe-router-load-balancing-type none --moe-aux-loss-coeff 1e-4",
     "--moe-aux-loss-coeff has no effect with --moe-router-load-balancing-type none"},
    {"--data-parallel-sharding-strategy optim", "no effect without --use-megatron-fsdp"},
    {"--fp8-recipe tensorwise", "has no effect without --fp8-format"},
    {"--fp8-margin 0", "has no effect without --fp8-format"},
    {"--fp8-amax-history-len 16", "has no effect without --fp8-format"},
    {"--fp8-amax-compute-algo max", "has no effect without --fp8-format"},
    {"--no-fp8-wgrad", "--no-fp8-wgrad has no effect without --fp8-format"},
    {"--first-last-layers-bf16", "--first-last-layers-bf16 has no effect without --fp8-format"},
    {"--num-layers-at-start-in-bf16 1", "has no effect without --first-last-layers-bf16"},
    {"--bf16 --fp8-format e4m3 --num-layers-at-end-in-bf16 1", "no effect without --first-last-layers-bf16"},
    {"--mtp-use-repeated-layer --mtp-num-layers 1 --position-embedding-type rope",
     "--mtp-use-repeated-layer has no effect without --mtp-num-layers above 1"},
    {"--mtp-loss-scaling-factor 0.2", "--mtp-loss-scaling-factor has no effect without --mtp-num-layers"},
    {"--no-rope-temperature-scale 0.1 --position-embedding-type rope",
     "--no-rope-temperature-scale has no effect without --no-rope-freq"},
    {"--recompute-num-layers 1", "--recompute-num-layers has no effect without --recompute-granularity full"},
    {"--async-save", "--async-save has no effect without --save"},
    {"--log-progress", "--log-progress has no effect without --save"},
    {"--save-interval 5", "--save-interval has no effect without --save"},
    {"--model-provider gpt",
     "--model-provider has no effect: Isotron has only one kind of decoder (GPT), whose layers "
     "--hybrid-layer-pattern can list."},
    {"--export-kv-cache-quant none", "--export-kv-cache-quant has no effect: The KV cache is not quantized."},
};

TEST(what_has_no_effect_is_noted) {
    for (size_t i = 0; i < sizeof NOTED / sizeof NOTED[0]; i++) {
        Parsed p;
        char line[600];
        snprintf(line, sizeof line, "%s %s", VALID, NOTED[i][0]);
        parse(&p, CHECK_MODEL | CHECK_TRAIN, line);
        const char *notes = p.args.notes.s ? p.args.notes.s : "";
        if (p.err.code || !strstr(notes, NOTED[i][1]) || strchr(notes, '|'))
            fail_msg("%s: %s%s", NOTED[i][0], p.err.msg, notes);
        done(&p);
    }
    Parsed p;
    parse(&p, CHECK_MODEL | CHECK_TRAIN, VALID);
    assert_null(p.args.notes.s);
    done(&p);
    parse_for(&p, USE_PRETRAIN, 0,
              "--inference-max-requests 4 --num-speculative-tokens 2 "
              "--cache-mla-latents --rl-kv-cache-management-mode persist");
    assert_null(p.args.problems.s);
    assert_string_equal(p.args.notes.s, "--inference-max-requests, --num-speculative-tokens, "
                                        "--cache-mla-latents and --rl-kv-cache-management-mode "
                                        "have no effect in pretrain.\n");
    done(&p);
}

/* The length of a message is limited: it names only some of many options, but always the reason. */
TEST(many_options_of_one_reason_are_counted) {
    Parsed p;
    parse(&p, 0,
          "--dsa-indexer-n-heads 1 --dsa-indexer-head-dim 1 --dsa-indexer-topk 1 --dsa-indexer-topk-freq 1 "
          "--dsa-indexer-skip-topk-offset 1 --dsa-indexer-loss-coeff 1");
    assert_string_equal(
        p.args.problems.s,
        "--dsa-indexer-n-heads, --dsa-indexer-head-dim, --dsa-indexer-topk, --dsa-indexer-topk-freq, "
        "--dsa-indexer-skip-topk-offset and --dsa-indexer-loss-coeff are not supported: Isotron has no "
        "sparse attention (DSA). Choose another model.\n");
    done(&p);
    parse(&p, 0,
          "--inprocess-restart --inprocess-max-iterations 1 --inprocess-soft-timeout 1 "
          "--inprocess-hard-timeout 1 --inprocess-heartbeat-timeout 1 --inprocess-barrier-timeout 1 "
          "--inprocess-granularity rank --inprocess-last-call-wait 1 --inprocess-empty-cuda-cache "
          "--enable-ft-package");
    assert_non_null(strstr(p.args.notes.s,
                           "--inprocess-last-call-wait and 2 more have no effect: Isotron does not restart"));
    done(&p);
}

/* Each option of Megatron-LM, and each of its values, is in exactly one row of one table. */
TEST(megatrons_table_has_everything_once) {
    Arena *arena = arena_new();
    Config c;
    const ArgTable t = config_table(&c, USE_ALL);
    for (int64_t i = 0; i < t.num_foreign; i++) {
        const Foreign *row = &t.foreign[i];
        char *rest = NULL, *words = arena_printf(arena, "%s", row->words);
        for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
            ForeignOption o;
            Args args;
            char *flag = arena_printf(arena, "--%.*s=x", (int)strcspn(w, "=+"), w);
            if (row->option) {
                const int option = config_find(row->option, strlen(row->option));
                assert_true(option >= 0);
                assert_ptr_equal(foreign_value(&t, &CONFIG_ROWS[option], w), row);
                continue;
            }
            assert_true(foreign_find(&t, w, strcspn(w, "=+"), &o));
            assert_ptr_equal(o.row, row);
            if (o.only) assert_int_equal(row->kind, FOREIGN_NOTED); /* a row that accepts a value */
            args_init(&args, arena, "test", NULL);
            args_use(&args, t);
            args_line(&args, 1, &flag);
            for (int k = 0; k < OPTIONS; k++)
                if (c.given[k]) fail_msg("%s is an option of options.def too", flag);
            args_free(&args);
        }
    }
    arena_free(arena);
}

TEST(unknown_options_do_not_hide_the_rules) {
    Parsed p;
    parse(&p, CHECK_MODEL | CHECK_TRAIN,
          "--hiden-size 64 --num-attention-heads x --kv-channels 0 --num-layers 2 --seq-length 16 "
          "--mock-data --foo 1 --micro-batch-size 2 --train-iters 10 --lr 1 --min-lr 2 --mtp-hsm "
          "--mtp-standalone --export-qk-l2-norm --parsers a b");
    assert_string_equal(
        p.args.problems.s,
        "'--hiden-size' is not an option: did you mean --hidden-size?\n"
        "--num-attention-heads expects a whole number, not 'x'.\n"
        "'--foo' is not an option: see --help for the list.\n"
        "--kv-channels must be from 1 to 65536, not 0.\n"
        "--min-lr 2 is above --lr 1: lower it.\n"
        "--mtp-hsm and --mtp-standalone are not supported: This option changes the layers for multi-token "
        "prediction. Remove it.\n"
        "--export-qk-l2-norm is not supported: This option changes the scores "
        "or outputs of attention. Choose a model without it.\n"
        "--parsers is not supported: The template, which determines the format of calls, is read from the "
        "folder of "
        "--tokenizer-model. Save it there as chat_template.jinja.\n");
    done(&p);
}

TEST(files_of_gpt2_imply_its_tokenizer) {
    Parsed p;
    parse(&p, 0, "--vocab-file v.json --merge-file m.txt");
    assert_string_equal(p.c.tokenizer_type, "GPT2BPETokenizer");
    done(&p);
    parse(&p, 0, "--vocab-file v.json --merge-file m.txt --tokenizer-type NullTokenizer");
    assert_string_equal(p.c.tokenizer_type, "NullTokenizer");
    done(&p);
    parse(&p, 0, "--vocab-file v.json");
    assert_null(p.c.tokenizer_type);
    done(&p);
}

TEST(cuda_graphs_ask_for_no_dropout_only_in_training) {
    static const char line[] = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 "
                               "--device cuda --cuda-graph-impl local --load x --prompt y";
    Parsed p;
    parse(&p, CHECK_MODEL | CHECK_GENERATE, line);
    assert_ok(p.err);
    done(&p);
    parse(&p, CHECK_MODEL | CHECK_TRAIN, line);
    assert_non_null(strstr(p.args.problems.s, "it needs --hidden-dropout 0"));
    done(&p);
}
