#include "validate/compare.h"

#include <math.h>
#include <stdio.h>

/* What a tensor must reach, as a share of the largest of its quantity, to be measured against itself: a key
 * bias has a zero gradient up to rounding (spec/golden-case.md). */
static const double FLOOR = 1e-9;

static double norm(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

void scale_add(Scale *s, const double *oracle, int64_t n) {
    double length = norm(oracle, n);
    s->norm = fmax(s->norm, length);
    s->rms = fmax(s->rms, length / sqrt((double)(n > 0 ? n : 1)));
}

TensorError tensor_error(const double *x, const double *y, int64_t n, int64_t width, const Scale *s) {
    TensorError e = {0};
    double sum = 0;
    for (int64_t begin = 0; begin < n; begin += width) {
        double rms = fmax(norm(y + begin, width) / sqrt((double)width), FLOOR * s->rms);
        for (int64_t i = begin; i < begin + width; i++) {
            double d = fabs(x[i] - y[i]), share = d == 0 ? 0 : d / rms;
            sum += d * d;
            if (!(share <= e.elementwise)) e.elementwise = isfinite(share) ? share : INFINITY, e.worst = i;
            if (e.elementwise == INFINITY) return (TensorError){INFINITY, INFINITY, e.worst};
        }
    }
    double scale = fmax(norm(y, n), FLOOR * s->norm);
    e.relative = sum == 0 ? 0 : sqrt(sum) / scale;
    return e;
}

static double excess(TensorError e, double bound, double elementwise_bound) {
    return fmax(e.relative / bound, e.elementwise / elementwise_bound);
}

void row_add(Row *r, const char *tensor, TensorError e, double bound, double elementwise_bound) {
    double x = excess(e, bound, elementwise_bound);
    bool first = !r->tensors++;
    if (first) r->pass = true;
    if (!(x <= 1)) r->pass = false;
    if (!first && x <= excess(r->error, r->bound, r->elementwise_bound)) return;
    r->error = e;
    r->bound = bound;
    r->elementwise_bound = elementwise_bound;
    snprintf(r->worst, sizeof r->worst, "%s", tensor);
}

void compare_json_number(Str *out, const char *key, double x) {
    if (isfinite(x))
        str_printf(out, "\"%s\": %.9g, ", key, x);
    else
        str_printf(out, "\"%s\": null, ", key);
}

void compare_json_text(Str *out, const char *s) {
    str_puts(out, "\"");
    for (; *s; s++)
        if ((unsigned char)*s < 32 || *s == '"' || *s == '\\')
            str_printf(out, "\\u%04x", (unsigned char)*s);
        else
            str_add(out, s, 1);
    str_puts(out, "\"");
}
