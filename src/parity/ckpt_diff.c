#include "parity/ckpt_diff.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/reader.h"

/* ---- one tensor ---- */

/* A part in one checkpoint, and the n boxes into which the part is divided. */
typedef struct Part {
    const Ckpt *ckpt;
    const CkptTensor *boxes;
    int64_t n;
} Part;

typedef struct TensorDiff {
    int64_t elements, differ, first; /* `first` is the flat index of the first element that differs */
    double first_a, first_b, largest;
    long double squares_a, squares_b; /* wider than double, so that squares do not overflow */
} TensorDiff;

static void add_element(TensorDiff *d, int64_t index, double a, double b) {
    d->elements++;
    d->squares_a += (long double)a * a;
    d->squares_b += (long double)b * b;
    if (diff_same(a, b)) return;
    if (!d->differ++ || index < d->first) d->first = index, d->first_a = a, d->first_b = b;
    const double distance = a == b || (isnan(a) && isnan(b)) ? 0 : fabs(a - b);
    if (!(distance <= d->largest)) d->largest = isnan(distance) ? INFINITY : distance;
}

/* Reads the elements [column, column + n) of a row of the part as doubles. */
static void read_run(const Part *p, const CkptTensor *t, int64_t row, int64_t column, int64_t n,
                     double *out) {
    const int64_t from = (row - t->box.offset[0]) * t->box.shape[1] + column - t->box.offset[1];
    dtype_convert(out, F64, ckpt_tensor_bytes(p->ckpt, t) + (size_t)from * dtype_size(t->dtype), t->dtype,
                  (size_t)n);
}

static void add_box(const Part *a, const CkptTensor *x, const Part *b, const CkptTensor *y, const Box *both,
                    TensorDiff *d) {
    enum { CHUNK = 1024 };
    double of_a[CHUNK], of_b[CHUNK];
    const int64_t end = both->offset[1] + both->shape[1];
    for (int64_t row = both->offset[0]; row < both->offset[0] + both->shape[0]; row++)
        for (int64_t column = both->offset[1], n; column < end; column += n) {
            n = end - column < CHUNK ? end - column : CHUNK;
            read_run(a, x, row, column, n, of_a);
            read_run(b, y, row, column, n, of_b);
            for (int64_t i = 0; i < n; i++) add_element(d, row * x->global[1] + column + i, of_a[i], of_b[i]);
        }
}

static bool is_same_storage(const Part *a, const Part *b) {
    bool same = a->n == b->n && a->boxes->dtype == b->boxes->dtype;
    for (int64_t i = 0; i < a->n && same; i++) {
        const CkptTensor *x = &a->boxes[i], *y = &b->boxes[i];
        same =
            !memcmp(&x->box, &y->box, sizeof x->box) && x->hash.hi == y->hash.hi && x->hash.lo == y->hash.lo;
    }
    return same;
}

static Err check_boxes(const Part *p) {
    for (int64_t i = 0; i < p->n; i++) ERR_RETURN(open_check(p->ckpt, &p->boxes[i]));
    return ERR_OK;
}

/* Compares two parts with equal shapes. */
static void compare_parts(const Part *a, const Part *b, TensorDiff *d) {
    Box both;
    if (is_same_storage(a, b)) return;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t k = 0; k < b->n; k++)
            if (box_intersect(&a->boxes[i].box, &b->boxes[k].box, &both))
                add_box(a, &a->boxes[i], b, &b->boxes[k], &both, d);
}

/* ---- summaries ---- */

typedef struct Tally {
    char suffix[64]; /* suffix of the tensors being compared */
    int64_t tensors, differ;
} Tally;

typedef struct Comparison {
    const CkptDiffOptions *options;
    Diff *diff;
    Ckpt *a, *b;
    Tally tally;
    int64_t lines; /* number of lines printed for tensors that differ */
    Str *out;
} Comparison;

enum { LINES_MOST = 20 };

/* Counts a tensor that differs, and returns whether to print a line for the tensor. At most LINES_MOST lines
 * are printed. */
