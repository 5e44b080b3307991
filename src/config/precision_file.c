/* Reads the file of --te-precision-config-file, as Megatron-LM does (core/quantization/quant_config.py and
 * TEQuantizationParams in core/extensions/transformer_engine.py). `matchers` is an ordered list of patterns for modules'
 * names. Each enabled matcher names an entry of `configs`, which describes a recipe. As in Megatron-LM, only entries
 * that enabled matchers name are checked. */
#include <string.h>

#include "base/file.h"
#include "config/config.h"

#ifndef ISOTRON_YAML

void config_read_precision(Config *c, Args *args) {
    if (c->te_precision_config_file)
        args_problem(
            args,
            "--te-precision-config-file needs libyaml: build Isotron with libyaml (ci/install-deps), or "
            "remove this option.");
}

#else

#include <yaml.h>

typedef struct Reader {
    yaml_document_t *document;
    const char *path;
    Args *args;
    bool failed;
} Reader;

#define REFUSE(r, node, fmt, ...)                                                                            \
    ((r)->failed = true, args_problem((r)->args, "%s:%zu: " fmt, (r)->path,                                  \
                                      (node)->start_mark.line + 1 __VA_OPT__(, ) __VA_ARGS__))

/* ---- nodes ---- */

static yaml_node_t *node_at(const Reader *r, int index) { return yaml_document_get_node(r->document, index); }

/* Returns a scalar's text, or NULL for other nodes. No text in a valid file contains the byte 0. */
static const char *text_of(const yaml_node_t *n) {
    return n->type == YAML_SCALAR_NODE && !memchr(n->data.scalar.value, 0, n->data.scalar.length)
               ? (const char *)n->data.scalar.value
               : NULL;
}

/* Returns the text of a scalar without quotes, or NULL. */
static const char *plain_text_of(const yaml_node_t *n) {
    const char *text = text_of(n);
    return text && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? text : NULL;
}

/* Returns the first pair of the mapping with this key, or NULL. */
static const yaml_node_pair_t *find(const Reader *r, const yaml_node_t *mapping, const char *key) {
    for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < mapping->data.mapping.pairs.top;
         p++) {
        const char *text = text_of(node_at(r, p->key));
        if (text && !strcmp(text, key)) return p;
    }
    return NULL;
}

/* Refuses nodes that are not mappings, and repeated keys, of which Megatron-LM would use the last. */
static bool check_mapping(Reader *r, const yaml_node_t *n, const char *what) {
    if (n->type != YAML_MAPPING_NODE) {
        REFUSE(r, n, "%s must be a mapping.", what);
        return false;
    }
    for (const yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = node_at(r, p->key);
        const char *text = text_of(key);
        if (text && find(r, n, text) != p)
            REFUSE(r, key, "%s has the key '%s' twice. Remove one.", what, text);
    }
    return !r->failed;
}

/* Sets found[i] to the value of the i-th key, or to NULL. Refuses other keys. */
static void read_mapping(Reader *r, const yaml_node_t *n, const char *what, const char *const *keys,
                         int n_keys, yaml_node_t **found) {
    for (int i = 0; i < n_keys; i++) found[i] = NULL;
    if (!check_mapping(r, n, what)) return;
    for (const yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = node_at(r, p->key);
        const char *text = text_of(key);
        int i = 0;
        while (i < n_keys && (!text || strcmp(text, keys[i]) != 0)) i++;
        if (i == n_keys)
            REFUSE(r, key, "%s has the key '%s', which Isotron does not support. Remove it.", what,
                   text ? text : "?");
        else
            found[i] = node_at(r, p->value);
    }
}

