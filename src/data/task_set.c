#include "data/task_set.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "data/json_line.h"
#include "data/text_reader.h"

enum { MOST_COLUMNS = 64, MOST_LABELS = 1000, MOST_QUESTION_TOKENS = 128 };

/* The state of reading one file. */
typedef struct TaskFile {
    TextReader *reader;
    PreprocessEncode *encode;
    void *ctx;
    TaskLabels *labels;
    TaskSet *set;
} TaskFile;

void task_labels_free(TaskLabels *l) {
    for (int64_t i = 0; i < l->n; i++) free(l->at[i]);
    free(l->at);
    *l = (TaskLabels){0};
}

void task_set_free(TaskSet *s) {
    free(s->label), free(s->row), free(s->ids);
    *s = (TaskSet){0};
}

static Err line_error(const TaskFile *f, const char *why) {
    return err_user("'%s', line %" PRId64 ": %s", f->reader->path, f->reader->line, why);
}

/* ---- samples ---- */

/* Makes room for `more` additional elements in an array of n elements. The capacity is always a power of two. */
static void *grown(void *old, int64_t n, int64_t more, size_t size) {
    int64_t had = 1, room;
    while (had < n) had *= 2;
    for (room = had; room < n + more;) room *= 2;
    return old && room == had ? old : mem_grow(old, (size_t)room, size);
}

