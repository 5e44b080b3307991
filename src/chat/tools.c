#include "chat/tools.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"

struct ToolFormat {
    const char *models; /* for messages */
    const char *sign;   /* a template that contains this text uses this format */
    /* markers around calls; `end` is NULL if calls continue to the end of the text */
    const char *begin, *end;
    bool bare;                                        /* whether text that begins with { can also be a call */
    const char *arguments, *before, *between, *after; /* as in ToolShape */
    const ToolTags *tags;
};

static const ToolTags QWEN = {"<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>"},
                      MINIMAX = {"<invoke name=\"", "\">",      "<parameter name=\"", "\">", "",
                                 "</parameter>",    "</invoke>"},
                      GLM = {"", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", ""};

/* The formats. A template uses the first format whose `sign` it contains. */
static const ToolFormat FORMATS[] = {
    {"Seed-OSS", "<seed:tool_call>", "<seed:tool_call>", "</seed:tool_call>", false, NULL, "\n", NULL, "\n",
     &QWEN},
    {"MiniMax M2", "<minimax:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>", false, NULL, "\n",
     "\n", "\n", &MINIMAX},
    {"Qwen3-Coder", "<parameter=", "<tool_call>", "</tool_call>", false, NULL, "\n", NULL, "\n", &QWEN},
    {"GLM-4.5", "<arg_key>", "<tool_call>", "</tool_call>", false, NULL, "", NULL, "", &GLM},
    {"Hermes, Qwen", "<tool_call>", "<tool_call>", "</tool_call>", false, "arguments", "\n", NULL, "\n",
     NULL},
    {"Mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", NULL, false, "arguments", "[", ", ", "]", NULL},
    {"Granite, Phi", "<|tool_call|>", "<|tool_call|>", "<|/tool_call|>" /* not in Granite */, false,
     "arguments", "[", ", ", "]", NULL},
    {"Llama 3", "ipython", "<|python_tag|>", NULL, true, "parameters", "", "; ", "", NULL},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

void tool_format_names(Str *out) {
    for (size_t i = 0; i < N_FORMATS; i++) str_printf(out, "%s%s", i ? ", " : "", FORMATS[i].models);
}

const ToolFormat *tool_format(const char *template, size_t n) {
    for (size_t i = 0; i < N_FORMATS; i++)
        if (memmem(template, n, FORMATS[i].sign, strlen(FORMATS[i].sign))) return &FORMATS[i];
    return NULL;
}

ToolShape tool_shape(const ToolFormat *f) {
    return (ToolShape){.begin = f->bare ? "" : f->begin,
                       .before = f->before,
                       .arguments = f->arguments,
                       .between = f->between,
                       .after = f->after,
                       .end = f->end ? f->end : "",
                       .tags = f->tags};
}

/* ---- types of arguments ---- */

enum { IS_STRING = 1, IS_NUMBER = 2, IS_BOOLEAN = 4, IS_NULL = 8, IS_OBJECT = 16, IS_ARRAY = 32, ANY = 63 };

static const struct {
    const char *name;
    unsigned type;
} TYPES[] = {{"string", IS_STRING}, {"integer", IS_NUMBER}, {"number", IS_NUMBER}, {"boolean", IS_BOOLEAN},
             {"null", IS_NULL},     {"object", IS_OBJECT},  {"array", IS_ARRAY}};

static unsigned type_of(const json_t *value) {
    return json_is_string(value)    ? IS_STRING
           : json_is_number(value)  ? IS_NUMBER
           : json_is_boolean(value) ? IS_BOOLEAN
           : json_is_null(value)    ? IS_NULL
           : json_is_object(value)  ? IS_OBJECT
                                    : IS_ARRAY;
}

static unsigned named_type(const json_t *name) {
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES && json_is_string(name); i++)
        if (!strcmp(TYPES[i].name, json_string_value(name))) return TYPES[i].type;
    return ANY;
}

/* Returns the definition that a $ref names in the schema `root`, or NULL if there is none. */
static const json_t *definition(const json_t *root, const char *name) {
    static const char *const PLACES[] = {"$defs", "definitions"};
    for (size_t i = 0; i < 2; i++) {
        const size_t n = strlen(PLACES[i]);
        if (!strncmp(name, "#/", 2) && !strncmp(name + 2, PLACES[i], n) && name[2 + n] == '/')
            return json_object_get(json_object_get(root, PLACES[i]), name + 3 + n);
    }
    return NULL;
}

/* Returns the types that a schema allows. A schema that is nested too deeply allows any type. */
static unsigned types_of(const json_t *root, const json_t *schema, int depth) {
    static const char *const LISTS[] = {"type", "enum", "anyOf", "oneOf"};
    enum { DEEPEST = 16 };
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    unsigned types = 0;
    if (depth == DEEPEST || !json_is_object(schema)) return ANY;
    if (reference) return types_of(root, definition(root, reference), depth + 1);
    if (json_object_get(schema, "const")) return type_of(json_object_get(schema, "const"));
    for (int k = 0; k < 4 && !types; k++) {
        const json_t *list = json_object_get(schema, LISTS[k]), *one;
        size_t i;
        if (!k && json_is_string(list)) return named_type(list);
        json_array_foreach((json_t *)list, i, one) types |= k == 0   ? named_type(one)
                                                            : k == 1 ? type_of(one)
                                                                     : types_of(root, one, depth + 1);
    }
    return types ? types : ANY;
}

bool tool_takes_text(const json_t *parameters, const json_t *schema) {
    return types_of(parameters, schema, 0) & IS_STRING;
}

/* Returns the value of an argument from the text between its tags. A string has no quotes. Other values are JSON, but
 * some models write Python's constants in it. */
static json_t *typed(const json_t *parameters, const json_t *schema, const char *s, size_t n) {
    static const char *const PYTHON[] = {"True", "true", "False", "false", "None", "null"};
    const unsigned types = types_of(parameters, schema, 0);
    if (n && *s == '\n') s++, n--;
    if (n && s[n - 1] == '\n') n--;
    json_t *value = json_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    for (int i = 0; i < 6 && !value && !(types & IS_STRING); i += 2)
        if (n == strlen(PYTHON[i]) && !memcmp(s, PYTHON[i], n))
            value = json_loads(PYTHON[i + 1], JSON_DECODE_ANY, NULL);
    if (value && (types & type_of(value)) && !(json_is_string(value) && types & IS_STRING)) return value;
    json_decref(value);
    return json_stringn(s, n);
}

/* ---- calls ---- */

static bool add_call(json_t *calls, const char *name, const json_t *arguments) {
    if (!name || (arguments && !json_is_object(arguments))) return false;
    Str text = {0};
    arguments ? json_print(&text, arguments, 0, 0) : str_puts(&text, "{}");
    json_array_append_new(calls, json_pack("{s:s,s:s}", "name", name, "arguments", text.s));
    str_free(&text);
    return true;
}

/* Adds a call, or a list of calls. */
static bool add_calls(json_t *calls, const json_t *value) {
    const json_t *one, *arguments = json_object_get(value, "arguments");
    size_t i;
    if (!json_is_array(value))
        return add_call(calls, json_string_value(json_object_get(value, "name")),
                        arguments ? arguments : json_object_get(value, "parameters"));
    json_array_foreach(value, i, one) if (!json_is_object(one) || !add_calls(calls, one)) return false;
    return i > 0;
}

static size_t blanks(const char *s, size_t n, const char *set) {
    size_t i = 0;
    while (i < n && s[i] && strchr(set, s[i])) i++;
    return i;
}

static bool skip(const char **s, size_t *n, const char *text) {
    const size_t k = strlen(text);
    if (*n < k || memcmp(*s, text, k)) return false;
    *s += k, *n -= k;
    return true;
}

/* Reads NAME[ARGS], which newer Mistral templates put before the JSON. The caller frees the name. */
static char *read_name(const char **s, size_t *n) {
    static const char ARGS[] = "[ARGS]";
    const char *at = memmem(*s, *n, ARGS, strlen(ARGS));
    if (!at || **s == '{' || **s == '[') return NULL;
    char *name = mem_printf("%.*s", (int)(at - *s), *s);
    *n -= (size_t)(at - *s), *s = at;
    skip(s, n, ARGS);
    return name;
}

/* Returns the schema of a function's parameters, or NULL. */
static const json_t *parameters_of(const json_t *tools, const char *name, size_t n) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function"),
                     *own = json_object_get(function, "name");
        if (json_string_length(own) == n && !memcmp(json_string_value(own), name, n))
            return json_object_get(function, "parameters");
    }
    return NULL;
}

