/* Options of another program, and values that it gives to an option of ours (args.h). */
#include <string.h>

#include "config/args.h"

/* The next word of a row; NULL at the end. */
static const char *next_word(const char **cursor, size_t *len) {
    const char *word = *cursor + strspn(*cursor, " ");
    *len = strcspn(word, " ");
    *cursor = word + *len;
    return *len ? word : NULL;
}

bool foreign_find(const ArgTable *t, const char *key, size_t len, ForeignOption *out) {
    for (int64_t i = 0; i < t->num_foreign; i++) {
        if (t->foreign[i].option) continue;
        const char *cursor = t->foreign[i].words, *word;
        size_t n;
        while ((word = next_word(&cursor, &n))) {
            const size_t name = strcspn(word, "=+ ");
            if (!args_same_name(word, name, key, len)) continue;
            *out = (ForeignOption){.row = &t->foreign[i], .name = word, .len = name};
            if (name < n) out->arity = word[name];
            if (n - name > 1) out->only = word + name + 1, out->only_len = n - name - 1;
            return true;
        }
    }
    return false;
}

bool foreign_allows(const ForeignOption *o, const char *value) {
    const size_t n = strlen(value);
    for (size_t at = 0; at < o->only_len; at += 1 + strcspn(o->only + at, ", "))
        if (strcspn(o->only + at, ", ") == n && !strncmp(o->only + at, value, n)) return true;
    return !o->only;
}

const Foreign *foreign_value(const ArgTable *t, const Arg *row, const char *value) {
    const size_t wanted = strlen(value), name = arg_name_len(row);
    for (int64_t i = 0; i < t->num_foreign; i++) {
        const Foreign *f = &t->foreign[i];
        if (!f->option || strlen(f->option) != name || strncmp(f->option, row->names, name)) continue;
        const char *cursor = f->words, *word;
        size_t n;
        while ((word = next_word(&cursor, &n)))
            if (n == wanted && !memcmp(word, value, n)) return f;
    }
    return NULL;
}

void foreign_use(Args *a, const Foreign *row, const char *option) {
    for (int64_t i = 0; i < a->num_used; i++)
        if (a->used[i].row == row && !strcmp(a->used[i].option, option)) return;
    a->used = mem_grow(a->used, (size_t)a->num_used + 1, sizeof *a->used);
    a->used[a->num_used++] = (ForeignUse){row, arena_printf(a->arena, "%s", option)};
}

/* Lists "--a, --b and --c", all uses of the row of the first one, and marks them as reported. */
static void list_used(Args *a, int64_t first, Str *out) {
    const Foreign *row = a->used[first].row;
    enum { SHOWN = 8 };
    int64_t left = 0, n = 0;
    for (int64_t i = first; i < a->num_used; i++) left += a->used[i].row == row;
    for (int64_t i = first; i < a->num_used; i++) {
        if (a->used[i].row != row) continue;
        left--;
        if (n < SHOWN) str_printf(out, "%s%s", n == 0 ? "" : left ? ", " : " and ", a->used[i].option);
        n++;
        a->used[i].row = NULL;
    }
    if (n > SHOWN) str_printf(out, " and %lld more", (long long)(n - SHOWN));
    const bool one = n == 1;
    if (row->kind == FOREIGN_REFUSED)
        str_puts(out, one ? " is not supported" : " are not supported");
    else if (row->option && *row->ours)
        str_printf(out, one ? " is taken as %s" : " are taken as %s", row->ours);
    else
        a->idle += n, str_puts(out, one ? " has no effect here" : " have no effect here");
    str_printf(out, ": %s", row->reason);
}

void foreign_report(Args *a) {
    for (int64_t i = 0; i < a->num_used; i++) {
        const Foreign *row = a->used[i].row;
        if (!row) continue;
        Str text = {0};
        list_used(a, i, &text);
        if (row->kind == FOREIGN_REFUSED)
            args_problem(a, "%s", text.s);
        else
            args_note(a, "%s", text.s);
        str_free(&text);
    }
}
