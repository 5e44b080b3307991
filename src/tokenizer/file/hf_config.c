#include "tokenizer/file/hf_config.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "tokenizer/text/field.h"

static const char CONFIG[] = "tokenizer_config.json", MAP[] = "special_tokens_map.json",
                  ADDED[] = "added_tokens.json", TOKENIZER[] = "tokenizer.json";

/* The named tokens, in the order in which transformers adds them. */
static const char *const NAMED[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
enum { NUM_NAMED = sizeof NAMED / sizeof *NAMED };

void hf_config_free(HfConfig *c) {
    free(c->dir);
    json_decref(c->settings), json_decref(c->declared);
    json_decref(c->model_type), json_decref(c->tokenizer_class);
}

/* Reads a JSON object. *out stays NULL if the file does not exist. */
static Err read_file(const char *dir, const char *name, json_t **out) {
    char *path = mem_printf("%s/%s", dir, name);
    Err e = file_exists(path) ? json_file(path, out) : ERR_OK;
    if (!e.code && *out && !json_is_object(*out)) e = err_user("'%s' must contain a JSON object", path);
    free(path);
    return e;
}

/* ---- tokens ---- */

static const json_t *content_of(const json_t *token) {
    return json_is_object(token) ? json_object_get(token, "content") : token;
}

/* Computes AddedToken(**token) or, if `token` is a text, AddedToken(text, special=True). The result has the key
 * "normalized" only if `token` has it. A token without the key "normalized" counts as normalized, unless it is
 * or becomes special. */
static Err token_of(const json_t *token, const char *file, json_t **out) {
    static const char *const FLAGS[] = {"single_word", "lstrip", "rstrip"};
    const json_t *content = content_of(token);
    if (!json_is_string(content) || strlen(json_string_value(content)) != json_string_length(content))
        return err_user("'%s' has a token without a text in \"content\"", file);
    bool special = json_is_string(token), normalized, flag;
    const json_t *given = json_object_get(token, "normalized");
    json_t *made = json_object();
    json_object_set(made, "content", (json_t *)content);
    Err e = special ? ERR_OK : field_bool(token, file, "special", false, &special);
    if (!e.code) e = field_bool(token, file, "normalized", false, &normalized);
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS && !e.code; i++) {
        e = field_bool(token, file, FLAGS[i], false, &flag);
        json_object_set_new(made, FLAGS[i], json_boolean(flag));
    }
    if (e.code) {
        json_decref(made);
        return e;
    }
    json_object_set_new(made, "special", json_boolean(special));
    if (json_is_boolean(given)) json_object_set_new(made, "normalized", json_boolean(normalized));
    *out = made;
    return ERR_OK;
}

static const char *text_of(const json_t *token) { return json_string_value(content_of(token)); }

/* Adds a token with an id to c->declared. `ids` contains {id: text} for the declared tokens. */
static Err declare(HfConfig *c, json_t *ids, const json_t *token, json_int_t id, const char *file) {
    json_t *made = NULL;
    char key[24];
    ERR_RETURN(token_of(token, file, &made));
    json_object_set_new(made, "id", json_integer(id));
    json_object_set_new(made, "from", json_string(file));
    snprintf(key, sizeof key, "%lld", (long long)id);
    const char *text = text_of(made), *other = json_string_value(json_object_get(ids, key));
    Err e = ERR_OK;
    if (other && strcmp(text, other))
        e = err_user("'%s/%s' gives '%.60s' the id %s, which belongs to '%.60s' in %s", c->dir, file, text,
                     key, other,
                     json_string_value(json_object_get(json_object_get(c->declared, other), "from")));
    json_object_set(ids, key, json_object_get(made, "content"));
    json_object_set_new(c->declared, text, made);
    return e;
}

