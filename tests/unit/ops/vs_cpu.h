/* Runs one call on the CPU and on another device. The operands are aligned as in a model, or unaligned. The
 * call adds to existing values, runs in place, or has no optional outputs. In addition to the requirements of
 * replay.h, a second run must be bitwise equal, and outputs must match those of the CPU:
 *
 *   bitwise            for copies, for values that are rounded once, for FP8's scales, for integers
 *   within a bound     4 sqrt(2 K) u (1 + largest result) m + 2 u' |result|
 *
 * Each device sums K terms in a different order, with the unit roundoff u of the arithmetic. A term is at
 * most m, the largest float operand (at least 1). The last rounding, with the unit roundoff u' of the storage
 * type, may go in either direction.
 *
 * Attention: after the softmax, the error of a score, |scale| d u, is a relative error; probabilities may be
 * rounded to the storage type. FP8 GEMMs: tensor cores add 32 terms and the previous sum at a time, and drop
 * the bits of each below 2^-13 of the largest; the numbers and their scales are at most 1 here. A GEMM that
 * is added to a 16-bit main gradient may be rounded first, with an error of u' times the summand, which is at
 * most |result| plus the old value. A scaled activation, and its gradient, are rounded to the storage type before
 * they are scaled. */
#pragma once

#include "unit/ops/replay.h"
#ifdef ISOTRON_CUDA
#include "tensor/cuda.h"
#endif

typedef struct Agree {
    Device *cpu, *other;
    double worst[OP_KERNELS]; /* error over bound */
} Agree;

/* ---- bounds ---- */

static inline double largest_of(const Tensor *t) {
    double most = 0;
    for (int64_t r = 0, n = tensor_rows(t), width = tensor_width(t); r < n; r++) {
        const int64_t at = tensor_row_offset(t, r);
        for (int64_t j = 0; j < width; j++) {
            const double x = fabs(load_element(t, at + j));
            if (x > most && isfinite(x)) most = x;
        }
    }
    return most;
}

static inline double grown(double k, const Tensor *t) {
    return t ? fmax(k, (double)(tensor_rows(t) > tensor_width(t) ? tensor_rows(t) : tensor_width(t))) : k;
}

static inline bool is_float(const Tensor *t) { return t && dtype_is_float((DType)t->dtype); }

/* The operand type that determines the arithmetic type, as in call_run. */
static inline DType lead_of(const Call *c) {
    for (int i = 0; i < CALL_IN; i++)
        if (is_float(c->in[i])) return (DType)c->in[i]->dtype;
    for (int i = 0; i < CALL_OUT; i++)
        if (is_float(c->out[i])) return (DType)c->out[i]->dtype;
    return F64;
}

/* Computes the part of the bound that is equal for all elements of an output. */
static inline double bound_of(const OpDef *op, const Replay *want, int j) {
    const Call *c = &want->call;
    const DType lead = lead_of(c);
    double terms = 1, most = 1, softmax = 1,
           u = dtype_roundoff(lead == F64 || op->match == MATCH_NEAR_F64 ? F64 : F32);
    for (int i = 0; i < CALL_IN; i++) {
        terms = grown(terms, c->in[i]);
        if (is_float(c->in[i])) most = fmax(most, largest_of(&want->in[i].image));
    }
    for (int j = 0; j < CALL_OUT; j++) terms = grown(terms, c->out[j]);
    if (op->match == MATCH_SOFTMAX) {
        const AttentionAttr *a = c->attr;
        softmax = 1 + fabs(a->scale) * (double)tensor_width(c->in[0]);
        u = fmax(u, dtype_roundoff(lead));
    }
    if (op->match == MATCH_QUANTIZED && c->in[1]->dtype == I8) most *= 127;
    if (op->match == MATCH_FP8_SUM || (op->match == MATCH_QUANTIZED && c->in[1]->dtype == F8E4M3)) {
        const double k = (double)tensor_width(c->in[1]);
        return 4 * ldexp(1, -13) * (k + ceil(k / 32)) * (1 + largest_of(&want->out[j].image));
    }
    const bool activates = (op->number == OP_linear || op->number == OP_linear_quantized) &&
                           j == 1, /* the activation of the rounded or the unrounded sum */
        through_activation = op->number == OP_linear_dgrad && c->in[2],
               scaled = (op->number == OP_activation && c->in[1]) ||
                        (op->number == OP_activation_grad && c->in[2]);
    if (activates || through_activation || scaled) u = fmax(u, dtype_roundoff(lead));
    return 4 * sqrt(2 * terms) * u * softmax * (1 + largest_of(&want->out[j].image)) * most;
}

/* ---- comparison ---- */

