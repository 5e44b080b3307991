#include "chat/tools.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"

struct ToolFormat {
    const char *sign; /* a template that contains this text uses this format */
    /* markers around calls; `end` is NULL if calls continue to the end of the text */
    const char *begin, *end;
    bool bare;                                        /* whether text that begins with { can also be a call */
    const char *arguments, *before, *between, *after; /* as in ToolShape */
};

/* The formats. A template uses the first format whose `sign` it contains. */
static const ToolFormat FORMATS[] = {
    {"<tool_call>", "<tool_call>", "</tool_call>", false, "arguments", "\n", NULL, "\n"}, /* Hermes, Qwen */
    {"[TOOL_CALLS]", "[TOOL_CALLS]", NULL, false, "arguments", "[", ", ", "]"},           /* Mistral */
    {"<|tool_call|>", "<|tool_call|>", "<|/tool_call|>", false, "arguments", "[", ", ",
     "]"},                                                                 /* Granite (without `end`), Phi */
    {"ipython", "<|python_tag|>", NULL, true, "parameters", "", "; ", ""}, /* Llama 3 */
};

const ToolFormat *tool_format(const char *template, size_t n) {
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (memmem(template, n, FORMATS[i].sign, strlen(FORMATS[i].sign))) return &FORMATS[i];
    return NULL;
}

ToolShape tool_shape(const ToolFormat *f) {
    return (ToolShape){.begin = f->bare ? "" : f->begin,
                       .before = f->before,
                       .arguments = f->arguments,
                       .between = f->between,
                       .after = f->after,
                       .end = f->end ? f->end : ""};
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

/* Reads the calls in a text, which are consecutive JSON values. Returns NULL if the text contains anything else, or no
 * call. */
static json_t *read_calls(const ToolFormat *f, const char *s, size_t n) {
    json_t *calls = json_array();
    bool valid = true;
    while (valid) {
        const size_t skipped = blanks(s, n, " \t\r\n;");
        s += skipped, n -= skipped;
        if (!n) break;
        if (json_array_size(calls) && skip(&s, &n, f->begin)) continue;
        json_error_t error;
        char *name = read_name(&s, &n);
        json_t *value = json_loadb(s, n, JSON_DISABLE_EOF_CHECK, &error);
        valid = value && (name ? add_call(calls, name, value) : add_calls(calls, value));
        if (valid) s += error.position, n -= (size_t)error.position;
        json_decref(value);
        free(name);
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
    json_t *calls = read_calls(t->format, t->held.s, n);
    if (!calls) return false;
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
    if (!end || take_calls(t, t->held.len, 0)) return false;
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
    if (!t->said && first >= n && !(end && !t->calls)) return false; /* these blanks may precede a call */
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
    while (t->inside ? leave(t, end, content) : enter(t, end, content)) continue;
}

void tool_text_free(ToolText *t) {
    str_free(&t->held);
    json_decref(t->calls);
}
