#include "server/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "server/fields.h"

enum {
    DEEPEST = 64,       /* maximum number of nested schemas */
    MOST_NODES = 65536, /* maximum number of nodes in the grammar */
    /* maximum number of values in enum, of schemas in anyOf, and of properties in an object */
    MOST_PARTS = 1000,
};

/* A schema, and the grammar rule for its text. */
typedef struct Known {
    const json_t *schema;
    int32_t rule;
} Known;

/* The schemas that have the current schema as an alternative. The texts of all these schemas start at the same
 * position. */
typedef struct Chain {
    const json_t *schema;
    const struct Chain *outer;
} Chain;

typedef struct Compiler {
    GrammarBuilder *b;
    const json_t *root;
    const char *field;
    Known *known; /* [n_known] */
    int64_t n_known;
    int depth;
} Compiler;

static Refusal schema_rule(Compiler *, const json_t *schema, const Chain *, int32_t *rule);

/* ---- keywords ---- */

static const char *const ANNOTATIONS[] = {"title",    "description", "default", "examples", "deprecated",
                                          "$comment", "$schema",     "$id",     "$defs",    "definitions"},
                         *const OBJECT_KEYWORDS[] = {"properties", "required", "additionalProperties"},
                         *const ARRAY_KEYWORDS[] = {"items", "minItems", "maxItems"},
                         *const CHOICE_KEYWORDS[] = {"anyOf", "$ref"},
                         *const VALUE_KEYWORDS[] = {"enum", "const"}, *const TYPE_KEYWORD[] = {"type"};
#define COUNT(list)        (sizeof(list) / sizeof *(list))
#define IS_ONE(list, name) is_one(list, COUNT(list), name)
#define HAS_ONE(s, list)   has_one(s, list, COUNT(list))

static bool is_one(const char *const *list, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], name)) return true;
    return false;
}

static bool has_one(const json_t *schema, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (json_object_get(schema, list[i])) return true;
    return false;
}

static Refusal wrong(const Compiler *c, const char *keyword, const char *must) {
    return refuse(400, c->field, "invalid_schema", "'%s' in a schema must be %s", keyword, must);
}

/* Refuses a combination of keywords that restrict the same values. */
static Refusal check_keywords(const Compiler *c, const json_t *schema) {
    const char *key;
    json_t *value;
    const bool choice = HAS_ONE(schema, CHOICE_KEYWORDS), constant = HAS_ONE(schema, VALUE_KEYWORDS),
               parts = HAS_ONE(schema, OBJECT_KEYWORDS) || HAS_ONE(schema, ARRAY_KEYWORDS);
    json_object_foreach((json_t *)schema, key, value) {
        if (!IS_ONE(ANNOTATIONS, key) && !IS_ONE(OBJECT_KEYWORDS, key) && !IS_ONE(ARRAY_KEYWORDS, key) &&
            !IS_ONE(CHOICE_KEYWORDS, key) && !IS_ONE(VALUE_KEYWORDS, key) && !IS_ONE(TYPE_KEYWORD, key))
            return refuse(
                400, c->field, "unsupported_schema",
                "the keyword %s in a schema is not supported: remove it, and check the text that you get",
                quote(key).s);
    }
    if (choice + constant + parts > 1 ||
        (json_object_get(schema, "anyOf") && json_object_get(schema, "$ref")) ||
        (json_object_get(schema, "enum") && json_object_get(schema, "const")) ||
        (choice && json_object_get(schema, "type")))
        return refuse(
            400, c->field, "unsupported_schema",
            "a schema can have only one of anyOf, $ref, enum, const, and keywords of objects or arrays: "
            "remove the "
            "others");
    return SERVED;
}

/* ---- types ---- */

static const char *const TYPES[] = {"string", "integer", "number", "object", "array", "boolean", "null"};

