/* An export whose files would import as a different model is an error, and leaves no file. The linker replaces
 * the two writers by __wrap_hf_config_export and __wrap_hf_export (tests/CMakeLists.txt). */
#include "unit/cmocka_all.h"

#include <dirent.h>

#include "ckpt/hf/config.h"
#include "ckpt/hf/folder.h"
#include "unit/ckpt/model.h"

static const char *planted_from, *planted_to; /* a line of config.json, and its replacement */
static const Registry *planted_weights;       /* the tensors that are written; NULL means the correct ones */

Err __real_hf_config_export(const Config *, DType, const json_t *, Str *json, HfFamily *);
Err __wrap_hf_config_export(const Config *c, DType dtype, const json_t *tokens, Str *json, HfFamily *family);
Err __wrap_hf_config_export(const Config *c, DType dtype, const json_t *tokens, Str *json, HfFamily *family) {
    const Err e = __real_hf_config_export(c, dtype, tokens, json, family);
    char *at = planted_from && json->s ? strstr(json->s, planted_from) : NULL;
    if (!at) return e;
    Str edited = {0};
    str_add(&edited, json->s, (size_t)(at - json->s));
    str_printf(&edited, "%s%s", planted_to, at + strlen(planted_from));
    str_free(json);
    *json = edited;
    return e;
}

Err __real_hf_export(const Registry *, HfFamily, const char *path, DType);
Err __wrap_hf_export(const Registry *r, HfFamily family, const char *path, DType dtype);
Err __wrap_hf_export(const Registry *r, HfFamily family, const char *path, DType dtype) {
    return __real_hf_export(planted_weights ? planted_weights : r, family, path, dtype);
}

static int entries(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    return n;
}

static const HfExtras overwrite = {.overwrite = true};

static Err write_folder(const char *dir, const TestModel *m, const HfExtras *x, Str *notes) {
    return hf_folder_write(dir, &(HfModel){&m->config, m->model->registry}, F32, x, notes);
}

static TestModel *qwen3_moe(void) {
    Str conf = slurp("golden/qwen3-moe-windows", "run.conf");
    TestModel *m = test_model_new(conf.s, F32);
    str_free(&conf);
    return m;
}

TEST(a_config_of_another_model_is_an_error) {
    static const char *const planted[][3] = {
        {"\"sliding_window\": 5", "\"sliding_window\": 6",
         "window_size is '[4, 0]' in the checkpoint and '[5, 0]' after import"},
        {"\"use_sliding_window\": true", "\"use_sliding_window\": false",
         "window_size is '[4, 0]' in the checkpoint and '[]' after import"},
        {"\"norm_topk_prob\": true", "\"norm_topk_prob\": false",
         "moe_router_pre_softmax is 'false' in the checkpoint and 'true' after import"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-05",
         "norm_epsilon is '1e-06' in the checkpoint and '1e-05' after import"},
        {"\"mlp_only_layers\": [\n    1\n", "\"mlp_only_layers\": [\n    0\n",
         "moe_layer_freq is \"[1,0,1]\" in the checkpoint"},
        {"\"model_type\": \"qwen3_moe\"", "\"model_type\": \"gpt3\"", "model_type is \"gpt3\""},
        {"\"num_attention_heads\": 6", "\"num_attention_heads\": 5", "num-query-groups"},
    };
    TestModel *m = qwen3_moe();
    char *scratch = scratch_new_in_memory(), *dir = mem_printf("%s/out", scratch);
    Str notes = {0};
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        planted_from = planted[i][0], planted_to = planted[i][1];
        assert_err(write_folder(dir, m, &(HfExtras){0}, &notes), planted[i][2]);
        assert_int_equal(entries(scratch), 0);
    }
    planted_from = NULL;
    assert_int_equal(notes.len, 0);
    test_model_free(m);
    free(dir);
    scratch_remove(scratch);
}

TEST(weights_of_another_model_are_an_error) {
    Str conf = slurp("golden/qwen2-moe-like", "run.conf"), notes = {0};
    TestModel *m = qwen3_moe(), *other = test_model_new(conf.s, F32);
    char *scratch = scratch_new_in_memory(), *dir = mem_printf("%s/out", scratch);
    planted_weights = other->model->registry;
    assert_err(write_folder(dir, m, &(HfExtras){0}, &notes), "does not match the model");
    planted_weights = NULL;
    assert_int_equal(entries(scratch), 0);
    test_model_free(m), test_model_free(other);
    str_free(&conf);
    free(dir);
    scratch_remove(scratch);
}

