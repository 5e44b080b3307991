/* What the rows of cases.def build. */
#ifndef ISOTRON_TESTS_OPS_BUILDERS_H
#define ISOTRON_TESTS_OPS_BUILDERS_H

#include "unit/ops/case.h"

#include "kernels/attr.h"
#include "ops/activation.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/residual.h"

static inline Tensor *build_linear(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_linear(t, in[0], in[1], in[2]);
}

/* One weight used by two nodes: its gradient is added up. */
static inline Tensor *build_linear_twice(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_linear(t, op_linear(t, in[0], in[1], in[2]), in[1], in[2]);
}

static inline Tensor *build_norm(Tape *t, Tensor **in, const void *attr) {
    return op_norm(t, in[0], in[1], in[2], *(const NormAttr *)attr);
}

/* x [s,b,g,2r,d] as two strided views of r heads each, as of queries and keys; the second feeds two norms. */
static inline Tensor *build_norm_views(Tape *t, Tensor **in, const void *attr) {
    Tensor *x = in[0];
    const NormAttr *a = attr;
    const int64_t r = x->dim[3] / 2, d = x->dim[4], half[5] = {x->dim[0], x->dim[1], x->dim[2], r, d};
    Tensor *q = tape_view(t, x, 0, 5, half, x->stride), *k = tape_view(t, x, r * d, 5, half, x->stride);
    Tensor *sum = op_add(t, op_norm(t, k, in[1], in[2], *a), op_norm(t, k, in[1], in[2], *a));
    return op_add(t, sum, op_norm(t, q, in[1], in[2], *a));
}

static inline Tensor *build_activation(Tape *t, Tensor **in, const void *attr) {
    return op_activation(t, in[0], *(const Activation *)attr);
}

static inline Tensor *build_embedding(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_embedding(t, in[0], in[1]);
}

static inline Tensor *build_dropout(Tape *t, Tensor **in, const void *attr) {
    return op_dropout(t, in[0], *(const double *)attr, hash_name("dropout"));
}

static inline Tensor *build_add(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_add(t, in[0], in[1]);
}

static inline Tensor *build_add_itself(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    Tensor *twice = op_add(t, in[0], in[0]);
    return op_add(t, twice, in[0]);
}

/* x + dropout(linear(norm(x))) */
static inline Tensor *build_residual_block(Tape *t, Tensor **in, const void *attr) {
    Tensor *h = op_norm(t, in[0], in[1], in[2], *(const NormAttr *)attr);
    h = op_dropout(t, op_linear(t, h, in[3], NULL), 0.25, hash_name("residual"));
    return op_add(t, in[0], h);
}

#endif