/* Declares the tokens of "added_tokens_decoder": {"7": token}. */
static Err declare_decoder(HfConfig *c, json_t *ids, const json_t *decoder) {
    const char *key;
    json_t *token;
    if (!json_is_object(decoder))
        return err_user("'%s/%s': added_tokens_decoder must be an object", c->dir, CONFIG);
    json_object_foreach((json_t *)decoder, key, token) {
        char *end;
        const long long id = strtoll(key, &end, 10);
        if (!*key || *end || !json_is_object(token))
            return err_user("'%s/%s': added_tokens_decoder must map ids to tokens, but has '%.60s'", c->dir,
                            CONFIG, key);
        ERR_RETURN(declare(c, ids, token, id, CONFIG));
    }
    return ERR_OK;
}

/* ---- settings ---- */

static bool is_named(const char *key) {
    for (size_t i = 0; i < NUM_NAMED; i++)
        if (!strcmp(key, NAMED[i])) return true;
    return false;
}

/* Adds the content of special_tokens_map.json to the settings. The tokens in special_tokens_map.json are
 * special, and its extra_special_tokens are appended to those of tokenizer_config.json. */
static void merge_map(HfConfig *c, const json_t *map) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value) {
        json_t *old = json_object_get(c->settings, key);
        if (!strcmp(key, "extra_special_tokens") && !json_array_extend(old, value)) continue;
        if (json_is_object(value) && strcmp(key, "extra_special_tokens"))
            json_object_set_new(value, "special", json_true()), json_object_del(value, "__type");
        json_object_set(c->settings, key, value);
    }
}

/* Returns whether a string or an object of special_tokens_map.json names this text as a special token. */
static bool is_special_setting(const HfConfig *c, const char *text) {
    for (size_t i = 0; i < NUM_NAMED; i++) {
        const char *named = hf_config_token(c, NAMED[i]);
        if (named && !strcmp(named, text) &&
            !json_object_get(json_object_get(c->settings, NAMED[i]), "__type"))
            return true;
    }
    const json_t *extra = json_object_get(c->settings, "extra_special_tokens");
    for (size_t i = 0; i < json_array_size(extra); i++) {
        const char *one = text_of(json_array_get(extra, i));
        if (one && !strcmp(one, text)) return true;
    }
    return false;
}

/* Declares the tokens of added_tokens.json, {text: id}. A token is special if the settings name it. */
static Err declare_added(HfConfig *c, json_t *ids, const json_t *added) {
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)added, text, id) {
        if (!json_is_integer(id))
            return err_user("'%s/%s': the id of '%.60s' must be an integer", c->dir, ADDED, text);
        const bool special = is_special_setting(c, text);
        json_t *token =
            json_pack("{s:s,s:b,s:b}", "content", text, "special", special, "normalized", !special);
        const Err e = declare(c, ids, token, json_integer_value(id), ADDED);
        json_decref(token);
        if (e.code) return e;
    }
    return ERR_OK;
}

