/* The option parser. The parser finds the option that an argument or a line in a file names, finds where the
 * option's values end, and reports errors. Files are untrusted bytes, so the parser reads them by length,
 * never as C strings.
 *
 * This file and foreign.c call each other: args.c calls foreign.c (other programs' options) and remarks.c (messages),
 * and both report problems through args.c. */
#include "config/args.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/text.h"

enum { NAME_MAX_BYTES = 100, LINE_MAX_BYTES = 1 << 20 };

/* Returns whether the comma-separated list `word` contains the name. */
static bool has_name(const char *word, const char *name) {
    const size_t n = strlen(name);
    for (size_t end;; word += end + 1) {
        end = strcspn(word, ",");
        if (end == n && !memcmp(word, name, n)) return true;
        if (!word[end]) return false;
    }
}

bool text_list_selects(const TextList *list, const char *name) {
    bool found = list->count == 0;
    for (int64_t i = 0; i < list->count; i++) found |= has_name(list->at[i], name);
    return found;
}

static Err check_name(const char *name, const char *option, const char *const *names, int n) {
    Str all = {0};
    bool known = false;
    for (int k = 0; k < n; k++) {
        known |= !strcmp(name, names[k]);
        str_printf(&all, "%s%s", k ? ", " : "", names[k]);
    }
    const Err e = known ? ERR_OK : err_user("--%s %s: choose from %s", option, quote(name).s, all.s);
    str_free(&all);
    return e;
}

Err text_list_check(const TextList *list, const char *option, const char *const *names, int n) {
    Err e = ERR_OK;
    for (int64_t i = 0; i < list->count && !e.code; i++) {
        char *copy = mem_strdup(list->at[i]), *rest = copy;
        for (char *name; !e.code && (name = strsep(&rest, ","));) e = check_name(name, option, names, n);
        free(copy);
    }
    return e;
}

/* One spelling in Arg.names. */
typedef struct Spelling {
    const char *name, *implied; /* implied: the value that the spelling sets, or NULL if there is none */
    size_t len, implied_len;
    bool noted; /* whether the spelling is marked ~, so that a note reports its use */
} Spelling;

/* The last spelling that set an option. */
typedef struct Choice {
    Spelling spelling;
} Choice;

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
    bool accepted; /* whether the command reads this option */
} Match;

static char dashed(char c) { return c == '_' ? '-' : c; }

/* Compares names. Each may have either of Megatron-LM's spellings: num-layers (option) or num_layers (argument). */
bool args_same_name(const char *a, size_t a_len, const char *b, size_t b_len) {
    size_t i = 0;
    while (i < a_len && i < b_len && dashed(a[i]) == dashed(b[i])) i++;
    return i == a_len && i == b_len;
}