static bool is_of_type(const json_t *value, const char *type) {
    if (!strcmp(type, "integer"))
        return json_is_integer(value) ||
               (json_is_real(value) && floor(json_real_value(value)) == json_real_value(value));
    return !strcmp(type, "string")    ? json_is_string(value)
           : !strcmp(type, "number")  ? json_is_number(value)
           : !strcmp(type, "object")  ? json_is_object(value)
           : !strcmp(type, "array")   ? json_is_array(value)
           : !strcmp(type, "boolean") ? json_is_boolean(value)
                                      : json_is_null(value);
}

/* Returns whether the schema allows a type. The keyword `type` must be valid. */
static bool allows(const json_t *schema, const char *type) {
    const json_t *types = json_object_get(schema, "type"), *one;
    size_t i;
    if (json_is_string(types)) return !strcmp(json_string_value(types), type);
    json_array_foreach((json_t *)types, i, one) if (!strcmp(json_string_value(one), type)) return true;
    return !types;
}

static bool has_type(const json_t *schema, const json_t *value) {
    bool allowed = false;
    for (size_t t = 0; t < COUNT(TYPES); t++)
        allowed |= allows(schema, TYPES[t]) && is_of_type(value, TYPES[t]);
    return allowed;
}

static Refusal check_types(const Compiler *c, const json_t *schema) {
    json_t *types = json_object_get(schema, "type"), *one;
    size_t i;
    if (!types) return SERVED;
    json_t *list = json_is_string(types) ? json_pack("[O]", types) : json_incref(types);
    bool valid = json_array_size(list) > 0;
    json_array_foreach(list, i, one) valid =
        valid && json_is_string(one) && IS_ONE(TYPES, json_string_value(one));
    json_decref(list);
    return valid ? SERVED : wrong(c, "type", "a type of JSON, or a list of types");
}

/* ---- alternatives ---- */

/* Returns the schema that a $ref names, or NULL. */
static const json_t *target(const Compiler *c, const char *name) {
    static const char *const PLACES[] = {"$defs", "definitions"};
    if (name && !strcmp(name, "#")) return c->root;
    for (size_t i = 0; name && i < COUNT(PLACES); i++) {
        char *start = mem_printf("#/%s/", PLACES[i]);
        const size_t n = strlen(start);
        const bool found = !strncmp(name, start, n);
        free(start);
        if (found) return json_object_get(json_object_get(c->root, PLACES[i]), name + n);
    }
    return NULL;
}

static Refusal build_reference(Compiler *c, const json_t *schema, const Chain *chain, int32_t next,
                               int32_t *out) {
    const char *name = json_string_value(json_object_get(schema, "$ref"));
    const json_t *to = target(c, name);
    int32_t rule;
    if (!to)
        return refuse(400, c->field, "invalid_schema", "there is no %s: $ref must be # or #/$defs/NAME",
                      quote(name ? name : "").s);
    REFUSE_UNLESS_SERVED(schema_rule(c, to, chain, &rule));
    *out = build_call(c->b, rule, next);
    return SERVED;
}

static Refusal build_alternatives(Compiler *c, const json_t *schema, const Chain *chain, int32_t next,
                                  int32_t *out) {
    const json_t *list = json_object_get(schema, "anyOf");
    const size_t n = json_array_size(list);
    if (!n || n > MOST_PARTS) return wrong(c, "anyOf", "a list of 1 to 1000 schemas");
    int32_t *ways = mem_alloc(n * sizeof *ways);
    Refusal refusal = SERVED;
    for (size_t i = 0; i < n && !refusal.status; i++) {
        refusal = schema_rule(c, json_array_get(list, i), chain, &ways[i]);
        if (!refusal.status) ways[i] = build_call(c->b, ways[i], next);
    }
    if (!refusal.status) *out = build_any(c->b, ways, (int64_t)n);
    free(ways);
    return refusal;
}

