#include "unit/cmocka_all.h"

#include <math.h>

#include "ckpt/hf/tensors.h"
#include "unit/ckpt/model.h"

static Safetensors *open_init(const char *dir) {
    Safetensors *s;
    char *path = mem_printf("%s/init.safetensors", dir);
    assert_ok(safetensors_open(path, &s));
    free(path);
    return s;
}

static Err import_file(const Safetensors *s, Registry *r) {
    HfMap map;
    Err e = hf_match(s, r, NULL, &map);
    if (!e.code) e = hf_import(s, &map, r);
    hf_map_free(&map);
    return e;
}

static void round_trip(const char *dir) {
    Str conf = slurp(dir, "run.conf"), want = slurp(dir, "init.safetensors"), got = {0};
    Safetensors *s = open_init(dir);
    DType dtype = (DType)s->tensors[0].tensor.dtype;
    TestModel *m = test_model_new(conf.s, dtype);
    HfFamily family;
    char *scratch = scratch_new(), *path = mem_printf("%s/out.safetensors", scratch);
    assert_ok(hf_detect(s, &family));
    assert_ok(import_file(s, m->model->registry));
    assert_ok(hf_export(m->model->registry, family, path, dtype));
    assert_ok(file_read(path, &got));
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.s, want.s, want.len);
    safetensors_close(s);
    test_model_free(m);
    str_free(&conf), str_free(&want), str_free(&got);
    free(path);
    scratch_remove(scratch);
}

TEST(import_and_export_give_the_same_file) { for_each_case(round_trip); }

/* In Megatron-LM's linear_qkv, each group has its query heads, then its key, then its value. Here 6 heads of
 * width 6 are in 2 groups, and the hidden size is 36. */
TEST(llama_rows_go_to_their_groups) {
    Str conf = slurp("golden/llama-gqa", "run.conf");
    TestModel *m = test_model_new(conf.s, F64);
    Safetensors *s = open_init("golden/llama-gqa");
    assert_ok(import_file(s, m->model->registry));
    const double *qkv =
        registry_find(m->model->registry, "decoder.layers.1.self_attention.linear_qkv.weight")->master.data;
    const double *fc1 =
        registry_find(m->model->registry, "decoder.layers.1.mlp.linear_fc1.weight")->master.data;
    const float *q = safetensors_find(s, "model.layers.1.self_attn.q_proj.weight")->data;
    const float *k = safetensors_find(s, "model.layers.1.self_attn.k_proj.weight")->data;
    const float *v = safetensors_find(s, "model.layers.1.self_attn.v_proj.weight")->data;
    const float *up = safetensors_find(s, "model.layers.1.mlp.up_proj.weight")->data;
    for (int i = 0; i < 36; i++) {
        assert_true(qkv[(0 * 6 + 1) * 36 + i] == (double)q[1 * 36 + i]); /* group 0, head 0, row 1 */
        assert_true(qkv[((5 + 2) * 6 + 3) * 36 + i] ==
                    (double)q[(5 * 6 + 3) * 36 + i]); /* head 2 of group 1, which is head 5 */
        assert_true(qkv[((5 + 3) * 6 + 2) * 36 + i] == (double)k[(6 + 2) * 36 + i]);
        assert_true(qkv[(4 * 6 + 5) * 36 + i] == (double)v[5 * 36 + i]);
        assert_true(fc1[(40 + 7) * 36 + i] == (double)up[7 * 36 + i]);
    }
    safetensors_close(s);
    test_model_free(m);
    str_free(&conf);
}

/* c_attn is [in, q | k | v]. Here 2 heads have width 8, the hidden size is 16, and every head is a group. */
TEST(gpt2_columns_go_to_their_heads) {
    Str conf = slurp("golden/gpt2-tiny", "run.conf");
    TestModel *m = test_model_new(conf.s, F64);
    Safetensors *s = open_init("golden/gpt2-tiny");
    assert_ok(import_file(s, m->model->registry));
    const double *w =
        registry_find(m->model->registry, "decoder.layers.1.self_attention.linear_qkv.weight")->master.data;
    const double *b =
        registry_find(m->model->registry, "decoder.layers.1.self_attention.linear_qkv.bias")->master.data;
    const double *cw = safetensors_find(s, "transformer.h.1.attn.c_attn.weight")->data;
    const double *cb = safetensors_find(s, "transformer.h.1.attn.c_attn.bias")->data;
    for (int head = 0; head < 2; head++)
        for (int part = 0; part < 3; part++)
            for (int d = 0; d < 8; d++) {
                int row = (head * 3 + part) * 8 + d, column = part * 16 + head * 8 + d;
                assert_true(b[row] == cb[column]);
                for (int in = 0; in < 16; in++) assert_true(w[row * 16 + in] == cw[in * 48 + column]);
            }
    safetensors_close(s);
    test_model_free(m);
    str_free(&conf);
}

