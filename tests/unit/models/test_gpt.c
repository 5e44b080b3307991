/* Tests the construction of the model: the registered parameters, their names and their initial values. */
#include <math.h>

#include "unit/model_helper.h"

static const char GPT2[] =
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --vocab-size 50257";
static const char LLAMA3_8B[] =
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --seq-length 8192 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --rotary-base 500000 --use-rope-scaling";

static int64_t logical_elements(const Registry *r) {
    int64_t n = 0;
    for (int i = 0; i < r->n; i++) n += param_logical_count(r->params[i]);
    return n;
}

static void census(const char *words, int64_t published, int64_t padding) {
    Setup *s = setup_new("%s", words);
    Device *null = device_null();
    Model *m = model_new(&s->config, NULL);
    assert_int_equal(logical_elements(m->registry), published);
    model_allocate(m, null, BF16, s->config.derived.max_position_embeddings,
                   true); /* the null device allocates no memory */
    int64_t in_memory = 0;
    for (int i = 0; i < m->registry->n; i++) in_memory += m->registry->params[i]->count;
    assert_int_equal(in_memory, published + padding);
    /* 2 bytes for the value, 4 for the main gradient, 4 for the master, plus alignment gaps */
    assert_true((int64_t)registry_bytes(m->registry) >= 10 * in_memory);
    model_free(m);
    device_free(null);
    setup_free(s);
}

TEST(parameter_counts_are_the_published_ones) {
    census(GPT2, 124439808, (50304 - 50257) * 768);
    census(LLAMA3_8B, 8030261248, 0);
}

static void expect_names(const char *words, const char *const *names, int n) {
    Setup *s = setup_new("%s", words);
    Model *m = model_new(&s->config, NULL);
    assert_int_equal(m->registry->n, n);
    for (int i = 0; i < n; i++) assert_string_equal(m->registry->params[i]->spec.name, names[i]);
    model_free(m);
    setup_free(s);
}