static bool is_space(uint32_t c) {
    return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Returns the text without leading and trailing blanks. */
static Str stripped(const char *s, size_t n) {
    Str out = {0};
    size_t begin = 0, end = n;
    uint32_t c;
    for (size_t step; begin < end && (step = utf8_next(s + begin, &c), is_space(c));) begin += step;
    for (size_t at; end > begin && (at = utf8_prev(s, end), utf8_next(s + at, &c), is_space(c));) end = at;
    str_add(&out, s + begin, end - begin);
    return out;
}

/* Removes the space before each full stop with spaces on both sides, as Python's text.replace would. */
static void close_dots(Str *text) {
    size_t to = 0;
    for (size_t from = 0; from < text->len; to++) {
        const bool dot = from + 3 <= text->len && !memcmp(text->s + from, " . ", 3);
        if (dot) text->s[to++] = '.', from += 2;
        text->s[to] = text->s[from++];
    }
    text->len = to;
}

/* Cleans text like Megatron-LM's clean_text: a run of blanks becomes one space, and the space before a lone full stop
 * is removed. */
static Str cleaned(const char *s, size_t n) {
    enum { TIMES = 3 };
    Str out = {0};
    bool blank = false;
    uint32_t c;
    for (size_t at = 0, step; at < n; at += step) {
        step = utf8_next(s + at, &c);
        if (!is_space(c))
            str_add(&out, s + at, step);
        else if (!blank)
            str_add(&out, " ", 1);
        blank = is_space(c);
    }
    for (int i = 0; i < TIMES; i++) close_dots(&out);
    return out;
}

static Err add_text(const TaskFile *f, const char *s, size_t n, TaskText *out) {
    Str text = cleaned(s, n);
    int32_t *ids = NULL;
    size_t count = 0;
    Err e = f->encode(f->ctx, text.len ? text.s : "", text.len, &ids, &count);
    str_free(&text);
    if (e.code) return line_error(f, e.msg);
    TaskSet *set = f->set;
    set->ids = grown(set->ids, set->tokens, (int64_t)count, sizeof *set->ids);
    if (count) memcpy(set->ids + set->tokens, ids, count * sizeof *ids);
    *out = (TaskText){set->tokens, (int64_t)count};
    set->tokens += (int64_t)count;
    free(ids);
    return ERR_OK;
}

static void add_row(TaskSet *set, TaskRow row) {
    set->row = grown(set->row, set->rows, 1, sizeof row);
    set->row[set->rows++] = row;
}

static void add_label(TaskSet *set, int64_t label) {
    set->label = grown(set->label, set->samples, 1, sizeof label);
    set->label[set->samples++] = label;
}

/* ---- labels ---- */

static Err unknown_label(const TaskFile *f, const char *name) {
    Str list = {0};
    for (int64_t i = 0; i < f->labels->n && list.len < 200; i++)
        str_printf(&list, "%s%s", i ? ", " : "", quote(f->labels->at[i]).s);
    const Err e = err_user("'%s', line %" PRId64 ": the label %s is not one of the %" PRId64 " classes (%s)",
                           f->reader->path, f->reader->line, quote(name).s, f->labels->n, list.s);
    str_free(&list);
    return e;
}

static Err find_label(const TaskFile *f, const char *s, size_t n, int64_t *out) {
    TaskLabels *l = f->labels;
    Str name = stripped(s, n);
    Err e = ERR_OK;
    *out = 0;
    if (!name.len || memchr(name.s, 0, name.len)) {
        str_free(&name);
        return line_error(f, "the label is empty");
    }
    while (*out < l->n && strcmp(l->at[*out], name.s)) ++*out;
    if (*out == l->n && !l->open) {
        e = unknown_label(f, name.s);
    } else if (*out == l->n && l->n == MOST_LABELS) {
        e = line_error(f, "more than 1000 different labels; the first column must be the label");
    } else if (*out == l->n) {
        l->at = mem_grow(l->at, (size_t)l->n + 1, sizeof *l->at);
        l->at[l->n++] = mem_strdup(name.s);
    }
    str_free(&name);
    return e;
}

/* ---- lines with columns ---- */

typedef struct Columns {
    struct {
        const char *s;
        size_t n;
    } at[MOST_COLUMNS];
    int64_t n; /* number of columns, which may exceed MOST_COLUMNS */
    const char *last;
    size_t last_size;
} Columns;

static Columns split_columns(const Str *line) {
    Columns c = {.n = 0};
    const char *s = line->s, *end = line->s + line->len;
    for (;;) {
        const char *tab = memchr(s, '\t', (size_t)(end - s));
        const size_t n = (size_t)((tab ? tab : end) - s);
        if (c.n < MOST_COLUMNS) c.at[c.n].s = s, c.at[c.n].n = n;
        c.last = s, c.last_size = n, c.n++;
        if (!tab) return c;
        s = tab + 1;
    }
}

/* Adds a sample with the text of column `first`, and that of column `second` if second >= 0. */
static Err add_texts(const TaskFile *f, const Columns *c, int first, int second, int64_t label) {
    TaskRow row = {.is_pair = second >= 0};
    ERR_RETURN(add_text(f, c->at[first].s, c->at[first].n, &row.a));
    if (row.is_pair) ERR_RETURN(add_text(f, c->at[second].s, c->at[second].n, &row.b));
    if (!row.a.count || (row.is_pair && !row.b.count)) return line_error(f, "a text has no tokens");
    add_row(f->set, row);
    add_label(f->set, label);
    return ERR_OK;
}

/* Adds a sample with the texts of two adjacent columns and the label in the last column. */
static Err pair_line(const TaskFile *f, const Str *line, int first, int64_t least, int64_t most) {
    const Columns c = split_columns(line);
    if (c.n < least || c.n > most)
        return err_user("'%s', line %" PRId64 ": the line has %" PRId64 " columns, but must have %s%" PRId64
                        ", separated by tabs: correct or remove it",
                        f->reader->path, f->reader->line, c.n, most > least ? "at least " : "", least);
    int64_t label;
    ERR_RETURN(find_label(f, c.last, c.last_size, &label));
    return add_texts(f, &c, first, first + 1, label);
}

enum { MNLI_FIRST = 8, MNLI_LEAST = 11, QQP_FIRST = 3, QQP_COLUMNS = 6 };

static Err mnli_line(const TaskFile *f, const Str *line) {
    return pair_line(f, line, MNLI_FIRST, MNLI_LEAST, INT64_MAX);
}

static Err qqp_line(const TaskFile *f, const Str *line) {
    return pair_line(f, line, QQP_FIRST, QQP_COLUMNS, QQP_COLUMNS);
}

static Err labels_line(const TaskFile *f, const Str *line) {
    const Columns c = split_columns(line);
    int64_t label;
    if (c.n < 2 || c.n > 3)
        return line_error(f,
                          "a line must have a label, a text and optionally a second text, separated by tabs");
    ERR_RETURN(find_label(f, c.at[0].s, c.at[0].n, &label));
    return add_texts(f, &c, 1, c.n == 3 ? 2 : -1, label);
}

/* ---- questions with choices ---- */

static bool is_texts(const json_t *list, size_t n) {
    if (!json_is_array(list) || json_array_size(list) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(list, i))) return false;
    return true;
}

/* Returns the question with each "_" replaced by the choice. If the question has no "_", appends the choice
 * to the question. */
static Str joined(const json_t *question, const json_t *choice) {
    Str out = {0};
    const char *q = json_string_value(question);
    const size_t n = json_string_length(question), c = json_string_length(choice);
    bool placed = false;
    for (size_t i = 0; i < n; i++) {
        placed |= q[i] == '_';
        str_add(&out, q[i] == '_' ? json_string_value(choice) : q + i, q[i] == '_' ? c : 1);
    }
    if (placed) return out;
    str_add(&out, " ", 1);
    str_add(&out, json_string_value(choice), c);
    return out;
}

static Err add_question(const TaskFile *f, TaskText article, const json_t *question, const json_t *options,
                        const json_t *answer) {
    const int64_t choices = f->set->choices;
    const int64_t label = json_string_length(answer) == 1 ? json_string_value(answer)[0] - 'A' : -1;
    if (!is_texts(options, (size_t)choices))
        return line_error(f, "a question does not have exactly 4 "
                             "options");
    if (label < 0 || label >= choices) return line_error(f, "an answer is not A, B, C or D");
    for (int64_t i = 0; i < choices; i++) {
        TaskRow row = {.b = article, .is_pair = true};
        Str text = joined(question, json_array_get(options, (size_t)i));
        const Err e = add_text(f, text.s, text.len, &row.a);
        str_free(&text);
        if (e.code) return e;
        if (row.a.count > MOST_QUESTION_TOKENS) row.a.count = MOST_QUESTION_TOKENS;
        add_row(f->set, row);
    }
    add_label(f->set, label);
    return ERR_OK;
}