/* Sets *text to the text before a tag, and skips both. */
static bool read_until(const char **s, size_t *n, const char *tag, const char **text, size_t *length) {
    const char *at = memmem(*s, *n, tag, strlen(tag));
    if (!at) return false;
    *text = *s, *length = (size_t)(at - *s);
    *n -= *length, *s = at;
    return skip(s, n, tag);
}

static void skip_blanks(const char **s, size_t *n) {
    const size_t k = blanks(*s, *n, " \t\r\n");
    *s += k, *n -= k;
}

/* Adds the arguments that follow. Returns false if one of them is not complete. */
static bool read_arguments(const ToolTags *t, const json_t *parameters, const char **s, size_t *n,
                           json_t *arguments) {
    const char *key, *text;
    size_t n_key, n_text;
    for (skip_blanks(s, n); skip(s, n, t->key); skip_blanks(s, n)) {
        if (!read_until(s, n, t->keyed, &key, &n_key)) return false;
        if (*t->value) skip_blanks(s, n);
        if (!skip(s, n, t->value) || !read_until(s, n, t->valued, &text, &n_text)) return false;
        const json_t *properties = json_object_get(parameters, "properties"),
                     *schema = json_object_getn(properties, key, n_key);
        json_object_setn_new(arguments, key, n_key, typed(parameters, schema, text, n_text));
    }
    return true;
}

