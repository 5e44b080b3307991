#include "server/constraint.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/schema.h"

/* ---- the vocabulary ---- */

/* Starts the text after an arbitrary token that has text, because a tokenizer can omit the space at the start
 * of a text. */
static void begin_text(const Tokenizer *t, TextStream *text) {
    for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
        text_begin(text, t, &(StopList){0}, false, &id, 1);
        if (text->base) return;
        text_free(text);
    }
    text_begin(text, t, &(StopList){0}, false, NULL, 0);
}

Vocabulary *constraint_vocabulary(const Tokenizer *t) {
    const int32_t n = tokenizer_vocab_size(t);
    Str bytes = {0};
    TextStream text;
    TokenText *texts = mem_zero((size_t)n + 1, sizeof *texts);
    begin_text(t, &text);
    for (int32_t id = 0; id < n; id++) {
        const size_t begin = bytes.len;
        if (!tokenizer_is_special(t, id)) text_piece(&text, id, &bytes);
        texts[id].n = (int32_t)(bytes.len - begin);
    }
    const char *at = bytes.s ? bytes.s : "";
    for (int32_t id = 0; id < n; at += texts[id++].n) texts[id].bytes = at;
    Vocabulary *v = vocabulary_new(texts, n);
    text_free(&text);
    str_free(&bytes);
    free(texts);
    return v;
}

static Refusal check_length(const Ask *a, const char *field) {
    return a->min_tokens ? refuse(400, "min_tokens", NULL,
                                  "'min_tokens' and '%s' are mutually exclusive: remove one", field)
                         : SERVED;
}

/* ---- formats ---- */

/* Sets *schema to the format's schema, or to NULL if any object is allowed. */
static Refusal read_schema(const json_t *format, const json_t **schema) {
    const char *type = json_string_value(json_object_get(format, "type")), *key;
    json_t *named = json_object_get(format, "json_schema"), *value;
    const bool has_schema = type && !strcmp(type, "json_schema");
    *schema = json_object_get(named, "schema");
    if (!has_schema && (!type || strcmp(type, "json_object")))
        return field_wrong("response_format",
                           "{\"type\": TYPE} with the type text, json_object or json_schema");
    if (json_object_size(format) != 1 + (size_t)has_schema || (has_schema && !*schema))
        return field_wrong(
            "response_format",
            has_schema ? "{\"type\": \"json_schema\", \"json_schema\": {\"name\": NAME, \"schema\": SCHEMA}}"
                       : "{\"type\": \"json_object\"}");
    json_object_foreach(named, key, value) {
        if (strcmp(key, "name") && strcmp(key, "description") && strcmp(key, "schema") &&
            strcmp(key, "strict"))
            return refuse(400, "response_format", "unknown_field",
                          "the server does not know %s in 'json_schema'", quote(key).s);
        if (strcmp(key, "strict") ? strcmp(key, "schema") && !json_is_string(value)
                                  : !json_is_boolean(value) && !json_is_null(value))
            return refuse(400, "response_format", NULL, "'%s' of 'json_schema' must be %s", key,
                          strcmp(key, "strict") ? "a string" : "true or false");
    }
    return SERVED;
}

Refusal constraint_format(const json_t *body, Ask *a) {
    const json_t *format = json_object_get(body, "response_format"), *schema = NULL;
    GrammarBuilder b;
    if (!format || json_is_null(format)) return SERVED;
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && !strcmp(type, "text") && json_object_size(format) == 1) return SERVED;
    REFUSE_UNLESS_SERVED(read_schema(format, &schema));
    REFUSE_UNLESS_SERVED(check_length(a, "response_format"));
    if (a->tools)
        return refuse(400, "response_format", "unsupported",
                      "'response_format' and 'tools' are mutually exclusive: remove one, or set "
                      "'tool_choice' to \"none\"");
    builder_init(&b);
    const int32_t end = build_end(&b);
    int32_t first = 0;
    Refusal refusal = SERVED;
    if (schema)
        refusal = schema_build(&b, schema, "response_format", end, &first);
    else
        first = build_json(&b, RULE_OBJECT, end);
    if (!refusal.status) a->grammar = builder_end(&b, first, &a->n_grammar);
    builder_free(&b);
    return refusal;
}

/* ---- calls ---- */

/* The parts that the grammars of a request's calls share. */
typedef struct Calls {
    GrammarBuilder *b;
    ToolShape shape;
    SchemaTags tags; /* for calls in XML */
} Calls;

/* Builds the grammar for a function's arguments, which must form a JSON object. */
static Refusal build_arguments(const Calls *c, const json_t *function, int32_t next, int32_t *out) {
    json_t *parameters = json_object_get(function, "parameters");
    GrammarBuilder *b = c->b;
    if (!parameters) {
        *out = c->shape.tags ? next : build_json(b, RULE_OBJECT, next);
        return SERVED;
    }
    json_t *schema = json_copy(parameters);
    if (!json_object_get(schema, "type")) json_object_set_new(schema, "type", json_string("object"));
    const char *type = json_string_value(json_object_get(schema, "type"));
    const Refusal refusal =
        type && !strcmp(type, "object")
            ? c->shape.tags ? schema_build_tagged(b, schema, &c->tags, "tools", next, out)
                            : schema_build(b, schema, "tools", next, out)
            : refuse(400, "tools", "invalid_schema", "'parameters' must be a schema of type object");
    json_decref(schema);
    return refusal;
}

