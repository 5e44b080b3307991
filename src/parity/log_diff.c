#include "parity/log_diff.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "base/mem.h"

/* ---- reading ---- */

enum { MOST = 64 };

/* The quantities in both logs, in the order in which they appear. */
typedef struct Names {
    char *name[MOST];
    int n;
} Names;

typedef struct LogStep {
    int64_t step, line;
    uint64_t has;       /* bit q is set if the step has quantity q */
    double value[MOST]; /* NaN if the file contains null or NaN */
} LogStep;

typedef struct Log {
    const char *path;
    json_t *options;     /* the last run's options, or NULL if the log has no header */
    LogStep *steps;      /* [n], ascending */
    int64_t n, replaced; /* replaced: number of records that restarted runs replaced */
    int64_t incomplete;  /* number of incomplete lines, which killed runs have left */
    /* The number of a line that cannot be parsed, or 0 if there is none. The line counts as incomplete if a run's
     * header follows, and otherwise as an error. */
    int64_t broken;
    json_error_t why; /* the parser's error in the line `broken` */
} Log;

/* Returns whether the quantity is a measured time or rate, which varies from run to run. */
static bool is_time(const char *name) {
    static const char *const TIMES[] = {"seconds", "tokens_per_second", "tflops"};
    for (size_t i = 0; i < sizeof TIMES / sizeof *TIMES; i++)
        if (!strcmp(name, TIMES[i])) return true;
    return false;
}

/* Returns the index of the quantity with this name, and adds the quantity if it is new. Returns -1 if there are too
 * many quantities. */
static int name_number(Names *names, const char *name) {
    for (int i = 0; i < names->n; i++)
        if (!strcmp(names->name[i], name)) return i;
    if (names->n == MOST) return -1;
    names->name[names->n] = mem_strdup(name);
    return names->n++;
}

/* Returns the prefix for an evaluation's quantities, "" for a training step, or NULL for another kind of record. */
static const char *prefix_of(const json_t *record) {
    const json_t *kind = json_object_get(record, "kind");
    const char *text = json_string_value(kind);
    if (!kind) return "";
    if (!text) return NULL;
    return !strcmp(text, "validation") ? "validation " : !strcmp(text, "test") ? "test " : NULL;
}

static bool is_run(const json_t *record) {
    const char *kind = json_string_value(json_object_get(record, "kind"));
    return kind && !strcmp(kind, "run");
}

/* ---- non-finite numbers ---- */

/* The words for non-finite numbers. Python's json module writes these words without quotes, and protobuf
 * writes them with quotes. */
static const struct {
    const char *word;
    double value;
} NOT_FINITE[] = {{"NaN", NAN}, {"Infinity", INFINITY}, {"-Infinity", -INFINITY}};
enum { NOT_FINITE_COUNT = sizeof NOT_FINITE / sizeof *NOT_FINITE };

/* If the text starts with a word for a non-finite number, returns the word's length; otherwise, returns 0. */
static size_t word_length(const char *text) {
    for (int i = 0; i < NOT_FINITE_COUNT; i++) {
        const size_t n = strlen(NOT_FINITE[i].word);
        if (!strncmp(text, NOT_FINITE[i].word, n)) return n;
    }
    return 0;
}

/* Appends a line of JSON, with quotes around the words for non-finite numbers. */
static void put_quoted(const char *text, size_t n, Str *out) {
    bool in_string = false;
    for (size_t i = 0, length; i < n; i += length) {
        const size_t word = in_string ? 0 : word_length(text + i);
        length = word ? word : in_string && text[i] == '\\' && i + 1 < n ? 2 : 1;
        if (text[i] == '"') in_string = !in_string;
        if (word) str_puts(out, "\"");
        str_add(out, text + i, length);
        if (word) str_puts(out, "\"");
    }
}

/* Reads a number. Returns false if the value is not a number. */
static bool value_of(const json_t *value, double *out) {
    const char *text = json_string_value(value);
    *out = json_is_boolean(value) ? json_is_true(value)
           : json_is_null(value)  ? NAN
                                  : json_number_value(value);
    for (int i = 0; text && i < NOT_FINITE_COUNT; i++)
        if (!strcmp(text, NOT_FINITE[i].word)) {
            *out = NOT_FINITE[i].value;
            return true;
        }
    return json_is_number(value) || json_is_boolean(value) || json_is_null(value);
}

/* ---- records ---- */