TEST(a_folder_is_replaced_whole_or_not_at_all) {
    TestModel *m = qwen3_moe();
    char *scratch = scratch_new_in_memory();
    Str notes = {0};
    assert_ok(write_folder(scratch, m, &(HfExtras){0}, &notes));
    assert_int_equal(entries(scratch), 3);
    Str config = slurp(scratch, "config.json"), weights = slurp(scratch, "model.safetensors");
    for (int64_t i = 0; i < m->model->registry->elements; i++) ((float *)m->model->registry->masters)[i] = 1;
    planted_from = "\"sliding_window\": 5", planted_to = "\"sliding_window\": 6";
    assert_err(write_folder(scratch, m, &(HfExtras){0}, &notes), "is not empty");
    assert_err(write_folder(scratch, m, &overwrite, &notes), "a different model");
    planted_from = NULL;
    assert_int_equal(entries(scratch), 3);
    Str config_then = slurp(scratch, "config.json"), weights_then = slurp(scratch, "model.safetensors");
    assert_string_equal(config_then.s, config.s);
    assert_true(weights_then.len == weights.len && !memcmp(weights_then.s, weights.s, weights.len));
    assert_ok(write_folder(scratch, m, &overwrite, &notes));
    str_free(&weights_then);
    weights_then = slurp(scratch, "model.safetensors");
    assert_int_equal(entries(scratch), 3);
    assert_true(weights_then.len == weights.len && memcmp(weights_then.s, weights.s, weights.len));
    str_free(&config), str_free(&weights), str_free(&config_then), str_free(&weights_then);
    test_model_free(m);
    scratch_remove(scratch);
}

/* Other programs prefer an index to model.safetensors, so an export deletes other weights. A leftover tokenizer is an
 * error. */
TEST(files_of_another_model_do_not_stay) {
    static const char *const weights[] = {"model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                          "pytorch_model.bin"},
                             *const tokenizers[] = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                                    "merges.txt", "special_tokens_map.json"};
    TestModel *m = qwen3_moe();
    char *scratch = scratch_new_in_memory();
    Str notes = {0};
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        char *path = mem_printf("%s/%s", scratch, tokenizers[i]);
        assert_ok(file_write_atomic(path, "x", 1));
        assert_err(write_folder(scratch, m, &(HfExtras){0}, &notes), tokenizers[i], "--overwrite");
        assert_err(write_folder(scratch, m, &overwrite, &notes), tokenizers[i], "empty folder");
        assert_int_equal(entries(scratch), 1);
        assert_ok(file_remove(path));
        free(path);
    }
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        char *path = mem_printf("%s/%s", scratch, weights[i]);
        assert_ok(file_write_atomic(path, "x", 1));
        assert_ok(write_folder(scratch, m, &overwrite, &notes));
        assert_false(file_exists(path));
        assert_int_equal(entries(scratch), 3);
        free(path);
    }
    char *path = mem_printf("%s/tokenizer.json", scratch);
    const HfExtras extras = {.files = {{path, "tokenizer.json", NULL}}, .num_files = 1, .overwrite = true};
    assert_ok(file_write_atomic(path, "x", 1));
    assert_ok(write_folder(scratch, m, &extras, &notes));
    assert_int_equal(entries(scratch), 4);
    test_model_free(m);
    free(path);
    scratch_remove(scratch);
}

/* config.json is moved first: it must stay if the other files cannot follow. */
TEST(a_folder_in_the_place_of_a_file_is_an_error) {
    static const char *const names[] = {"config.json", "model.safetensors", "generation_config.json"};
    TestModel *m = qwen3_moe();
    char *scratch = scratch_new_in_memory();
    Str notes = {0};
    assert_ok(write_folder(scratch, m, &(HfExtras){0}, &notes));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = mem_printf("%s/%s", scratch, names[i]);
        assert_ok(file_remove(path));
        assert_ok(file_mkdirs(path));
        assert_err(write_folder(scratch, m, &overwrite, &notes), names[i]);
        assert_int_equal(entries(scratch), 3);
        assert_ok(file_remove_tree(path));
        assert_ok(write_folder(scratch, m, &overwrite, &notes));
        free(path);
    }
    test_model_free(m);
    scratch_remove(scratch);
}

/* The tensors have the names of a dense model, but config.json still names the type. */
TEST(a_mixture_without_experts_is_written) {
    TestModel *m = test_model_new(
        "num-layers = 2\nhidden-size = 24\nnum-attention-heads = 4\nseq-length = 16\nvocab-size = 50\n"
        "hidden-dropout = 0\nattention-dropout = 0\nposition-embedding-type = rope\nnormalization = RMSNorm\n"
        "swiglu = true\ndisable-bias-linear = true\nqk-layernorm = true\nnum-experts = 4\n"
        "moe-layer-freq = [0,0]\nhf-model-type = qwen3_moe\n",
        F32);
    char *scratch = scratch_new_in_memory();
    Str notes = {0};
    assert_ok(write_folder(scratch, m, &(HfExtras){0}, &notes));
    Str config = slurp(scratch, "config.json");
    assert_non_null(strstr(config.s, "\"model_type\": \"qwen3_moe\""));
    assert_int_equal(notes.len, 0);
    str_free(&config);
    test_model_free(m);
    scratch_remove(scratch);
}
