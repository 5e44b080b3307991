#include "chat/template.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "chat/run.h"

enum { LONGEST = 1 << 20 };

struct Template {
    Arena *arena;
    TreeNodes body;
};

Err template_parse(const char *source, size_t n, Template **out) {
    ERR_RETURN(text_check("the chat template", source, n));
    if (n > LONGEST)
        return err_user("the chat template has %zu bytes; use a template of at most %d bytes", n, LONGEST);
    Template *t = mem_zero(1, sizeof *t);
    t->arena = arena_new();
    Token *tokens;
    Err e = lexer_run(source, n, t->arena, &tokens);
    if (!e.code) e = parser_run(tokens, t->arena, &t->body);
    if (e.code)
        template_free(t);
    else
        *out = t;
    return e;
}

void template_free(Template *t) {
    if (!t) return;
    arena_free(t->arena);
    free(t);
}

Err template_render(const Template *t, const json_t *variables, const struct tm *now, TemplateLimits limits,
                    Str *out) {
    Machine m = {.left = limits, .arena = arena_new(), .out = out, .now = now};
    const Value all = value_of_json(&m, variables);
    if (!m.err.code) {
        m.variables = all.dict;
        Scope scope = {0};
        chat_execute(&m, &scope, &t->body);
    }
    arena_free(m.arena);
    return m.err;
}