static inline void describe_call(const OpDef *op, const Replay *r, char *out, size_t n) {
    size_t at = (size_t)snprintf(out, n, "op %s%s%s%s, left out %x:", op->name, r->how.add ? ", adding" : "",
                                 r->how.in_place ? ", in place" : "", r->how.aligned ? "" : ", not aligned",
                                 r->how.left_out);
    for (int i = 0; i < CALL_IN + CALL_OUT && at < n; i++) {
        char shape[80];
        const Tensor *t = i < CALL_IN ? r->call.in[i] : r->call.out[i - CALL_IN];
        if (i == CALL_IN) at += (size_t)snprintf(out + at, n - at, " ->");
        if (t && at < n)
            at += (size_t)snprintf(out + at, n - at, " %s", tensor_describe(t, shape, sizeof shape));
    }
}

/* Compares the bits of two numbers, but treats all NaNs as equal. */
static inline bool same_element(const Tensor *a, const Tensor *b, int64_t at) {
    const size_t size = dtype_size((DType)a->dtype), from = (size_t)at * size;
    if (!memcmp((const char *)a->data + from, (const char *)b->data + from, size)) return true;
    return is_float(a) && isnan(load_element(a, at)) && isnan(load_element(b, at));
}

static inline double number_at(const Tensor *t, int64_t at) {
    return t->dtype == I64 ? (double)((int64_t *)t->data)[at] : load_element(t, at);
}

static inline void expect_same(const OpDef *op, const Replay *got, const Replay *want, int j,
                               const char *what) {
    const Tensor *a = &got->out[j].image, *b = &want->out[j].image;
    int64_t differ = 0, first = 0, where = 0;
    if (same_elements(a, b)) return;
    for (int64_t r = 0, n = tensor_rows(a), w = tensor_width(a); r < n; r++)
        for (int64_t i = 0; i < w; i++) {
            const int64_t at = tensor_row_offset(a, r) + i;
            if (!same_element(a, b, at) && !differ++) first = r * w + i, where = at;
        }
    if (!differ) return;
    char call[500];
    describe_call(op, got, call, sizeof call);
    fail_msg("%s: output %d: %lld elements %s, the first is %lld: %.17g, not %.17g", call, j,
             (long long)differ, what, (long long)first, number_at(a, where), number_at(b, where));
}

/* The difference of two ExactSums. */
static inline double exact_difference(const Tensor *got, const Tensor *want) {
    ExactSum sum = {0}, minus;
    memcpy(&minus, want->data, sizeof minus);
    for (int i = 0; i < EXACT_WORDS; i++) ((int64_t *)&minus)[i] *= -1;
    exact_merge(&sum, got->data);
    exact_merge(&sum, &minus);
    return fabs(exact_value(sum));
}

static inline void judge(Agree *a, const OpDef *op, const Replay *got, int j, int64_t element, double error,
                         double bound) {
    const double ratio = isnan(error) ? INFINITY : error / bound;
    if (ratio > a->worst[op->number]) a->worst[op->number] = ratio;
    if (error <= bound) return;
    char call[500];
    describe_call(op, got, call, sizeof call);
    fail_msg("%s: output %d: element %lld is off by %.3g, bound %.3g", call, j, (long long)element, error,
             bound);
}

/* The bound: the sum of each block is rounded as often as it has terms. */
static inline void expect_near_sum(Agree *a, const OpDef *op, const Replay *got, const Replay *want, int j) {
    const Tensor *x = &want->in[0].image;
    const double most = largest_of(x), block = (double)((const SumAttr *)want->call.attr)->block;
    judge(a, op, got, j, 0, exact_difference(&got->out[j].image, &want->out[j].image),
          block * dtype_roundoff(F64) * (double)tensor_count(x) * most * most);
}

/* Returns output j as it was before the call. */
static inline Tensor before_call(const Replay *r, int j) {
    const Guarded *g = &r->out[j];
    Tensor t = g->image;
    t.data = g->before + ((unsigned char *)g->image.data - g->block);
    return t;
}

/* Whether output j is the result of a GEMM that is added to earlier values. The other output of linear_wgrad, dbias, is
 * a sum. */
static inline bool adds_gemm(const OpDef *op, const Tensor *t, int j) {
    const bool gemm = j == 0 && (op->number == OP_linear_wgrad || op->number == OP_grouped_linear_wgrad ||
                                 op->number == OP_fp8_gemm || op->number == OP_fp8_grouped_wgrad);
    return gemm && dtype_is_16bit((DType)t->dtype) && t->flags & TENSOR_MAIN_GRAD && t->flags & TENSOR_ACCUM;
}

/* Replaces infinity by the end of the range, because near it only one of the devices may round to infinity in
 * F16. */
static inline double within_range(double x, DType type) {
    static const double LARGEST_F16 = 65504;
    return type == F16 && isinf(x) ? copysign(LARGEST_F16, x) : x;
}

