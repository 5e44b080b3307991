/* Computes the numbers of an optimizer step, including its clipping coefficient. The CPU and the GPU run this code
 * and compute bitwise equal numbers. As in Megatron-LM (core/optimizer/clip_grads.py), the clipping coefficient is
 * most / (norm + 1e-6), but at most 1. */
#pragma once

#include <math.h>
#include <string.h>

#include "base/exact_sum.h"
#include "base/fault.h"
#include "base/host_device.h"
#include "kernels/attr.h"
#include "tensor/call.h"

/* Converts the attributes of an AdamW op to StepNumbers. */
static inline StepNumbers adam_numbers(const AdamAttr *a) {
    StepNumbers s;
    memcpy(s.group, a->group, sizeof s.group);
    s.unbias1 = 1 / a->correction1, s.unbias2 = 1 / a->correction2;
    s.grad_scale = a->grad_scale, s.updates = 1;
    return s;
}

/* Returns the numbers of an update without bias correction. */
static inline StepNumbers plain_numbers(const StepGroup group[STEP_GROUPS], double grad_scale) {
    StepNumbers s;
    memcpy(s.group, group, sizeof s.group);
    s.unbias1 = s.unbias2 = 1;
    s.grad_scale = grad_scale, s.updates = 1;
    return s;
}

static inline StepNumbers sgd_numbers(const SgdAttr *a) { return plain_numbers(a->group, a->grad_scale); }
static inline StepNumbers lion_numbers(const LionAttr *a) { return plain_numbers(a->group, a->grad_scale); }

/* Returns the number by which unit_norm divides, given the sum of squares. */
HOST_DEVICE static inline double unit_divisor(double squares) {
    const double norm = sqrt(squares);
    return norm < 1e-15 ? 1e-15 : norm;
}

/* Returns a * b, rounded. nvcc would otherwise fuse the multiplication with a following addition. */
HOST_DEVICE static inline double clip_product(double a, double b) {
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

/* Clips the gradient: multiplies step->grad_scale by the clipping coefficient. `squares` is the sum of squares of the
 * main gradients. */
HOST_DEVICE static inline ClipOutcome clip_numbers(double squares, double most, StepNumbers *step) {
    const double norm = clip_product(sqrt(squares), fabs(step->grad_scale));
    ClipOutcome o = {norm, 1, isfinite(norm) ? 1.0 : 0.0};
    if (o.updates != 0 && most > 0) o.clip = fmin(1.0, most / (norm + 1e-6));
    step->grad_scale = clip_product(step->grad_scale, o.clip);
    return o;
}

/* Returns the number of gradients that this call to the clip op processes. */
static inline int64_t clip_norms(const Call *c) {
    const int64_t sum = tensor_count(c->in[0]), from = tensor_count(c->in[1]), step = tensor_count(c->out[0]),
                  outcome = tensor_count(c->out[1]), n = sum / EXACT_WORDS;
    CHECK(n >= 1 && n <= CLIP_NORMS && sum == n * EXACT_WORDS && from == STEP_WORDS &&
              step == n * STEP_WORDS && outcome == n * CLIP_WORDS,
          "clip: operands of %lld, %lld, %lld and %lld words are not supported", (long long)sum,
          (long long)from, (long long)step, (long long)outcome);
    return n;
}

/* Clips each of n gradients by its norm. If any norm is not finite, no parameters are updated. */
HOST_DEVICE static inline void clip_each(int64_t n, const double *squares, double most,
                                         const StepNumbers *from, StepNumbers *step, ClipOutcome *outcome) {
    double updates = 1;
    for (int64_t i = 0; i < n; i++) {
        step[i] = *from;
        outcome[i] = clip_numbers(squares[i], most, &step[i]);
        updates = fmin(updates, outcome[i].updates);
    }
    for (int64_t i = 0; i < n; i++) step[i].updates = outcome[i].updates = updates;
}
