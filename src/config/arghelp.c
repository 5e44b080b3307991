/* The text of --help. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/terminal.h"
#include "config/args.h"

static void option(const Arg *row, Str *out) {
    int name_len = (int)arg_name_len(row);
    str_printf(out, "  --%.*s", name_len, row->names);
    bool takes_value = row->type != ARG_FLAG && row->type != ARG_OFF;
    if (takes_value) str_puts(out, " ");
    arg_metavar(row, out);
    str_printf(out, "\n        %s", row->help);
    if (row->required)
        str_puts(out, " Required.");
    else if (takes_value)
        str_printf(out, " Default: %s.", row->fallback);
    if (row->names[name_len]) {
        str_puts(out, " Also:");
        for (const char *s = row->names + name_len; *s; s += 1 + strcspn(s + 1, "|")) {
            s += s[1] == '~';
            const char *end = s + 1 + strcspn(s + 1, "=|");
            str_printf(out, " --%.*s", (int)(end - s - 1), s + 1);
            if (*end == '=' && !takes_value)
                str_printf(out, " for %.*s", (int)strcspn(end + 1, "|"), end + 1);
        }
        str_puts(out, ".");
    }
    str_puts(out, "\n");
}

static char plain(char c) { return c == '_' || c == ' ' ? '-' : (char)tolower((unsigned char)c); }

/* Returns whether the text contains the word. The search ignores case and treats `_`, `-` and a blank as equal. */
static bool has_word(const char *text, const char *word) {
    const size_t n = strlen(word);
    for (; *text; text++) {
        size_t i = 0;
        while (i < n && plain(text[i]) == plain(word[i])) i++;
        if (i == n) return true;
    }
    return n == 0;
}

static const char *without_dashes(const char *word) { return word + strspn(word, "-"); }

static bool row_has_word(const Arg *row, const char *word) {
    bool found = has_word(row->names, word) || has_word(row->help, word);
    for (int i = 0; row->type == ARG_ENUM && row->choices[i]; i++) found |= has_word(row->choices[i], word);
    return found;
}

/* Appends help for each option in a table that matches `word`, or for all options if `word` is NULL. Returns the number
 * of options appended. */
static int64_t table_help(const ArgTable *table, const char *word, Str *out) {
    const Arg *title = NULL;
    bool titled = false;
    int64_t shown = 0;
    for (int64_t i = 0; i < table->count; i++) {
        const Arg *row = &table->rows[i];
        if (row->type == ARG_GROUP) {
            title = row, titled = false;
            continue;
        }
        if (table->accepts && !table->accepts(table->use, i)) continue;
        if (word && !row_has_word(row, word)) continue;
        if (title && !titled) str_printf(out, "\n%s\n", title->names);
        titled = true, shown++;
        option(row, out);
    }
    return shown;
}

static const char *effect(const Foreign *row) {
    return row->kind == FOREIGN_REFUSED ? "Not supported"
           : row->option && *row->ours  ? row->ours
                                        : "No effect";
}

/* Appends Megatron-LM's options and values whose names contain `word`. Returns the number of names appended.
 * */
static int64_t foreign_help(const ArgTable *table, const char *word, Str *out) {
    int64_t shown = 0;
    for (int64_t i = 0; i < table->num_foreign; i++) {
        const Foreign *row = &table->foreign[i];
        for (const char *s = row->words; *s; s += strcspn(s, " "), s += strspn(s, " ")) {
            char name[200];
            snprintf(name, sizeof name, "%s%s%.*s", row->option ? row->option : "", row->option ? " " : "",
                     (int)strcspn(s, " =+"), s);
            if (!has_word(name, word)) continue;
            if (!shown++) str_puts(out, "\nMegatron-LM's options and values that Isotron does not have\n");
            str_printf(out, "  --%s\n        %s: %s\n", name, effect(row), row->reason);
        }
    }
    return shown;
}

void args_help(const Args *a, int width, Str *to) {
    enum { WIDEST = 100 };
    static const Arg config = {.names = "config",
                               .type = ARG_TEXT,
                               .fallback = "none",
                               .help = "File of `name = value` lines, read before the command line. Options "
                                       "that only other commands read are skipped."};
    const char *word = a->help_word ? without_dashes(a->help_word) : NULL;
    int64_t shown = 0;
    Str text = {0}, *out = &text;
    if (!word) {
        str_printf(out, "usage: %s\n\n", a->usage);
        option(&config, out);
    }
    for (int t = 0; t < a->num_tables; t++) shown += table_help(&a->tables[t], word, out);
    for (int t = 0; word && t < a->num_tables; t++) shown += foreign_help(&a->tables[t], word, out);
    if (word && !shown) str_printf(out, "No option has '%s' in its name, values or help.\n", word);
    terminal_fold(text.s, width < WIDEST ? width : WIDEST, to);
    str_free(&text);
}
