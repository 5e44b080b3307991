/* Planted bugs in the comparison that must find all other bugs. Each is tested together with a fault that
 * only the broken part of the comparison can detect. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "mutants/mutants.h"
#include "parity/compare.h"

#include <stdlib.h>

static double *absolute(const double *x, int64_t n) {
    double *y = mem_alloc((size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; i < n; i++) y[i] = fabs(x[i]);
    return y;
}

HOOK(TensorError, tensor_error, const double *x, const double *oracle, int64_t n, int64_t width,
     const Scale *scale) {
    if (mutant_is_named(M_judge_compares_with_itself)) x = oracle;
    double *a = NULL, *b = NULL;
    if (mutant_is_named(M_judge_ignores_signs)) x = a = absolute(x, n), oracle = b = absolute(oracle, n);
    TensorError e = __real_tensor_error(x, oracle, n, width, scale);
    free(a), free(b);
    if (mutant_is_named(M_judge_equates_nan) && !isfinite(e.relative)) return (TensorError){0};
    if (mutant_is_named(M_judge_knows_norms_only)) e.elementwise = 0;
    return e;
}

/* Whether the bug makes the comparison skip this quantity or this tensor. */
static bool is_skipped(const Row *r, const char *tensor) {
    return (mutant_is_named(M_judge_skips_loss) && !strcmp(r->quantity, "loss")) ||
           (mutant_is_named(M_judge_skips_norm) && !strcmp(r->quantity, "grad norm")) ||
           (mutant_is_named(M_judge_skips_gradients) && !strncmp(r->quantity, "gradient", 8)) ||
           (mutant_is_named(M_judge_skips_later_steps) && !strncmp(tensor, "step ", 5) &&
            strcmp(tensor, "step 1")) ||
           (mutant_is_named(M_judge_stops_at_first) && r->tensors > 0);
}

HOOK(void, row_add, Row *r, const char *tensor, TensorError e, double bound, double elementwise_bound,
     int64_t rank) {
    if (is_skipped(r, tensor)) e = (TensorError){0};
    const double wider = mutant_is_named(M_judge_bound_times_100) ? 100 : 1;
    __real_row_add(r, tensor, e, wider * bound, wider * elementwise_bound, rank);
}
