#include "parity/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/json_text.h"
#include "base/statistics.h"

/* A tensor's relative error is meaningless if the tensor is smaller than this fraction of its quantity's largest
 * tensor. For example, a key bias's gradient is zero up to rounding (docs/reference/formats.md). */
static const double FLOOR = 1e-9;

void scale_add(Scale *s, const double *oracle, int64_t n) {
    s->norm = fmax(s->norm, norm_of(oracle, n));
    s->rms = fmax(s->rms, rms_of(oracle, n));
}

TensorError tensor_error(const double *x, const double *y, int64_t n, int64_t width, const Scale *s) {
    TensorError e = {0};
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += width) {
        double rms = fmax(rms_of(y + begin, width), FLOOR * s->rms);
        for (int64_t i = begin; i < begin + width; i++) {
            double d = fabs(x[i] - y[i]), share = d == 0 ? 0 : d / rms;
            sum += d * d;
            if (!(share <= e.elementwise)) e.elementwise = isfinite(share) ? share : INFINITY, e.worst = i;
            if (e.elementwise == INFINITY) return (TensorError){INFINITY, INFINITY, e.worst};
        }
    }
    double scale = fmax(norm_of(y, n), FLOOR * s->norm);
    e.relative = sum == 0 ? 0 : sqrt(sum) / scale;
    return e;
}

/* Returns the ratio of error to bound. Returns infinity for a NaN, because comparisons with a NaN are false.
 * An infinite elementwise bound means that single elements are not judged. */
static double excess(TensorError e, double bound, double elementwise_bound) {
    const double relative = e.relative / bound,
                 element = isinf(elementwise_bound) ? 0 : e.elementwise / elementwise_bound;
    return isnan(relative) || isnan(element) ? INFINITY : fmax(relative, element);
}

void row_add(Row *r, const char *tensor, TensorError e, double bound, double elementwise_bound,
             int64_t rank) {
    double x = excess(e, bound, elementwise_bound);
    bool first = !r->tensors++;
    const int layer = compare_layer(tensor);
    float *of_layer = &r->layer[layer >= 0 && layer < ROW_LAYERS ? layer : ROW_LAYERS];
    *of_layer = fmaxf(*of_layer, (float)x);
    if (first) r->pass = true;
    if (!(x <= 1)) r->pass = false;
    if (!first && x <= excess(r->error, r->bound, r->elementwise_bound)) return;
    r->error = e;
    r->bound = bound;
    r->elementwise_bound = elementwise_bound;
    r->rank = rank;
    snprintf(r->worst, sizeof r->worst, "%s", tensor);
}

double row_excess(const Row *r) { return excess(r->error, r->bound, r->elementwise_bound); }

RowPair row_pair(const Row *r) {
    const TensorError e = r->error;
    return e.elementwise / r->elementwise_bound > e.relative / r->bound
               ? (RowPair){e.elementwise, r->elementwise_bound, true}
               : (RowPair){e.relative, r->bound, false};
}

void row_describe(const Row *r, Str *out) {
    const RowPair p = row_pair(r);
    str_printf(out, "%s of %s", r->quantity, r->worst);
    if (p.bound == BOUND_EQUAL)
        str_puts(out, p.error == 0 ? " is equal" : " differs, and must be equal");
    else if (!isfinite(p.error))
        str_puts(out, " is not finite");
    else
        str_printf(out, ": %.3g%s, %.3g times its bound of %.3g", p.error,
                   p.is_element ? " in an element" : "", p.error / p.bound, p.bound);
}

Row *report_row(Report *r, const char *quantity) {
    CHECK(r->n < REPORT_ROWS, "a report has more than %d rows", REPORT_ROWS);
    Row *row = &r->row[r->n++];
    *row = (Row){0};
    snprintf(row->quantity, sizeof row->quantity, "%s", quantity);
    return row;
}

bool report_passes(const Report *r) {
    for (int i = 0; i < r->n; i++)
        if (!r->row[i].pass) return false;
    return true;
}

bool report_is_weak(const Report *r) {
    bool weak = false;
    for (int i = 0; i < r->n; i++) {
        if (!r->row[i].pass && !r->row[i].is_power) return false;
        weak |= !r->row[i].pass;
    }
    return weak;
}

/* Prints an error and its bound. An infinite bound means that the error is not judged. */
static void print_pair(double x, double bound, Str *out) {
    if (isinf(bound))
        str_printf(out, " %11s %11s", "-", "-");
    else
        str_printf(out, " %11.3e %11.3e", x, bound);
}

void report_print(const Report *r, Str *out) {
    str_printf(out, "%-26s %7s %11s %11s %11s %11s  %-4s  %s\n", "quantity", "tensors", "relative", "bound",
               "element", "bound", "", "worst tensor, index and rank");
    for (int i = 0; i < r->n; i++) {
        const Row *w = &r->row[i];
        str_printf(out, "%-26s %7lld", w->quantity, (long long)w->tensors);
        print_pair(w->error.relative, w->bound, out);
        print_pair(w->error.elementwise, w->elementwise_bound, out);
        str_printf(out, "  %-4s  %s", w->pass ? "pass" : w->is_power ? "weak" : "FAIL", w->worst);
        if (w->rank != NO_RANK)
            str_printf(out, "[%lld] rank %lld", (long long)w->error.worst, (long long)w->rank);
        str_puts(out, "\n");
    }
}

void report_failures(const Report *r, const char *prefix, Str *out) {
    for (int i = 0; i < r->n; i++)
        if (!r->row[i].pass) {
            str_puts(out, prefix);
            row_describe(&r->row[i], out);
            str_puts(out, "\n");
        }
}

json_t *report_json(const Report *r) {
    json_t *rows = json_array();
    for (int i = 0; i < r->n; i++) {
        const Row *w = &r->row[i];
        json_t *rank = w->rank == NO_RANK ? json_null() : json_integer(w->rank);
        json_array_append_new(
            rows, json_pack("{s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:b}", "quantity",
                            compare_json_text(w->quantity), "tensors", (json_int_t)w->tensors, "relative",
                            json_finite(w->error.relative), "relative_bound", json_finite(w->bound),
                            "elementwise", json_finite(w->error.elementwise), "elementwise_bound",
                            json_finite(w->elementwise_bound), "worst", compare_json_text(w->worst), "index",
                            (json_int_t)w->error.worst, "rank", rank, "pass", w->pass));
    }
    return rows;
}

int compare_layer(const char *tensor) {
    static const char *const MARKS[] = {"layers.", "layer.", "h."};
    for (size_t i = 0; i < sizeof MARKS / sizeof *MARKS; i++) {
        const char *at = strstr(tensor, MARKS[i]);
        if (at && at[strlen(MARKS[i])] >= '0' && at[strlen(MARKS[i])] <= '9')
            return atoi(at + strlen(MARKS[i]));
    }
    return -1;
}

json_t *compare_json_text(const char *s) {
    json_t *text = json_string(s);
    return text ? text : json_string(quote(s).s);
}

void compare_json_write(json_t *json, Str *out) {
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    str_puts(out, text);
    str_puts(out, "\n");
    free(text), json_decref(json);
}
