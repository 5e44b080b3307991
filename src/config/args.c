/* The option parser: which option a word or line names, where its values end, and the sentences when
 * something is wrong. Files are untrusted bytes: they are read by length, never as C strings. */
#include "config/args.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"

enum { NAME_MAX_BYTES = 100, LINE_MAX_BYTES = 1 << 20 };

/* One spelling inside Arg.names. */
typedef struct Spelling {
    const char *name, *implied; /* implied: NULL, or the value that the spelling stands for */
    size_t len, implied_len;
    bool noted; /* marked ~ */
} Spelling;

static bool next_spelling(const char **cursor, Spelling *out) {
    const char *s = *cursor;
    if (!*s) return false;
    *out = (Spelling){.noted = *s == '~'};
    s += out->noted;
    size_t all = strcspn(s, "|");
    out->name = s;
    out->len = strcspn(s, "|=");
    if (out->len < all) out->implied = s + out->len + 1, out->implied_len = all - out->len - 1;
    *cursor = s[all] ? s + all + 1 : s + all;
    return true;
}

typedef struct Match {
    const ArgTable *table;
    const Arg *row;
    Spelling spelling;
    bool accepted; /* belongs to this command */
} Match;

static char dashed(char c) { return c == '_' ? '-' : c; }

/* Megatron-LM spells an option num-layers and its argument num_layers. */
static bool same_name(const Spelling *s, const char *key, size_t len) {
    size_t i = 0;
    while (i < len && i < s->len && dashed(s->name[i]) == dashed(key[i])) i++;
    return i == len && i == s->len;
}

static bool match(const ArgTable *table, const char *key, size_t len, Match *out) {
    int group = -1;
    for (int64_t i = 0; i < table->count; i++) {
        const Arg *row = &table->rows[i];
        if (row->type == ARG_GROUP) {
            group++;
            continue;
        }
        const char *cursor = row->names;
        Spelling s;
        while (next_spelling(&cursor, &s))
            if (same_name(&s, key, len)) {
                *out = (Match){table, row, s, group < 0 || table->accepted >> group & 1};
                return true;
            }
    }
    return false;
}

static bool find(const Args *a, const char *key, size_t len, Match *out) {
    for (int t = 0; t < a->num_tables; t++)
        if (match(&a->tables[t], key, len, out)) return true;
    return false;
}

static const char *nearest(Args *a, const char *key, size_t len) {
    if (len > NAME_MAX_BYTES) return NULL;
    const char *word = arena_printf(a->arena, "%.*s", (int)len, key);
    const char *names[1024];
    size_t n = 0;
    for (int t = 0; t < a->num_tables; t++)
        for (int64_t i = 0; i < a->tables[t].count; i++) {
            const char *cursor = a->tables[t].rows[i].type == ARG_GROUP ? "" : a->tables[t].rows[i].names;
            Spelling s;
            while (next_spelling(&cursor, &s) && n < 1024)
                names[n++] = arena_printf(a->arena, "%.*s", (int)s.len, s.name);
        }
    return str_nearest(word, names, n);
}

