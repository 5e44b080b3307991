#include "tokenizer/model/post.h"

#include <string.h>

#include "tokenizer/text/field.h"

static const char WHERE[] = "post_processor";

static Err add_id(const json_t *id, int32_t limit, Ids *out) {
    json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
    if (v < 0 || v >= limit) return err_user("post_processor adds an id that is not in [0, %d)", limit);
    ids_add(out, (int32_t)v, 0, 0);
    return ERR_OK;
}

/* Reads one piece of a template: {"Sequence": {"id": "A"}} or {"SpecialToken": {"id": name}}. */
static Err template_piece(const json_t *piece, const json_t *tokens, int32_t limit, bool *text_seen,
                          Post *out) {
    const json_t *sequence, *special, *token, *ids;
    const char *name;
    ERR_RETURN(field_object(piece, WHERE, "Sequence", &sequence));
    ERR_RETURN(field_object(piece, WHERE, "SpecialToken", &special));
    ERR_RETURN(field_text(sequence ? sequence : special, WHERE, "id", &name, NULL));
    if (sequence) {
        if (strcmp(name, "A") || *text_seen)
            return err_user("post_processor.single must contain sequence A exactly once");
        *text_seen = true;
        return ERR_OK;
    }
    ERR_RETURN(field_object(tokens, "post_processor.special_tokens", name, &token));
    ERR_RETURN(field_array(token, "post_processor.special_tokens", "ids", &ids));
    if (!ids) return err_user("post_processor.special_tokens lacks \"ids\" for '%.60s'", name);
    for (size_t i = 0; i < json_array_size(ids); i++)
        ERR_RETURN(add_id(json_array_get(ids, i), limit, *text_seen ? &out->after : &out->before));
    return ERR_OK;
}

static Err template(const json_t *object, int32_t limit, Post *out) {
    const json_t *single, *tokens;
    bool text_seen = false;
    ERR_RETURN(field_array(object, WHERE, "single", &single));
    ERR_RETURN(field_object(object, WHERE, "special_tokens", &tokens));
    for (size_t i = 0; i < json_array_size(single); i++)
        ERR_RETURN(template_piece(json_array_get(single, i), tokens, limit, &text_seen, out));
    return text_seen ? ERR_OK : err_user("post_processor.single must contain sequence A exactly once");
}

static Err load_trim(const json_t *object, Post *out) {
    bool trims, prefix;
    ERR_RETURN(field_bool(object, WHERE, "trim_offsets", true, &trims));
    ERR_RETURN(field_bool(object, WHERE, "add_prefix_space", true, &prefix));
    if (!trims) return ERR_OK;
    if (out->n_trims == POST_TRIMS)
        return err_user("post_processor: more than %d steps trim offsets", POST_TRIMS);
    out->trims[out->n_trims++].prefix = prefix;
    return ERR_OK;
}

Err post_load(const json_t *object, int32_t limit, Post *out) {
    const char *type;
    if (!object) return ERR_OK;
    ERR_RETURN(field_text(object, WHERE, "type", &type, NULL));
    if (!strcmp(type, "ByteLevel")) return load_trim(object, out);
    if (!strcmp(type, "Sequence")) {
        const json_t *list;
        ERR_RETURN(field_array(object, WHERE, "processors", &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            ERR_RETURN(post_load(json_array_get(list, i), limit, out));
        return ERR_OK;
    }
    if (out->before.n || out->after.n)
        return err_user("post_processor: only one step of a Sequence may add tokens");
    if (!strcmp(type, "TemplateProcessing")) return template(object, limit, out);
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) {
        const json_t *cls, *sep; /* ["<s>", 0] */
        if (!strcmp(type, "RobertaProcessing")) ERR_RETURN(load_trim(object, out));
        ERR_RETURN(field_array(object, WHERE, "cls", &cls));
        ERR_RETURN(field_array(object, WHERE, "sep", &sep));
        ERR_RETURN(add_id(json_array_get(cls, 1), limit, &out->before));
        return add_id(json_array_get(sep, 1), limit, &out->after);
    }
    return err_user("post_processor '%s' is not supported; the supported types are TemplateProcessing, "
                    "RobertaProcessing, BertProcessing, ByteLevel and Sequence",
                    type);
}
