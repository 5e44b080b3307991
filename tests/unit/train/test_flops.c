#include "unit/config_helper.h"

#include "train/flops.h"

static void expect(const char *words, long long samples, const char *digits) {
    Setup *s = setup_new("%s", words);
    char ours[32];
    snprintf(ours, sizeof ours, "%.6e", flops_per_step(&s->config, &s->derived, samples));
    assert_string_equal(ours, digits);
    setup_free(s);
}

/* Values that Megatron-LM's num_floating_point_operations gives, to all its printed digits. */
static void flops_match_megatron(void **state) {
    (void)state;
    expect(
        "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --vocab-size 51200",
        1, "2.174868e+15");
    const char *llama3 =
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --seq-length 8192 --vocab-size 128256 --swiglu "
        "--untie-embeddings-and-output-weights --position-embedding-type rope";
    expect(llama3, 1, "4.216455e+14");
}

static void flops_grow_with_the_batch_and_the_padded_vocabulary(void **state) {
    (void)state;
    Setup *s = setup_new("--vocab-size 129 --make-vocab-size-divisible-by 128");
    const Config *c = &s->config;
    double one = flops_per_step(c, &s->derived, 1);
    assert_true(flops_per_step(c, &s->derived, 3) == 3 * one);
    Derived small = s->derived;
    assert_int_equal(small.padded_vocab_size, 256);
    small.padded_vocab_size = 128;
    /* the logits' GEMM, forward and twice backward: 6 h V for each token; all integers, so exact */
    assert_true(one - flops_per_step(c, &small, 1) == 6.0 * 128 * (double)(c->hidden_size * c->seq_length));
    setup_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_match_megatron),
        cmocka_unit_test(flops_grow_with_the_batch_and_the_padded_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