/* Adds a call with tags. Without its last tag, a call ends where the text ends. */
static bool read_tagged(const ToolTags *t, const json_t *tools, const char **s, size_t *n, json_t *calls) {
    const char *name = *s;
    size_t length = 0;
    if (!skip(s, n, t->name)) return false;
    if (*t->named && !read_until(s, n, t->named, &name, &length)) return false;
    if (!*t->named) {
        while (length < *n && name[length] != '\n' && name[length] != '<') length++;
        *s += length, *n -= length;
    }
    json_t *arguments = json_object();
    char *own = mem_printf("%.*s", (int)length, name);
    const bool valid = length && read_arguments(t, parameters_of(tools, name, length), s, n, arguments) &&
                       (*t->close ? skip(s, n, t->close) : !*n) && add_call(calls, own, arguments);
    json_decref(arguments);
    free(own);
    return valid;
}

/* Adds a call, or a list of calls, in JSON. */
static bool read_json(const char **s, size_t *n, json_t *calls) {
    json_error_t error;
    char *name = read_name(s, n);
    json_t *value = json_loadb(*s, *n, JSON_DISABLE_EOF_CHECK, &error);
    const bool valid = value && (name ? add_call(calls, name, value) : add_calls(calls, value));
    if (valid) *s += error.position, *n -= (size_t)error.position;
    json_decref(value);
    free(name);
    return valid;
}

/* Reads the consecutive calls in a text. Returns NULL if the text contains anything else, or no call. */
static json_t *read_calls(const ToolFormat *f, const json_t *tools, const char *s, size_t n) {
    json_t *calls = json_array();
    bool valid = true;
    while (valid) {
        const size_t skipped = blanks(s, n, " \t\r\n;");
        s += skipped, n -= skipped;
        if (!n) break;
        if (json_array_size(calls) && skip(&s, &n, f->begin)) continue;
        valid = f->tags ? read_tagged(f->tags, tools, &s, &n, calls) : read_json(&s, &n, calls);
    }
    if (valid && json_array_size(calls)) return calls;
    json_decref(calls);
    return NULL;
}