static bool match(const ArgTable *table, const char *key, size_t len, Match *out) {
    for (int64_t i = 0; i < table->count; i++) {
        const Arg *row = &table->rows[i];
        if (row->type == ARG_GROUP) continue;
        const char *cursor = row->names;
        Spelling s;
        while (next_spelling(&cursor, &s))
            if (args_same_name(s.name, s.len, key, len)) {
                *out = (Match){table, row, s, !table->accepts || table->accepts(table->use, i)};
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

/* Returns Isotron's name for an option that other programs call `key`. Returns NULL if there is no such name,
 * or if no table contains the option. */
static const char *renamed(const Args *a, const char *key, size_t len) {
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"nproc-per-node", "ranks"},
                 {"world-size", "ranks"},
                 {"gpus", "ranks"},
                 {"num-gpus", "ranks"},
                 {"tp", "tensor-model-parallel-size"},
                 {"pp", "pipeline-model-parallel-size"},
                 {"cp", "context-parallel-size"},
                 {"ep", "expert-model-parallel-size"},
                 {"learning-rate", "lr"},
                 {"epochs", "train-iters"},
                 {"batchsize", "micro-batch-size"},
                 {"heads", "num-attention-heads"},
                 {"resume", "load"},
                 {"max-new-tokens", "tokens-to-generate"}};
    Match m;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (args_same_name(names[i].theirs, strlen(names[i].theirs), key, len))
            return find(a, names[i].ours, strlen(names[i].ours), &m) ? names[i].ours : NULL;
    return NULL;
}

static const char *nearest(Args *a, const char *key, size_t len) {
    for (; len && *key == '-'; len--) key++; /* a key in a file can begin with dashes */
    if (len > NAME_MAX_BYTES) return NULL;
    const char *other = renamed(a, key, len), *word = arena_printf(a->arena, "%.*s", (int)len, key);
    if (other) return other;
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

/* Adds a line, unless `lines` already contains it. */
static bool add_line(Str *lines, const char *fmt, va_list args) {
    char line[1002] = "\n"; /* because of the newline, strstr matches only complete lines */
    vsnprintf(line + 1, sizeof line - 2, fmt, args);
    for (char *c = line + 1; *c; c++)
        if (*c == '\n') *c = ' ';
    const size_t n = strlen(line);
    line[n] = '\n', line[n + 1] = 0;
    if (lines->len && (!strncmp(lines->s, line + 1, n) || strstr(lines->s, line))) return false;
    str_puts(lines, line + 1);
    return true;
}

void args_check_texts(Args *a, const char *name, const TextList *list) {
    for (int64_t i = 0; i < list->count; i++) {
        if (!list->at[i]) continue; /* a missing value has already been reported as a problem */
        Str where = {0};
        str_printf(&where, "text %lld of --%s", (long long)i + 1, name);
        const Err e = text_check(where.s, list->at[i], strlen(list->at[i]));
        if (e.code) args_problem(a, "%s.", e.msg);
        str_free(&where);
    }
}

void args_problem(Args *a, const char *fmt, ...) {
    if (a->unreadable) return;
    if (a->num_problems >= ARG_PROBLEMS) {
        a->num_problems++;
        return;
    }
    va_list args;
    va_start(args, fmt);
    a->num_problems += add_line(&a->problems, fmt, args);
    va_end(args);
}

void args_note(Args *a, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    add_line(&a->notes, fmt, args);
    va_end(args);
}

/* The source of a value, as prefixes for messages. For the command line, `where` is "" and `dash` is "--". For a
 * file, `where` is text such as "run.conf:12: " and `dash` is "". */
typedef struct Source {
    const char *where, *dash;
    int number; /* index of the source; needed because repetitions are detected only within one source */
} Source;

static void unknown(Args *a, Source src, const char *key, size_t len) {
    Str quoted = {0};
    size_t dashes = strlen(src.dash); /* the dashes before the key are part of the message */
    str_quote(&quoted, key - dashes, len + dashes);
    const char *near = nearest(a, key, len);
    Match m;
    if (near) {
        args_problem(a, "%s%s is not an option: did you mean %s%s?", src.where, quoted.s, src.dash, near);
        CHECK(find(a, near, strlen(near), &m), "--%s", near);
        unsigned char *given = &m.table->given[m.row - m.table->rows];
        /* so that args_end does not also report the option as missing */
        if (!*given) *given = ARG_BAD;
    } else
        args_problem(a, "%s%s is not an option: see --help for the list.", src.where, quoted.s);
    str_free(&quoted);
}

static bool is_boolean(const Arg *row) { return row->type == ARG_FLAG || row->type == ARG_OFF; }

/* Sets the value that a spelling implies. For example, `--bf16` sets lane = bf16, and `--bf16=false` only
 * resets a lane that is bf16. For a boolean field, `=false` sets the opposite value. */
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

/* Translates Megatron-LM's values to Isotron's. Returns the values to set, or no values if any is refused. */
static TextList translate(Args *a, const Match *m, const char *const *words, int64_t n) {
    TextList left = {arena_alloc(a->arena, (size_t)n * sizeof *left.at), 0};
    const int name = (int)m->spelling.len;
    bool refused = false;
    for (int64_t i = 0; i < n; i++) {
        const Foreign *f = foreign_value(m->table, m->row, words[i]);
        if (f) foreign_use(a, f, arena_printf(a->arena, "--%.*s %s", name, m->spelling.name, words[i]));
        refused |= f && f->kind == FOREIGN_REFUSED;
        if (!f || (f->ours && *f->ours)) left.at[left.count++] = f ? f->ours : words[i];
    }
    if (refused) left.count = 0, m->table->given[m->row - m->table->rows] = ARG_BAD;
    return left;
}

/* Sets the field. If the value is invalid, adds a message and returns false. */
static bool set_value(Args *a, Source src, const Match *m, void *field, const char *const *words, int64_t n,
                      bool *on) {
    static const Arg as_switch = {.type = ARG_FLAG};
    Str expected = {0};
    if (m->spelling.implied) {
        if (!n || arg_parse(&as_switch, on, a->arena, words, n, &expected)) imply(a, m, field, *on);
    } else if (n) {
        const TextList left = translate(a, m, words, n);
        if (left.count) arg_parse(m->row, field, a->arena, left.at, left.count, &expected);
    } else {
        str_puts(&expected, "a value, but none follows");
    }
    const bool good = !expected.len;
    if (!good)
        args_problem(a, "%s%s%.*s expects %s.", src.where, src.dash, (int)m->spelling.len, m->spelling.name,
                     expected.s);
    str_free(&expected);
    return good;
}

/* Handles an option that occurs twice in one source. On the command line, the last value applies. In a file,
 * a repeated option is an error. Contradictory flags are always an error. */
static void repeated(Args *a, Source src, const Spelling *old, const Spelling *now, const char *before,
                     const char *after) {
    const bool same = args_same_name(old->name, old->len, now->name, now->len),
               switches = old->implied || now->implied;
    if (!*src.dash && (same || !switches))
        args_problem(a, "%s%.*s is given twice: keep one of them.", src.where, (int)now->len, now->name);
    else if (!same && switches && strcmp(before, after))
        args_problem(a, "%s%s%.*s and %s%.*s contradict each other: remove one of them.", src.where, src.dash,
                     (int)old->len, old->name, src.dash, (int)now->len, now->name);
}

static void assign(Args *a, Source src, const Match *m, const char *const *words, int64_t n) {
    const Arg *row = m->row;
    const int64_t i = row - m->table->rows;
    const Spelling *s = &m->spelling;
    void *field = (char *)m->table->target + row->offset;
    unsigned char *given = &m->table->given[i];
    Choice *chosen = &m->table->chosen[i];
    Str before = {0}, after = {0};
    arg_print(row, field, &before);
    bool on = true;
    const bool good = set_value(a, src, m, field, words, n, &on);
    arg_print(row, field, &after);
    const bool chooses = on || !s->implied || is_boolean(row);
    if (!good)
        *given = ARG_BAD;
    else if (chooses && *given == src.number)
        repeated(a, src, &chosen->spelling, s, before.s, after.s);
    str_free(&before), str_free(&after);
    if (!chooses || *given == ARG_BAD) return;
    *given = (unsigned char)src.number;
    chosen->spelling = *s;
    if (s->noted)
        args_note(a, "%s%s%.*s is treated as Megatron-LM's %s%.*s%s%.*s.", src.where, src.dash, (int)s->len,
                  s->name, src.dash, (int)arg_name_len(row), row->names, s->implied ? " " : "",
                  (int)s->implied_len, s->implied ? s->implied : "");
}

static const ArgTable *find_foreign(const Args *a, const char *key, size_t len, ForeignOption *out) {
    for (int t = 0; t < a->num_tables; t++)
        if (foreign_find(&a->tables[t], key, len, out)) return &a->tables[t];
    return NULL;
}

/* Handles another program's option. `value` is the option's first value, or NULL. */
static void use_foreign(Args *a, Source src, const ForeignOption *o, const char *value) {
    const int len = (int)o->len;
    if (!o->arity && value && (!strcmp(value, "false") || !strcmp(value, "False"))) return;
    if (o->arity == '=' && !value)
        args_problem(a, "%s%s%.*s expects a value, but none follows.", src.where, src.dash, len, o->name);
    else if (value && !foreign_allows(o, value))
        args_problem(a, "%s%s%.*s %s is not supported: use %.*s, or remove it. %s", src.where, src.dash, len,
                     o->name, value, (int)o->only_len, o->only, o->row->reason);
    else
        foreign_use(a, o->row, arena_printf(a->arena, "--%.*s", len, o->name));
}

static int next_source(Args *a) {
    CHECK(a->sources < ARG_BAD - 1, "too many sources of options");
    return ++a->sources;
}

static bool is_option(const char *word) { return word[0] == '-' && word[1] == '-' && word[2]; }

/* Returns the number of arguments before the next option, at most `most`. */
static int count_words(int argc, char **argv, int most) {
    int n = 0;
    while (n < most && n < argc && !is_option(argv[n])) n++;
    return n;
}

static void no_use(Args *a, const char *key, size_t len, const ArgTable *table) {
    args_problem(a, "--%.*s is not used in %s: remove it.", (int)len, key, table->command);
}

/* Returns whether an option that the command does not read causes only a note. Megatron-LM's training commands also
 * accept its inference engine's options, whose names begin with the strings in INFERS. */
static bool notes(const Match *m) {
    static const char *const INFERS[] = {"inference-", "num-speculative-tokens", "cache-mla-latents",
                                         "rl-kv-cache-management-mode"};
    bool accepts = m->table->notes_unread;
    for (size_t i = 0; i < sizeof INFERS / sizeof *INFERS && m->table->foreign_use == FOREIGN_READ; i++)
        accepts |= !strncmp(m->row->names, INFERS[i], strlen(INFERS[i]));
    return accepts && !strstr(m->row->help, "not in Megatron-LM");
}

/* Handles an option that the command does not read. Checks the option's value even if the option causes only
 * a note. */
static void unread(Args *a, Source src, const Match *m, const char *key, size_t len, const char *const *words,
                   int64_t n) {
    if (!notes(m)) return no_use(a, key, len, m->table);
    union {
        bool flag;
        int choice;
        int64_t whole;
        double real;
        TextList texts;
        I64List numbers;
    } value;
    bool on = true;
    arg_default(m->row, &value, a->arena);
    if (set_value(a, src, m, &value, words, n, &on))
        args_remark(a, REMARK_IDLE, arena_printf(a->arena, "--%.*s", (int)len, key), " in %s.",
                    m->table->command);
}

/* Parses one option and its values. Returns the number of arguments consumed. */
static int line_option(Args *a, Source src, int argc, char **argv) {
    const char *key = argv[0] + 2, *equals = strchr(key, '=');
    size_t len = equals ? (size_t)(equals - key) : strlen(key);
    Match m;
    ForeignOption o;
    if (!find(a, key, len, &m)) {
        const ArgTable *table = find_foreign(a, key, len, &o);
        if (table) {
            const int n = count_words(argc - 1, argv + 1, equals || !o.arity ? 0 : o.arity == '=' ? 1 : argc);
            if (table->foreign_use == FOREIGN_UNUSED)
                no_use(a, key, len, table);
            else
                use_foreign(a, src, &o, equals ? equals + 1 : n ? argv[1] : NULL);
            return 1 + n;
        }
        unknown(a, src, key, len);
        return 1 + count_words(argc - 1, argv + 1, equals ? 0 : argc);
    }
    static const char *const set[] = {"true"};
    const bool flag = is_boolean(m.row) || m.spelling.implied,
               list = m.row->type == ARG_TEXTS || m.row->type == ARG_I64S;
    const int n = count_words(argc - 1, argv + 1, flag || equals ? 0 : list ? argc : 1);
    const char *const after = equals ? equals + 1 : NULL, *const *words = (const char *const *)argv + 1;
    if (equals)
        words = &after;
    else if (flag)
        words = set;
    const int64_t num_words = equals || flag ? 1 : n;
    if (m.accepted)
        assign(a, src, &m, words, num_words);
    else
        unread(a, src, &m, key, len, words, num_words);
    return 1 + n;
}

/* Parses `--config FILE` or `--config=FILE`. Returns the number of arguments consumed, or 0 if argv[0] is another
 * option. */
static int config_words(int argc, char **argv, const char **path) {
    if (!strncmp(argv[0], "--config=", 9)) return *path = argv[0] + 9, 1;
    if (strcmp(argv[0], "--config")) return 0;
    *path = argc > 1 && !is_option(argv[1]) ? argv[1] : NULL;
    return *path ? 2 : 1;
}

/* Parses `--help` and its search word. Returns the number of arguments consumed. A word that starts with dashes belongs
 * to --help only if it is the last argument. */
static int help_words(Args *a, int argc, char **argv) {
    a->help = true;
    if (argc < 2 || (argv[1][0] == '-' && argc > 2)) return 1;
    a->help_word = argv[1];
    return 2;
}

/* Reports an argument that belongs to no option. After an option of type text, the argument is probably part
 * of an unquoted value. */
static void stray(Args *a, const char *word, const char *before) {
    Match m;
    const bool text = before && find(a, before, strlen(before), &m) && m.row->type == ARG_TEXT;
    args_problem(a, "%s does not belong to any option: %s%s%s.", quote(word).s,
                 text ? "quote the whole value of --" : "options begin with two dashes", text ? before : "",
                 text ? ", as in 'A B C'" : "");
}

static void append(TextList *list, const char *word) {
    list->at = mem_grow(list->at, (size_t)list->count + 1, sizeof *list->at);
    list->at[list->count++] = word;
}

static void take_file(Args *a, const char *path, Err (*read)(const char *, Str *)) {
    Str text = {0};
    Err e = read(path, &text);
    if (e.code) {
        args_problem(a, "%s", e.msg);
        a->unreadable = true;
    } else
        args_bytes(a, path, text.s, text.len);
    str_free(&text);
}

void args_file(Args *a, const char *path) { take_file(a, path, file_read); }

void args_line(Args *a, int argc, char **argv) {
    const char *path;
    for (int i = 0; i < argc; i++)
        if (config_words(argc - i, argv + i, &path)) {
            if (path) {
                take_file(a, path, file_read_stream);
                append(&a->configs, path);
            } else {
                args_problem(a, "--config expects the path of a file with `name = value` lines.");
            }
        }
    Source src = {"", "--", next_source(a)};
    a->line = src.number;
    const char *before = NULL; /* the last option on the line */
    for (int i = 0; i < argc;) {
        int n = config_words(argc - i, argv + i, &path);
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            i += help_words(a, argc - i, argv + i);
        else if (n)
            i += n;
        else if (is_option(argv[i]))
            before = argv[i] + 2, i += line_option(a, src, argc - i, argv + i);
        else if (a->operand_name) {
            append(&a->operands, argv[i++]);
        } else {
            stray(a, argv[i], before);
            i += count_words(argc - i, argv + i, argc);
        }
    }
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Returns the line's length without its comment. A # inside quotes does not start a comment. */
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

/* Splits a value at blanks outside double quotes. Returns false if a quote is not closed. */
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

/* Reads the value on one line. Splits a list option's value into words. Any other value is the rest of the line; an
 * empty value counts as missing unless `empty` is true. Returns false if a quote is not closed. */
static bool line_value(Args *a, bool list, bool empty, const char *s, size_t n, TextList *words) {
    if (list) return split_words(a, s, n, words);
    words->at = arena_alloc(a->arena, sizeof *words->at);
    bool quoted = n >= 2 && s[0] == '"' && s[n - 1] == '"';
    words->at[0] = arena_printf(a->arena, "%.*s", (int)n - 2 * quoted, s + quoted);
    words->count = n > 0 || empty;
    return quoted || !n || s[0] != '"';
}

/* Reports a line without `=`. If the line begins with an option's name, the message suggests the correct line. */
static void no_assignment(Args *a, Source src, const char *s, size_t n) {
    static const char *const SHOWN[] = {"true", "VALUE"};
    Str meant = {0}, quoted = {0};
    const char *name = s, *end = s + n;
    while (name < end && *name == '-') name++;
    const char *rest = name;
    while (rest < end && !blank(*rest)) rest++;
    const size_t len = (size_t)(rest - name);
    Match m;
    while (rest < end && blank(*rest)) rest++;
    if (len && find(a, name, len, &m)) {
        const bool flag = is_boolean(m.row) || m.spelling.implied;
        str_printf(&meant, ": write `%.*s = ", (int)len, name);
        if (rest < end)
            str_add(&meant, rest, (size_t)(end - rest));
        else
            str_puts(&meant, SHOWN[!flag]);
        str_puts(&meant, "`");
    }
    str_quote(&quoted, s, n);
    args_problem(a, "%s%s is not a `name = value` line%s.", src.where, quoted.s, meant.len ? meant.s : "");
    str_free(&meant), str_free(&quoted);
}

static void file_line(Args *a, Source src, const char *s, size_t n) {
    const char *shown = src.where;
    if (n > LINE_MAX_BYTES) {
        args_problem(a, "%sthe line has %zu bytes: at most %d are allowed.", shown, n, LINE_MAX_BYTES);
        return;
    }
    if (memchr(s, 0, n)) {
        args_problem(a, "%sthe line contains a NUL byte: this is not a text file.", shown);
        return;
    }
    n = without_comment(s, n);
    trim(&s, &n);
    if (!n) return;
    const char *equals = memchr(s, '=', n), *value = equals ? equals + 1 : NULL;
    size_t key_len = equals ? (size_t)(equals - s) : n, value_len = equals ? n - key_len - 1 : 0;
    trim(&s, &key_len);
    if (value) trim(&value, &value_len);
    Match m;
    ForeignOption o;
    const ArgTable *table;
    TextList words = {0};
    if (!equals || !key_len)
        no_assignment(a, src, s, n);
    else if (find(a, s, key_len, &m)) {
        const bool list = m.row->type == ARG_TEXTS || m.row->type == ARG_I64S;
        if (!m.accepted) return;
        if (line_value(a, list, m.row->type == ARG_TEXT, value, value_len, &words))
            assign(a, src, &m, words.at, words.count);
        else
            args_problem(a, "%sthe value of %.*s has no closing quote.", shown, (int)key_len, s);
    } else if ((table = find_foreign(a, s, key_len, &o))) {
        if (table->foreign_use != FOREIGN_READ) return;
        if (line_value(a, o.arity == '+', false, value, value_len, &words))
            use_foreign(a, src, &o, words.count ? words.at[0] : NULL);
        else
            args_problem(a, "%sthe value of %.*s has no closing quote.", shown, (int)key_len, s);
    } else {
        unknown(a, src, s, key_len);
    }
}

void args_bytes(Args *a, const char *name, const char *bytes, size_t n) {
    int number = next_source(a);
    int64_t line = 1;
    for (size_t begin = text_mark(bytes, n); begin < n; line++) {
        if (a->num_problems > ARG_PROBLEMS) return;
        const char *newline = memchr(bytes + begin, '\n', n - begin);
        size_t end = newline ? (size_t)(newline - bytes) : n;
        char where[400];
        snprintf(where, sizeof where, "%.300s:%lld: ", name, (long long)line);
        file_line(a, (Source){where, "", number}, bytes + begin, end - begin);
        begin = end + 1;
    }
}

void args_init(Args *a, Arena *arena, const char *usage, const char *operand_name) {
    *a = (Args){.usage = usage, .operand_name = operand_name, .arena = arena};
}

void args_free(Args *a) {
    free(a->operands.at), free(a->configs.at), free(a->remarks);
    str_free(&a->problems), str_free(&a->notes);
    *a = (Args){0};
}

void args_use(Args *a, ArgTable table) {
    CHECK(a->num_tables < ARG_TABLES, "more than %d option tables", ARG_TABLES);
    if (!table.given) table.given = arena_alloc(a->arena, (size_t)table.count);
    memset(table.given, 0, (size_t)table.count);
    table.chosen = arena_alloc(a->arena, (size_t)table.count * sizeof *table.chosen);
    for (int64_t i = 0; i < table.count; i++)
        arg_default(&table.rows[i], (char *)table.target + table.rows[i].offset, a->arena);
    a->tables[a->num_tables++] = table;
}

static void refuse(Args *a, const ArgTable *t, const Arg *row, const char *why) {
    if (row->type != ARG_GROUP && a->line && t->given[row - t->rows] == a->line)
        args_problem(a, "--%.*s is not used %s: remove it.", (int)arg_name_len(row), row->names, why);
}

void args_refuse(Args *a, const char *name, const char *why) {
    Match m;
    CHECK(find(a, name, strlen(name), &m), "there is no option '%s'", name);
    refuse(a, m.table, m.row, why);
}

void args_refuse_all(Args *a, const void *target, const char *why) {
    for (int t = 0; t < a->num_tables; t++)
        for (int64_t i = 0; a->tables[t].target == target && i < a->tables[t].count; i++)
            refuse(a, &a->tables[t], &a->tables[t].rows[i], why);
}

Err args_end(Args *a) {
    args_print_remarks(a);
    for (int t = 0; t < a->num_tables; t++)
        for (int64_t i = 0; i < a->tables[t].count; i++) {
            const Arg *row = &a->tables[t].rows[i];
            if (row->required && !a->tables[t].given[i])
                args_problem(a, "--%.*s is required: %s", (int)arg_name_len(row), row->names, row->help);
        }
    if (!a->num_problems) return ERR_OK;
    int first = (int)strcspn(a->problems.s, "\n");
    if (a->num_problems == 1) return err_user("%.*s", first, a->problems.s);
    return err_user("%lld problems with the options; the first is: %.*s", (long long)a->num_problems, first,
                    a->problems.s);
}
