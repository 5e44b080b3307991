#include "plan/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"

void timeline_add(void *arg, const SimSpan *s) {
    Timeline *t = arg;
    if (t->n == t->room) t->span = mem_grow(t->span, (size_t)(t->room = 2 * t->room + 1024), sizeof *t->span);
    t->span[t->n++] = *s;
}

void timeline_free(Timeline *t) { free(t->span); }

static bool ends_in(const char *path, const char *end) {
    const size_t n = strlen(path), k = strlen(end);
    return n > k && !strcmp(path + n - k, end);
}

Err timeline_check(const char *path) {
    if (ends_in(path, ".svg") || ends_in(path, ".json")) return file_check_target(path);
    return err_user("--timeline %.500s does not end in .svg or .json: choose one of these formats", path);
}

/* ---- rows ---- */

/* The ops of a rank, or a channel. */
typedef struct Row {
    int rank, channel; /* channel: -1 for ops */
    char name[64];
    double busy; /* ns */
} Row;

static bool is_of(const Row *r, const SimSpan *s) { return r->rank == s->rank && r->channel == s->channel; }

static void name_row(const Trace *t, const SimSpan *s, Row *r) {
    char axes[32];
    if (s->channel < 0) {
        snprintf(r->name, sizeof r->name, "stage %d", s->rank);
        return;
    }
    const TraceOperation *o = &t->operation[s->rank][s->what];
    const bool message = o->kind == COMM_SEND || o->kind == COMM_RECV;
    snprintf(r->name, sizeof r->name, "%s%s%s",
             mesh_axes_text(t->rank[s->rank].operations[s->what].axes, axes), message ? " " : "",
             message ? comm_kind_name(o->kind) : "");
}

static int by_channel(const void *a, const void *b) {
    return ((const Row *)a)->channel - ((const Row *)b)->channel;
}

/* Lists the rows by rank and channel. */
static Row *list_rows(const Timeline *t, const Trace *trace, int *n) {
    Row *row = NULL;
    *n = 0;
    for (int rank = 0; rank < trace->ranks; rank++) {
        const int first = *n;
        for (int64_t i = 0; i < t->n; i++) {
            const SimSpan *s = &t->span[i];
            int k = first;
            if (s->rank != rank) continue;
            while (k < *n && !is_of(&row[k], s)) k++;
            if (k == *n) {
                row = mem_grow(row, (size_t)++ * n, sizeof *row);
                row[k] = (Row){.rank = rank, .channel = s->channel};
                name_row(trace, s, &row[k]);
            }
            row[k].busy += s->end - s->begin;
        }
        if (*n > first) qsort(row + first, (size_t)(*n - first), sizeof *row, by_channel);
    }
    return row;
}

/* ---- Chrome's trace ---- */

static void put_span(const Trace *t, const SimSpan *s, Str *out) {
    str_printf(out, ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, ", s->rank,
               s->channel + 1, s->begin * 1e-3, (s->end - s->begin) * 1e-3);
    if (s->channel < 0) {
        const StepWork *w = &t->work[s->what];
        str_printf(out, "\"name\": \"%s\", \"cat\": \"%s\", \"args\": {\"size\": [", w->work.name,
                   OP_FAMILY_NAMES[w->family]);
        for (int i = 0; i < w->work.sizes; i++) str_printf(out, "%s%.0f", i ? ", " : "", w->work.size[i]);
        str_puts(out, "]}}");
    } else {
        const TraceOperation *o = &t->operation[s->rank][s->what];
        str_printf(
            out,
            "\"name\": \"%s\", \"cat\": \"communication\", \"args\": {\"kind\": \"%s\", \"bytes\": %.0f}}",
            o->site, comm_kind_name(o->kind), o->bytes);
    }
}

static void write_json(const Timeline *t, const Trace *trace, const char *title, Str *out) {
    int n;
    Row *row = list_rows(t, trace, &n);
    str_printf(out, "{\"otherData\": {\"title\": \"%s\"}, \"traceEvents\": [", title);
    for (const Row *r = row; r < row + n; r++)
        str_printf(out,
                   "%s\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", \"args\": "
                   "{\"name\": \"%s\"}}",
                   r == row ? "" : ",", r->rank, r->channel + 1, r->name);
    for (int64_t i = 0; i < t->n; i++) put_span(trace, &t->span[i], out);
    str_puts(out, "\n]}\n");
    free(row);
}

/* ---- SVG ---- */

enum { WIDTH = 1200, LABEL = 90, HEIGHT = 14, GAP = 4, TOP = 48, TICKS = 10, COLOURS = 6 };

