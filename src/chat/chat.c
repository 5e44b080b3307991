#include "chat/chat.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "chat/conversation.h"
#include "tokenizer/text/field.h"

typedef struct Named {
    char *name, *path; /* path: the file that contains the template */
    Str text;
    Template *template; /* NULL if `err` is set */
    Err err;
} Named;

struct Chat {
    const Tokenizer *tokenizer;
    char *folder;
    Named *at;
    size_t n;
};

/* ---- reading ---- */

static void add_template(Chat *c, const char *name, const char *path, const char *text, size_t n) {
    c->at = mem_grow(c->at, c->n + 1, sizeof *c->at);
    Named *named = &c->at[c->n++];
    *named = (Named){.name = mem_strdup(name), .path = mem_strdup(path)};
    str_puts(&named->text, "");
    str_add(&named->text, text, n);
    named->err = template_parse(text, n, &named->template);
}

static Err read_template(Chat *c, const char *name, const char *path) {
    Str text = {0};
    const Err e = text_read(path, &text);
    if (!e.code) add_template(c, name, path, text.s ? text.s : "", text.len);
    str_free(&text);
    return e;
}

static int is_template(const struct dirent *entry) {
    const size_t n = strlen(entry->d_name);
    return n > 6 && !strcmp(entry->d_name + n - 6, ".jinja");
}

/* Reads chat_template.jinja and every NAME.jinja in additional_chat_templates/. */
static Err read_files(Chat *c) {
    char *path = mem_printf("%s/chat_template.jinja", c->folder),
         *more = mem_printf("%s/additional_chat_templates", c->folder);
    Err e = file_exists(path) ? read_template(c, "default", path) : ERR_OK;
    struct dirent **entries = NULL;
    const int n = e.code ? 0 : scandir(more, &entries, is_template, alphasort);
    for (int i = 0; i < n; i++) {
        char *one = mem_printf("%s/%s", more, entries[i]->d_name);
        entries[i]->d_name[strlen(entries[i]->d_name) - 6] = '\0';
        if (!e.code) e = read_template(c, entries[i]->d_name, one);
        free(one), free(entries[i]);
    }
    free(entries), free(path), free(more);
    return e;
}

/* Reads "chat_template": a string, {NAME: TEXT}, or a list of {"name": NAME, "template": TEXT}. */
static Err read_setting(Chat *c, const char *path, json_t *setting) {
    const char *name;
    json_t *one;
    bool valid = json_is_string(setting) || json_is_object(setting) || json_is_array(setting);
    if (json_is_string(setting))
        add_template(c, "default", path, json_string_value(setting), json_string_length(setting));
    json_object_foreach(setting, name, one) {
        valid = valid && json_is_string(one);
        if (valid) add_template(c, name, path, json_string_value(one), json_string_length(one));
    }
    for (size_t i = 0; i < json_array_size(setting) && valid; i++) {
        const json_t *entry = json_array_get(setting, i), *text = json_object_get(entry, "template");
        name = json_string_value(json_object_get(entry, "name"));
        valid = name && json_is_string(text);
        if (valid) add_template(c, name, path, json_string_value(text), json_string_length(text));
    }
    return valid ? ERR_OK
                 : err_user("'%s': \"chat_template\" must be a string, or a list of objects with the strings "
                            "\"name\" "
                            "and \"template\"",
                            path);
}

static Err read_config(Chat *c) {
    char *path = mem_printf("%s/tokenizer_config.json", c->folder);
    json_t *config = NULL;
    Err e = file_exists(path) ? json_file(path, &config) : ERR_OK;
    json_t *setting = json_object_get(config, "chat_template");
    if (!e.code && setting && !json_is_null(setting)) e = read_setting(c, path, setting);
    json_decref(config);
    free(path);
    return e;
}

Err chat_open(const char *model, const Tokenizer *t, Chat **out) {
    *out = NULL;
    if (!model || !tokenizer_named(t)) return ERR_OK;
    const char *slash = strrchr(model, '/');
    Chat *c = mem_zero(1, sizeof *c);
    c->tokenizer = t;
    c->folder = file_is_dir(model)
                    ? mem_strdup(model)
                    : mem_printf("%.*s", slash > model ? (int)(slash - model) : 1, slash ? model : ".");
    Err e = read_files(c);
    if (!e.code && !c->n) e = read_config(c);
    if (e.code || !c->n)
        chat_free(c);
    else
        *out = c;
    return e;
}

void chat_free(Chat *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n; i++) {
        template_free(c->at[i].template);
        str_free(&c->at[i].text);
        free(c->at[i].name), free(c->at[i].path);
    }
    free(c->at), free(c->folder), free(c);
}

/* ---- rendering ---- */

static const Named *find(const Chat *c, const char *name) {
    for (size_t i = 0; name && i < c->n; i++)
        if (!strcmp(c->at[i].name, name)) return &c->at[i];
    return NULL;
}

/* Finds a template. If `name` is NULL, finds the template for tools if `tools` is true and such a template exists, and
 * otherwise the default template. */
static const Named *find_for(const Chat *c, const char *name, bool tools) {
    const Named *named = tools && !name ? find(c, "tool_use") : NULL;
    return named ? named : find(c, name ? name : "default");
}

const ToolFormat *chat_tool_format(const Chat *c, const char *template) {
    const Named *named = find_for(c, template, true);
    return named      ? tool_format(named->text.s, named->text.len)
           : template ? tool_format(template, strlen(template))
                      : NULL;
}

bool chat_has_variable(const Chat *c, const ChatRequest *r, const char *name) {
    const Named *named = find_for(c, r->template, r->tools);
    return strstr(named ? named->text.s : r->template ? r->template : "", name);
}

static Err no_template(const Chat *c, const char *name) {
    Str names = {0};
    for (size_t i = 0; i < c->n; i++) str_printf(&names, "%s%s", i ? ", " : "", quote(c->at[i].name).s);
    const Err e = err_user("there is no chat template %s; set \"chat_template\" to one of: %.600s",
                           quote(name).s, names.s);
    str_free(&names);
    return e;
}

/* Returns whether the request contains a template's text instead of its name. */
static bool is_text(const Chat *c, const ChatRequest *r) {
    return r->template && strchr(r->template, '{') && !find(c, r->template);
}

Err chat_render(const Chat *c, const ChatRequest *r, const struct tm *now, Str *out) {
    const Named *named = find_for(c, r->template, r->tools);
    const bool text = is_text(c, r);
    Template *own = NULL;
    Err e = text    ? template_parse(r->template, strlen(r->template), &own)
            : named ? named->err
                    : no_template(c, r->template ? r->template : "default");
    if (!e.code)
        e = conversation_render(own ? own : named->template, tokenizer_named(c->tokenizer), r, now,
                                TEMPLATE_LIMITS, out);
    template_free(own);
    if (e.code && text) return err_user("\"chat_template\": %.900s", e.msg);
    return e.code && r->local ? err_user("'%s': %.900s", named ? named->path : c->folder, e.msg) : e;
}

Err chat_encode(const Chat *c, const Str *text, int32_t **ids, TokenSpan **spans, size_t *count) {
    return tokenizer_encode_spans(c->tokenizer, TOKENIZER_NO_SPECIAL, text->s ? text->s : "", text->len, ids,
                                  spans, count);
}