/* Returns the value of a YAML 1.1 boolean, or `fallback` if the node is NULL. */
static bool read_flag(Reader *r, const yaml_node_t *n, bool fallback) {
    static const char *const WORDS[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"},
                             *const NOT[] = {"false", "False", "FALSE", "no", "No",
                                             "NO",    "off",   "Off",   "OFF"};
    const char *text = n ? plain_text_of(n) : NULL;
    for (size_t i = 0; text && i < sizeof WORDS / sizeof *WORDS; i++)
        if (!strcmp(text, WORDS[i]) || !strcmp(text, NOT[i])) return !strcmp(text, WORDS[i]);
    if (n) REFUSE(r, n, "the value must be true or false.");
    return fallback;
}

/* ---- recipes ---- */

enum { RECIPE, FORMAT, OVERRIDES, ENABLES, TP_ONLY, FP8_PARAM, FP4, FP4_PARAM, FACTORY, RECIPE_KEYS };
static const char *const RECIPE_NAMES[RECIPE_KEYS] = {
    "fp8_quantization_recipe",        "fp8_format",       "override_quantized_autocast",
    "override_nonquantized_autocast", "tp_only_amax_red", "fp8_param",
    "fp4_quantization_recipe",        "fp4_param",        "custom_recipe_factory"};

static bool is_null(const yaml_node_t *n) {
    static const char *const NULLS[] = {"", "~", "null", "Null", "NULL", NULL};
    const char *text = n ? plain_text_of(n) : NULL;
    return !n || (text && enum_find(NULLS, text) >= 0);
}

/* Returns the index of the node's text among the spellings. */
static int read_choice(Reader *r, const yaml_node_t *n, const char *const *spellings, const char *remedy) {
    const char *text = text_of(n);
    const int choice = text ? enum_find(spellings, text) : -1;
    if (choice < 0) REFUSE(r, n, "'%s' is not supported: %s", text ? text : "?", remedy);
    return choice;
}

static void read_recipe(Reader *r, const yaml_node_t *n, PrecisionRule *out) {
    yaml_node_t *at[RECIPE_KEYS];
    read_mapping(r, n, "training_recipe", RECIPE_NAMES, RECIPE_KEYS, at);
    for (int i = FP4; i <= FACTORY; i++)
        if (i == FP4_PARAM ? read_flag(r, at[i], false) : !is_null(at[i]))
            REFUSE(r, at[i], "Isotron does not support %s. Use fp8_quantization_recipe.", RECIPE_NAMES[i]);
    for (int i = TP_ONLY; i <= FP8_PARAM; i++)
        if (read_flag(r, at[i], false))
            REFUSE(r, at[i], "Isotron does not support %s. Remove it.", RECIPE_NAMES[i]);
    out->overrides_fp8 = read_flag(r, at[OVERRIDES], true);
    out->overrides_bf16 = read_flag(r, at[ENABLES], false);
    if (is_null(at[RECIPE])) {
        if (at[FORMAT])
            REFUSE(r, at[FORMAT], "fp8_format applies only with fp8_quantization_recipe. Remove it.");
        return;
    }
    out->recipe = (Fp8Recipe)read_choice(r, at[RECIPE], Fp8Recipe_spellings, "use tensorwise or blockwise.");
    out->format = FP8_E4M3;
    if (at[FORMAT])
        out->format = (Fp8Format)read_choice(r, at[FORMAT], Fp8Format_spellings, "use e4m3 or hybrid.");
    if (out->recipe == FP8_DELAYED)
        REFUSE(r, at[RECIPE],
               "delayed scaling of single modules is not supported, as in Megatron-LM: use tensorwise or "
               "blockwise.");
    if (out->format == FP8_NONE) REFUSE(r, at[FORMAT], "'none' is not supported: use e4m3 or hybrid.");
}

static void read_config(Reader *r, const yaml_node_t *n, PrecisionRule *out) {
    static const char *const KEYS[] = {"transformer_engine_config_type", "training_recipe",
                                       "evaluation_recipe"};
    yaml_node_t *at[3];
    read_mapping(r, n, "a config", KEYS, 3, at);
    if (r->failed) return;
    const char *type = at[0] ? text_of(at[0]) : NULL;
    if (!type || strcmp(type, "TEQuantizationParams") != 0)
        REFUSE(r, n, "%s must be TEQuantizationParams.", KEYS[0]);
    if (at[2]) REFUSE(r, at[2], "Isotron evaluates with the training recipe. Remove %s.", KEYS[2]);
    if (at[1])
        read_recipe(r, at[1], out);
    else
        REFUSE(r, n, "the config has no %s. Add it.", KEYS[1]);
}

/* ---- matchers ---- */

/* Returns whether the matcher is enabled. */
static bool read_matcher(Reader *r, const yaml_node_t *n, const yaml_node_t *configs, PrecisionRule *out) {
    static const char *const KEYS[] = {"enabled", "type", "pattern", "config"};
    yaml_node_t *at[4];
    read_mapping(r, n, "a matcher", KEYS, 4, at);
    if (r->failed || !read_flag(r, at[0], false)) return false;
    for (int i = 1; i < 4; i++)
        if (!at[i] || !text_of(at[i])) {
            REFUSE(r, n, "the matcher has no %s. Add it.", KEYS[i]);
            return false;
        }
    const char *pattern = text_of(at[2]), *name = text_of(at[3]);
    if (strcmp(text_of(at[1]), "glob") != 0)
        REFUSE(r, at[1], "'%s' is not supported: use glob.", text_of(at[1]));
    if (strstr(pattern, "[^") || strstr(pattern, "[["))
        REFUSE(r, at[2], "'%s': [^ and [[ are not supported: use [!.", pattern);
    *out = (PrecisionRule){.pattern = arena_printf(r->args->arena, "%s", pattern)};
    const yaml_node_pair_t *config = configs ? find(r, configs, name) : NULL;
    if (config)
        read_config(r, node_at(r, config->value), out);
    else
        REFUSE(r, at[3], "configs has no entry '%s'. Add it.", name);
    return true;
}

static void read_matchers(Reader *r, const yaml_node_t *n, const yaml_node_t *configs, PrecisionRules *out) {
    const yaml_node_pair_t *first = n->data.mapping.pairs.start, *end = n->data.mapping.pairs.top;
    out->at = arena_alloc(r->args->arena, (size_t)(end - first + 1) * sizeof *out->at);
    for (const yaml_node_pair_t *p = first; p < end && !r->failed; p++)
        out->count += read_matcher(r, node_at(r, p->value), configs, &out->at[out->count]);
}

static void read_root(Reader *r, const yaml_node_t *root, PrecisionRules *out) {
    static const char *const KEYS[] = {"configs", "matchers"};
    yaml_node_t *at[2];
    read_mapping(r, root, "the file", KEYS, 2, at);
    for (int i = 0; i < 2; i++)
        if (at[i]) check_mapping(r, at[i], KEYS[i]);
    if (at[1] && !r->failed) read_matchers(r, at[1], at[0], out);
}

/* Reads the next document. Returns false if it is empty, or after the last document. */
static bool read_document(Reader *r, yaml_parser_t *parser, PrecisionRules *out) {
    yaml_document_t document;
    if (!yaml_parser_load(parser, &document)) {
        args_problem(r->args, "%s:%zu: this is not YAML: %s.", r->path, parser->problem_mark.line + 1,
                     parser->problem ? parser->problem : "it is damaged");
        r->failed = true;
        return false;
    }
    r->document = &document;
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    if (root && out) read_root(r, root, out);
    if (root && !out) REFUSE(r, root, "a second document begins here. Remove it.");
    yaml_document_delete(&document);
    return root != NULL;
}

void config_read_precision(Config *c, Args *args) {
    const char *path = c->te_precision_config_file;
    Reader r = {.path = path, .args = args};
    Str text = {0};
    yaml_parser_t parser;
    if (!path) return;
    const Err e = file_read_stream(path, &text);
    if (e.code) args_problem(args, "%s", e.msg);
    if (!e.code && yaml_parser_initialize(&parser)) {
        yaml_parser_set_input_string(&parser, (const unsigned char *)(text.s ? text.s : ""), text.len);
        if (read_document(&r, &parser, &c->precision_rules) && !r.failed) read_document(&r, &parser, NULL);
        if (!r.failed && !c->precision_rules.count)
            args_problem(
                args,
                "'%s' has no enabled matcher. Add 'enabled: true', or remove --te-precision-config-file.",
                path);
        yaml_parser_delete(&parser);
    }
    str_free(&text);
}

#endif