/* Builds the values of enum or const that have an allowed type. */
static Refusal build_constants(Compiler *c, const json_t *schema, int32_t next, int32_t *out) {
    json_t *list = json_object_get(schema, "enum");
    list = list ? json_incref(list) : json_pack("[O]", json_object_get(schema, "const"));
    const size_t n = json_array_size(list);
    int32_t *ways = mem_alloc((n + 1) * sizeof *ways);
    int64_t count = 0;
    for (size_t i = 0; i < n && n <= MOST_PARTS && c->b->n <= MOST_NODES; i++) {
        const json_t *value = json_array_get(list, i);
        if (has_type(schema, value)) ways[count++] = build_constant(c->b, value, next);
    }
    *out = count ? build_any(c->b, ways, count) : next;
    free(ways);
    json_decref(list);
    return count || c->b->n > MOST_NODES /* refused later */
               ? SERVED
               : wrong(c, json_object_get(schema, "enum") ? "enum" : "const",
                       "a list of 1 to 1000 values, or one value, with the schema's type");
}

/* ---- objects ---- */

typedef struct Property {
    const char *name;
    const json_t *schema;
    bool required;
} Property;

/* Reads the n properties. The caller frees *out. A required property without a schema can have any value. */
static Refusal read_properties(const Compiler *c, const json_t *schema, Property **out, int64_t *n) {
    json_t *properties = json_object_get(schema, "properties"),
           *required = json_object_get(schema, "required"), *one;
    const char *name;
    size_t i;
    if (properties && !json_is_object(properties)) return wrong(c, "properties", "an object of schemas");
    if (required && !json_is_array(required)) return wrong(c, "required", "a list of names");
    if (json_object_size(properties) + json_array_size(required) > MOST_PARTS)
        return wrong(c, "properties", "an object of at most 1000 schemas");
    Property *list = *out =
        mem_zero(json_object_size(properties) + json_array_size(required) + 1, sizeof *list);
    json_object_foreach(properties, name, one) list[(*n)++] = (Property){name, one, false};
    json_array_foreach(required, i, one) {
        int64_t at = 0;
        name = json_string_value(one);
        if (!name) return wrong(c, "required", "a list of names");
        while (at < *n && strcmp(list[at].name, name)) at++;
        if (at == *n && json_is_false(json_object_get(schema, "additionalProperties")))
            return refuse(400, c->field, "invalid_schema",
                          "%s is required, but 'properties' does not have it: add it", quote(name).s);
        if (at == *n) list[(*n)++] = (Property){.name = name};
        list[at].required = true;
    }
    return SERVED;
}

/* Builds an object with arbitrary member names, and values that match a schema. */
static Refusal build_map(Compiler *c, const json_t *schema, int32_t next, int32_t *out) {
    int32_t rule;
    REFUSE_UNLESS_SERVED(schema_rule(c, schema, NULL, &rule));
    GrammarBuilder *b = c->b;
    const int32_t loop = build_loop(b), end = build_text(b, "}", next),
                  value = build_call(b, rule, build_either(b, end, build_comma(b, loop)));
    build_resolve(b, loop, build_json(b, RULE_STRING, build_colon(b, value)));
    *out = build_text(b, "{", build_either(b, end, loop));
    return SERVED;
}

/* Builds the properties from the last to the first. The rest of the object starts at `first` if no property precedes
 * it, and at `rest` if one does. */
static Refusal build_members(Compiler *c, const Property *list, int64_t n, int32_t next, int32_t *out) {
    GrammarBuilder *b = c->b;
    int32_t first = build_text(b, "}", next), rest = first;
    for (int64_t i = n - 1; i >= 0; i--) {
        int32_t rule, value;
        if (list[i].schema) REFUSE_UNLESS_SERVED(schema_rule(c, list[i].schema, NULL, &rule));
        value = list[i].schema ? build_call(b, rule, rest) : build_json(b, RULE_VALUE, rest);
        json_t *name = json_string(list[i].name);
        const int32_t member = build_constant(b, name, build_colon(b, value)),
                      follows = build_comma(b, member);
        json_decref(name);
        first = list[i].required ? member : build_either(b, member, first);
        rest = list[i].required ? follows : build_either(b, follows, rest);
    }
    *out = build_text(b, "{", first);
    return SERVED;
}

