/* Reads and writes config.json according to a model type's rows (type.h). */
#include "ckpt/hf/config.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json_text.h"
#include "ckpt/hf/form.h"
#include "ckpt/hf/quantized.h"

static const char TIED[] = "tie_word_embeddings";

/* ---- import ---- */

static Err check_quantization(const char *path, const json_t *quantized) {
    const char *method = json_string_value(json_object_get(quantized, "quant_method"));
    const HfQuantization *q = hf_quantization(method);
    if (quantized && !q)
        return err_user("'%s': the model is quantized with the unsupported method %s (quantization_config); "
                        "use the unquantized weights",
                        path, quote(method ? method : "unknown").s);
    json_t *size = q && q->side ? json_pack("[i,i]", q->side, q->side) : NULL;
    const bool fits = !size || json_equal(size, json_object_get(quantized, "weight_block_size"));
    json_decref(size);
    return fits ? ERR_OK
                : err_user("'%s': weight_block_size for the method %s must be [%d, %d], the only supported "
                           "size; use the unquantized weights",
                           path, quote(method).s, q->side, q->side);
}

static bool is_of_experts(const HfRow *row) {
    return row->option > OPTION_GROUP_MOE && row->option < OPTION_GROUP_INIT;
}

static bool is_of_mamba(const HfRow *row) {
    return (row->option >= OPTION_mamba_state_dim && row->option <= OPTION_mamba_dt_min) ||
           row->form == &hf_form_expand || row->form == &hf_form_silu;
}

/* For a type with latent attention, returns the row that contains the number of leading layers without experts.
 * Returns NULL for types without latent attention. For a dense model with latent attention, this row contains
 * the total number of layers, because no other type describes such a model. */
static const HfRow *dense_row(const HfRow *const *rows, int n) {
    const HfRow *first = NULL;
    bool latent = false;
    for (int i = 0; i < n; i++) {
        if (rows[i]->form == &hf_form_first_dense) first = rows[i];
        latent |= rows[i]->option == OPTION_multi_latent_attention;
    }
    return latent ? first : NULL;
}

/* Returns whether the file describes a model without experts. The type must allow experts. Sets r->lacks_mamba. */
static bool reads_dense(HfReader *r) {
    const HfRow *first = dense_row(r->rows, r->num_rows), *hybrid = hf_hybrid_row(r->rows, r->num_rows);
    if (first) return hf_get_count(r, first->key, (int64_t)first->fallback) >= hf_get_layers(r);
    Str letters = {0};
    const bool known = hybrid && hf_hybrid_letters(r, hybrid, &letters),
               dense = known && !strchr(letters.s, 'E');
    r->lacks_mamba = known && !strchr(letters.s, 'M');
    str_free(&letters);
    return dense;
}

/* Returns whether the row describes a part that the model lacks. */
static bool is_of_lacking_part(const HfRow *row, bool dense, bool lacks_mamba) {
    return (dense && is_of_experts(row)) || (lacks_mamba && is_of_mamba(row));
}

/* Hybrid types that consist of parts that Isotron lacks. */
static const char *const LACKING[][2] = {
    {"falcon_h1", "whose layers run attention and Mamba-2 in parallel, which is not supported"},
    {"jamba", "whose layers are Mamba-1, which is not supported"},
    {"lfm2", "whose layers are gated short convolutions, which are not supported"},
    {"zamba2", "whose layers share an attention block, which is not supported"}};

static Err refuse_type(HfReader *r, const char *name) {
    for (size_t i = 0; name && i < sizeof LACKING / sizeof *LACKING; i++)
        if (!strcmp(LACKING[i][0], name)) hf_refuse(r, "model_type", LACKING[i][1]);
    Str why = {0};
    str_puts(&why, "but only "), hf_type_names(&why), str_puts(&why, " can be read");
    hf_refuse(r, "model_type", why.s);
    str_free(&why);
    return r->err;
}

/* Types with a vision tower. Their config.json contains the configuration of a language model. The outer
 * tie_word_embeddings, whose default is `tied`, replaces the inner one. */
static const struct {
    const char *name;
    bool tied;
} NESTED[] = {
    {"gemma3", true}, {"llama4", false}, {"mistral3", true}, {"qwen3_5", false}, {"qwen3_5_moe", false}};

/* Continues with the configuration of the language model, if its type is `wanted`. Returns the type, or NULL if the file
 * is refused. */
