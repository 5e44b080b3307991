/* Tests the options of a run: rules, JSON and the generated document. Defaults and names are tested in
 * test_defaults.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/config/parse.h"
#include "unit/err.h"

#include "base/philox.h"

TEST(seeds_spellings_are_understood) {
    Parsed p;
    parse(&p, 0,
          "--use-custom-fsdp --fp8-hybrid --virtual-pipeline-model-parallel-size 2 --bf16 --swiglu "
          "--recompute-activations");
    assert_ok(p.err);
    assert_true(p.c.use_megatron_fsdp);
    assert_int_equal(p.c.fp8_format, FP8_HYBRID);
    assert_int_equal(p.c.num_virtual_stages_per_pipeline_rank, 2);
    assert_int_equal(p.c.lane, LANE_BF16);
    assert_int_equal(p.c.activation, MLP_SWIGLU);
    assert_int_equal(p.c.recompute_granularity, RECOMPUTE_SELECTIVE);
    assert_string_equal(p.args.notes.s, "--use-custom-fsdp is treated as Megatron-LM's --use-megatron-fsdp.\n"
                                        "--fp8-hybrid is treated as Megatron-LM's --fp8-format hybrid.\n"
                                        "--virtual-pipeline-model-parallel-size is treated as Megatron-LM's "
                                        "--num-virtual-stages-per-pipeline-rank.\n");
    done(&p);
}

TEST(a_plain_run_keeps_the_rules) {
    Parsed p;
    parse(&p, CHECK_MODEL | CHECK_TRAIN, VALID);
    assert_ok(p.err);
    done(&p);
}

TEST(all_broken_rules_are_reported_at_once) {
    Parsed p;
    parse(&p, CHECK_MODEL | CHECK_TRAIN,
          "--num-layers 2 --hidden-size 65 --num-attention-heads 4 --seq-length 16 --max-position-embeddings "
          "8 --micro-batch-size 2 --global-batch-size 5 --train-iters 10 --lr 1e-3 --min-lr 1 --data-path x "
          "--mock-data --save out --vocab-size 0 --tensor-model-parallel-size 2 --ranks 3 --fp16 --bf16");
    assert_int_equal(p.err.code, ERR_USER);
    assert_string_equal(
        p.args.problems.s,
        "--fp16 and --bf16 contradict each other: remove one of them.\n"
        "--vocab-size must be from 1 to 2147483647, not 0.\n"
        "--hidden-size 65 is not a multiple of --num-attention-heads 4: change one of them or set "
        "--kv-channels.\n"
        "--seq-length 16 is longer than --max-position-embeddings 8: raise --max-position-embeddings.\n"
        "--ranks 3 is not a multiple of --tensor-model-parallel-size 2 times --pipeline-model-parallel-size "
        "1 times --context-parallel-size 1: change one of them.\n"
        "--global-batch-size 5 must be a multiple of --micro-batch-size 2 times the data-parallel size 1: "
        "change one of them.\n"
        "--min-lr 1 is above --lr 0.001: lower it.\n"
        "--mock-data cannot be used with data paths: remove one.\n"
        "--save needs --save-interval.\n");
    assert_string_equal(p.err.msg, "9 problems with the options; the first is: --fp16 and --bf16 contradict "
                                   "each other: remove one of them.");
    done(&p);
}

/* Help and error messages list the choices of an option. Each choice must be allowed, and have an effect, in
 * one of these runs. */