static Refusal build_object(Compiler *c, const json_t *schema, int32_t next, int32_t *out) {
    const json_t *others = json_object_get(schema, "additionalProperties");
    Property *list = NULL;
    int64_t n = 0;
    if (others && !json_is_boolean(others) && !json_is_object(others))
        return wrong(c, "additionalProperties", "a schema");
    Refusal refusal = read_properties(c, schema, &list, &n);
    if (!refusal.status && !n && json_is_object(others))
        refusal = build_map(c, others, next, out);
    else if (!refusal.status && !n && !json_is_false(others))
        *out = build_json(c->b, RULE_OBJECT, next);
    else if (!refusal.status)
        refusal = build_members(c, list, n, next, out);
    free(list);
    return refusal;
}

/* ---- arrays ---- */

static Refusal read_count(const Compiler *c, const json_t *schema, const char *keyword, int64_t *out) {
    const json_t *count = json_object_get(schema, keyword);
    if (!count) return SERVED;
    if (!field_whole(count, out) || *out < 0 || *out > MOST_NODES)
        return wrong(c, keyword, "an integer from 0 to 65536");
    return SERVED;
}

static Refusal build_array(Compiler *c, const json_t *schema, int32_t next, int32_t *out) {
    GrammarBuilder *b = c->b;
    const json_t *items = json_object_get(schema, "items");
    int64_t least = 0, most = -1;
    int32_t rule = RULE_VALUE;
    REFUSE_UNLESS_SERVED(read_count(c, schema, "minItems", &least));
    REFUSE_UNLESS_SERVED(read_count(c, schema, "maxItems", &most));
    if (most >= 0 && least > most) return wrong(c, "minItems", "at most maxItems");
    if (items)
        REFUSE_UNLESS_SERVED(schema_rule(c, items, NULL, &rule));
    else
        build_json(b, RULE_VALUE, next); /* builds the rule */
    const int32_t end = build_text(b, "]", next);
    int32_t after = end; /* the grammar's state after `k` items */
    int64_t k = most < 0 ? (least > 0 ? least : 1) : most;
    if (most < 0) {
        after = build_loop(b);
        build_resolve(b, after, build_either(b, end, build_comma(b, build_call(b, rule, after))));
    }
    for (; k > 1; k--) {
        const int32_t item = build_comma(b, build_call(b, rule, after));
        after = k - 1 >= least ? build_either(b, end, item) : item;
        if (b->n > MOST_NODES) break; /* refused later */
    }
    if (most) after = build_call(b, rule, after);
    *out = build_text(b, "[", !most ? end : least ? after : build_either(b, end, after));
    return SERVED;
}

/* ---- schemas ---- */

static Refusal build_types(Compiler *c, const json_t *schema, int32_t next, int32_t *out) {
    GrammarBuilder *b = c->b;
    const bool has_type = json_object_get(schema, "type"), object = HAS_ONE(schema, OBJECT_KEYWORDS),
               array = HAS_ONE(schema, ARRAY_KEYWORDS);
    int32_t ways[COUNT(TYPES)];
    int64_t n = 0;
    if (!has_type && !object && !array) {
        *out = build_json(b, RULE_VALUE, next);
        return SERVED;
    }
    for (size_t t = 0; t < COUNT(TYPES); t++) {
        const char *type = TYPES[t];
        /* if `type` is missing, keywords for objects or arrays imply the type object or array */
        if (has_type ? !allows(schema, type)
                     : !(object && !strcmp(type, "object")) && !(array && !strcmp(type, "array")))
            continue;
        if (!strcmp(type, "integer") && has_type && allows(schema, "number")) continue;
        if (!strcmp(type, "boolean"))
            ways[n] = build_either(b, build_text(b, "true", next), build_text(b, "false", next));
        else if (!strcmp(type, "null"))
            ways[n] = build_text(b, "null", next);
        else if (!strcmp(type, "object"))
            REFUSE_UNLESS_SERVED(build_object(c, schema, next, &ways[n]));
        else if (!strcmp(type, "array"))
            REFUSE_UNLESS_SERVED(build_array(c, schema, next, &ways[n]));
        else
            ways[n] = build_json(b,
                                 *type == 's'   ? RULE_STRING
                                 : *type == 'i' ? RULE_INTEGER
                                                : RULE_NUMBER,
                                 next);
        n++;
    }
    *out = build_any(b, ways, n);
    return SERVED;
}