void args_problem(Args *a, const char *fmt, ...) {
    if (a->num_problems++ >= ARG_PROBLEMS) return;
    char sentence[1000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    for (char *c = sentence; *c; c++)
        if (*c == '\n') *c = ' ';
    str_printf(&a->problems, "%s\n", sentence);
}

/* Where a value comes from: "" and "--" on the command line, "run.conf:12: " and "" in a file. */
typedef struct Source {
    const char *where, *dash;
    int number; /* options are repeated only within one source */
} Source;

static void unknown(Args *a, Source src, const char *key, size_t len) {
    Str quoted = {0};
    size_t dashes = strlen(src.dash); /* they stand in front of the key, and belong to what is shown */
    str_quote(&quoted, key - dashes, len + dashes);
    const char *near = nearest(a, key, len);
    if (near)
        args_problem(a, "%s%s is not an option: did you mean %s%s?", src.where, quoted.s, src.dash, near);
    else
        args_problem(a, "%s%s is not an option: see --help for those there are.", src.where, quoted.s);
    str_free(&quoted);
}

static bool is_boolean(const Arg *row) { return row->type == ARG_FLAG || row->type == ARG_OFF; }

/* `--bf16` stands for lane = bf16; `--bf16=false` only takes that choice back. A boolean has no third value:
 * `=false` is the other one. */
static void imply(Args *a, const Match *m, void *field, bool on) {
    const char *value = arena_printf(a->arena, "%.*s", (int)m->spelling.implied_len, m->spelling.implied);
    if (is_boolean(m->row) && !on) value = strcmp(value, "true") ? "true" : "false", on = true;
    Str now = {0};
    arg_print(m->row, field, &now);
    if (on)
        CHECK(arg_parse(m->row, field, a->arena, &value, 1, &now), "--%s implies '%s'", m->row->names, value);
    else if (!strcmp(now.s, value))
        arg_default(m->row, field, a->arena);
    str_free(&now);
}

static void assign(Args *a, Source src, const Match *m, const char *const *words, int64_t n) {
    const Arg *row = m->row;
    const int name_len = (int)m->spelling.len, first_len = (int)arg_name_len(row);
    void *field = (char *)m->table->target + row->offset;
    Str expected = {0};
    static const Arg as_switch = {.type = ARG_FLAG};
    bool on = true, is_switch = m->spelling.implied != NULL;
    if (is_switch) {
        if (!n || arg_parse(&as_switch, &on, a->arena, words, n, &expected)) imply(a, m, field, on);
    } else if (n) {
        arg_parse(row, field, a->arena, words, n, &expected);
    } else {
        str_puts(&expected, "a value, but none follows");
    }
    if (expected.len)
        args_problem(a, "%s%s%.*s expects %s.", src.where, src.dash, name_len, m->spelling.name, expected.s);
    str_free(&expected);

    unsigned char *given = &m->table->given[row - m->table->rows];
    if (!on && is_switch && !is_boolean(row)) return; /* it chooses nothing */
    if (*given == src.number)
        args_problem(a, "%s%s%.*s is given twice: keep one of them%s%.*s%s.", src.where, src.dash, name_len,
                     m->spelling.name, is_switch ? " (it is a spelling of " : "", is_switch ? first_len : 0,
                     row->names, is_switch ? ")" : "");
    *given = (unsigned char)src.number;
    if (m->spelling.noted)
        str_printf(&a->notes, "%s%s%.*s is understood as Megatron-LM's %s%.*s%s%.*s.\n", src.where, src.dash,
                   name_len, m->spelling.name, src.dash, first_len, row->names, is_switch ? " " : "",
                   (int)m->spelling.implied_len, is_switch ? m->spelling.implied : "");
}

static int next_source(Args *a) {
    CHECK(a->sources < 255, "more than 255 sources of options");
    return ++a->sources;
}

static bool is_option(const char *word) { return word[0] == '-' && word[1] == '-' && word[2]; }

/* How many of the words after the option are its values. */
static int count_values(const Match *m, int argc, char **argv) {
    if (is_boolean(m->row) || m->spelling.implied) return 0;
    bool list = m->row->type == ARG_TEXTS || m->row->type == ARG_I64S;
    int n = 0;
    while (n < argc && !is_option(argv[n]) && (list || n < 1)) n++;
    return n;
}

/* One option and its values; returns how many words it took. */
static int line_option(Args *a, Source src, int argc, char **argv) {
    const char *key = argv[0] + 2, *equals = strchr(key, '=');
    size_t len = equals ? (size_t)(equals - key) : strlen(key);
    Match m;
    if (!find(a, key, len, &m)) {
        unknown(a, src, key, len);
        int skipped = 1;
        while (!equals && skipped < argc && !is_option(argv[skipped])) skipped++;
        return skipped;
    }
    if (!m.accepted) args_problem(a, "--%.*s is not an option of this command: leave it out.", (int)len, key);
    static const char *const set[] = {"true"};
    if (equals) return assign(a, src, &m, (const char *const[]){equals + 1}, 1), 1;
    int n = count_values(&m, argc - 1, argv + 1);
    const bool flag = is_boolean(m.row);
    assign(a, src, &m, flag ? set : (const char *const *)argv + 1, flag ? 1 : n);
    return 1 + n;
}

/* `--config FILE` and `--config=FILE`: the length in words, 0 if argv[0] is something else. */
static int config_words(int argc, char **argv, const char **path) {
    if (!strncmp(argv[0], "--config=", 9)) return *path = argv[0] + 9, 1;
    if (strcmp(argv[0], "--config")) return 0;
    *path = argc > 1 && !is_option(argv[1]) ? argv[1] : NULL;
    return *path ? 2 : 1;
}

void args_line(Args *a, int argc, char **argv) {
    const char *path;
    for (int i = 0; i < argc; i++)
        if (config_words(argc - i, argv + i, &path)) {
            if (path)
                args_file(a, path);
            else
                args_problem(a, "--config expects the path of a file with `name = value` lines.");
        }
    Source src = {"", "--", next_source(a)};
    for (int i = 0; i < argc;) {
        int n = config_words(argc - i, argv + i, &path);
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            a->help = true, i++;
        else if (n)
            i += n;
        else if (is_option(argv[i]))
            i += line_option(a, src, argc - i, argv + i);
        else if (a->operand_name) {
            a->operands.at = mem_grow(a->operands.at, (size_t)a->operands.count + 1, sizeof *a->operands.at);
            a->operands.at[a->operands.count++] = argv[i++];
        } else {
            Str quoted = {0};
            str_quote(&quoted, argv[i], strlen(argv[i]));
            args_problem(a, "%s does not belong to any option: options begin with two dashes.", quoted.s);
            str_free(&quoted), i++;
        }
    }
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The part of the line before its comment; quotes protect a #. */
static size_t without_comment(const char *s, size_t n) {
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"') quoted = !quoted;
        if (s[i] == '#' && !quoted && (i == 0 || blank(s[i - 1]))) return i;
    }
    return n;
}

static void trim(const char **s, size_t *n) {
    while (*n && blank(**s)) ++*s, --*n;
    while (*n && blank((*s)[*n - 1])) --*n;
}

/* Splits a value at blanks outside of double quotes; returns false on a quote that does not end. */
static bool split_words(Args *a, const char *s, size_t n, TextList *words) {
    words->at = arena_alloc(a->arena, (n / 2 + 1) * sizeof *words->at);
    for (size_t i = 0; i < n;) {
        if (blank(s[i])) {
            i++;
            continue;
        }
        bool quoted = s[i] == '"';
        size_t begin = i += quoted;
        while (i < n && (quoted ? s[i] != '"' : !blank(s[i]))) i++;
        if (quoted && i == n) return false;
        words->at[words->count++] = arena_printf(a->arena, "%.*s", (int)(i - begin), s + begin);
        i += quoted;
    }
    return true;
}

/* The value of one line. A list is split; a single value is the whole rest of the line. */
static bool line_value(Args *a, const Match *m, const char *s, size_t n, TextList *words) {
    if (m->row->type == ARG_TEXTS || m->row->type == ARG_I64S) return split_words(a, s, n, words);
    words->at = arena_alloc(a->arena, sizeof *words->at);
    bool quoted = n >= 2 && s[0] == '"' && s[n - 1] == '"';
    words->at[0] = arena_printf(a->arena, "%.*s", (int)n - 2 * quoted, s + quoted);
    words->count = n > 0 || m->row->type == ARG_TEXT;
    return quoted || !n || s[0] != '"';
}

static void file_line(Args *a, Source src, const char *s, size_t n) {
    const char *shown = src.where;
    if (n > LINE_MAX_BYTES) {
        args_problem(a, "%sthe line has %zu bytes: at most %d are allowed.", shown, n, LINE_MAX_BYTES);
        return;
    }
    if (memchr(s, 0, n)) {
        args_problem(a, "%sthe line holds a NUL byte: this is not a text file.", shown);
        return;
    }
    n = without_comment(s, n);
    trim(&s, &n);
    if (!n) return;
    const char *equals = memchr(s, '=', n), *value = equals ? equals + 1 : NULL;
    size_t key_len = equals ? (size_t)(equals - s) : n, value_len = equals ? n - key_len - 1 : 0;
    trim(&s, &key_len);
    Match m;
    TextList words = {0};
    if (!equals || !key_len) {
        Str quoted = {0};
        str_quote(&quoted, s, n);
        args_problem(a, "%s%s is not a `name = value` line.", shown, quoted.s);
        str_free(&quoted);
    } else if (!find(a, s, key_len, &m)) {
        unknown(a, src, s, key_len);
    } else {
        trim(&value, &value_len);
        if (line_value(a, &m, value, value_len, &words))
            assign(a, src, &m, words.at, words.count);
        else
            args_problem(a, "%sthe quote in the value of %.*s does not end.", shown, (int)key_len, s);
    }
}

void args_bytes(Args *a, const char *name, const char *bytes, size_t n) {
    int number = next_source(a);
    int64_t line = 1;
    for (size_t begin = 0; begin < n; line++) {
        if (a->num_problems > ARG_PROBLEMS) return;
        const char *newline = memchr(bytes + begin, '\n', n - begin);
        size_t end = newline ? (size_t)(newline - bytes) : n;
        char where[400];
        snprintf(where, sizeof where, "%.300s:%lld: ", name, (long long)line);
        file_line(a, (Source){where, "", number}, bytes + begin, end - begin);
        begin = end + 1;
    }
}

void args_file(Args *a, const char *path) {
    Str text = {0};
    Err e = file_read(path, &text);
    if (e.code)
        args_problem(a, "%s", e.msg);
    else
        args_bytes(a, path, text.s, text.len);
    str_free(&text);
}

void args_init(Args *a, Arena *arena, const char *usage, const char *operand_name) {
    *a = (Args){.usage = usage, .operand_name = operand_name, .arena = arena};
}

void args_free(Args *a) {
    free(a->operands.at);
    str_free(&a->problems), str_free(&a->notes);
    *a = (Args){0};
}

void args_use(Args *a, ArgTable table) {
    CHECK(a->num_tables < ARG_TABLES, "more than %d option tables", ARG_TABLES);
    if (!table.given) table.given = arena_alloc(a->arena, (size_t)table.count);
    memset(table.given, 0, (size_t)table.count);
    for (int64_t i = 0; i < table.count; i++)
        arg_default(&table.rows[i], (char *)table.target + table.rows[i].offset, a->arena);
    a->tables[a->num_tables++] = table;
}

Err args_end(Args *a) {
    for (int t = 0; t < a->num_tables; t++)
        for (int64_t i = 0; i < a->tables[t].count; i++) {
            const Arg *row = &a->tables[t].rows[i];
            if (row->required && !a->tables[t].given[i])
                args_problem(a, "--%.*s is required: %s", (int)arg_name_len(row), row->names, row->help);
        }
    if (!a->num_problems) return ERR_OK;
    int first = (int)strcspn(a->problems.s, "\n");
    if (a->num_problems == 1) return err_user("%.*s", first, a->problems.s);
    return err_user("%lld problems with the options, the first: %.*s", (long long)a->num_problems, first,
                    a->problems.s);
}