TEST(every_choice_that_is_offered_can_be_used) {
    static const char *const RUNS[] = {
        "",
        "--start-weight-decay 0 --end-weight-decay 1",
        "--lr-decay-style WSD --lr-wsd-decay-iters 2 --exit-signal-handler --timing-log-level 1",
        "--num-experts 4 --disable-bias-linear --moe-expert-capacity-factor 2",
        "--model bert",
        "--model t5 --decoder-seq-length 8",
        "--bf16 --use-precision-aware-optimizer --cross-entropy-loss-fusion",
        "--bf16 --fp8-format e4m3",
        "--multi-latent-attention --recompute-granularity selective",
        "--linear-attention-freq 2",
        "--ranks 2 --use-megatron-fsdp",
        "--ranks 2 --optimizer muon --tensor-model-parallel-size 2",
        "--device cuda --ranks 2 --hidden-dropout 0 --attention-dropout 0",
        "--recompute-method uniform --recompute-num-layers 1",
        "--recompute-granularity full --recompute-num-layers 1",
    };
    Config c;
    const ArgTable options = config_table(&c, USE_ALL);
    for (int64_t o = 0; o < options.count; o++) {
        const Arg *row = &options.rows[o];
        char name[80];
        snprintf(name, sizeof name, "--%.*s", (int)strcspn(row->names, "|"), row->names);
        for (int i = 0; row->type == ARG_ENUM && row->choices[i]; i++) {
            size_t run = 0;
            for (bool kept = false; !kept; run++) {
                if (run == sizeof RUNS / sizeof RUNS[0])
                    fail_msg("%s %s is refused or has no effect in each run", name, row->choices[i]);
                Parsed p;
                char line[800];
                snprintf(line, sizeof line, "%s %s %s %s", VALID, RUNS[run], name, row->choices[i]);
                parse(&p, CHECK_MODEL | CHECK_TRAIN, line);
                kept = !p.err.code && !(p.args.notes.s && strstr(p.args.notes.s, name));
                done(&p);
            }
        }
    }
}

/* A backward pass runs with a forward pass, if the schedule and the gradients' memory permit this. */
TEST(overlapped_experts_interleave_microbatches) {
    static const struct {
        const char *words;
        int64_t microbatches;
        bool mixed;
    } ROWS[] = {
        {"", 2, true},
        {"--pipeline-schedule 1f1b", 2, true},
        {"--pipeline-schedule zero-bubble", 2, false},
        {"--pipeline-schedule gpipe", 2, false},
        {"--interleaved-microbatches 4", 4, false},
        {"--use-megatron-fsdp --data-parallel-sharding-strategy optim", 2, true},
        {"--use-megatron-fsdp", 1, false},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char line[600];
        Parsed p;
        snprintf(line, sizeof line,
                 "%s --num-experts 4 --disable-bias-linear --ranks 2 --expert-model-parallel-size 2 "
                 "--moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm %s",
                 VALID, ROWS[i].words);
        parse(&p, CHECK_MODEL | CHECK_TRAIN, line);
        if (p.err.code) fail_msg("%s: %s", ROWS[i].words, p.args.problems.s);
        assert_int_equal(p.c.interleaved_microbatches, ROWS[i].microbatches);
        assert_int_equal(p.c.interleave_forward_backward, ROWS[i].mixed);
        done(&p);
    }
}

/* Some FP8 options may remain in a configuration file when the command line switches FP8 off. */
TEST(fp8_options_go_with_a_format) {
    static const char *const KEEPING[] = {
        "--fp8-format e4m3 --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-end-in-bf16 0",
        "--fp8-format e4m3 --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-start-in-bf16 2 "
        "--num-layers 4 --pipeline-model-parallel-size 2",
        "--fp8-format hybrid --fp8-margin 1 --fp8-emulated --no-fp8-wgrad --fp8-keep-weights",
        "--fp8-format none --fp8-recipe tensorwise --fp8-margin 1 --fp8-amax-history-len 16 "
        "--fp8-amax-compute-algo max --fp8-emulated=false --no-fp8-wgrad=false --fp8-keep-weights=false "
        "--fp8-keep-inputs=false --first-last-layers-bf16=false --num-layers-at-start-in-bf16 9",
    };
    for (size_t i = 0; i < sizeof KEEPING / sizeof KEEPING[0]; i++) {
        Parsed p;
        char line[600];
        snprintf(line, sizeof line, "--hidden-size 64 --num-attention-heads 4 --seq-length 16 --bf16 %s %s",
                 KEEPING[i], strstr(KEEPING[i], "--num-layers ") ? "--ranks 2" : "--num-layers 2");
        parse(&p, CHECK_MODEL, line);
        assert_string_equal(p.args.problems.s ? p.args.problems.s : "", "");
        done(&p);
    }
}

TEST(a_layout_can_be_checked_without_its_model) {
    Parsed p;
    parse(&p, CHECK_LAYOUT, "--num-layers 8 --pipeline-model-parallel-size 4");
    assert_ok(p.err);
    done(&p);
    parse(&p, CHECK_LAYOUT, "--pipeline-model-parallel-size 4 --num-query-groups 2");
    assert_string_equal(p.args.problems.s,
                        "The model needs --num-layers, or --load with --use-checkpoint-args.\n");
    done(&p);
}