static bool takes_line(Comparison *c) {
    c->tally.differ++;
    return c->lines++ < LINES_MOST;
}

static void end_tally(Comparison *c) {
    const Tally *g = &c->tally;
    if (g->tensors)
        str_printf(c->out, "%s: %lld of %lld tensors differ\n", *g->suffix ? g->suffix + 1 : "parameters",
                   (long long)g->differ, (long long)g->tensors);
    c->tally = (Tally){.suffix = ""};
}

static void begin_tensor(Comparison *c, const CkptTensor *t) {
    if (c->tally.tensors && strcmp(c->tally.suffix, t->suffix) != 0) end_tally(c);
    snprintf(c->tally.suffix, sizeof c->tally.suffix, "%s", t->suffix);
    c->tally.tensors++;
}

static double relative_of(const TensorDiff *d) {
    const long double larger = fmaxl(d->squares_a, d->squares_b), n = (long double)d->elements;
    if (d->largest == 0) return 0;
    return isfinite(larger) && isfinite(d->largest) ? (double)(d->largest / sqrtl(larger / n)) : INFINITY;
}

/* Appends an index such as "[3, 5]" or, for a vector, "[3]". */
static void put_index(const CkptTensor *t, int64_t index, Str *out) {
    str_printf(out, "[%lld", (long long)(index / t->global[1]));
    if (t->ndim == 2) str_printf(out, ", %lld", (long long)(index % t->global[1]));
    str_puts(out, "]");
}

static void report_tensor(Comparison *c, const CkptTensor *x, const CkptTensor *y, const TensorDiff *d) {
    const double relative = relative_of(d);
    const TensorTitle title = ckpt_title(x);
    const DiffPair p = diff_pair(d->first_a, d->first_b);
    Str first = {0}, line = {0};
    put_index(x, d->first, &first);
    str_printf(&line, "  %s", title.s);
    if (d->differ)
        str_printf(&line, ": %lld of %lld elements, max |a - b| %.3g, relative %.3g, first %s %s against %s",
                   (long long)d->differ, (long long)d->elements, d->largest, relative, first.s, p.a, p.b);
    if (x->dtype != y->dtype)
        str_printf(&line, ", stored as %s and as %s", dtype_name(x->dtype), dtype_name(y->dtype));
    if (takes_line(c)) str_printf(c->out, "%s\n", line.s);
    str_free(&line);
    diff_note(c->diff, relative, "%s", title.s);
    if (diff_is_beyond(c->diff, relative, false)) {
        if (d->differ)
            diff_add(c->diff, "%s %s, %s against %s", title.s, first.s, p.a, p.b);
        else
            diff_add(c->diff, "%s, stored as %s and as %s", title.s, dtype_name(x->dtype),
                     dtype_name(y->dtype));
    }
    str_free(&first);
}

static void report_missing(Comparison *c, const CkptTensor *t, const Ckpt *in) {
    if (c->options->diff.common) return;
    if (takes_line(c)) str_printf(c->out, "  %s is only in %s\n", ckpt_title(t).s, in->folder);
    diff_add(c->diff, "%s, which is only in %s", ckpt_title(t).s, in->folder);
}

static Err compare_tensor(Comparison *c, const Part *a, const Part *b) {
    const CkptTensor *x = a->boxes, *y = b->boxes;
    TensorDiff d = {0};
    if (x->ndim != y->ndim || x->global[0] != y->global[0] || x->global[1] != y->global[1]) {
        if (takes_line(c))
            str_printf(c->out, "  %s: shapes [%lld, %lld] and [%lld, %lld]\n", ckpt_title(x).s,
                       (long long)x->global[0], (long long)x->global[1], (long long)y->global[0],
                       (long long)y->global[1]);
        diff_add(c->diff, "%s, whose shapes are [%lld, %lld] and [%lld, %lld]", ckpt_title(x).s,
                 (long long)x->global[0], (long long)x->global[1], (long long)y->global[0],
                 (long long)y->global[1]);
        return ERR_OK;
    }
    ERR_RETURN(check_boxes(a));
    ERR_RETURN(check_boxes(b));
    compare_parts(a, b, &d);
    if (d.differ || x->dtype != y->dtype) report_tensor(c, x, y, &d);
    return ERR_OK;
}

