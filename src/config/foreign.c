/* Finds other programs' options, and their values for Isotron's options (args.h). */
#include <string.h>

#include "config/args.h"

/* Returns the next word of a row, or NULL at the end. */
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
    if (row->kind == FOREIGN_REFUSED)
        args_remark(a, REMARK_REFUSED, option, ": %s", row->reason);
    else if (row->option && *row->ours)
        args_remark(a, REMARK_TAKEN, option, " %s: %s", row->ours, row->reason);
    else
        args_remark(a, REMARK_IDLE, option, ": %s", row->reason);
}