TEST(training_asks_for_data_only_where_it_reads_some) {
    for (unsigned data = 0; data <= CHECK_DATA; data += CHECK_DATA) {
        Parsed p;
        parse(&p, CHECK_MODEL | CHECK_TRAIN | data,
              "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "
              "--train-iters 10 --lr 1e-3");
        assert_string_equal(
            p.err.msg, data ? "Training needs data: --data-path, --train-data-path or --mock-data." : "");
        done(&p);
    }
}

TEST(generation_asks_for_its_own) {
    Parsed p;
    parse(&p, CHECK_GENERATE, "--top-k 3 --top-p 0.5");
    assert_string_equal(p.args.problems.s,
                        "Generation needs a checkpoint: set --load.\n"
                        "Generation needs --prompt, --prompts-file, --prompt-file or --interactive.\n"
                        "--top-k 3 and --top-p 0.5 are mutually exclusive: remove one, or apply both with "
                        "--inference-dynamic-batching-sampling-backend flashinfer.\n");
    done(&p);
}

TEST(json_round_trip_restores_what_was_not_given) {
    Parsed saved, loaded;
    parse(&saved, 0,
          "--num-layers 3 --hidden-size 48 --rotary-base 500000.5 --swiglu --disable-bias-linear "
          "--window-size 5,0 --window-attn-skip-freq 2 --hidden-dropout 0.3 --lr 0.1 --data-path a b\xff");
    parse(&loaded, 0, "--hidden-size 64 --hidden-dropout 0.3");
    Str json = {0}, notes = {0}, again = {0};
    config_json(&saved.c, CLASS_ARCH, &json);
    assert_memory_equal(json.s, "{\n  \"", 5); /* one option per line */
    assert_ok(config_from_json(&loaded.c, loaded.arena, json.s, json.len, CLASS_ARCH, &notes));
    assert_int_equal(loaded.c.num_layers, 3);
    assert_int_equal(loaded.c.hidden_size, 64);
    assert_true(loaded.c.rotary_base == 500000.5);
    assert_int_equal(loaded.c.activation, MLP_SWIGLU);
    assert_false(loaded.c.add_bias_linear);
    assert_int_equal(loaded.c.window_size.at[0], 5);
    assert_string_equal(loaded.c.window_attn_skip_freq, "2");
    assert_false(i64_is_set(loaded.c.ffn_hidden_size));
    assert_false(f64_is_set(loaded.c.lr));
    assert_string_equal(notes.s, "--hidden-size is given as 64, but the checkpoint has 48.\n");
    loaded.c.hidden_size = 48;
    config_json(&loaded.c, CLASS_ARCH, &again);
    assert_string_equal(json.s, again.s);
    str_clear(&json), str_clear(&again);
    config_json(&saved.c, CLASS_ALL, &json); /* a path with arbitrary bytes must still give valid JSON */
    Config fresh;
    config_defaults(&fresh, loaded.arena);
    assert_ok(config_from_json(&fresh, loaded.arena, json.s, json.len, CLASS_ALL, &notes));
    config_json(&fresh, CLASS_ALL, &again);
    assert_string_equal(json.s, again.s);
    str_free(&json), str_free(&again), str_free(&notes);
    done(&saved), done(&loaded);
}

/* The bytes of a path that is not UTF-8 are written as the characters of Latin-1. */
TEST(every_byte_of_a_path_becomes_its_character) {
    Parsed p;
    parse(&p, 0, "");
    char bytes[130] = "x";
    Str wanted = {0}, json = {0};
    str_puts(&wanted, "\"x");
    for (int i = 0; i < 128; i++) bytes[i + 1] = (char)(128 + i), str_printf(&wanted, "\\u%04X", 128 + i);
    p.c.load = bytes;
    config_json(&p.c, CLASS_ALL, &json);
    assert_non_null(strstr(json.s, wanted.s));
    str_free(&wanted), str_free(&json), done(&p);
}

