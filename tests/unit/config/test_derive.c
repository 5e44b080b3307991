/* Tests derived values. The expected numbers were computed in Python with the formulas of Megatron-LM
 * (arguments.py, num_microbatches_calculator.py). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "unit/err.h"

#include "config/config.h"

typedef struct Run {
    Arena *arena;
    Args args;
    Config c;
} Run;

static void start(Run *r, const char *more) {
    r->arena = arena_new();
    args_init(&r->args, r->arena, "test", NULL);
    char *text = arena_printf(
        r->arena, "num-layers = 12\nhidden-size = 768\nnum-attention-heads = 12\nseq-length = 10\n%s", more);
    memset(&r->c, 0, sizeof r->c);
    args_use(&r->args, config_table(&r->c, USE_ALL));
    args_bytes(&r->args, "run.conf", text, strlen(text));
    config_check(&r->c, CHECK_MODEL, &r->args);
    assert_ok(args_end(&r->args));
    config_finish(&r->c, r->arena, 50257);
}

static void end(Run *r) {
    args_free(&r->args);
    arena_free(r->arena);
}

TEST(gpt2_sizes) {
    Run r;
    start(&r, "micro-batch-size = 4\ntrain-iters = 100\nlr = 1e-3\n");
    assert_int_equal(r.c.derived.ffn_hidden_size, 3072);
    assert_int_equal(r.c.derived.kv_channels, 64);
    assert_int_equal(r.c.derived.num_query_groups, 12);
    assert_int_equal(r.c.derived.max_position_embeddings, 10);
    assert_int_equal(r.c.derived.rotary_dim, 0);
    assert_int_equal(r.c.derived.vocab_size, 50257);
    assert_int_equal(r.c.derived.padded_vocab_size, 50304);
    assert_int_equal(r.c.derived.activation, MLP_GELU_TANH);
    assert_true(fabs(r.c.derived.output_init_std - 0.004082482904638631) < 1e-17);
    assert_int_equal(r.c.derived.window_left, -1);
    assert_false(r.c.derived.layer_windowed[0]);
    assert_int_equal(r.c.derived.recompute_modules, 0);
    assert_int_equal(r.c.derived.global_batch_size, 4);
    assert_int_equal(r.c.derived.train_samples, 400);
    assert_int_equal(r.c.derived.lr_decay_steps, 400);
    assert_true(r.c.derived.lr_warmup_steps == 0 && r.c.derived.decoupled_lr == 1e-3);
    assert_true(r.c.derived.start_weight_decay == 0.01 && r.c.derived.end_weight_decay == 0.01);
    assert_string_equal(r.c.derived.split, "969, 30, 1");
    assert_int_equal(r.c.derived.random_seed, 1234);
    end(&r);
}

TEST(llama_sizes) {
    static const int64_t swiglu[][2] = {{64, 128}, {4096, 10880}, {24, 64}, {1000, 2624}};
    for (size_t i = 0; i < sizeof swiglu / sizeof swiglu[0]; i++) {
        Run r;
        r.arena = arena_new();
        config_defaults(&r.c, r.arena);
        r.c.activation = MLP_SWIGLU, r.c.num_layers = 1, r.c.seq_length = 4, r.c.hidden_size = swiglu[i][0];
        r.c.num_attention_heads = 2, r.c.group_query_attention = true,
        r.c.position_embedding_type = POSITION_ROPE;
        r.c.kv_channels = 10, r.c.rotary_percent = 0.4, r.c.make_vocab_size_divisible_by = 7;
        config_finish(&r.c, r.arena, 14);
        assert_int_equal(r.c.derived.ffn_hidden_size, swiglu[i][1]);
        assert_int_equal(r.c.derived.num_query_groups, 1);
        assert_int_equal(r.c.derived.rotary_dim, 4);
        assert_int_equal(r.c.derived.padded_vocab_size, 14);
        r.c.padded_vocab_size = 15;
        config_finish(&r.c, r.arena, 14);
        assert_true(r.c.derived.vocab_size == 14 && r.c.derived.padded_vocab_size == 15);
        assert_int_equal(r.c.derived.activation, MLP_SWIGLU);
        arena_free(r.arena);
    }
}

TEST(gelu_is_erf_without_biases) {
    Run r;
    start(&r, "disable-bias-linear = true\n");
    assert_int_equal(r.c.derived.activation, MLP_GELU_ERF);
    end(&r);
    start(&r, "disable-bias-linear = true\nactivation = gelu-tanh\n");
    assert_int_equal(r.c.derived.activation, MLP_GELU_TANH);
    end(&r);
    start(&r, "no-bias-gelu-fusion = true\n");
    assert_int_equal(r.c.derived.activation, MLP_GELU_ERF);
    end(&r);
}

/* The T5 of transformers divides the logits if its embeddings are tied. A T5 that lacks any one of these
 * options is Megatron-LM's, which has a bias instead. */