/* Builds the part of an XML call that begins with the function's name. */
static Refusal build_tagged_call(const Calls *c, const json_t *function, int32_t next, int32_t *out) {
    const ToolTags *t = c->shape.tags;
    const Tokenizer *tokenizer = c->tags.tokenizer;
    const char *name = json_string_value(json_object_get(function, "name"));
    REFUSE_UNLESS_SERVED(schema_check_name("tools", name));
    REFUSE_UNLESS_SERVED(build_arguments(c, function, build_marker(c->b, tokenizer, t->close, next), out));
    *out = build_text(c->b, name, build_marker(c->b, tokenizer, t->named, build_newline(c->b, *out)));
    return SERVED;
}

/* Builds the text NAME, "arguments": VALUE} or the part of an XML call that begins with its name. */
static Refusal build_call_of(const Calls *c, const json_t *function, int32_t next, int32_t *out) {
    GrammarBuilder *b = c->b;
    int32_t value;
    if (c->shape.tags) return build_tagged_call(c, function, next, out);
    REFUSE_UNLESS_SERVED(build_arguments(c, function, build_text(b, "}", next), &value));
    json_t *arguments = json_string(c->shape.arguments);
    *out = build_constant(b, json_object_get(function, "name"),
                          build_comma(b, build_constant(b, arguments, build_colon(b, value))));
    json_decref(arguments);
    return SERVED;
}

/* Returns what follows a call: the end or, unless `again` is -1, further calls. `again` is the node at which the next
 * call begins. */
static int32_t build_rest(const Calls *c, int32_t again) {
    GrammarBuilder *b = c->b;
    const Tokenizer *t = c->tags.tokenizer;
    const ToolShape *shape = &c->shape;
    int32_t ends = build_end(b);
    if (again >= 0 && !shape->between) {
        const int32_t begin = build_marker(b, t, shape->begin, build_text(b, shape->before, again));
        ends = build_either(b, ends, build_newline(b, begin));
    }
    ends = build_text(b, shape->after, build_marker(b, t, shape->end, ends));
    return again >= 0 && shape->between ? build_either(b, ends, build_text(b, shape->between, again)) : ends;
}

/* Returns what precedes a function's name in each call, followed by one of the n continuations. */
static int32_t build_begin(const Calls *c, const int32_t *ways, int64_t n) {
    const int32_t any = build_any(c->b, ways, n);
    return c->shape.tags ? build_marker(c->b, c->tags.tokenizer, c->shape.tags->name, any)
                         : build_text(c->b, "{\"name\"", build_colon(c->b, any));
}

static Refusal build_calls(const Calls *c, const json_t *tools, const char *name, bool several,
                           int32_t *out) {
    GrammarBuilder *b = c->b;
    const int32_t again = several ? build_loop(b) : -1, end = build_rest(c, again);
    int32_t *ways = mem_alloc((json_array_size(tools) + 1) * sizeof *ways);
    int64_t n = 0;
    Refusal refusal = SERVED;
    for (size_t i = 0; i < json_array_size(tools) && !refusal.status; i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (name && strcmp(name, json_string_value(json_object_get(function, "name")))) continue;
        refusal = build_call_of(c, function, end, &ways[n]);
        n += !refusal.status;
    }
    if (!refusal.status && !n)
        refusal = refuse(400, "tool_choice", NULL, "there is no function %s in 'tools'", quote(name).s);
    if (!refusal.status) {
        const int32_t begin = build_begin(c, ways, n);
        if (several) build_resolve(b, again, begin);
        *out = build_marker(b, c->tags.tokenizer, c->shape.begin, build_text(b, c->shape.before, begin));
    }
    free(ways);
    return refusal;
}

/* Adds the rules for values in XML. */
static void build_tag_rules(Calls *c) {
    GrammarBuilder *b = c->b;
    const char *tag = c->shape.tags->valued;
    const int32_t end = build_newline(b, build_end(b));
    c->tags.tags = c->shape.tags;
    c->tags.text = build_rule(b), c->tags.last = build_rule(b);
    rule_begins(b, c->tags.text, build_until(b, tag, tokenizer_token_id(c->tags.tokenizer, tag), end));
    rule_begins(b, c->tags.last, build_newline(b, build_marker(b, c->tags.tokenizer, tag, end)));
}

Refusal constraint_call(const Served *served, const char *name, bool several, Ask *a) {
    GrammarBuilder b;
    Calls c = {.b = &b, .shape = tool_shape(a->tools), .tags.tokenizer = served->tokenizer};
    int32_t first = 0;
    REFUSE_UNLESS_SERVED(check_length(a, "tool_choice"));
    builder_init(&b);
    if (c.shape.tags) build_tag_rules(&c);
    const Refusal refusal = build_calls(&c, a->functions, name, several, &first);
    if (!refusal.status) a->grammar = builder_end(&b, first, &a->n_grammar);
    builder_free(&b);
    return refusal;
}