static const HfType *enter_language_model(HfReader *r, const char *name, HfModelType wanted) {
    json_t *text = json_object_get(r->root, "text_config"), *tied = json_object_get(r->root, TIED);
    const char *inner = json_string_value(json_object_get(text, "model_type"));
    const HfType *type = hf_type_find(inner ? inner : "");
    size_t i = 0;
    while (i < sizeof NESTED / sizeof *NESTED && (!name || strcmp(NESTED[i].name, name))) i++;
    if (i == sizeof NESTED / sizeof *NESTED || !type) return refuse_type(r, name), NULL;
    if (wanted == HF_TYPES || type != &HF_TYPE[wanted]) {
        char *why =
            mem_printf("which has a vision tower, and Isotron has no vision models; to import only the "
                       "language model, add --hf-model-type %s",
                       type->name);
        hf_refuse(r, "model_type", why);
        free(why);
        return NULL;
    }
    if (tied)
        json_object_set(text, TIED, tied);
    else
        json_object_set_new(text, TIED, json_boolean(NESTED[i].tied));
    r->root = text;
    return type;
}

static Err import_root(HfReader *r, HfModelType wanted) {
    if (!json_is_object(r->root)) return err_user("'%s' is not a JSON object; download it again", r->path);
    ERR_RETURN(check_quantization(r->path, json_object_get(r->root, "quantization_config")));
    const char *name = json_string_value(json_object_get(r->root, "model_type"));
    const HfType *type = hf_type_find(name ? name : "");
    if (!type) type = enter_language_model(r, name, wanted);
    if (!type) return r->err;
    const HfRow *rows[HF_MOST_ROWS];
    r->rows = rows, r->num_rows = hf_type_rows(type, rows);
    hf_set_text(r, OPTION_hf_model_type, type->name);
    const bool dense = reads_dense(r);
    for (int i = 0; i < r->num_rows && !r->err.code; i++)
        if (rows[i]->form->read && !is_of_lacking_part(rows[i], dense, r->lacks_mamba))
            rows[i]->form->read(r, rows[i]);
    return r->err;
}

static Err import_text(const char *path, const Str *text, HfModelType wanted, Str *conf) {
    json_error_t where;
    json_t *root = json_loadb(text->s, text->len, JSON_REJECT_DUPLICATES, &where);
    HfReader r = {.root = root, .path = path, .out = conf};
    Err e = ERR_OK;
    if (root)
        e = import_root(&r, wanted);
    else if (json_error_code(&where) == json_error_stack_overflow)
        e = err_user("'%s' is nested too deeply for a model's configuration; download it again", path);
    else
        e = err_user("'%s' is not JSON (line %d: %s); download it again", path, where.line,
                     quote(where.text).s);
    json_decref(root), json_decref(r.usual_rope);
    return e;
}

Err hf_config_import(const char *path, HfModelType wanted, Str *conf) {
    Str text = {0};
    Err e = file_read(path, &text);
    json_text_numbers(&text);
    if (!e.code) e = import_text(path, &text, wanted, conf);
    str_free(&text);
    return e;
}

Err hf_config_parse(const char *path, const Str *conf, Arena *arena, Config *config) {
    Args args;
    args_init(&args, arena, "", NULL);
    args_use(&args, config_table(config, USE_ALL));
    args_bytes(&args, path, conf->s, conf->len);
    config_check(config, CHECK_MODEL, &args);
    const Err e = args_end(&args);
    args_free(&args);
    return e.code ? err_user("'%s' describes an invalid model: %s", path, e.msg) : ERR_OK;
}

static bool has_mtp(const Config *c, const Safetensors *weights) {
    char name[64];
    snprintf(name, sizeof name, "model.layers.%lld.eh_proj.weight", (long long)c->num_layers);
    return safetensors_find(weights, name) || safetensors_find(weights, name + strlen("model."));
}

void hf_config_fit(Config *c, const Safetensors *weights) {
    if (c->mtp_num_layers && !has_mtp(c, weights)) c->mtp_num_layers = 0;
    const bool unscaled = c->untie_embeddings_and_output_weights || c->logits_scaling == 1;
    if (!config_is_hf_t5(c) || !unscaled) return;
    const Tensor *output = safetensors_find(weights, "lm_head.weight"),
                 *embedding = safetensors_find(weights, "shared.weight");
    c->untie_embeddings_and_output_weights = output && !hf_is_copy(output, embedding);
    c->logits_scaling = 1;
}

void hf_config_fit_heads(Config *c, const Safetensors *weights, bool init_missing) {
    if (c->model != MODEL_bert || c->task != TASK_NONE) return;
    const bool possible = config_token_types(c) >= 2 && c->hf_model_type < HF_TYPES &&
                          strstr(HF_TYPE[c->hf_model_type].architecture, "ForPreTraining");
    c->bert_binary_head =
        possible && (init_missing || safetensors_find(weights, "cls.seq_relationship.weight"));
}

/* ---- reading an export back ---- */