TEST(the_output_layer_of_a_t5) {
#define T5       "model = t5\ndecoder-seq-length = 8\n"
#define RELATIVE "position-embedding-type = relative\n"
#define RMS      "normalization = RMSNorm\n"
#define BARE     "disable-bias-linear = true\n"
#define SCALE    "softmax-scale = 1\n"
    static const struct {
        const char *options;
        double scaling;
        bool bias;
    } CASES[] = {
        {T5 RELATIVE RMS BARE SCALE, 27.712812921102035, false},
        {T5 RELATIVE RMS BARE SCALE "logits-scaling = 1\n", 1, false},
        {T5 RELATIVE RMS BARE SCALE "untie-embeddings-and-output-weights = true\n", 1, false},
        {T5 RELATIVE RMS BARE "softmax-scale = 0.5\n", 1, true},
        {T5 RMS BARE SCALE, 1, true},
        {T5 RELATIVE BARE SCALE, 1, true},
        {T5 RELATIVE RMS SCALE, 1, true},
        {T5, 1, true},
    };
#undef T5
#undef RELATIVE
#undef RMS
#undef BARE
#undef SCALE
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Run r;
        start(&r, CASES[i].options);
        assert_true(r.c.derived.logits_scaling == CASES[i].scaling);
        assert_int_equal(r.c.derived.output_bias, CASES[i].bias);
        end(&r);
    }
}