static Err declare_tokenizer(HfConfig *c, json_t *ids, const json_t *tokenizer) {
    const json_t *list;
    ERR_RETURN(field_array(tokenizer, "tokenizer", "added_tokens", &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id;
        ERR_RETURN(field_int(json_array_get(list, i), "added_tokens", "id", &id));
        ERR_RETURN(declare(c, ids, json_array_get(list, i), id, TOKENIZER));
    }
    return ERR_OK;
}

static void rename_additional(HfConfig *c) {
    const json_t *extra = json_object_get(c->settings, "extra_special_tokens");
    json_t *additional = json_object_get(c->settings, "additional_special_tokens");
    if (!additional || json_array_size(extra) || json_object_size(extra)) return;
    json_object_set(c->settings, "extra_special_tokens", additional);
    json_object_del(c->settings, "additional_special_tokens");
}

static Err merge(HfConfig *c, const json_t *map, const json_t *added, const json_t *tokenizer) {
    json_t *ids = json_object();
    Err e = ERR_OK;
    const json_t *decoder = json_object_get(c->settings, "added_tokens_decoder");
    rename_additional(c);
    if (decoder)
        e = declare_decoder(c, ids, decoder);
    else {
        merge_map(c, map);
        e = declare_added(c, ids, added);
        if (!e.code) e = declare_tokenizer(c, ids, tokenizer);
    }
    json_decref(ids);
    return e;
}

Err hf_config_read(const char *dir, const json_t *tokenizer, HfConfig *c) {
    json_t *map = NULL, *added = NULL, *config = NULL;
    c->dir = mem_strdup(dir);
    c->declared = json_object();
    Err e = read_file(dir, CONFIG, &c->settings);
    if (!e.code) e = read_file(dir, MAP, &map);
    if (!e.code) e = read_file(dir, ADDED, &added);
    if (!e.code) e = read_file(dir, "config.json", &config);
    c->exists = c->settings != NULL;
    if (!c->settings) c->settings = json_object();
    const json_t *class = json_object_get(c->settings, "tokenizer_class");
    if (!json_is_string(class)) class = json_object_get(config, "tokenizer_class");
    c->tokenizer_class = json_incref((json_t *)class);
    c->model_type = json_incref(json_object_get(config, "model_type"));
    if (tokenizer)
        json_object_del(c->settings, "add_bos_token"), json_object_del(c->settings, "add_eos_token");
    if (!e.code) e = merge(c, map, added, tokenizer);
    json_decref(map), json_decref(added), json_decref(config);
    return e;
}

const char *hf_config_token(const HfConfig *c, const char *key) {
    return text_of(json_object_get(c->settings, key));
}

json_t *hf_config_named(const HfConfig *c) {
    json_t *named = json_object();
    for (size_t i = 0; i < NUM_NAMED; i++) {
        const json_t *token = json_object_get(c->settings, NAMED[i]),
                     *text = token ? content_of(token) : NULL;
        if (json_is_string(text)) json_object_set(named, NAMED[i], (json_t *)text);
    }
    return named;
}

/* ---- added tokens ---- */

static int by_id(const void *x, const void *y) {
    const json_int_t a = json_integer_value(json_object_get(*(json_t *const *)x, "id")),
                     b = json_integer_value(json_object_get(*(json_t *const *)y, "id"));
    return (a > b) - (a < b);
}

/* Returns whether the key names a token that is not in NAMED, such as image_token. */
static bool names_token(const char *key, const json_t *value) {
    const size_t n = strlen(key);
    return n > 6 && !strcmp(key + n - 6, "_token") && !is_named(key) &&
           (json_is_string(value) || json_object_get(value, "content"));
}

/* Returns whether a setting names this text. A token with a named text is special. */
static bool names_text(const HfConfig *c, const char *text) {
    const char *key, *named;
    json_t *value;
    json_object_foreach(c->settings, key, value) if ((is_named(key) || names_token(key, value)) &&
                                                     (named = text_of(value)) &&
                                                     !strcmp(named, text)) return true;
    return false;
}

static bool is_normalized(const json_t *token) {
    const json_t *given = json_object_get(token, "normalized");
    return given ? json_is_true(given) : !json_is_true(json_object_get(token, "special"));
}

static bool has_same_flags(const json_t *a, const json_t *b) {
    static const char *const FLAGS[] = {"single_word", "lstrip", "rstrip", "special"};
    bool same = is_normalized(a) == is_normalized(b);
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++)
        same &= json_is_true(json_object_get(a, FLAGS[i])) == json_is_true(json_object_get(b, FLAGS[i]));
    return same;
}

/* Adds a token, or replaces the flags of an existing token. A special token stays special. */
static Err put(const HfConfig *c, json_t *tokens, json_t *token) {
    const json_t *old = json_object_get(tokens, text_of(token)), *id = json_object_get(token, "id"),
                 *old_id = json_object_get(old, "id");
    if (id && old_id && !json_equal(id, old_id))
        return err_user("'%s/%s' gives '%.60s' the id %lld, but tokenizer.json gives it %lld", c->dir,
                        json_string_value(json_object_get(token, "from")), text_of(token),
                        (long long)json_integer_value(id), (long long)json_integer_value(old_id));
    json_t *made = json_copy(token);
    if (json_is_true(json_object_get(old, "special"))) json_object_set_new(made, "special", json_true());
    if (old_id) json_object_set(made, "id", (json_t *)old_id);
    json_object_set_new(tokens, text_of(token), made);
    return ERR_OK;
}

