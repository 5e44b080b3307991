#include "parity/diff.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Diff diff_begin(const DiffOptions *o) { return (Diff){.options = *o, .is_equal = true, .is_within = true}; }

bool diff_wants(const DiffOptions *o, const char *name) { return !o->only || strstr(name, o->only); }

bool diff_is_beyond(const Diff *d, double relative, bool equal) {
    return isnan(d->options.bound) ? !equal : !(relative <= d->options.bound);
}

void diff_add(Diff *d, const char *fmt, ...) {
    const bool is_first = d->is_within;
    va_list args;
    d->is_equal = d->is_within = false;
    if (!is_first) return;
    va_start(args, fmt);
    vsnprintf(d->first, sizeof d->first, fmt, args);
    va_end(args);
}

void diff_note(Diff *d, double relative, const char *fmt, ...) {
    va_list args;
    d->is_equal = false;
    if (*d->where && !(relative > d->largest)) return;
    d->largest = relative;
    va_start(args, fmt);
    vsnprintf(d->where, sizeof d->where, fmt, args);
    va_end(args);
}

bool diff_same(double a, double b) {
    uint64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y || (isnan(a) && isnan(b));
}

double diff_relative(double a, double b) {
    if (a == b || (isnan(a) && isnan(b))) return 0;
    if (!isfinite(a) || !isfinite(b)) return INFINITY;
    /* divides before the subtraction, because a - b may overflow */
    const double larger = fmax(fabs(a), fabs(b));
    return fabs(a / larger - b / larger);
}

DiffPair diff_pair(double a, double b) {
    DiffPair p;
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(p.a, sizeof p.a, "%.*g", digits, a);
        snprintf(p.b, sizeof p.b, "%.*g", digits, b);
        if (strcmp(p.a, p.b) != 0) break;
    }
    return p;
}

static void each_key(const json_t *a, const json_t *b, bool only_in_b, DiffMember *found, void *arg) {
    const char *key;
    const json_t *unused;
    json_object_foreach((json_t *)(only_in_b ? b : a), key, unused) {
        const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
        if (only_in_b ? x != NULL : y && json_equal(x, y)) continue;
        char *of_a = x ? json_dumps(x, JSON_ENCODE_ANY) : NULL,
             *of_b = y ? json_dumps(y, JSON_ENCODE_ANY) : NULL;
        found(arg, key, of_a ? of_a : "-", of_b ? of_b : "-");
        free(of_a), free(of_b);
    }
}

void diff_objects(const json_t *a, const json_t *b, DiffMember *found, void *arg) {
    each_key(a, b, false, found, arg);
    each_key(a, b, true, found, arg);
}

static void option_differs(void *out, const char *key, const char *a, const char *b) {
    str_printf(out, "option %s: %s and %s\n", key, a, b);
}

void diff_run_options(const json_t *a, const json_t *b, Str *out) { diff_objects(a, b, option_differs, out); }

void diff_verdict(const Diff *d, Str *out) {
    if (d->is_equal)
        str_puts(out, "verdict: equal\n");
    else if (d->is_within)
        str_printf(out, "verdict: within %g, the largest relative difference is %.3g: %s\n", d->options.bound,
                   d->largest, d->where);
    else
        str_printf(out, "verdict: differ, first at %s\n", d->first);
}