TEST(experts_follow_the_pattern) {
    static const char MODEL[] = "num-experts = 8\ndisable-bias-linear = true\nffn-hidden-size = 48\n";
    static const struct {
        const char *freq, *layers; /* for 12 layers, or NULL if the value is refused */
    } cases[] = {{"1", "111111111111"},
                 {"2", "101010101010"},
                 {"5", "100001000010"},
                 {"0", NULL},
                 {"[0]*2+[1]*10", "001111111111"},
                 {"[1]*3", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[200];
        snprintf(text, sizeof text, "%smoe-layer-freq = %s\n", MODEL, cases[i].freq);
        Run r;
        if (!cases[i].layers) {
            bool out[12];
            assert_false(config_moe_pattern(cases[i].freq, 12, out));
            continue;
        }
        start(&r, text);
        assert_int_equal(r.c.derived.moe_ffn_hidden_size, 48);
        int64_t n = 0;
        for (int k = 0; k < 12; k++) {
            assert_int_equal(r.c.derived.layer_moe[k], cases[i].layers[k] == '1');
            n += r.c.derived.layer_moe[k];
        }
        assert_int_equal(r.c.derived.num_moe_layers, n);
        end(&r);
    }
}

TEST(each_balancing_type_has_its_coefficient) {
    Run r;
    start(&r,
          "num-experts = 8\ndisable-bias-linear = true\n"
          "moe-router-load-balancing-type = global_aux_loss seq_aux_loss\nmoe-aux-loss-coeff = 0.25 0.5\n");
    assert_true(r.c.derived.aux_loss_coeff[BALANCE_AUX] == 0 &&
                r.c.derived.aux_loss_coeff[BALANCE_SEQ_AUX] == 0.5 &&
                r.c.derived.aux_loss_coeff[BALANCE_GLOBAL_AUX] == 0.25 && !r.c.derived.sinkhorn);
    end(&r);
    start(&r, "num-experts = 8\ndisable-bias-linear = true\nmoe-router-load-balancing-type = sinkhorn\n");
    assert_true(r.c.derived.sinkhorn && r.c.derived.aux_loss_coeff[BALANCE_AUX] == 0);
    end(&r);
}

TEST(windows_follow_the_pattern) {
    static const struct {
        const char *pattern, *layers; /* for 12 layers, or NULL if there is no pattern for 12 layers */
    } cases[] = {
        {"4", "111011101110"},
        {"1", "000000000000"},
        {"[1,1,1,0]*3", "111011101110"},
        {"([1]*3+[0])*3", "111011101110"},
        {"[0] + [1]*11", "011111111111"},
        {"(([1,0]+[1])*2)*2", "101101101101"},
        {"[1]*12", "111111111111"},
        {"0", NULL},
        {"-1", NULL},
        {"[1]*11", NULL},
        {"[1]*13", NULL},
        {"[1]*999999999999", NULL},
        {"[2]*12", NULL},
        {"", NULL},
        {"[1]*12 x", NULL},
        {"([1]*12", NULL},
        {"[1,]*6", NULL},
        {"[]*12", NULL},
        {"((((((((((((((((((((([1]*12", NULL},
        {"[1]*0", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool out[12];
        assert_int_equal(config_layer_pattern(cases[i].pattern, 12, out), cases[i].layers != NULL);
        for (int k = 0; cases[i].layers && k < 12; k++) assert_int_equal(out[k], cases[i].layers[k] == '1');
    }
    Run r;
    start(&r, "window-size = 127,0\nwindow-attn-skip-freq = 2\n");
    assert_int_equal(r.c.derived.window_left, 127);
    assert_true(r.c.derived.layer_windowed[0] && !r.c.derived.layer_windowed[1]);
    end(&r);
    start(&r, "window-size = 127,0\n");
    assert_true(r.c.derived.layer_windowed[0] && r.c.derived.layer_windowed[11]);
    end(&r);
}

/* A checksum of the global batch sizes after 0, 1, ..., n - 1 samples. The expected checksums were computed
 * with the Python formula. */
static uint64_t digest(const Config *c, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum = (sum * 31 + (uint64_t)config_batch_size(c, i)) % 1000000007;
    return sum;
}

TEST(batch_size_ramps_up) {
    Run r;
    start(&r, "global-batch-size = 16\nrampup-batch-size = 2 2 100\ntrain-samples = 1000\nlr-decay-samples = "
              "500\nlr-warmup-fraction = 0.01\n");
    static const int64_t at[][2] = {{0, 2},   {1, 2},    {14, 2},   {15, 4},      {50, 8},
                                    {99, 14}, {100, 16}, {101, 16}, {1 << 30, 16}};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        assert_int_equal(config_batch_size(&r.c, at[i][0]), at[i][1]);
    assert_int_equal(digest(&r.c, 150), 972300176);
    assert_int_equal(r.c.derived.train_iters, 75);
    assert_int_equal(r.c.derived.lr_decay_steps, 500);
    assert_true(r.c.derived.lr_warmup_steps == 0.01 * 500);
    assert_int_equal(r.c.derived.wd_incr_steps, 1000);
    end(&r);
    start(&r, "global-batch-size = 1024\nrampup-batch-size = 16 8 300000\n");
    assert_int_equal(digest(&r.c, 300050), 643391243);
    end(&r);
    /* the quotients round to the other side of an integer */
    start(&r, "global-batch-size = 8\nrampup-batch-size = 1 1 9\n");
    assert_int_equal(digest(&r.c, 29), 767629103);
    end(&r);
    start(&r, "global-batch-size = 12\nrampup-batch-size = 1 1 61\n");
    assert_int_equal(digest(&r.c, 81), 270466754);
    end(&r);
    /* more levels of the ramp-up than samples */
    start(&r, "global-batch-size = 103\nrampup-batch-size = 3 5 7\ntrain-samples = 1000\n");
    assert_int_equal(digest(&r.c, 57), 678129918);
    assert_int_equal(r.c.derived.train_iters, 11);
    end(&r);
}

TEST(every_data_parallel_rank_has_a_microbatch_by_default) {
    Run r;
    start(&r, "micro-batch-size = 3\nranks = 8\ntensor-model-parallel-size = 2\ntrain-iters = 10\n");
    assert_int_equal(r.c.derived.global_batch_size, 12);
    assert_int_equal(r.c.derived.train_samples, 120);
    end(&r);
}

TEST(batch_size_follows_the_schedule) {
    /* {samples, steps, samples at the end of the last step}, by the loop of Megatron-LM's update_train_iters
     * (while consumed < train_samples). The batch sizes are 7 times 16, 5 times 32, then 8. */
    static const int64_t iters[][3] = {{1000, 103, 1000}, {999, 103, 1000}, {107, 7, 112}, {112, 7, 112},
                                       {113, 8, 144},     {256, 12, 272},   {100, 7, 112}};
    for (size_t i = 0; i < sizeof iters / sizeof iters[0]; i++) {
        Run r;
        char more[200]; /* thresholds are numbers of tokens, and seq-length is 10 */
        snprintf(more, sizeof more, "step-batch-size-schedule = 0:16 1.004K:32,2500:8\ntrain-samples = %d\n",
                 (int)iters[i][0]);
        start(&r, more);
        assert_int_equal(r.c.derived.num_batch_steps, 3);
        assert_int_equal(config_batch_size(&r.c, 99), 16);
        assert_int_equal(config_batch_size(&r.c, 100), 32);
        assert_int_equal(config_batch_size(&r.c, 250), 8);
        assert_int_equal(r.c.derived.global_batch_size, 8);
        assert_int_equal(r.c.derived.train_samples, iters[i][0]);
        assert_int_equal(r.c.derived.train_iters, iters[i][1]);
        assert_int_equal(r.c.derived.samples_needed, iters[i][2]);
        end(&r);
    }
}

TEST(schedules_count_samples) {
    Run r;
    start(&r, "global-batch-size = 8\ntrain-iters = 100\nlr-decay-iters = 90\nlr-warmup-iters = "
              "7\nlr-wsd-decay-iters = 20\n"
              "weight-decay-incr-style = cosine\nstart-weight-decay = 0.1\nend-weight-decay = "
              "0.2\nrandom-seed = 5\n"
              "decoupled-lr = 0.5\nmin-lr = 0.25\nmock-data = true\n"
              "recompute-granularity = selective\nrecompute-modules = mlp core_attn\n");
    assert_int_equal(r.c.derived.lr_decay_steps, 720);
    assert_true(r.c.derived.lr_warmup_steps == 56);
    assert_int_equal(r.c.derived.lr_wsd_decay_steps, 160);
    assert_int_equal(r.c.derived.wd_incr_steps, 800);
    assert_true(r.c.derived.start_weight_decay == 0.1 && r.c.derived.end_weight_decay == 0.2);
    assert_true(r.c.derived.decoupled_lr == 0.5 && r.c.derived.decoupled_min_lr == 0.25);
    assert_int_equal(r.c.derived.random_seed, 5);
    assert_int_equal(r.c.derived.micro_batch_size, 8);
    assert_string_equal(r.c.derived.split, "1,1,1");
    assert_int_equal(r.c.derived.recompute_modules, 1u << RECOMPUTE_MLP | 1u << RECOMPUTE_CORE_ATTN);
    end(&r);
}