/* ---- other files ---- */

typedef struct Edited {
    char *dir, *path;
    SafeTensor tensors[100];
    int64_t count;
    Safetensors *base, *file;
    TestModel *model;
} Edited;

static Edited edit(const char *dir) {
    Str conf = slurp(dir, "run.conf");
    Edited e = {.dir = scratch_new(), .base = open_init(dir), .model = test_model_new(conf.s, F32)};
    e.path = mem_printf("%s/x.safetensors", e.dir);
    for (; e.count < e.base->count; e.count++) e.tensors[e.count] = e.base->tensors[e.count];
    str_free(&conf);
    return e;
}

static Err import_edited(Edited *e) {
    assert_ok(safetensors_write(e->path, e->tensors, e->count, NULL, 0, NULL, NULL));
    safetensors_close(e->file);
    assert_ok(safetensors_open(e->path, &e->file));
    return import_file(e->file, e->model->model->registry);
}

static void edit_free(Edited *e) {
    test_model_free(e->model);
    safetensors_close(e->base);
    safetensors_close(e->file);
    free(e->path);
    scratch_remove(e->dir);
}

static bool all_zero(const Registry *r) {
    for (int64_t i = 0; i < r->elements; i++)
        if (((float *)r->masters)[i] != 0) return false;
    return true;
}

TEST(misfits_are_listed) {
    Edited e = edit("golden/llama-bias-tied");
    float stray[4] = {0};
    e.tensors[1].name = "model.layers.0.input_layernorm.wait";
    e.tensors[2].tensor = tensor_make(stray, F32, 1, &(int64_t){4});
    assert_err(import_edited(&e), "does not match the model",
               "1 missing: 'model.layers.0.input_layernorm.weight'",
               "1 unexpected: 'model.layers.0.input_layernorm.wait'",
               "1 with another shape: 'model.layers.0.mlp.down_proj.bias' (F32 [4], the model has [30])");
    assert_true(all_zero(e.model->model->registry));
    e.tensors[2].tensor = tensor_make((int64_t[30]){0}, I64, 1, &(int64_t){30});
    assert_err(
        import_edited(&e), "does not match the model that config.json or the options describe",
        "1 with a dtype other than F64, F32, BF16 or F16: 'model.layers.0.mlp.down_proj.bias' ('I64')");
    edit_free(&e);
    e = edit("golden/gpt2-tiny");
    for (int64_t i = 0; i < e.count; i++)
        e.tensors[i].name = arena_printf(e.model->arena, "x.%s", e.tensors[i].name);
    assert_err(import_edited(&e), "no supported model (gpt2, llama, ", "gemma3_text",
               "the first name is 'x.transformer.h.0.attn.c_attn.bias'");
    e.count = 0;
    assert_err(import_edited(&e), "no supported model", "the first name is missing");
    edit_free(&e);
}

TEST(values_that_cannot_be_used_are_named) {
    Edited e = edit("golden/llama-bias-tied");
    float nan_and_more[30] = {[3] = NAN, [4] = -INFINITY};
    double large[30] = {1, -1e300, 3e38, 1e39};
    e.tensors[2].tensor = tensor_make(nan_and_more, F32, 1, &(int64_t){30});
    assert_err(
        import_edited(&e),
        "1 with NaN or infinity (download them again): 'model.layers.0.mlp.down_proj.bias' (2 of 30 values)");
    e.tensors[2].tensor = tensor_make(large, F64, 1, &(int64_t){30});
    assert_err(import_edited(&e), "1 with values too large for float32 (set --fp64)",
               "'model.layers.0.mlp.down_proj.bias' (2 of 30 values)");
    assert_true(all_zero(e.model->model->registry));
    large[1] = large[3] = -3.4e38;
    assert_ok(import_edited(&e));
    const Registry *r = e.model->model->registry;
    const struct {
        double value;
        DType dtype;
        const char *says;
    } exports[] = {
        {1e6, F16, "exported as float16; tensors: 1 with values too large for it (--hf-dtype bfloat16"},
        {3.4e38, F16, "float16; tensors: 1 with values too large for it (--hf-dtype float32"},
        {3.4e38, BF16, "bfloat16; tensors: 1 with values too large for it (--hf-dtype float32"},
        {-INFINITY, F32, "1 with NaN or infinity (export an earlier step"}};
    for (size_t i = 0; i < sizeof exports / sizeof *exports; i++) {
        char *path = mem_printf("%s/out", e.dir);
        for (int64_t k = 0; k < r->elements; k++) ((float *)r->masters)[k] = 65504;
        ((float *)r->params[0]->master.data)[2] = (float)exports[i].value;
        assert_err(hf_export(r, HF_LLAMA, path, exports[i].dtype), exports[i].says, "1 of ");
        assert_false(file_exists(path));
        free(path);
    }
    edit_free(&e);
}

