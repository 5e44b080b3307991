/* Rotary position embedding (Su et al. 2021; Megatron-LM rope_utils.py). The first `dim` elements of a head
 * are pairs (a, b). A pair becomes (a cos - b sin, b cos + a sin), where the angle depends on the token's
 * position. The head's other elements are copied. y is written or accumulated, and may share the memory of x.
 * rope_paged_attention writes rotated queries to y, stores keys and values, then replaces y with the result
 * of attention. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/real.h"

typedef struct Rope {
    const Tensor *x, *cos, *sin, *position, *y;
    RopeAttr attr;
} Rope;

static void rotate_head(const Rope *o, const real *x, const real *cos, const real *sin, real *y, bool add) {
    const int64_t half = o->attr.dim / 2, d = tensor_width(o->x);
    const int64_t step = o->attr.interleaved ? 2 : 1, other = o->attr.interleaved ? 1 : half;
    const real sign = o->attr.inverse ? -1 : 1;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const int64_t a = step * i, b = a + other;
        const real s = sign * sin[i], ya = x[a] * cos[i] - x[b] * s, yb = x[b] * cos[i] + x[a] * s;
        y[a] = add ? y[a] + ya : ya;
        y[b] = add ? y[b] + yb : yb;
    }
    for (int64_t i = 2 * half; i < d; i++) y[i] = add ? y[i] + x[i] : x[i];
}

static void rotate(void *arg, int64_t begin, int64_t end) {
    const Rope *o = arg;
    const Tensor *x = o->x, *y = o->y;
    const int64_t s = x->dim[0], b = x->dim[1], half = o->attr.dim / 2, heads = x->dim[2] * x->dim[3];
    for (int64_t token = begin; token < end; token++) {
        const int64_t position = int64s(o->position)[token % b * s + token / b];
        const real *cos = reals(o->cos) + position * half, *sin = reals(o->sin) + position * half;
        for (int64_t h = token * heads; h < (token + 1) * heads; h++)
            rotate_head(o, reals(x) + tensor_row_offset(x, h), cos, sin, reals(y) + tensor_row_offset(y, h),
                        accumulates(y));
    }
}

static Rope rope_of(const Call *c, RopeAttr attr) {
    const Rope o = {
        .x = c->in[0], .cos = c->in[1], .sin = c->in[2], .position = c->in[3], .y = c->out[0], .attr = attr};
    for (int64_t i = 0; i < o.x->dim[0] * o.x->dim[1]; i++)
        CHECK(int64s(o.position)[i] >= 0 && int64s(o.position)[i] < o.cos->dim[0],
              "rope: position %lld is outside the table of %lld positions", (long long)int64s(o.position)[i],
              (long long)o.cos->dim[0]);
    return o;
}

void KERNEL(rope)(const Call *c) {
    Rope o = rope_of(c, *(const RopeAttr *)c->attr);
    const int64_t tokens = o.x->dim[0] * o.x->dim[1], heads = o.x->dim[2] * o.x->dim[3];
    pool_for(c->device->pool, tokens, grain_rows(heads * tensor_width(o.x)), rotate, &o);
}

/* ---- rotation and paged attention ---- */

typedef struct RopeStore {
    Rope rope;
    const Tensor *row, *pool[2]; /* indices of the new rows in the pools; the pools of keys and of values */
    DType stored;                /* rotated queries are rounded to this type */
} RopeStore;

static void put_head(const RopeStore *o, int which, int64_t token, int64_t group, const real *head) {
    const Tensor *pool = o->pool[which], *x = o->rope.x;
    dtype_convert(tensor_at(pool, int64s(o->row)[token] * pool->stride[0] + group * pool->stride[2]),
                  (DType)pool->dtype, head, (DType)x->dtype, (size_t)tensor_width(x));
}

static void rotate_and_store(void *arg, int64_t begin, int64_t end) {
    const RopeStore *o = arg;
    const Tensor *x = o->rope.x, *y = o->rope.y;
    const int64_t half = o->rope.attr.dim / 2, groups = x->dim[2], r = y->dim[3];
    real *scratch = mem_alloc((size_t)tensor_width(x) * sizeof *scratch);
    for (int64_t token = begin; token < end; token++) {
        const int64_t position = int64s(o->rope.position)[token];
        const real *cos = reals(o->rope.cos) + position * half, *sin = reals(o->rope.sin) + position * half;
        for (int64_t g = token * groups; g < (token + 1) * groups; g++) {
            const real *head[2]; /* the group's key head, then its value head */
            for (int64_t h = 0; h < r; h++) {
                real *query = reals(y) + tensor_row_offset(y, g * r + h);
                rotate_head(&o->rope, reals(x) + tensor_row_offset(x, g * (r + 2) + h), cos, sin, query,
                            false);
                if (!dtype_is_16bit(o->stored)) continue;
                dtype_convert(scratch, o->stored, query, REAL_TYPE, (size_t)tensor_width(y));
                dtype_convert(query, REAL_TYPE, scratch, o->stored, (size_t)tensor_width(y));
            }
            for (int i = 0; i < 2; i++) head[i] = reals(x) + tensor_row_offset(x, g * (r + 2) + r + i);
            rotate_head(&o->rope, head[0], cos, sin, scratch, false);
            put_head(o, 0, token, g % groups, scratch);
            put_head(o, 1, token, g % groups, head[1]);
        }
    }
    free(scratch);
}

KernelFn KERNEL(paged_attention); /* attention.c */

void KERNEL(rope_paged_attention)(const Call *c) {
    const RopePagedAttr *attr = c->attr;
    RopeStore o = {
        .rope = rope_of(c, attr->rope), .row = c->in[4], .pool = {c->out[2], c->out[3]}, .stored = c->stored};
    const Tensor *x = o.rope.x, *pool = o.pool[0];
    for (int64_t i = 0; i < x->dim[0]; i++)
        CHECK(int64s(o.row)[i] >= 0 && int64s(o.row)[i] < pool->dim[0],
              "rope_paged_attention: row %lld is outside the pool of %lld rows", (long long)int64s(o.row)[i],
              (long long)pool->dim[0]);
    pool_for(c->device->pool, x->dim[0], grain_rows(x->dim[2] * x->dim[3] * tensor_width(x)),
             rotate_and_store, &o);
    Call attention = *c;
    memcpy(attention.in,
           (Tensor *[CALL_IN]){c->out[0], c->out[2], c->out[3], c->in[5], c->in[6], c->in[3], [8] = c->in[7]},
           sizeof attention.in);
    attention.attr = &attr->attention;
    KERNEL(paged_attention)(&attention);
}