TEST(long_lists_survive_json) {
    Parsed p;
    parse(&p, 0, "");
    enum { MANY = 3000 };
    const char *text[MANY];
    for (int i = 0; i < MANY; i++) text[i] = arena_printf(p.arena, "path%d", i);
    p.c.data_path = (TextList){.at = text, .count = MANY};
    int64_t numbers[MANY];
    for (int i = 0; i < MANY; i++) numbers[i] = i;
    p.c.window_size = (I64List){.at = numbers, .count = MANY};
    Str json = {0}, notes = {0}, again = {0};
    config_json(&p.c, CLASS_ALL, &json);
    Config fresh;
    config_defaults(&fresh, p.arena);
    assert_ok(config_from_json(&fresh, p.arena, json.s, json.len, CLASS_ALL, &notes));
    config_json(&fresh, CLASS_ALL, &again);
    assert_string_equal(json.s, again.s);
    str_free(&json), str_free(&again), str_free(&notes), done(&p);
}

TEST(foreign_json_is_a_sentence) {
    static const char *const bad[] = {"",
                                      "[1]",
                                      "{",
                                      "{\"num_layers\": \"2\"}",
                                      "{\"num_layers\": 1e3}",
                                      "{\"swiglu\": 1, \"normalization\": \"Batch\"}",
                                      "{\"window_size\": [1, \"x\"]}",
                                      "{\"num_layers\": 99999999999999999999}",
                                      "{\"add_qkv_bias\": null}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Parsed p;
        parse(&p, 0, "");
        Str notes = {0};
        Err e = config_from_json(&p.c, p.arena, bad[i], strlen(bad[i]), CLASS_ARCH, &notes);
        assert_int_equal(e.code, ERR_USER);
        assert_non_null(strstr(e.msg, "damaged"));
        assert_false(i64_is_set(p.c.num_layers));
        str_free(&notes), done(&p);
    }
}

TEST(any_json_bytes_are_survived) {
    Parsed p;
    parse(&p, 0, "");
    Str json = {0};
    config_json(&p.c, CLASS_ARCH, &json);
    for (uint64_t round = 0; round < 3000; round++) {
        char *text = mem_alloc(json.len);
        memcpy(text, json.s, json.len);
        for (uint64_t k = 0; k < 1 + round % 5; k++)
            text[philox_u32(1, round, 2 * k) % json.len] = (char)philox_u32(1, round, 2 * k + 1);
        Config c = p.c;
        Args args;
        args_init(&args, p.arena, "test", NULL);
        Str notes = {0};
        size_t n = round % 2 ? json.len : philox_u32(2, round, 0) % json.len;
        if (!config_from_json(&c, p.arena, text, n, CLASS_ARCH, &notes).code)
            config_check(&c, CHECK_MODEL | CHECK_TRAIN, &args);
        str_free(&notes), args_free(&args), free(text);
    }
    str_free(&json);
    done(&p);
}

/* Changes one option at a time to a different valid value, and checks which classes' JSON contains it. */
TEST(json_of_a_class_has_its_options_only) {
    Arena *arena = arena_new();
    static const unsigned classes[] = {CLASS_ARCH, CLASS_NUMERIC, CLASS_LAYOUT, CLASS_RUN};
    for (int i = 0; i < OPTIONS; i++) {
        const Arg *row = &CONFIG_ROWS[i];
        if (row->type == ARG_GROUP || (row->type == ARG_ENUM && !row->choices[1])) continue;
        Config before, after;
        config_defaults(&before, arena);
        after = before;
        Str ignored = {0}, now = {0};
        arg_print(row, config_value(&before, i), &now);
        const char *value = row->type == ARG_ENUM  ? row->choices[!strcmp(row->choices[0], now.s)]
                            : row->type <= ARG_OFF ? (!strcmp(now.s, "true") ? "false" : "true")
                                                   : "77";
        assert_true(arg_parse(row, (char *)&after + row->offset, arena, &value, 1, &ignored));
        for (int k = 0; k < 4; k++) {
            Str old = {0}, new = {0};
            config_json(&before, classes[k], &old), config_json(&after, classes[k], &new);
            assert_int_equal(strcmp(old.s, new.s) != 0, classes[k] == config_option_class(i));
            str_free(&old), str_free(&new);
        }
        str_free(&ignored), str_free(&now);
    }
    arena_free(arena);
}