static void keep_options(Log *log, const json_t *record) {
    json_t *options = json_object_get(record, "options");
    if (!json_is_object(options)) return;
    json_decref(log->options);
    log->options = json_incref(options);
}

/* Removes the records of steps after `start`, because a later run started from this step and replaces these records. */
static void drop_after(Log *log, int64_t start) {
    int64_t n = 0;
    for (int64_t i = 0; i < log->n; i++)
        if (log->steps[i].step <= start) log->steps[n++] = log->steps[i];
    log->replaced += log->n - n;
    log->n = n;
}

static Err add_value(Log *log, Names *names, LogStep *s, const char *name, const json_t *value) {
    const int q = name_number(names, name);
    if (q < 0)
        return err_user("'%s', line %lld: there are more than %d quantities, which is the maximum", log->path,
                        (long long)s->line, MOST);
    s->has |= UINT64_C(1) << q;
    if (!value_of(value, &s->value[q]))
        return err_user("'%s', line %lld: \"%s\" is not a number", log->path, (long long)s->line, name);
    return ERR_OK;
}

/* Adds a step's or an evaluation's record. */
static Err add_step(Log *log, Names *names, json_t *record, const char *prefix, int64_t line) {
    const json_t *step = json_object_get(record, "iteration");
    if (!json_is_integer(step))
        return err_user("'%s', line %lld: \"iteration\" is %s", log->path, (long long)line,
                        step ? "not a whole number" : "missing");
    if (!(log->n & (log->n - 1)))
        log->steps = mem_grow(log->steps, (size_t)log->n * 2 + 1, sizeof *log->steps);
    LogStep *s = &log->steps[log->n++];
    *s = (LogStep){.step = json_integer_value(step), .line = line};
    const char *name;
    const json_t *value;
    json_object_foreach(record, name, value) {
        if (!strcmp(name, "kind") || !strcmp(name, "iteration") || is_time(name)) continue;
        char whole[80];
        snprintf(whole, sizeof whole, "%s%s", prefix, name);
        ERR_RETURN(add_value(log, names, s, whole, value));
    }
    return ERR_OK;
}

static Err add_record(Log *log, Names *names, json_t *record, int64_t line) {
    const json_t *start = json_object_get(record, "iteration");
    const char *prefix = prefix_of(record);
    keep_options(log, record);
    if (is_run(record) && json_is_integer(start)) drop_after(log, json_integer_value(start));
    return prefix ? add_step(log, names, record, prefix, line) : ERR_OK;
}

/* ---- lines ---- */

static Err no_object(const Log *log, int64_t line, const char *why) {
    return err_user("'%s', line %lld is not a JSON object (%s); pass a file written with --log-jsonl",
                    log->path, (long long)line, why);
}

/* Adds a line from the log. A killed run may leave an incomplete line, which is the last line unless a resumed
 * run has appended its header. */
static Err add_line(Log *log, Names *names, const char *text, size_t n, int64_t line) {
    json_error_t why = {.text = "it has another type"};
    Str quoted = {0};
    put_quoted(text, n, &quoted);
    json_t *record = json_loadb(quoted.s, quoted.len, JSON_REJECT_DUPLICATES, &why);
    Err e = ERR_OK;
    if (log->broken && !is_run(record)) {
        e = no_object(log, log->broken, log->why.text);
    } else if (json_is_object(record)) {
        log->incomplete += log->broken > 0;
        log->broken = 0;
        e = add_record(log, names, record, line);
    } else if (record || *text != '{') {
        e = no_object(log, line, why.text);
    } else if (text[n - 1] != '\n') {
        log->incomplete++;
    } else {
        log->broken = line;
        log->why = why;
    }
    json_decref(record);
    str_free(&quoted);
    return e;
}

