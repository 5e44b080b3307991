/* config.json with the values that transformers gives to the keys of each model type (tools/oracle/hf_defaults.py). */
#include "unit/cmocka_all.h"

#include <jansson.h>

#include "ckpt/hf/config.h"
#include "ckpt/hf/type.h"
#include "unit/ckpt/hf_models.h"
#include "unit/ckpt/model.h"

/* Writes the object as config.json, and returns the options of its import, or NULL if it is refused. */
static char *import(const char *path, const json_t *root, Err *e) {
    Str conf = {0};
    char *text = json_dumps(root, 0);
    write_text(path, text);
    free(text);
    *e = hf_config_import(path, HF_TYPES, &conf);
    if (e->code) str_free(&conf);
    return conf.s;
}

/* Returns whether the object scales RoPE. Such an object has no defaults for its keys. */
static bool is_scaled(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "rope_type"));
    return type && strcmp(type, "default") != 0;
}

/* Compares the options of `root`, where `key` in `object` is absent or changed, with those of the original. */
typedef void Compare(const char *type, const char *key, const char *part, const char *whole, Err e);

/* Returns the value that replaces another, or NULL if the key is to be absent. */
typedef json_t *Change(const json_t *);

static void each_key(const char *path, json_t *root, json_t *object, const char *whole, Change *change,
                     Compare *compare) {
    const char *key, *type = json_string_value(json_object_get(root, "model_type"));
    json_t *value, *keys = json_copy(object);
    json_object_foreach(keys, key, value) {
        if (!strcmp(key, "architectures")) continue;
        json_t *other = change(value);
        if (json_is_object(value) && (other || !is_scaled(value)))
            each_key(path, root, value, whole, change, compare);
        if (other)
            json_object_set_new(object, key, other);
        else
            json_object_del(object, key);
        Err e;
        char *part = import(path, root, &e);
        compare(type, key, part, whole, e);
        free(part);
        json_object_set(object, key, value);
    }
    json_decref(keys);
}

static void for_each_type(Change *change, Compare *compare) {
    json_t *all = json_load_file("tests/data/hf/defaults.json", 0, NULL);
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    for (int t = 0; t < HF_TYPES; t++) {
        json_t *root = json_object_get(all, HF_TYPE[t].name);
        if (!root) fail_msg("run tools/oracle/hf_defaults.py for the type %s", HF_TYPE[t].name);
        json_object_set_new(root, "architectures", json_pack("[s]", HF_TYPE[t].architecture));
        Err e;
        char *whole = import(path, root, &e);
        if (e.code) fail_msg("%s: %s", HF_TYPE[t].name, e.msg);
        each_key(path, root, root, whole, change, compare);
        free(whole);
    }
    free(path);
    scratch_remove(scratch);
    json_decref(all);
}

static json_t *removed(__attribute__((unused)) const json_t *value) { return NULL; }

static void assert_equal(const char *type, const char *key, const char *part, const char *whole, Err e) {
    if (e.code ? !strstr(e.msg, "missing") : strcmp(part, whole) != 0)
        fail_msg("%s without %s: %s\n%s", type, key, e.code ? e.msg : part, whole);
}

TEST(an_absent_key_has_the_default_of_transformers) { for_each_type(removed, assert_equal); }

/* Keys that change no option, because they do not change the model or because another key in the file, such as
 * layer_types, overrules them; and the types for which this is true. */
static const char *const UNSEEN[][2] = {
    {"classifier_dropout", " gpt_neox gpt_neo bert roberta xlm-roberta t5 mt5 "},
    {"decoder_start_token_id", " mt5 "},
    {"embd_pdrop", " gpt2 phi3 phi gpt_bigcode gptj "},
    {"embed_dropout", " gpt_neo "},
    {"embedding_dropout", " starcoder2 "},
    {"expand", " nemotron_h "},
    {"first_k_dense_replace", " exaone_moe "},
    {"head_dim", " deepseek_v2 "},
    {"hidden_act", " gpt_oss "},
    {"hidden_dropout", " nemotron_h "},
    {"interleave_moe_layer_step", " llama4_text "},
    {"is_decoder", " gpt_neox "},
    {"layer_norm_eps", " biogpt "},
    {"mamba_proj_bias", " nemotron_h "},
    {"max_window_layers", " qwen2 qwen3 qwen2_moe dots1 "},
    {"moe_layer_end_index", " ernie4_5_moe "},
    {"n_group", " deepseek_v2 "},
    {"n_shared_experts", " nemotron_h "},
    {"no_rope_layer_interval", " smollm3 llama4_text "},
    {"norm_topk_prob", " deepseek_v2 "},
    {"num_key_value_heads", " gpt_bigcode "},
    {"num_kv_heads", " falcon "},
    {"num_ln_in_parallel_attn", " falcon "},
    {"original_max_position_embeddings", " phi3 "},
    {"resid_pdrop", " mpt "},
    {"rope_type", " granitemoehybrid "},
    {"router_jitter_noise", " mixtral minimax_m2 llama4_text "},
    {"sliding_window", " qwen2 qwen3 qwen2_moe qwen3_moe smollm3 dots1 nemotron_h "},
    {"sliding_window_pattern", " exaone4 exaone_moe "},
    {"time_step_limit", " nemotron_h "},
    {"time_step_min", " mamba2 "},
    {"topk_group", " deepseek_v2 "},
    {"use_sliding_window", " qwen2 qwen3 qwen3_moe smollm3 "},
};

static bool is_unseen(const char *type, const char *key) {
    char *word = mem_printf(" %s ", type);
    bool found = false;
    for (size_t i = 0; i < sizeof UNSEEN / sizeof *UNSEEN; i++)
        found |= !strcmp(key, UNSEEN[i][0]) && strstr(UNSEEN[i][1], word);
    free(word);
    return found;
}

static void assert_seen(const char *type, const char *key, const char *part, const char *whole, Err e) {
    if (is_unseen(type, key) != (!e.code && !strcmp(part, whole)))
        fail_msg("%s: a changed %s is %s", type, key,
                 e.code                 ? e.msg
                 : is_unseen(type, key) ? "read"
                                        : "ignored");
}

TEST(a_changed_key_is_read_or_refused) { for_each_type(altered, assert_seen); }

/* Other names that are not read: the file is refused, because the key is missing. */
static bool is_unread(const char *type, const char *other) {
    return strstr(type, "t5") && !strcmp(other, "head_dim");
}

static void check_other_names(const char *path, json_t *root, const char *type, json_t *names) {
    const char *other;
    json_t *key;
    Err e;
    char *whole = import(path, root, &e);
    json_object_foreach(names, other, key) {
        json_t *value = json_incref(json_object_get(root, json_string_value(key)));
        if (!value) continue;
        json_object_del(root, json_string_value(key));
        json_object_set(root, other, value);
        char *part = import(path, root, &e);
        if (!part != is_unread(type, other) || (part && strcmp(part, whole) != 0))
            fail_msg("%s with %s: %s", type, other, part ? part : e.msg);
        free(part);
        json_object_del(root, other);
        json_object_set_new(root, json_string_value(key), value);
    }
    free(whole);
}

TEST(another_name_of_a_key_is_read) {
    json_t *all = json_load_file("tests/data/hf/defaults.json", 0, NULL), *names;
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    const char *type;
    json_object_foreach(json_object_get(all, "aliases"), type, names)
        check_other_names(path, json_object_get(all, type), type, names);
    free(path);
    scratch_remove(scratch);
    json_decref(all);
}