/* Hugging Face's gpt2 lacks the prefix "transformer." and has mask buffers. A tied output layer may also be
 * stored. The first T5 models also have a bias table for the cross-attention. */
TEST(known_variants_are_read) {
    Edited e = edit("golden/gpt2-awkward");
    float buffer[2] = {0};
    for (int64_t i = 0; i < e.count; i++) e.tensors[i].name += strlen("transformer.");
    e.tensors[e.count++] =
        (SafeTensor){"h.0.attn.bias", .tensor = tensor_make(buffer, F32, 4, (int64_t[]){1, 1, 1, 2})};
    const Tensor *wte = safetensors_find(e.base, "transformer.wte.weight");
    e.tensors[e.count++] = (SafeTensor){"lm_head.weight", .tensor = *wte};
    assert_ok(import_edited(&e));
    const Registry *r = e.model->model->registry;
    assert_memory_equal(r->params[0]->master.data, wte->data, tensor_bytes(wte));
    float *other = mem_zero((size_t)tensor_count(wte), sizeof *other);
    e.tensors[e.count - 1].tensor.data = other;
    assert_err(import_edited(&e), "1 unexpected: 'lm_head.weight'");
    free(other);
    edit_free(&e);
    e = edit("golden/bert-original"); /* has the names of the first bert-base-uncased */
    for (int64_t i = 0; i < e.count; i++) {
        const char *name = e.tensors[i].name, *norm = strstr(name, "LayerNorm.");
        if (norm)
            e.tensors[i].name = arena_printf(e.model->arena, "%.*sLayerNorm.%s", (int)(norm - name), name,
                                             strstr(norm, "weight") ? "gamma" : "beta");
    }
    assert_ok(import_edited(&e));
    const Param *norm = registry_find(e.model->model->registry, "encoder.layers.1.post_mlp_layernorm.bias");
    const Tensor *beta = safetensors_find(e.base, "bert.encoder.layer.1.output.LayerNorm.bias");
    assert_int_equal(beta->dtype, F64);
    for (int64_t i = 0; i < tensor_count(beta); i++)
        assert_true(((const float *)norm->master.data)[i] == (float)((const double *)beta->data)[i]);
    edit_free(&e);
    e = edit("golden/t5-original");
    e.tensors[e.count++] =
        (SafeTensor){"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
                     .tensor = tensor_make(buffer, F32, 2, (int64_t[]){1, 2})};
    assert_ok(import_edited(&e));
    edit_free(&e);
}

TEST(parameters_without_counterpart_are_named) {
    HfMap map;
    Str conf = slurp("golden/qwen3-like", "run.conf");
    TestModel *m = test_model_new(conf.s, F32);
    assert_err(hf_map(m->model->registry, HF_GPT2, &map),
               "parameter 'decoder.layers.0.self_attention.q_layernorm.weight'",
               "no counterpart in Hugging Face's GPT-2");
    hf_map_free(&map);
    test_model_free(m);
    str_free(&conf);
}

/* Files with 16-bit types can be read, and 16-bit values are rounded from the masters. */
TEST(sixteen_bit_files_and_storage_work) {
    Str conf = slurp("golden/llama-gqa", "run.conf");
    TestModel *wide = test_model_new(conf.s, F32), *narrow = test_model_new(conf.s, BF16);
    Safetensors *s = open_init("golden/llama-gqa"), *half;
    char *scratch = scratch_new(), *path = mem_printf("%s/half.safetensors", scratch);
    assert_ok(import_file(s, wide->model->registry));
    assert_ok(hf_export(wide->model->registry, HF_LLAMA, path, BF16));
    assert_ok(safetensors_open(path, &half));
    assert_ok(import_file(half, narrow->model->registry));
    for (int i = 0; i < wide->model->registry->n; i++) {
        const Param *a = wide->model->registry->params[i], *b = narrow->model->registry->params[i];
        for (int64_t k = 0; k < param_logical_count(a); k++) {
            uint16_t want = bf16_from_float(((float *)a->master.data)[k]);
            assert_int_equal(((uint16_t *)b->value.data)[k], want);
            assert_true(((float *)b->master.data)[k] == bf16_to_float(want));
        }
    }
    safetensors_close(s), safetensors_close(half);
    test_model_free(wide), test_model_free(narrow);
    str_free(&conf);
    free(path);
    scratch_remove(scratch);
}