/* Imports the text and compares the result with c. Sets *differences as hf_config_compare does, or to INT_MAX if the
 * import rejects the text. */
static Err read_text_back(const char *path, const Str *text, const Config *c, Str *notes, int *differences) {
    Str conf = {0};
    Config config = {0};
    Arena *arena = arena_new();
    *differences = INT_MAX;
    Err e = import_text(path, text, HF_TYPES, &conf);
    if (!e.code) e = hf_config_parse(path, &conf, arena, &config);
    if (!e.code) config_finish(&config, arena, 0);
    if (!e.code) e = hf_config_compare(c, &config, notes, differences);
    arena_free(arena);
    str_free(&conf);
    return e;
}

Err hf_config_read_back(const char *path, const Config *c, Str *notes) {
    Str text = {0};
    int differences;
    Err e = file_read(path, &text);
    if (!e.code) e = read_text_back(path, &text, c, notes, &differences);
    str_free(&text);
    return e;
}

/* ---- export ---- */

static bool lacks_experts(const HfRow *const *rows, int n, const Config *c) {
    return (dense_row(rows, n) || hf_hybrid_row(rows, n)) && !c->derived.num_moe_layers;
}

/* Writes the text of config.json, and returns the family for the tensors' names. */
static HfFamily write_rows(const HfType *t, const Config *filled, DType dtype, const json_t *tokens,
                           Str *out) {
    const HfRow *rows[HF_MOST_ROWS];
    const int n = hf_type_rows(t, rows);
    const bool dense = lacks_experts(rows, n, filled),
               no_mamba = hf_hybrid_row(rows, n) && !config_has_letter(filled, 'M');
    HfWriter w = {filled, tokens, NULL, t->family};
    const bool bert = filled->model == MODEL_bert;
    const size_t name = strcspn(t->architecture, "F"), length = strlen(t->architecture);
    char *architecture =
        mem_printf("%.*s%s", (int)(bert ? name : length), t->architecture, bert ? hf_bert_head(filled) : "");
    w.out = json_pack("{s:s, s:[s], s:s}", "model_type", t->name, "architectures", architecture,
                      "torch_dtype", hf_dtype_name(dtype));
    free(architecture);
    for (int i = 0; i < n; i++)
        if (rows[i]->form->write &&
            (!is_of_lacking_part(rows[i], dense, no_mamba) || rows[i]->form == &hf_form_first_dense))
            rows[i]->form->write(&w, rows[i]);
    json_print(out, w.out, 2, 0);
    str_puts(out, "\n");
    json_decref(w.out);
    return w.family;
}

/* Counts the values that the type implies but the model does not have. A different model family counts as more than all
 * other differences together. A type without a row for --model describes a GPT. */
static int count_unlike(const HfType *t, const Config *filled) {
    const HfRow *rows[HF_MOST_ROWS];
    const int n = hf_type_rows(t, rows);
    const bool dense = lacks_experts(rows, n, filled);
    int unlike = filled->model == MODEL_gpt ? 0 : HF_MOST_ROWS;
    for (int i = 0; i < n; i++) {
        Str value = {0};
        if (rows[i]->form != &hf_form_fixed || (dense && is_of_experts(rows[i]))) continue;
        arg_print(&CONFIG_ROWS[rows[i]->option], config_value(filled, rows[i]->option), &value);
        const bool differs = strcmp(value.s, hf_fixed_text(rows[i])) != 0;
        if (rows[i]->option == OPTION_model)
            unlike += differs ? HF_MOST_ROWS : filled->model == MODEL_gpt ? 0 : -HF_MOST_ROWS;
        else
            unlike += differs;
        str_free(&value);
    }
    return unlike;
}

/* Returns an error if the type belongs to another model family, or if either the type or the model has experts and the
 * other does not. */
static Err check_kind(const HfType *t, const Config *c) {
    const HfRow *rows[HF_MOST_ROWS];
    const char *family = ModelFamily_spellings[MODEL_gpt], *own = ModelFamily_spellings[c->model];
    const int n = hf_type_rows(t, rows);
    bool experts = false;
    for (int i = 0; i < n; i++) {
        if (rows[i]->option == OPTION_model) family = hf_fixed_text(rows[i]);
        experts |= rows[i]->option == OPTION_num_experts && rows[i]->form == &hf_form_experts;
    }
    if (strcmp(family, own))
        return err_user("this type describes a --model %s, but the model is a %s", family, own);
    const HfRow *hybrid = hf_hybrid_row(rows, n);
    const bool optional = c->multi_latent_attention ? dense_row(rows, n) != NULL
                                                    : hybrid && (c->hybrid_layer_pattern ||
                                                                 hybrid->form == &hf_form_attention_layers);
    if (experts && !i64_is_set(c->num_experts) && !optional)
        return err_user("this type has experts, but the model has no --num-experts");
    if (!experts && c->derived.num_moe_layers)
        return err_user("this type has no experts, but the model has --num-experts");
    return ERR_OK;
}

