/* Tests that option values are mapped to the enums of lower layers by name, regardless of their numbers. */
#include "unit/config_helper.h"

#include "models/option_map.h"
#include "models/specs.h"

/* The choices that one line of options must set. */
typedef struct Choices {
    const char *words;
    Activation activation;
    AttentionSink sink;
    RouterScore score;
    QuantFormat format;
    QuantRecipe recipe;
    GemmTuning tuning;
    BranchNorms norms;
} Choices;

static const Choices CASES[] = {
    {"--activation swiglu --ffn-hidden-size 24", ACT_SWIGLU, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF,
     QUANT_DELAYED, GEMM_TUNING_SAME_BITS, NORM_INPUT},
    {"--activation gelu --softmax-type off-by-one --moe-router-score-function sigmoid --fp8-format e4m3 "
     "--fp8-recipe tensorwise --gemm-tuning fastest --norm-placement post",
     ACT_GELU_TANH, SINK_ONE, ROUTER_SIGMOID, QUANT_E4M3, QUANT_TENSORWISE, GEMM_TUNING_FASTEST, NORM_OUTPUT},
    {"--activation gelu --disable-bias-linear --softmax-type learnable --fp8-format hybrid --gemm-tuning off "
     "--norm-placement sandwich",
     ACT_GELU_ERF, SINK_LEARNED, ROUTER_TOPK_SOFTMAX, QUANT_HYBRID, QUANT_DELAYED, GEMM_TUNING_OFF,
     NORM_BOTH},
    {"--activation quick-gelu --fp8-format e4m3 --fp8-recipe blockwise --gemm-tuning same-bits",
     ACT_QUICK_GELU, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_E4M3, QUANT_BLOCKWISE, GEMM_TUNING_SAME_BITS,
     NORM_INPUT},
    {"--activation geglu-tanh", ACT_GEGLU_TANH, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF, QUANT_DELAYED,
     GEMM_TUNING_SAME_BITS, NORM_INPUT},
    {"--activation geglu", ACT_GEGLU_TANH, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF, QUANT_DELAYED,
     GEMM_TUNING_SAME_BITS, NORM_INPUT},
    {"--activation quick-geglu", ACT_QUICK_GEGLU, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF, QUANT_DELAYED,
     GEMM_TUNING_SAME_BITS, NORM_INPUT},
    {"--activation geglu-erf", ACT_GEGLU_ERF, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF, QUANT_DELAYED,
     GEMM_TUNING_SAME_BITS, NORM_INPUT},
    {"--activation relu", ACT_RELU, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF, QUANT_DELAYED,
     GEMM_TUNING_SAME_BITS, NORM_INPUT},
    {"--activation xielu", ACT_XIELU, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF, QUANT_DELAYED,
     GEMM_TUNING_SAME_BITS, NORM_INPUT},
    {"--activation squared-relu", ACT_SQUARED_RELU, SINK_NONE, ROUTER_TOPK_SOFTMAX, QUANT_OFF, QUANT_DELAYED,
     GEMM_TUNING_SAME_BITS, NORM_INPUT},
};

TEST(quantization_is_mapped) {
    static const struct {
        const char *words;
        DType type;
    } ROWS[] = {{"--quantization none", F64}, {"--quantization fp8", F8E4M3}, {"--quantization int8", I8}};
    for (int i = 0; i < 3; i++) {
        Setup *s = setup_new("%s", ROWS[i].words);
        assert_int_equal(map_quantization(s->config.quantization), ROWS[i].type);
        setup_free(s);
    }
}