static Refusal build(Compiler *c, const json_t *schema, const Chain *outer, int32_t next, int32_t *out) {
    const Chain chain = {schema, outer};
    if (json_is_true(schema)) {
        *out = build_json(c->b, RULE_VALUE, next);
        return SERVED;
    }
    if (!json_is_object(schema))
        return refuse(400, c->field, "invalid_schema", "a schema must be an object or true");
    REFUSE_UNLESS_SERVED(check_keywords(c, schema));
    REFUSE_UNLESS_SERVED(check_types(c, schema));
    if (json_object_get(schema, "$ref")) return build_reference(c, schema, &chain, next, out);
    if (json_object_get(schema, "anyOf")) return build_alternatives(c, schema, &chain, next, out);
    if (HAS_ONE(schema, VALUE_KEYWORDS)) return build_constants(c, schema, next, out);
    return build_types(c, schema, next, out);
}

static Refusal schema_rule(Compiler *c, const json_t *schema, const Chain *chain, int32_t *rule) {
    for (const Chain *at = chain; at; at = at->outer)
        if (at->schema == schema)
            return refuse(400, c->field, "invalid_schema", "a schema is its own alternative: remove a $ref");
    for (int64_t i = 0; i < c->n_known; i++)
        if (c->known[i].schema == schema && json_is_object(schema)) {
            *rule = c->known[i].rule;
            return SERVED;
        }
    if (c->depth == DEEPEST)
        return refuse(400, c->field, "schema_too_large",
                      "schemas are nested more than %d levels deep: use fewer", DEEPEST);
    *rule = build_rule(c->b);
    c->known = mem_grow(c->known, (size_t)c->n_known + 1, sizeof *c->known);
    c->known[c->n_known++] = (Known){schema, *rule};
    int32_t first = 0;
    c->depth++;
    const int32_t end = build_end(c->b);
    REFUSE_UNLESS_SERVED(build(c, schema, chain, end, &first));
    c->depth--;
    rule_begins(c->b, *rule, first);
    if (c->b->n > MOST_NODES)
        return refuse(400, c->field, "schema_too_large",
                      "the schema has more than %d nodes: use a smaller one", MOST_NODES);
    return SERVED;
}

Refusal schema_build(GrammarBuilder *b, const json_t *schema, const char *field, int32_t next, int32_t *out) {
    Compiler c = {.b = b, .root = schema, .field = field};
    int32_t rule;
    const Refusal refusal = schema_rule(&c, schema, NULL, &rule);
    free(c.known);
    if (!refusal.status) *out = build_call(b, rule, next);
    return refusal;
}

/* ---- arguments between tags ---- */

Refusal schema_check_name(const char *field, const char *name) {
    return strpbrk(name, "<>\"\r\n")
               ? refuse(
                     400, field, "unsupported_schema",
                     "the model writes names between tags, so %s must not contain <, >, \" or the end of a "
                     "line: rename it",
                     quote(name).s)
               : SERVED;
}

static int32_t end_value(Compiler *c, const SchemaTags *tags, int32_t next) {
    return build_call(c->b, tags->last, next);
}

/* Builds a constant. A string is not quoted, so it must not contain the tag after it. */
static Refusal build_plain(Compiler *c, const json_t *value, const SchemaTags *tags, int32_t next,
                           int32_t *out) {
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    next = end_value(c, tags, next);
    if (text && (strstr(text, tags->tags->valued) || *text == '\n' || (n && text[n - 1] == '\n')))
        return refuse(
            400, c->field, "unsupported_schema",
            "the model writes strings between tags, so %s must not contain %s, or a newline at either "
            "end: remove it",
            quote(text).s, tags->tags->valued);
    *out = text ? build_bytes(c->b, text, n, next) : build_constant(c->b, value, next);
    return SERVED;
}