/* ---- all tensors ---- */

/* Returns the part that begins at tensor `at` of the sorted manifest. At the end of the manifest, returns a
 * part without boxes. */
static Part part_at(const Ckpt *c, int64_t at, bool weights_only) {
    const Manifest *m = &c->manifest;
    Part p = {.ckpt = c, .boxes = &m->tensors[at]};
    if (at >= m->count || (weights_only && *p.boxes->suffix)) return p; /* weights come first */
    for (p.n = 1; at + p.n < m->count && ckpt_same_part(p.boxes, &p.boxes[p.n]);) p.n++;
    return p;
}

static Err compare_tensors(Comparison *c) {
    const bool weights = c->options->weights_only;
    int64_t both = 0, either = 0;
    for (int64_t i = 0, k = 0;;) {
        const Part a = part_at(c->a, i, weights), b = part_at(c->b, k, weights);
        if (!a.n && !b.n) break;
        const bool same = a.n && b.n && ckpt_same_part(a.boxes, b.boxes);
        const bool in_a = a.n && (!b.n || same || ckpt_tensor_order(a.boxes, b.boxes) < 0),
                   in_b = same || !in_a;
        const CkptTensor *t = in_a ? a.boxes : b.boxes;
        const bool wanted = diff_wants(&c->options->diff, ckpt_title(t).s);
        if (wanted) begin_tensor(c, t);
        if (wanted && same)
            ERR_RETURN(compare_tensor(c, &a, &b));
        else if (wanted)
            report_missing(c, t, in_a ? c->a : c->b);
        both += wanted && same, either += wanted;
        if (in_a) i += a.n;
        if (in_b) k += b.n;
    }
    end_tally(c);
    if (c->lines > LINES_MOST)
        str_printf(c->out, "... and %lld more tensors that differ\n", (long long)(c->lines - LINES_MOST));
    if (c->options->diff.only && !either)
        return err_user("no tensor has '%s' in its name; isotron inspect --checkpoint lists the names",
                        c->options->diff.only);
    return both ? ERR_OK : err_user("no tensor is in both checkpoints: nothing can be compared");
}

/* ---- options and progress ---- */

static void progress_differs(void *arg, const char *key, const char *a, const char *b) {
    Comparison *c = arg;
    str_printf(c->out, "progress %s: %s and %s\n", key, a, b);
    diff_add(c->diff, "%s of the run's progress, %s against %s", key, a, b);
}

static void compare_state(Comparison *c) {
    const json_t *a = ckpt_manifest(c->a)->state, *b = ckpt_manifest(c->b)->state;
    diff_run_options(json_object_get(a, "config"), json_object_get(b, "config"), c->out);
    if (!c->options->weights_only && !c->options->diff.only)
        diff_objects(json_object_get(a, "progress"), json_object_get(b, "progress"), progress_differs, c);
}

/* ---- folders ---- */

static Err open_path(const char *path, Ckpt **out) {
    char *dir;
    int64_t step;
    ERR_RETURN(ckpt_locate(path, &dir, &step));
    Err e = ckpt_open(dir, step, NULL, out);
    free(dir);
    return e;
}

static void print_folder(const Ckpt *c, Str *out) {
    str_printf(out, "%s: step %lld\n", c->folder, (long long)c->iteration);
}

Err ckpt_diff(const char *a, const char *b, const CkptDiffOptions *o, Diff *d, Str *out) {
    Comparison c = {.options = o, .diff = d, .out = out};
    *d = diff_begin(&o->diff);
    Err e = open_path(a, &c.a);
    if (!e.code) e = open_path(b, &c.b);
    if (!e.code) {
        print_folder(c.a, out);
        print_folder(c.b, out);
        compare_state(&c);
        e = compare_tensors(&c);
    }
    if (!e.code) diff_verdict(d, out);
    ckpt_close(c.a), ckpt_close(c.b);
    return e;
}