/* The expected formats have one letter for each layer: - for a layer that is not quantized. */
TEST(first_and_last_layers_are_in_bf16) {
    static const struct {
        const char *words, *formats;
    } ROWS[] = {
        {"--first-last-layers-bf16", "-888-"},
        {"--first-last-layers-bf16 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 2", "888--"},
        {"--first-last-layers-bf16 --position-embedding-type rope --mtp-num-layers 2", "-888-88"},
        {"--model t5 --decoder-seq-length 8 --decoder-num-layers 4 --first-last-layers-bf16", "-888--88-"},
        {"--model t5 --decoder-seq-length 8 --decoder-num-layers 4 --first-last-layers-bf16 "
         "--num-layers-at-start-in-bf16 2 --num-layers-at-end-in-bf16 0",
         "--888--88"},
        {"--model t5 --decoder-seq-length 8 --decoder-num-layers 2 --first-last-layers-bf16", "-888---"},
        {"--model t5 --decoder-seq-length 8 --decoder-num-layers 6 --first-last-layers-bf16 "
         "--num-layers-at-start-in-bf16 5 --num-layers-at-end-in-bf16 0",
         "----------8"},
        {"--model t5 --decoder-seq-length 8 --decoder-num-layers 4", "888888888"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        Setup *s =
            setup_new("--num-layers 5 --bf16 --fp8-format e4m3 --fp8-recipe tensorwise %s", ROWS[i].words);
        char formats[16] = "";
        for (int64_t k = 0; k < config_layers(&s->config); k++)
            formats[k] = spec_quant(&s->config, k, s->arena).format == QUANT_OFF ? '-' : '8';
        assert_string_equal(formats, ROWS[i].formats);
        setup_free(s);
    }
}

/* The expected types have one letter for each layer: the first letter of p2p, gather or a2a. */
TEST(each_stack_has_its_types_of_context_communication) {
    static const char LETTERS[] = {[CONTEXT_P2P] = 'p', [CONTEXT_ALLGATHER] = 'g', [CONTEXT_A2A] = 'a'};
    static const struct {
        const char *words, *types;
    } ROWS[] = {
        {"--cp-comm-type a2a", "aaa"},
        {"--cp-comm-type a2a p2p allgather", "apg"},
        {"--cp-comm-type a2a p2p allgather --position-embedding-type rope --mtp-num-layers 2", "apggg"},
        {"--cp-comm-type a2a p2p allgather --model t5 --decoder-seq-length 8", "apgapg"},
        {"--cp-comm-type a2a p2p allgather --model t5 --decoder-seq-length 8 --decoder-num-layers 2",
         "apgap"},
        {"--cp-comm-type a2a --model t5 --decoder-seq-length 8 --decoder-num-layers 4", "aaaaaaa"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        Setup *s = setup_new("--num-layers 3 --ranks 2 --context-parallel-size 2 %s", ROWS[i].words);
        char types[16] = "";
        for (int64_t k = 0; k < config_layers(&s->config); k++)
            types[k] = LETTERS[s->config.derived.layer_context_comm[k]];
        assert_string_equal(types, ROWS[i].types);
        setup_free(s);
    }
}

TEST(every_choice_is_mapped) {
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Setup *s = setup_new("%s", CASES[i].words);
        assert_int_equal(map_activation(s->config.derived.activation), CASES[i].activation);
        assert_int_equal(map_softmax(s->config.softmax_type), CASES[i].sink);
        assert_int_equal(map_norms(s->config.norm_placement, MODEL_gpt), CASES[i].norms);
        assert_int_equal(map_norms(PLACE_POST, MODEL_bert), NORM_SUM);
        assert_int_equal(map_score(s->config.moe_router_score_function), CASES[i].score);
        assert_int_equal(map_fp8_format(s->config.fp8_format), CASES[i].format);
        assert_int_equal(map_fp8_recipe(s->config.fp8_recipe), CASES[i].recipe);
        assert_int_equal(map_gemm_tuning(s->config.gemm_tuning), CASES[i].tuning);
        setup_free(s);
    }
}

TEST(every_loss_has_its_coefficient) {
    Setup *s = setup_new("--num-experts 4 --disable-bias-linear --moe-z-loss-coeff 0.5 "
                         "--moe-router-load-balancing-type global_aux_loss aux_loss seq_aux_loss "
                         "--moe-aux-loss-coeff 0.1 0.2 0.3"),
          *off = setup_new(" ");
    static const double WANTED[ROUTER_LOSSES] = {[ROUTER_LOSS_AUX] = 0.2,
                                                 [ROUTER_LOSS_SEQ_AUX] = 0.3,
                                                 [ROUTER_LOSS_GLOBAL_AUX] = 0.1,
                                                 [ROUTER_LOSS_Z] = 0.5};
    for (RouterLoss i = 0; i < ROUTER_LOSSES; i++) {
        assert_true(map_loss_coeff(&s->config, i) == WANTED[i]);
        assert_true(map_loss_coeff(&off->config, i) == 0);
    }
    setup_free(s), setup_free(off);
}
