#include "bench/gate/result.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/jobs.h"
#include "base/mem.h"

static Err bad(const Result *r, const char *what) {
    return err_user("'%s' is not a result of bench --json: %s", r->path, what);
}

bool result_name(const json_t *row, char name[RESULT_NAME]) {
    const char *op = json_string_value(json_object_get(row, "name")),
               *type = json_string_value(json_object_get(row, "type"));
    if (op && type) snprintf(name, RESULT_NAME, "%s %s", op, type);
    return op && type;
}

/* Completes and checks a row whose name is already set. */
static Err add_row(Result *r, const json_t *json, const json_t *time, const json_t *samples) {
    ResultRow *row = &r->rows[r->n++];
    row->time = json_number_value(time), row->samples = samples, row->json = json;
    if (!json_is_number(time) || !(row->time > 0)) return bad(r, "a time is missing or not positive");
    for (size_t i = 0; i < json_array_size(samples); i++)
        if (!(json_number_value(json_array_get(samples, i)) > 0))
            return bad(r, "a sample is not a positive number");
    return ERR_OK;
}

static Err read_ops(Result *r, const json_t *rows) {
    r->unit = "us";
    r->rows = mem_zero(json_array_size(rows) + 1, sizeof *r->rows);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!result_name(row, r->rows[i].name)) return bad(r, "a row has no name and type");
        ERR_RETURN(add_row(r, row, json_object_get(row, "us"), json_object_get(row, "samples_us")));
    }
    if (!json_is_true(json_object_get(r->json, "complete"))) return bad(r, "its benchmark was stopped");
    return r->n ? ERR_OK : bad(r, "it has no rows");
}

Err result_take(const char *path, json_t *json, Result *r) {
    *r = (Result){.path = path, .json = json};
    const json_t *step = json_object_get(json, "step_ms"), *rows = json_object_get(json, "rows");
    if (json_is_array(rows)) return read_ops(r, rows);
    if (!json_is_object(step)) return bad(r, "it has no step and no rows of ops");
    r->unit = "ms";
    r->rows = mem_zero(1, sizeof *r->rows);
    strcpy(r->rows->name, "step");
    return add_row(r, NULL, json_object_get(step, "median"), json_object_get(json, "samples_ms"));
}

Err result_parse(const char *path, const char *text, size_t n, Result *r) {
    json_error_t where;
    json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    *r = (Result){.path = path};
    return json ? result_take(path, json, r) : bad(r, quote(where.text).s);
}

/* ---- a process that measures ---- */

/* Returns how many words the option at `word` and its value take, or 0 if the option is not in the list. */
static int words_of_option(const char *word, const char *const *options) {
    if (strncmp(word, "--", 2) != 0) return 0;
    const size_t length = strcspn(word + 2, "=");
    for (; *options; options++)
        if (!strncmp(word + 2, *options, length) && (!(*options)[length] || (*options)[length] == '='))
            return (*options)[length] && !word[2 + length] ? 2 : 1;
    return 0;
}

static int count_words(char *const *words) {
    int n = 0;
    while (words[n]) n++;
    return n;
}

/* Returns {program, "bench", name, words..., more..., "--json", path, NULL}. The caller frees the list. */
static char **words_of(const Measurer *m, char *const *more, char *path) {
    enum { OTHERS = 6 };
    const int given = count_words(m->words);
    char **words = mem_zero((size_t)(given + count_words(more)) + OTHERS, sizeof *words);
    int n = 0;
    words[n++] = (char *)m->program, words[n++] = "bench", words[n++] = (char *)m->bench;
    for (int i = 0, skipped; i < given; i += skipped ? skipped : 1)
        if (!(skipped = words_of_option(m->words[i], m->without))) words[n++] = m->words[i];
    while (*more) words[n++] = *more++;
    words[n++] = "--json", words[n++] = path;
    return words;
}

typedef struct Drain {
    int fd; /* the non-blocking end of a pipe */
    Str text;
} Drain;

/* Drains the pipe, so that the child does not block when it writes. */
static bool drain(void *arg) {
    Drain *d = arg;
    char bytes[4096];
    for (ssize_t n; (n = read(d->fd, bytes, sizeof bytes)) > 0;) str_add(&d->text, bytes, (size_t)n);
    return false;
}

Err result_measure(const Measurer *m, char *const *more, Result *out) {
    int fd[2];
    if (pipe(fd)) return file_failed("make", "a pipe");
    fcntl(fd[0], F_SETFD, FD_CLOEXEC), fcntl(fd[0], F_SETFL, O_NONBLOCK);
    Drain d = {.fd = fd[0]};
    char *path = mem_printf("/proc/self/fd/%d", fd[1]), *name = mem_printf("%s bench %s", m->name, m->bench);
    char **words = words_of(m, more, path);
    Err e = jobs_run_program(words, name, &(JobWatch){drain, &d});
    drain(&d);
    if (!e.code) e = result_parse(m->name, d.text.s ? d.text.s : "", d.text.len, out);
    close(fd[0]), close(fd[1]);
    free(words), free(name), free(path), str_free(&d.text);
    return e;
}

/* ---- parts ---- */

void result_free(Result *r) {
    json_decref(r->json);
    free(r->rows);
    *r = (Result){.json = NULL};
}

const ResultRow *result_find(const Result *r, const char *name) {
    for (int64_t i = 0; i < r->n; i++)
        if (!strcmp(r->rows[i].name, name)) return &r->rows[i];
    return NULL;
}

const char *result_fact(const Result *r, const char *name) {
    const char *text = json_string_value(json_object_get(json_object_get(r->json, "provenance"), name));
    return text ? text : "unknown";
}