/* ---- text ---- */

static void say(ToolText *t, const char *text, size_t n, Str *content) {
    if (!n) return;
    t->said = true;
    str_add(content, text, n);
}

static void drop(ToolText *t, size_t n) {
    Str rest = {0};
    if (n < t->held.len) str_add(&rest, t->held.s + n, t->held.len - n);
    str_free(&t->held);
    t->held = rest;
    t->searched = 0;
}

/* If the first n bytes are calls, adds the calls to t->calls, and drops these bytes and the `marker` bytes of
 * the end marker. */
static bool take_calls(ToolText *t, size_t n, size_t marker) {
    json_t *calls = read_calls(t->format, t->tools, t->held.s, n);
    if (!calls) return false;
    while (t->single && json_array_size(calls) > 1) json_array_remove(calls, 1);
    if (!t->calls) t->calls = json_array();
    json_array_extend(t->calls, calls);
    json_decref(calls);
    drop(t, n + marker);
    t->inside = t->said = false;
    return true;
}

/* Stops reading the part between markers if the part is complete. Returns whether to continue reading outside
 * markers. */
static bool leave(ToolText *t, bool end, Str *content) {
    const char *marker = t->format->end, *at;
    const size_t k = marker ? strlen(marker) : 0;
    while (t->searched + k <= t->held.len && k) {
        at = memmem(t->held.s + t->searched, t->held.len - t->searched, marker, k);
        const size_t n = at ? (size_t)(at - t->held.s) : t->held.len - k;
        t->searched = n + 1; /* this marker may be part of a JSON string, so the search continues after it */
        if (at && take_calls(t, n, k)) return true;
    }
    const bool closed =
        !t->format->tags || *t->format->tags->close; /* otherwise the name may be incomplete */
    if (!end || (closed && take_calls(t, t->held.len, 0))) return false;
    if (!t->bare) say(t, t->format->begin, strlen(t->format->begin), content);
    say(t, t->held.s, t->held.len, content);
    drop(t, t->held.len);
    return false;
}

/* Returns how many bytes at the end of the text could be the beginning of a marker. */
static size_t begun(const Str *text, const char *marker) {
    size_t k = strlen(marker) - 1;
    if (k > text->len) k = text->len;
    while (k && memcmp(text->s + text->len - k, marker, k)) k--;
    return k;
}

/* Starts reading the part between markers if a begin marker is found. Returns whether to continue reading between
 * markers. */
static bool enter(ToolText *t, bool end, Str *content) {
    const char *marker = t->format->begin;
    const size_t first = blanks(t->held.s, t->held.len, " \t\r\n");
    const char *at = t->held.len ? memmem(t->held.s, t->held.len, marker, strlen(marker)) : NULL;
    t->bare = t->format->bare && !t->said && first < t->held.len && t->held.s[first] == '{';
    if (t->bare || at) {
        const size_t before = t->bare ? 0 : (size_t)(at - t->held.s);
        if (t->said || first < before) say(t, t->held.s, before, content);
        drop(t, t->bare ? 0 : before + strlen(marker));
        t->inside = true;
        return true;
    }
    const size_t keep = end ? 0 : begun(&t->held, marker), n = t->held.len - keep;
    if (!t->said && first >= n && !(end && !t->calls)) return false; /* blanks may precede a call */
    say(t, t->held.s, n, content);
    drop(t, n);
    return false;
}

void tool_text_push(ToolText *t, const char *text, size_t n, bool end, Str *content) {
    if (!t->format) {
        if (n) str_add(content, text, n);
        return;
    }
    if (n) str_add(&t->held, text, n);
    while (!(t->single && t->calls) && (t->inside ? leave(t, end, content) : enter(t, end, content)))
        continue;
}

void tool_text_free(ToolText *t) {
    str_free(&t->held);
    json_decref(t->calls);
}