static int by_step_and_line(const void *a, const void *b) {
    const LogStep *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

/* Merges each step's records, which come from the training step and from evaluations. If a quantity has several values,
 * the last value counts. */
static void keep_last(Log *log) {
    int64_t n = 0;
    if (log->n) qsort(log->steps, (size_t)log->n, sizeof *log->steps, by_step_and_line);
    for (int64_t i = 0; i < log->n; i++) {
        const LogStep *s = &log->steps[i];
        if (!n || log->steps[n - 1].step != s->step) {
            log->steps[n++] = *s;
            continue;
        }
        LogStep *to = &log->steps[n - 1];
        for (int q = 0; q < MOST; q++)
            if (s->has >> q & 1) to->value[q] = s->value[q];
        to->has |= s->has;
    }
    log->n = n;
}

static Err read_log(const char *path, Names *names, Log *log) {
    *log = (Log){.path = path};
    FILE *f = fopen(path, "r");
    if (!f) return file_failed("open", path);
    char *text = NULL;
    size_t capacity = 0;
    Err e = ERR_OK;
    errno = 0;
    for (ssize_t n, line = 1; !e.code && (n = getline(&text, &capacity, f)) > 0; line++)
        if (strspn(text, " \t\r\n") < (size_t)n) e = add_line(log, names, text, (size_t)n, line);
    if (!e.code && ferror(f)) e = file_failed("read", path);
    if (!e.code && log->broken) e = no_object(log, log->broken, log->why.text);
    free(text);
    fclose(f);
    keep_last(log);
    if (!e.code && !log->n)
        e = err_user("'%s' has no record of a training step%s; pass a file written with --log-jsonl", path,
                     log->replaced ? " after the last start of the program" : "");
    return e;
}

/* ---- comparison ---- */

typedef struct Quantity {
    /* `first` and `beyond` are steps, or -1 if there is no such step */
    int64_t steps, first, beyond, largest_at;
    double largest;
} Quantity;

typedef struct Comparison {
    Log a, b;
    Names names;
    Quantity quantity[MOST];
    int64_t common, only_a, only_b; /* numbers of steps */
    int64_t values;                 /* number of values that are present in both logs */
} Comparison;

/* Returns true if a quantity is a loss that is finite in neither log. Such a loss counts as a difference unless the
 * step was skipped. */
static bool is_lost(const Comparison *c, int q, const LogStep *x, const LogStep *y) {
    const size_t n = strlen(c->names.name[q]);
    if (n < 4 || strcmp(c->names.name[q] + n - 4, "loss") || isfinite(x->value[q]) || isfinite(y->value[q]))
        return false;
    for (int i = 0; i < c->names.n; i++)
        if (!strcmp(c->names.name[i], "skipped")) return !(x->value[i] > 0 && y->value[i] > 0);
    return true;
}

static void compare_value(Comparison *c, Diff *d, int q, int64_t step, double x, double y) {
    Quantity *r = &c->quantity[q];
    const double relative = diff_relative(x, y);
    const bool same = diff_same(x, y);
    r->steps++;
    c->values++;
    if (same) return;
    if (r->first < 0) r->first = step;
    if (r->largest_at < 0 || relative > r->largest) r->largest = relative, r->largest_at = step;
    diff_note(d, relative, "%s of step %lld", c->names.name[q], (long long)step);
    if (!diff_is_beyond(d, relative, same)) return;
    if (r->beyond < 0) r->beyond = step;
    const DiffPair p = diff_pair(x, y);
    diff_add(d, "step %lld, %s %s against %s", (long long)step, c->names.name[q], p.a, p.b);
}

static void lose_value(Comparison *c, Diff *d, int q, int64_t step) {
    Quantity *r = &c->quantity[q];
    r->steps++;
    c->values++;
    if (r->first < 0) r->first = step;
    if (r->beyond < 0) r->beyond = step;
    if (r->largest_at < 0 || !isinf(r->largest)) r->largest = INFINITY, r->largest_at = step;
    diff_add(d, "step %lld, %s is finite in neither log", (long long)step, c->names.name[q]);
}

static void compare_step(Comparison *c, Diff *d, const LogStep *x, const LogStep *y) {
    for (int q = 0; q < c->names.n; q++) {
        const bool in_a = x->has >> q & 1, in_b = y->has >> q & 1;
        if (!diff_wants(&d->options, c->names.name[q])) continue;
        if (in_a && in_b && is_lost(c, q, x, y))
            lose_value(c, d, q, x->step);
        else if (in_a && in_b)
            compare_value(c, d, q, x->step, x->value[q], y->value[q]);
        else if (in_a != in_b && !d->options.common)
            diff_add(d, "step %lld, %s is only in %s", (long long)x->step, c->names.name[q],
                     in_a ? c->a.path : c->b.path);
    }
}

static void compare_steps(Comparison *c, Diff *d) {
    for (int64_t i = 0, k = 0; i < c->a.n || k < c->b.n;) {
        const LogStep *x = i < c->a.n ? &c->a.steps[i] : NULL, *y = k < c->b.n ? &c->b.steps[k] : NULL;
        const bool in_a = x && (!y || x->step <= y->step), in_b = y && (!x || y->step <= x->step);
        if (in_a && in_b)
            compare_step(c, d, x, y), c->common++;
        else if (!d->options.common)
            diff_add(d, "step %lld, which is only in %s", (long long)(in_a ? x : y)->step,
                     in_a ? c->a.path : c->b.path);
        c->only_a += in_a && !in_b, c->only_b += in_b && !in_a;
        i += in_a, k += in_b;
    }
}

/* ---- report ---- */

static void print_log(const Log *log, Str *out) {
    str_printf(out, "%s: %s, %lld to %lld\n", log->path, amount(log->n, "step").s,
               (long long)log->steps[0].step, (long long)log->steps[log->n - 1].step);
    if (log->replaced)
        str_printf(out, "%s: %s written before a restart from an earlier step %s left out\n", log->path,
                   amount(log->replaced, "record").s, log->replaced > 1 ? "are" : "is");
    if (log->incomplete)
        str_printf(out, "%s: %lld incomplete %s left out\n", log->path, (long long)log->incomplete,
                   log->incomplete > 1 ? "lines are" : "line is");
}

static void print_step(int64_t step, Str *out) {
    char text[32] = "-";
    if (step >= 0) snprintf(text, sizeof text, "step %lld", (long long)step);
    str_printf(out, "  %-16s", text);
}

static void print_rows(const Comparison *c, const Diff *d, Str *out) {
    str_printf(out, "%-26s %7s  %-16s  %-16s  %s\n", "quantity", "steps", "first difference",
               isnan(d->options.bound) ? "" : "beyond the bound", "largest relative difference");
    for (int q = 0; q < c->names.n; q++) {
        const Quantity *r = &c->quantity[q];
        if (!diff_wants(&d->options, c->names.name[q])) continue;
        str_printf(out, "%-26s %7lld", c->names.name[q], (long long)r->steps);
        print_step(r->first, out);
        if (isnan(d->options.bound))
            str_printf(out, "  %-16s", "");
        else
            print_step(r->beyond, out);
        if (r->largest_at >= 0)
            str_printf(out, "  %.3g at step %lld\n", r->largest, (long long)r->largest_at);
        else
            str_puts(out, r->steps ? "  0\n" : "  not in both\n");
    }
}

static void print_missing(int64_t steps, const char *path, Str *out) {
    if (steps)
        str_printf(out, "%lld %s only in %s\n", (long long)steps, steps > 1 ? "steps are" : "step is", path);
}

static Err check_only(const Names *names, const DiffOptions *o) {
    Str all = {0};
    if (!names->n) return err_user("the logs have no quantities: nothing can be compared");
    for (int q = 0; q < names->n; q++) {
        if (diff_wants(o, names->name[q])) return str_free(&all), ERR_OK;
        str_printf(&all, "%s%s", q ? ", " : "", names->name[q]);
    }
    const Err e = err_user("no quantity of the logs has '%s' in its name; the names are %s", o->only, all.s);
    str_free(&all);
    return e;
}

Err log_diff(const char *a, const char *b, const DiffOptions *o, Diff *d, Str *out) {
    Comparison c = {.names = {.n = 0}};
    for (int q = 0; q < MOST; q++) c.quantity[q] = (Quantity){0, -1, -1, -1, 0};
    *d = diff_begin(o);
    Err e = read_log(a, &c.names, &c.a);
    if (!e.code) e = read_log(b, &c.names, &c.b);
    if (!e.code) e = check_only(&c.names, o);
    if (!e.code) {
        compare_steps(&c, d);
        print_log(&c.a, out);
        print_log(&c.b, out);
        if (!c.common) e = err_user("no step is in both logs: nothing can be compared");
        if (c.common && !c.values)
            e = err_user("the logs have no quantity in common: nothing can be compared");
    }
    if (!e.code) {
        diff_run_options(c.a.options, c.b.options, out);
        print_rows(&c, d, out);
        print_missing(c.only_a, a, out);
        print_missing(c.only_b, b, out);
        diff_verdict(d, out);
    }
    for (int q = 0; q < c.names.n; q++) free(c.names.name[q]);
    free(c.a.steps), free(c.b.steps);
    json_decref(c.a.options), json_decref(c.b.options);
    return e;
}
