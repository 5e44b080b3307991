#include "ckpt/hf/problems.h"

#include <math.h>
#include <stdio.h>

enum { NAMES_SHOWN = 6 };

void hf_problem_add(HfProblem *p, const char *name, const char *detail) {
    if (++p->count <= NAMES_SHOWN)
        str_printf(&p->names, "%s%s%s", p->count > 1 ? ", " : "", quote(name).s, detail);
}

void hf_problem_report(Str *out, HfProblem *p, const char *what) {
    if (p->count)
        str_printf(out, "%s%lld %s: %s%s", out->len ? "; " : "", (long long)p->count, what, p->names.s,
                   p->count > NAMES_SHOWN ? ", ..." : "");
    str_free(&p->names);
}

/* ---- values ---- */

enum { BLOCK = 256 };

/* Converts n <= BLOCK values from dtype `from` to dtype `to`, and then to double. */
static void convert_there_and_back(double *out, const void *values, DType from, DType to, size_t n) {
    double converted[BLOCK];
    dtype_convert(converted, to, values, from, n);
    dtype_convert(out, F64, converted, to, n);
}

void hf_values_check(HfValues *v, const char *name, const void *values, DType from, DType to, int64_t n) {
    double before[BLOCK], after[BLOCK];
    int64_t infinite = 0, too_large = 0;
    for (int64_t at = 0; at < n; at += BLOCK) {
        const size_t k = (size_t)(n - at < BLOCK ? n - at : BLOCK);
        const void *block = (const char *)values + (size_t)at * dtype_size(from);
        dtype_convert(before, F64, block, from, k);
        convert_there_and_back(after, block, from, to, k);
        for (size_t i = 0; i < k; i++) {
            if (isfinite(after[i])) continue;
            if (!isfinite(before[i]))
                infinite++;
            else
                too_large++, v->largest = fmax(v->largest, fabs(before[i]));
        }
    }
    char detail[80];
    snprintf(detail, sizeof detail, " (%lld of %lld values)", (long long)(infinite ? infinite : too_large),
             (long long)n);
    if (infinite)
        hf_problem_add(&v->infinite, name, detail);
    else if (too_large)
        hf_problem_add(&v->too_large, name, detail);
}

DType hf_values_fitting_dtype(const HfValues *v) {
    static const DType ASCENDING[] = {F16, BF16, F32};
    for (size_t i = 0; i < sizeof ASCENDING / sizeof *ASCENDING; i++) {
        double after;
        convert_there_and_back(&after, &v->largest, F64, ASCENDING[i], 1);
        if (isfinite(after)) return ASCENDING[i];
    }
    return F64;
}