/* Adds the declared tokens. If others_only is set, omits the tokens declared in tokenizer.json, which `tokens`
 * already contains. */
static Err put_declared(const HfConfig *c, bool others_only, json_t *tokens) {
    const size_t n = json_object_size(c->declared);
    json_t **sorted = mem_alloc((n + 1) * sizeof *sorted), *token;
    const char *text;
    size_t i = 0;
    json_object_foreach(c->declared, text, token) sorted[i++] = token;
    if (n) qsort(sorted, n, sizeof *sorted, by_id);
    Err e = ERR_OK;
    for (i = 0; i < n && !e.code; i++) {
        const char *from = json_string_value(json_object_get(sorted[i], "from"));
        if (others_only && !strcmp(from, TOKENIZER)) continue;
        const json_t *old = json_object_get(tokens, text_of(sorted[i]));
        if (names_text(c, text_of(sorted[i])) && !(old && has_same_flags(old, sorted[i])))
            json_object_set_new(sorted[i], "special", json_true());
        e = put(c, tokens, sorted[i]);
    }
    free(sorted);
    return e;
}

/* Adds a token from the settings unless another token has the same text. A declared token keeps its flags. If
 * `again` is set, the flags of an existing token are replaced, because transformers treats two settings with
 * the same text but different flags as two tokens, and applies the second token's flags. */
static Err put_named(const HfConfig *c, json_t *tokens, const json_t *value, bool named, bool again) {
    if (!value || json_is_null(value) || (named && !json_is_string(value) && !json_is_object(value)))
        return ERR_OK;
    json_t *made = NULL;
    ERR_RETURN(token_of(value, CONFIG, &made));
    Err e = ERR_OK;
    json_t *given = json_copy(made);
    if (named || names_text(c, text_of(made))) json_object_set_new(made, "special", json_true());
    json_object_set_new(made, "given", given);
    const json_t *old = json_object_get(tokens, text_of(made)), *old_given = json_object_get(old, "given");
    if (again || !old || (old_given && !json_equal(old_given, given))) e = put(c, tokens, made);
    json_decref(made);
    return e;
}

static Err put_settings(const HfConfig *c, json_t *tokens, bool plain) {
    const char *key;
    json_t *value;
    const json_t *extra = json_object_get(c->settings, "extra_special_tokens"),
                 *list =
                     json_is_array(extra) ? extra : json_object_get(c->settings, "additional_special_tokens");
    for (size_t i = 0; i < NUM_NAMED; i++) {
        const json_t *named = json_object_get(c->settings, NAMED[i]);
        ERR_RETURN(put_named(c, tokens, plain ? content_of(named) : named, true, plain));
    }
    json_object_foreach(c->settings, key, value) if (names_token(key, value))
        ERR_RETURN(put_named(c, tokens, plain ? content_of(value) : value, true, plain));
    json_object_foreach((json_t *)extra, key, value)
        ERR_RETURN(put_named(c, tokens, plain ? content_of(value) : value, true, plain));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        ERR_RETURN(put_named(c, tokens, plain ? content_of(one) : one, false, plain));
    }
    return ERR_OK;
}

Err hf_config_added(const HfConfig *c, const json_t *start, bool plain, json_t **out) {
    json_t *tokens = json_object(), *list = json_array(), *rest = json_array(), *token;
    const char *text;
    for (size_t i = 0; i < json_array_size(start); i++) {
        token = json_array_get(start, i);
        text = text_of(token);
        if (text && strlen(text) == json_string_length(content_of(token)) && !json_object_get(tokens, text))
            json_object_set(tokens, text, token);
        else
            json_array_append(rest, token); /* added_load reports the error later */
    }
    Err e = put_declared(c, start != NULL, tokens);
    if (!e.code) e = put_settings(c, tokens, false);
    if (!e.code && plain) e = put_settings(c, tokens, true);
    json_object_foreach(tokens, text, token) json_array_append(list, token);
    json_array_extend(list, rest);
    json_decref(tokens), json_decref(rest);
    if (e.code)
        json_decref(list);
    else
        *out = list;
    return e;
}
