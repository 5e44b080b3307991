/* The sigmoid and softplus functions. */
#pragma once

#include "kernels/cpu/real.h"

static inline real sigmoid(real x) { return 1 / (1 + REAL_MATH(exp)(-x)); }

/* Returns log(1 + exp(a)), or a if a > 20, as in PyTorch. */
static inline real softplus(real a) { return a > 20 ? a : REAL_MATH(log1p)(REAL_MATH(exp)(a)); }
static inline real softplus_slope(real a) { return a > 20 ? 1 : sigmoid(a); }