static inline void expect_near(Agree *a, const OpDef *op, const Replay *got, const Replay *want, int j) {
    const Tensor *x = &got->out[j].image, *y = &want->out[j].image, before = before_call(want, j);
    const bool rounds_gemm = adds_gemm(op, want->call.out[j], j);
    const double bound = bound_of(op, want, j), u = dtype_roundoff((DType)y->dtype);
    for (int64_t r = 0, n = tensor_rows(y), width = tensor_width(y); r < n; r++) {
        const int64_t at = tensor_row_offset(y, r);
        for (int64_t e = at; e < at + width; e++) {
            const double v = within_range(load_element(x, e), (DType)y->dtype),
                         w = within_range(load_element(y, e), (DType)y->dtype);
            if (v == w || (isnan(v) && isnan(w))) continue;
            const double added = rounds_gemm ? fabs(w) + fabs(load_element(&before, e)) : 0;
            judge(a, op, got, j, r * width + e - at, fabs(v - w),
                  bound + u * (2 * (isfinite(w) ? fabs(w) : 0) + added));
        }
    }
}

static inline void expect_outputs(Agree *a, const OpDef *op, const Replay *got, const Replay *want) {
    for (int j = 0; j < CALL_OUT; j++) {
        if (!want->call.out[j]) continue;
        const bool whole = want->call.out[j]->dtype == I64 && op->number != OP_sum_squares;
        if (whole || op->match == MATCH_BITS)
            expect_same(op, got, want, j, "are not the CPU's");
        else if (op->number == OP_sum_squares)
            expect_near_sum(a, op, got, want, j);
        else
            expect_near(a, op, got, want, j);
    }
}

/* ---- runs ---- */

/* Runs the call as after a dry run. If the call needs memory that was not planned, this is detected because
 * memory grows. */
static inline void run_as_planned(Replay *r, const OpDef *op) {
#ifdef ISOTRON_CUDA
    Device *d = r->how.device;
    if (d->kind == DEVICE_CUDA) {
        Device *planner = device_null_for(d);
        Call planned = r->call;
        planned.device = planner;
        call_run(op, &planned);
        const size_t plan = planner->scratch;
        device_free(planner);
        device_reserve_scratch(d, plan);
        const size_t provided = cuda_of(d)->scratch_bytes;
        cuda_of(d)->scratch_bytes = plan;
        replay_run(r, op);
        if (cuda_of(d)->scratch_bytes > plan)
            fail_msg("op %s takes %zu bytes of scratch memory, planned are %zu", op->name,
                     cuda_of(d)->scratch_bytes, plan);
        cuda_of(d)->scratch_bytes = provided;
        return;
    }
#endif
    replay_run(r, op);
}

static inline void run_recorded(Replay *r, const OpDef *op) {
    Device *d = r->how.device;
    if (d->kind != DEVICE_CUDA) {
        replay_run(r, op);
        return;
    }
    OpProfile *profile = d->profile;
    d->profile = NULL; /* ops cannot be timed while they are recorded */
    device_graph_begin(d);
    call_run(op, &r->call);
    DeviceGraph *graph = device_graph_end(d);
    device_graph_launch(d, graph);
    replay_check_guards(r, op);
    device_graph_free(d, graph);
    d->profile = profile;
}

static inline void agree_on(Agree *a, const OpDef *op, const Call *c, ReplayHow how) {
    Replay want, got, again, unaligned;
    how.aligned = true, how.device = a->cpu;
    replay_open(&want, op, c, how);
    how.device = a->other;
    replay_open(&got, op, c, how);
    replay_open(&again, op, c, how);
    how.aligned = false;
    replay_open(&unaligned, op, c, how);
    replay_run(&want, op);
    run_as_planned(&got, op);
    expect_outputs(a, op, &got, &want);
    run_recorded(&again, op);
    for (int j = 0; j < CALL_OUT; j++)
        if (got.call.out[j]) expect_same(op, &again, &got, j, "differ from the run before");
    replay_run(&unaligned, op);
    expect_outputs(a, op, &unaligned, &want);
    /* Results must not depend on where a rank's part of the parameters begins, so alignment must not
     * matter. */
    for (int j = 0; j < CALL_OUT && (op->number == OP_adamw || op->number == OP_sgd); j++)
        if (got.call.out[j]) expect_same(op, &unaligned, &got, j, "differ from those of aligned operands");
    replay_free(&want), replay_free(&got), replay_free(&again), replay_free(&unaligned);
}

/* A TapeTrace for a run on the CPU; its arg is an Agree. */
static inline void agree_check(void *arg, const OpDef *op, const Call *c) {
    bool adds = false, shares = false;
    unsigned optional = 0;
    int outputs = 0;
    check_operands(op, c);
    for (int j = 0; j < CALL_OUT; j++) {
        if (!c->out[j]) continue;
        outputs++;
        adds |= can_add(op, c, j), shares |= shares_memory(c, j);
        optional |= (unsigned)op->out[j].optional << j;
    }
    agree_on(arg, op, c, (ReplayHow){0});
    if (adds) agree_on(arg, op, c, (ReplayHow){.add = true});
    if (shares) agree_on(arg, op, c, (ReplayHow){.in_place = true});
    for (int j = 0; outputs > 1 && j < CALL_OUT; j++)
        if (optional >> j & 1) agree_on(arg, op, c, (ReplayHow){.add = true, .left_out = 1u << j});
}