/* The names are those of Megatron-LM's state dict with separate norms (the local layer spec). */
TEST(names_are_megatrons) {
    static const char *const GPT2_NAMES[] = {
        "embedding.word_embeddings.weight",
        "embedding.position_embeddings.weight",
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.input_layernorm.bias",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.self_attention.linear_qkv.bias",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.0.self_attention.linear_proj.bias",
        "decoder.layers.0.pre_mlp_layernorm.weight",
        "decoder.layers.0.pre_mlp_layernorm.bias",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc1.bias",
        "decoder.layers.0.mlp.linear_fc2.weight",
        "decoder.layers.0.mlp.linear_fc2.bias",
        "decoder.final_layernorm.weight",
        "decoder.final_layernorm.bias",
    };
    static const char *const SINK_NAMES[] = {
        "embedding.word_embeddings.weight",
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.self_attention.linear_qkv.bias",
        "decoder.layers.0.self_attention.q_layernorm.weight",
        "decoder.layers.0.self_attention.k_layernorm.weight",
        "decoder.layers.0.self_attention.core_attention.softmax_offset",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.0.pre_mlp_layernorm.weight",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc2.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    };
    expect_names("--num-layers 1", GPT2_NAMES, sizeof GPT2_NAMES / sizeof *GPT2_NAMES);
    expect_names("--num-layers 1 --hidden-size 48 --normalization RMSNorm --disable-bias-linear "
                 "--add-qkv-bias --qk-layernorm --swiglu --position-embedding-type rope "
                 "--untie-embeddings-and-output-weights --softmax-type learnable",
                 SINK_NAMES, sizeof SINK_NAMES / sizeof *SINK_NAMES);
}

static bool decays(const Model *m, const char *name) {
    return !(registry_find(m->registry, name)->spec.flags & PARAM_NO_DECAY);
}

TEST(only_matrices_decay_and_embeddings_are_marked) {
    const char *words =
        "--num-layers 1 --qk-layernorm --softmax-type learnable --untie-embeddings-and-output-weights";
    Setup *s = setup_new("%s", words);
    Model *m = model_new(&s->config, NULL);
    for (int i = 0; i < m->registry->n; i++) {
        const ParamSpec *p = &m->registry->params[i]->spec;
        bool embedding = strstr(p->name, "word_embeddings") || strstr(p->name, "output_layer");
        assert_int_equal(!(p->flags & PARAM_NO_DECAY), p->ndim == 2);
        assert_int_equal(!!(p->flags & PARAM_EMBEDDING), embedding);
    }
    model_free(m);
    setup_free(s);
    s = setup_new("%s --apply-wd-to-qk-layernorm", words);
    m = model_new(&s->config, NULL);
    assert_true(decays(m, "decoder.layers.0.self_attention.q_layernorm.weight"));
    assert_true(decays(m, "decoder.layers.0.self_attention.k_layernorm.bias"));
    assert_false(decays(m, "decoder.layers.0.input_layernorm.weight"));
    model_free(m);
    setup_free(s);
}

/* ---- initial values ---- */

static double element(const Tensor *t, int64_t i) {
    return t->dtype == F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

/* Whether all elements of all masters, except padding, are equal. */
static bool same_start(const char *a, const char *b) {
    TestModel *x = test_model_new(setup_new("%s", a)), *y = test_model_new(setup_new("%s", b));
    bool same = true;
    assert_int_equal(x->model->registry->n, y->model->registry->n);
    for (int p = 0; p < x->model->registry->n; p++) {
        const Param *one = x->model->registry->params[p], *two = y->model->registry->params[p];
        assert_int_equal(param_logical_count(one), param_logical_count(two));
        for (int64_t i = 0; i < param_logical_count(one); i++)
            same &= element(&one->master, i) == element(&two->master, i);
    }
    test_model_free(x), test_model_free(y);
    return same;
}

TEST(start_depends_on_the_seed_alone) {
    const char *base = "--num-layers 2 --vocab-size 37";
    assert_true(same_start(base, base));
    assert_false(same_start(base, "--num-layers 2 --vocab-size 37 --seed 1235"));
    assert_true(same_start(base, "--num-layers 2 --vocab-size 37 --fp64"));
    assert_true(same_start(base, "--num-layers 2 --vocab-size 37 --bf16"));
    assert_true(same_start(base, "--num-layers 2 --vocab-size 37 --make-vocab-size-divisible-by 1 "
                                 "--micro-batch-size 4 --recompute-activations"));
}

/* Asserts that the mean and standard deviation of a matrix are within five standard errors of those of N(0,
 * std). */
static void expect_normal(const Model *m, const char *name, double std) {
    const Param *p = registry_find(m->registry, name);
    int64_t n = param_logical_count(p);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += element(&p->master, i), squares += pow(element(&p->master, i), 2);
    if (!(fabs(sum / (double)n) < 5 * std / sqrt((double)n)))
        fail_msg("'%s' has mean %g", name, sum / (double)n);
    double deviation = sqrt(squares / (double)n);
    if (!(fabs(deviation / std - 1) < 5 / sqrt(2.0 * (double)n)))
        fail_msg("'%s' has deviation %g", name, deviation);
}

TEST(start_has_megatrons_deviations) {
    TestModel *m =
        test_model_new(setup_new("--num-layers 3 --hidden-size 64 --vocab-size 500 --init-method-std 0.05 "
                                 "--embedding-init-method-std 0.4 --untie-embeddings-and-output-weights "
                                 "--num-attention-heads 256 --kv-channels 1 --softmax-type learnable"));
    expect_normal(m->model, "embedding.word_embeddings.weight", 0.4);
    expect_normal(m->model, "embedding.position_embeddings.weight", 0.4);
    expect_normal(m->model, "output_layer.weight", 0.05);
    expect_normal(m->model, "decoder.layers.2.self_attention.linear_qkv.weight", 0.05);
    expect_normal(m->model, "decoder.layers.2.mlp.linear_fc1.weight", 0.05);
    expect_normal(m->model, "decoder.layers.2.self_attention.core_attention.softmax_offset", 0.05);
    expect_normal(m->model, "decoder.layers.2.self_attention.linear_proj.weight", 0.05 / sqrt(2 * 3));
    expect_normal(m->model, "decoder.layers.2.mlp.linear_fc2.weight", 0.05 / sqrt(2 * 3));
    const Param *gain = registry_find(m->model->registry, "decoder.final_layernorm.weight");
    const Param *bias = registry_find(m->model->registry, "decoder.layers.0.mlp.linear_fc1.bias");
    for (int i = 0; i < 64; i++)
        assert_true(element(&gain->master, i) == 1 && element(&bias->master, i) == 0);
    test_model_free(m);
    m = test_model_new(setup_new("--apply-layernorm-1p"));
    gain = registry_find(m->model->registry, "decoder.final_layernorm.weight");
    for (int i = 0; i < 16; i++) assert_true(element(&gain->master, i) == 0);
    test_model_free(m);
}