/* Writes the config.json of a Hugging Face model type, and reads it back to check it. Returns an error and no text if
 * the result describes another model. */
static Err write_type(const HfType *t, const Config *c, DType dtype, const json_t *tokens, Str *out,
                      HfFamily *family, int *differences) {
    *differences = INT_MAX;
    ERR_RETURN(check_kind(t, c));
    const Config filled = hf_config_filled(c);
    Str notes = {0};
    str_clear(out);
    *family = write_rows(t, &filled, dtype, tokens, out);
    const Err e = read_text_back("config.json", out, c, &notes, differences);
    str_free(&notes);
    if (e.code) str_clear(out);
    return e;
}

/* Writes config.json for the first type that fits the model. If no type fits, the error describes the nearest
 * type: the one that implies the fewest different values. Ties are broken in favour of the type with the
 * fewest differences after its file is read back. */
static Err write_first_fit(const Config *c, DType dtype, const json_t *tokens, Str *out, HfFamily *family) {
    const Config filled = hf_config_filled(c);
    int nearest = 0, fewest = INT_MAX, fewest_differences = INT_MAX, differences;
    for (int t = 0; t < HF_TYPES; t++) {
        const int unlike = count_unlike(&HF_TYPE[t], &filled);
        differences = INT_MAX;
        if (!unlike && !write_type(&HF_TYPE[t], c, dtype, tokens, out, family, &differences).code)
            return ERR_OK;
        if (unlike < fewest || (unlike == fewest && differences < fewest_differences))
            nearest = t, fewest = unlike, fewest_differences = differences;
    }
    const Err e = write_type(&HF_TYPE[nearest], c, dtype, tokens, out, family, &differences);
    return e.code ? err_user("no supported type of Hugging Face model has these options, so the model cannot "
                             "be exported; for the nearest type, %s, the reason is: %s",
                             HF_TYPE[nearest].name, e.msg)
                  : ERR_OK;
}

/* Rejects options that no type can express. */
static Err check_exportable(const Config *c) {
    if (c->model == MODEL_bert && c->task == TASK_NONE && c->activation == MLP_GELU &&
        c->derived.activation != MLP_GELU_ERF)
        return err_user(
            "this model cannot be exported: Megatron-LM's --activation gelu means gelu-tanh in its layers "
            "and gelu-erf in its head, and no Hugging Face BERT has both. Train with --activation gelu-tanh "
            "or --no-bias-gelu-fusion");
    if (c->derived.num_moe_layers && (c->derived.sinkhorn || c->derived.quantile))
        return err_user(
            "this model cannot be exported: no Hugging Face model type that Isotron can export balances "
            "its experts as --moe-router-load-balancing-type %s does",
            c->derived.sinkhorn ? "sinkhorn" : "quantile_balancing");
    return ERR_OK;
}

Err hf_config_export(const Config *c, DType dtype, const json_t *tokens, Str *json, HfFamily *family) {
    const HfType *type = c->hf_model_type == HF_TYPES ? NULL : &HF_TYPE[c->hf_model_type];
    int differences;
    Err e = type ? check_kind(type, c) : ERR_OK;
    if (!e.code) ERR_RETURN(check_exportable(c));
    if (!type) return write_first_fit(c, dtype, tokens, json, family);
    if (!e.code) e = write_type(type, c, dtype, tokens, json, family, &differences);
    return e.code ? err_user("this model cannot be exported as %s: %s; --hf-model-type none allows any type "
                             "that fits",
                             type->name, e.msg)
                  : ERR_OK;
}

const char *hf_config_type(const Config *c) {
    Str json = {0};
    HfFamily family;
    const HfType *type = NULL;
    if (c->hf_model_type != HF_TYPES) {
        type = &HF_TYPE[c->hf_model_type];
    } else if (!hf_config_export(c, F32, NULL, &json, &family).code) {
        json_t *root = json_loadb(json.s, json.len, 0, NULL);
        type = hf_type_find(json_string_value(json_object_get(root, "model_type")));
        json_decref(root);
    }
    str_free(&json);
    return type ? type->name : NULL;
}

Err hf_config_check_type(const Config *c) {
    Str json = {0};
    HfFamily family;
    const Err e = c->hf_model_type == HF_TYPES ? ERR_OK : hf_config_export(c, F32, NULL, &json, &family);
    str_free(&json);
    return e;
}