static Refusal build_tagged(Compiler *, const json_t *schema, const SchemaTags *, int32_t next, int32_t *out);

/* Builds the alternatives in the schema's keyword `enum` or `anyOf`. */
static Refusal build_each(Compiler *c, const json_t *schema, const char *keyword, const SchemaTags *tags,
                          int32_t next, int32_t *out) {
    const json_t *list = json_object_get(schema, keyword);
    const bool values = !strcmp(keyword, "enum");
    int32_t *ways = mem_alloc((json_array_size(list) + 1) * sizeof *ways);
    int64_t n = 0;
    Refusal refusal = SERVED;
    for (size_t i = 0; i < json_array_size(list) && !refusal.status; i++) {
        const json_t *one = json_array_get(list, i);
        if (values && !has_type(schema, one)) continue;
        refusal =
            values ? build_plain(c, one, tags, next, &ways[n]) : build_tagged(c, one, tags, next, &ways[n]);
        n++;
    }
    if (!refusal.status) *out = build_any(c->b, ways, n);
    free(ways);
    return refusal;
}

/* Builds a value and the tag after it. The schema must be valid, so it has no cycles without a value (schema_rule). */
static Refusal build_tagged(Compiler *c, const json_t *schema, const SchemaTags *tags, int32_t next,
                            int32_t *out) {
    const char *name = json_string_value(json_object_get(schema, "$ref"));
    int32_t rule;
    if (name) return build_tagged(c, target(c, name), tags, next, out);
    if (json_object_get(schema, "anyOf")) return build_each(c, schema, "anyOf", tags, next, out);
    if (json_object_get(schema, "enum")) return build_each(c, schema, "enum", tags, next, out);
    if (json_object_get(schema, "const"))
        return build_plain(c, json_object_get(schema, "const"), tags, next, out);
    if (tool_takes_text(c->root, schema)) {
        *out = build_call(c->b, tags->text, next);
        return SERVED;
    }
    REFUSE_UNLESS_SERVED(schema_rule(c, schema, NULL, &rule));
    *out = build_call(c->b, rule, end_value(c, tags, next));
    return SERVED;
}

/* Builds the arguments from the last to the first. */
static Refusal build_arguments(Compiler *c, const Property *list, int64_t n, const SchemaTags *tags,
                               int32_t next, int32_t *out) {
    GrammarBuilder *b = c->b;
    const ToolTags *t = tags->tags;
    int32_t rule, value;
    *out = next;
    for (int64_t i = n - 1; i >= 0; i--) {
        REFUSE_UNLESS_SERVED(schema_check_name(c->field, list[i].name));
        if (list[i].schema) REFUSE_UNLESS_SERVED(schema_rule(c, list[i].schema, NULL, &rule));
        REFUSE_UNLESS_SERVED(build_tagged(c, list[i].schema, tags, *out, &value));
        if (*t->value) value = build_marker(b, tags->tokenizer, t->value, build_newline(b, value));
        value = build_marker(b, tags->tokenizer, t->keyed, build_newline(b, value));
        value = build_marker(b, tags->tokenizer, t->key, build_text(b, list[i].name, value));
        *out = list[i].required ? value : build_either(b, value, *out);
    }
    return SERVED;
}

Refusal schema_build_tagged(GrammarBuilder *b, const json_t *schema, const SchemaTags *tags,
                            const char *field, int32_t next, int32_t *out) {
    Compiler c = {.b = b, .root = schema, .field = field};
    Property *list = NULL;
    int64_t n = 0;
    Refusal refusal = check_keywords(&c, schema);
    if (!refusal.status && (HAS_ONE(schema, CHOICE_KEYWORDS) || HAS_ONE(schema, VALUE_KEYWORDS)))
        refusal =
            refuse(400, field, "unsupported_schema",
                   "'parameters' must list 'properties' instead of alternatives, because the model writes "
                   "arguments between tags");
    if (!refusal.status) refusal = read_properties(&c, schema, &list, &n);
    if (!refusal.status) refusal = build_arguments(&c, list, n, tags, next, out);
    free(list), free(c.known);
    return refusal;
}