static Err add_questions(const TaskFile *f, const json_t *article, const json_t *questions,
                         const json_t *options, const json_t *answers) {
    const size_t n = json_array_size(questions);
    if (!json_is_string(article) || !is_texts(questions, n) || !is_texts(answers, n) ||
        !json_is_array(options) || json_array_size(options) != n)
        return line_error(
            f, "the line must have an \"article\", and as many \"questions\" as \"options\" and \"answers\"");
    TaskText text;
    ERR_RETURN(add_text(f, json_string_value(article), json_string_length(article), &text));
    for (size_t i = 0; i < n; i++)
        ERR_RETURN(add_question(f, text, json_array_get(questions, i), json_array_get(options, i),
                                json_array_get(answers, i)));
    return ERR_OK;
}

static Err race_line(const TaskFile *f, const Str *line) {
    enum { KEYS = 4 };
    static const char *const NAMES[KEYS] = {"article", "questions", "options", "answers"};
    JsonText spelled[KEYS];
    json_t *j[KEYS] = {0};
    json_error_t problem;
    Err e = json_line(line->s, line->len, false, NAMES, KEYS, spelled);
    if (e.code) return line_error(f, e.msg);
    for (int i = 0; i < KEYS && !e.code && spelled[i].at; i++) {
        j[i] = json_loadb(spelled[i].at, spelled[i].n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
        if (!j[i])
            e = err_user("'%s', line %" PRId64 ": \"%s\": %s", f->reader->path, f->reader->line, NAMES[i],
                         problem.text);
    }
    if (!e.code) e = add_questions(f, j[0], j[1], j[2], j[3]);
    for (int i = 0; i < KEYS; i++) json_decref(j[i]);
    return e;
}

/* ---- files ---- */

typedef struct Format {
    const char *const *labels;
    bool header, folders;
    Err (*line)(const TaskFile *, const Str *);
} Format;

static const Format FORMATS[] = {
    [TASK_FORMAT_MNLI] = {(const char *const[]){"contradiction", "entailment", "neutral", NULL}, true, false,
                          mnli_line},
    [TASK_FORMAT_QQP] = {(const char *const[]){"0", "1", NULL}, true, false, qqp_line},
    [TASK_FORMAT_RACE] = {.folders = true, .line = race_line},
    [TASK_FORMAT_LABELS] = {.line = labels_line},
};

const char *const *task_format_labels(TaskFormat format) { return FORMATS[format].labels; }

static Err read_files(const Format *format, const char *const *paths, int n, TaskFile *f) {
    TextReader reader = text_reader(PREPROCESS_JSONL, paths, n, (InputOptions){0});
    f->reader = &reader;
    Str line = {0};
    bool more;
    Err e;
    while (!(e = text_reader_next(&reader, &line, &more)).code && more) {
        const bool is_header = format->header && reader.line == 1;
        if (!is_header) e = format->line(f, &line);
        if (e.code) break;
        str_clear(&line);
    }
    str_free(&line);
    text_reader_close(&reader);
    return e;
}

static int is_text_file(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return dot && !strcmp(dot, ".txt");
}

/* Reads the files in the order of their names. */
static Err read_folder(const Format *format, const char *path, TaskFile *f) {
    struct dirent **list;
    const int n = scandir(path, &list, is_text_file, alphasort);
    if (n < 0) return file_failed("read the folder", path);
    const char **paths = mem_zero((size_t)n + 1, sizeof *paths);
    for (int i = 0; i < n; i++) {
        paths[i] = mem_printf("%s/%s", path, list[i]->d_name);
        free(list[i]);
    }
    const Err e = read_files(format, paths, n, f);
    for (int i = 0; i < n; i++) free((char *)paths[i]);
    free(paths), free(list);
    return e;
}

Err task_read(TaskFormat id, const char *path, PreprocessEncode *encode, void *ctx, TaskLabels *labels,
              TaskSet *set) {
    const Format *format = &FORMATS[id];
    TaskFile f = {.encode = encode, .ctx = ctx, .labels = labels, .set = set};
    const int64_t before = set->samples;
    ERR_RETURN(format->folders && file_is_dir(path) ? read_folder(format, path, &f)
                                                    : read_files(format, &path, 1, &f));
    if (set->samples > before) return ERR_OK;
    return err_user("'%s' has no samples%s; check the path and --task", path,
                    format->folders && file_is_dir(path) ? " in files *.txt" : "");
}
