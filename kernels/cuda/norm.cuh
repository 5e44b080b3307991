/* Code that norm.cu and norm_grad.cu share: the parameters of their kernels, the conditions for vector
 * access, and the number of blocks. */
#pragma once

#include "kernels/cuda/row_team.cuh"

/* The parameters that all norm kernels have. */
template <typename R> struct Norm {
    int64_t rows, width;
    bool rms;
    R plus, eps, per_width; /* 1 / width */
};

template <typename R> static inline Norm<R> norm_of(const Call *c, const Tensor *x) {
    const NormAttr *a = (const NormAttr *)c->attr;
    const int64_t width = tensor_width(x);
    const Norm<R> o = {tensor_rows(x), width, a->rms, (R)(a->one_plus ? 1 : 0), (R)a->eps, 1 / (R)width};
    return o;
}

template <typename T> static inline bool is_type(const Tensor *t) {
    const DType want = sizeof(T) == 8 ? F64 : sizeof(T) == 4 ? F32 : t && t->dtype == F16 ? F16 : BF16;
    return !t || t->dtype == want;
}
/* Returns true if t is NULL, or has the type of x and is 16-byte aligned. */
static inline bool matches(const Tensor *t, const Tensor *x) {
    return !t || (t->dtype == x->dtype && aligned_16(t->data));
}

/* Returns the number of blocks if each team processes one row. */
static inline unsigned team_grid(int64_t rows, TeamShape shape) {
    const int64_t blocks = ceil_div(rows, shape.count);
    return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}
/* Returns the shape of the teams that process rows element by element. */
static inline TeamShape cells_team(int64_t width) {
    return team_for(width < 1024 ? 32 : TEAM_BLOCK, TEAM_BLOCK, false);
}
