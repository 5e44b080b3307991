#include "unit/config_helper.h"

#include "models/model.h"

static double flops(Setup *s, const Config *c, int64_t samples) {
    const ModelPlan plan = model_plan(c, s->arena);
    return model_flops(&plan, samples);
}

static void expect(const char *words, long long samples, const char *digits) {
    Setup *s = setup_new("%s", words);
    char ours[32];
    snprintf(ours, sizeof ours, "%.6e", flops(s, &s->config, samples));
    assert_string_equal(ours, digits);
    setup_free(s);
}

/* Expected values are those of Megatron-LM's num_floating_point_operations, with all printed digits. */
TEST(flops_match_megatron) {
    expect(
        "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --vocab-size 51200",
        1, "2.174868e+15");
    const char *llama3 =
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --seq-length 8192 --vocab-size 128256 --swiglu "
        "--untie-embeddings-and-output-weights --position-embedding-type rope";
    expect(llama3, 1, "4.216455e+14");
}

/* A Gated DeltaNet layer of Megatron-LM's formula, and the gate of an attention layer. */
TEST(flops_of_gated_delta_net) {
    const char *words =
        "--vocab-size 128 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --num-layers 2";
    Setup *plain = setup_new("%s", words),
          *delta = setup_new("%s --experimental-attention-variant gdn --linear-attention-freq 2 "
                             "--attention-output-gate --linear-num-key-heads 2 --linear-num-value-heads 6 "
                             "--linear-key-head-dim 5 --linear-value-head-dim 7 --linear-conv-kernel-dim 3",
                             words);
    const double s = 32, h = 64, qk = 2 * 2 * 5, v = 6 * 7, attention = s * (4 * h * h + s * h),
                 gate = s * h * h,
                 rule = s * (h * (qk + 2 * v + 2 * 6) + 3 * (qk + v) + 6 * 7 * 7 * 4 + h * v);
    assert_true(flops(delta, &delta->config, 1) ==
                flops(plain, &plain->config, 1) + 6 * (rule - attention + gate));
    setup_free(plain), setup_free(delta);
}

TEST(flops_grow_with_the_batch_and_the_padded_vocabulary) {
    Setup *s = setup_new("--vocab-size 129 --make-vocab-size-divisible-by 128");
    const Config *c = &s->config;
    double one = flops(s, &s->config, 1);
    assert_true(flops(s, &s->config, 3) == 3 * one);
    Config small = s->config;
    assert_int_equal(small.derived.padded_vocab_size, 256);
    small.derived.padded_vocab_size = 128;
    /* the GEMM of the logits, forward and twice backward, has 6 h V FLOPs per token; these integers are
     * exact */
    assert_true(one - flops(s, &small, 1) == 6.0 * 128 * (double)(c->hidden_size * c->seq_length));
    setup_free(s);
}

/* Each of the t encoder positions attends to all t. Each of the s decoder positions attends to s / 2 decoder
 * positions on average, and to all t. Each decoder layer also computes keys and values of the encoder's
 * positions. */
TEST(flops_of_an_encoder_and_a_decoder) {
    Setup *a = setup_new(
        "--model t5 --num-layers 2 --decoder-num-layers 3 --hidden-size 32 --num-attention-heads 4 "
        "--kv-channels 6 --ffn-hidden-size 40 --seq-length 16 --decoder-seq-length 8 --vocab-size 128");
    const double s = 8, t = 16, h = 32, w = 4 * 6, ffn = 2 * h * 40;
    const double encoder = t * (4 * h * w + ffn + 2 * t * w), decoder = s * (4 * h * w + ffn + s * w),
                 cross = 2 * s * h * w + 2 * t * h * w + 2 * s * t * w;
    assert_true(flops(a, &a->config, 1) == 6 * (2 * encoder + 3 * (decoder + cross) + s * h * 128));
    setup_free(a);
}

/* Each position attends to all positions. The head has a dense layer, and for the first position a second
 * dense layer and two classes. The head of a task has the second dense layer, and its classes or a score for
 * each choice. */
TEST(flops_of_a_bert) {
    Setup *a = setup_new("--model bert --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length "
                         "16 --vocab-size 128");
    const double s = 16, h = 32, layer = s * (4 * h * h + 8 * h * h + 2 * s * h), words = s * h * (h + 128);
    assert_true(flops(a, &a->config, 1) == 6 * (2 * layer + words + h * (h + 2)));
    a->config.bert_binary_head = false;
    assert_true(flops(a, &a->config, 1) == 6 * (2 * layer + words));
    a->config.task = TASK_LABELS, a->config.class_labels = (TextList){.count = 3};
    assert_true(flops(a, &a->config, 1) == 6 * (2 * layer + h * (h + 3)));
    a->config.task = TASK_RACE, a->config.derived.choices = 4;
    assert_true(flops(a, &a->config, 1) == 6 * (2 * layer + h * (h + 1)));
    setup_free(a);
}

/* Megatron-LM's num_floating_point_operations: each layer that predicts further tokens counts as a layer of the kind of
 * the last one, with an output layer, a projection from 2h to h, and three norms. */
TEST(flops_of_layers_that_predict_further_tokens) {
    const char *words = "--vocab-size 128 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --swiglu "
                        "--position-embedding-type rope --num-experts 8 --moe-layer-freq";
    Setup *two = setup_new("%s [0,1] --num-layers 2", words),
          *four = setup_new("%s [0,1,1,1] --num-layers 4", words),
          *ahead = setup_new("%s [0,1] --num-layers 2 --mtp-num-layers 2", words);
    const double h = 64, heads = 6 * 32 * (h * 128 + 2 * h * h + 3 * h),
                 layers = flops(four, &four->config, 1) - flops(two, &two->config, 1);
    assert_true(flops(ahead, &ahead->config, 1) == flops(two, &two->config, 1) + layers + 2 * heads);
    setup_free(two), setup_free(four), setup_free(ahead);
}

/* An MoE layer counts as a dense layer whose MLP is as wide as the experts of a token and the shared expert
 * together. */
TEST(flops_count_the_experts_of_a_token) {
    const char *dense = "--vocab-size 128 --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
                        "--seq-length 32 --swiglu --disable-bias-linear --ffn-hidden-size 160";
    Setup *a = setup_new("%s", dense),
          *b = setup_new("%s --num-experts 16 --moe-router-topk 3 --moe-layer-freq [0,1] "
                         "--moe-ffn-hidden-size 48 --moe-shared-expert-intermediate-size 40",
                         dense);
    const double more = 6.0 * 3 * 64 * 32 * (3 * 48 + 40 - 160);
    assert_true(flops(b, &b->config, 1) - flops(a, &a->config, 1) == more);
    setup_free(a), setup_free(b);
}