/* The kinds of work that fill most of a column in a row. */
static const struct {
    const char *name, *colour;
} PAINT[COLOURS] = {{"GEMM", "#1b6ca8"},      {"attention", "#3aa6a0"},     {"optimizer", "#7a4fa3"},
                    {"other ops", "#9aa5b1"}, {"communication", "#e08e2b"}, {"idle", NULL}};
enum { PAINT_GEMM, PAINT_ATTENTION, PAINT_OPTIMIZER, PAINT_OTHER, PAINT_COMM, PAINT_IDLE };

static int paint_of(const Trace *t, const SimSpan *s) {
    if (s->channel >= 0) return PAINT_COMM;
    switch (t->work[s->what].family) {
    case OP_FAMILY_GEMM:
        return PAINT_GEMM;
    case OP_FAMILY_ATTENTION:
        return PAINT_ATTENTION;
    case OP_FAMILY_OPTIMIZER:
        return PAINT_OPTIMIZER;
    default:
        return PAINT_OTHER;
    }
}

/* Adds a span to the times of the columns that it touches. */
static void add_span(double (*column)[COLOURS], double scale, int paint, const SimSpan *s) {
    const double begin = s->begin * scale, end = s->end * scale;
    for (int x = (int)begin; x < WIDTH && x < end; x++) column[x][paint] += fmin(end, x + 1) - fmax(begin, x);
}

static const double LEAST = 0.05;

static int most_of(const double *column) {
    double idle = 1;
    int most = PAINT_IDLE;
    for (int i = 0; i < PAINT_IDLE; i++) idle -= column[i];
    if (column[PAINT_COMM] > LEAST) return PAINT_COMM; /* operations are short, but should be visible */
    for (int i = 0; i < PAINT_IDLE; i++)
        if (column[i] > (most == PAINT_IDLE ? idle : column[most])) most = i;
    return most;
}

static void put_row(const Timeline *t, const Trace *trace, const Row *r, double scale, int y, Str *out) {
    double(*column)[COLOURS] = mem_zero(WIDTH, sizeof *column);
    for (int64_t i = 0; i < t->n; i++)
        if (is_of(r, &t->span[i])) add_span(column, scale, paint_of(trace, &t->span[i]), &t->span[i]);
    str_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LABEL - 6, y + HEIGHT - 3,
               r->name);
    for (int x = 0, end; x < WIDTH; x = end) {
        const int paint = most_of(column[x]);
        for (end = x + 1; end < WIDTH && most_of(column[end]) == paint;) end++;
        if (paint != PAINT_IDLE)
            str_printf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", LABEL + x,
                       y, end - x, r->channel < 0 ? HEIGHT : HEIGHT - 4, PAINT[paint].colour);
    }
    free(column);
}

static void put_legend(const char *title, Str *out) {
    str_printf(out, "<text x=\"%d\" y=\"14\">%s</text>\n", LABEL, title);
    for (int i = 0, x = LABEL + WIDTH - 5 * 110; i < PAINT_IDLE; i++, x += 110)
        str_printf(out,
                   "<rect x=\"%d\" y=\"20\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" "
                   "y=\"29\">%s</text>\n",
                   x, PAINT[i].colour, x + 14, PAINT[i].name);
}

/* Draws rows that are busy for at least half a column. */
static void write_svg(const Timeline *t, const Trace *trace, const char *title, Str *out) {
    double ns = 1e-9;
    int n, rows = 0, y = TOP;
    Row *row = list_rows(t, trace, &n);
    for (int64_t i = 0; i < t->n; i++) ns = fmax(ns, t->span[i].end);
    for (int i = 0; i < n; i++)
        if (row[i].busy >= ns / (2 * WIDTH)) row[rows++] = row[i];
    str_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        LABEL + WIDTH + 40, TOP + rows * (HEIGHT + GAP) + GAP);
    put_legend(title, out);
    for (int i = 0; i <= TICKS; i++)
        str_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.4g ms</text>\n",
                   LABEL + i * WIDTH / TICKS, TOP - 6, ns * 1e-6 * i / TICKS);
    for (const Row *r = row; r < row + rows; r++, y += HEIGHT + GAP) put_row(t, trace, r, WIDTH / ns, y, out);
    str_puts(out, "</svg>\n");
    free(row);
}

Err timeline_write(const Timeline *t, const Trace *trace, const char *title, const char *path) {
    Str text = {0};
    (ends_in(path, ".svg") ? write_svg : write_json)(t, trace, title, &text);
    Err e = file_write_atomic(path, text.s, text.len);
    if (e.code) e.code = ERR_INFRA; /* the plan is valid even if its file cannot be written */
    str_free(&text);
    return e;
}
