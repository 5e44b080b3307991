/* Compares fused attention with its definition, and tests bitwise properties. Rows do not depend on later
 * rows or keys, nor on padding. A step with a cache equals a row of the full computation. Results do not
 * depend on the number of threads. */
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

typedef struct Shape {
    int64_t s, t, b, g, r, d, e;
    AttentionAttr attr;
    int64_t first_key; /* row i has first key i % (first_key + 1); 0 if the operand is absent */
    int64_t length;    /* sample i has length i * length; 0 if the operand is absent */
    int64_t buckets;   /* number of buckets of the bias, or 0 if there is no operand */
} Shape;

enum { Q, K, V, DY, BIAS, Y, DQ, DK, DV, DBIAS, TENSORS };

/* All tensors of one forward and backward pass. */
typedef struct Run {
    Shape shape;
    Tensor x[TENSORS], kept, first_key, lengths;
} Run;

static Tensor empty(DType dtype, int ndim, const int64_t *dim) {
    Tensor t = tensor_make(NULL, dtype, ndim, dim);
    t.data = mem_zero(1, tensor_bytes(&t));
    return t;
}

static void set(Tensor *t, int64_t i, double x) {
    dtype_convert((char *)t->data + (size_t)i * dtype_size((DType)t->dtype), (DType)t->dtype, &x, F64, 1);
}

static double get(const Tensor *t, int64_t i) {
    double x;
    dtype_convert(&x, F64, (const char *)t->data + (size_t)i * dtype_size((DType)t->dtype), (DType)t->dtype,
                  1);
    return x;
}

/* Fills a tensor with values in (-1, 1) that are exact in float. They depend on the position and on the index
 * after it, but not on the length of the sequence. */
static void fill(Tensor *t, int which) {
    for (int64_t i = 0, n = tensor_count(t); i < n; i++)
        set(t, i, (float)(2 * philox_uniform(11, (uint64_t)which, (uint64_t)i) - 1));
}

static Run run_new(Shape p, DType dtype) {
    Run r = {.shape = p};
    const int64_t heads[] = {p.s, p.b, p.g, p.r, p.d}, keys[] = {p.t, p.b, p.g, 1, p.d},
                  values[] = {p.t, p.b, p.g, 1, p.e}, out[] = {p.s, p.b, p.g, p.r, p.e},
                  bias[] = {p.buckets, p.g * p.r, 1, 1, 1};
    const int64_t *dims[TENSORS] = {heads, keys, values, out, bias, out, heads, keys, values, bias};
    for (int i = 0; i < TENSORS; i++) {
        r.x[i] = empty(dtype, dims[i] == bias ? 2 : 5, dims[i]);
        if (i <= BIAS) fill(&r.x[i], i);
    }
    r.first_key = empty(I64, 2, (int64_t[]){p.b, p.s});
    for (int64_t i = 0; i < p.b * p.s; i++) ((int64_t *)r.first_key.data)[i] = i % (p.first_key + 1);
    r.lengths = empty(I64, 1, &p.b);
    for (int64_t i = 0; i < p.b; i++) ((int64_t *)r.lengths.data)[i] = i * p.length;
    return r;
}

static void run_free(Run *r) {
    for (int i = 0; i < TENSORS; i++) free(r->x[i].data);
    free(r->kept.data), free(r->first_key.data), free(r->lengths.data);
}

static void compute(Run *r, int threads, bool unfused) {
    const Shape *p = &r->shape;
    Device *d = device_cpu(threads);
    Tensor *x = r->x, *first_key = p->first_key ? &r->first_key : NULL,
           *lengths = p->length ? &r->lengths : NULL, *bias = p->buckets ? &x[BIAS] : NULL,
           *dbias = bias ? &x[DBIAS] : NULL;
    r->kept = empty((DType)x[Q].dtype, unfused ? 5 : 4, (int64_t[]){p->b, p->g, p->r, p->s, p->t});
    call_run(&OPS[unfused ? OP_attention_unfused : OP_attention],
             &(Call){.in = {&x[Q], &x[K], &x[V], first_key, lengths, bias},
                     .out = {&x[Y], &r->kept},
                     .attr = &p->attr,
                     .device = d});
    Call grad = {.in = {&x[DY], &x[Q], &x[K], &x[V], &x[Y], &r->kept, first_key, lengths, bias},
                 .out = {&x[DQ], &x[DK], &x[DV], dbias},
                 .attr = &p->attr,
                 .device = d};
    if (unfused)
        grad = (Call){.in = {&x[DY], &x[Q], &x[K], &x[V], &r->kept},
                      .out = {&x[DQ], &x[DK], &x[DV], NULL, dbias},
                      .attr = &p->attr,
                      .device = d};
    call_run(&OPS[unfused ? OP_attention_unfused_grad : OP_attention_grad], &grad);
    device_free(d);
}

static const char *const NAMES[TENSORS] = {"q", "k", "v", "dy", "bias", "y", "dq", "dk", "dv", "dbias"};

/* The bound: sums have at most s r or t d terms, each at most 1. The softmax also turns the absolute
 * error of a score, |scale| d u, into a relative error. */
static void near(const Run *a, const Run *b) {
    const Shape *p = &a->shape;
    const double terms = (double)(p->s * (p->r + (p->buckets ? p->t : 0)) + p->t + p->d + p->e),
                 u = dtype_roundoff((DType)a->x[Y].dtype), softmax = 1 + fabs(p->attr.scale) * (double)p->d;
    for (int i = Y; i < TENSORS; i++) {
        double largest = 1, worst = 0;
        for (int64_t e = 0; e < tensor_count(&b->x[i]); e++) {
            const double error = fabs(get(&a->x[i], e) - get(&b->x[i], e));
            largest = fmax(largest, fabs(get(&b->x[i], e)));
            if (!(error <= worst)) worst = error;
        }
        const double bound = 4 * sqrt(terms) * softmax * u * largest;
        if (!(worst <= bound))
            fail_msg("s %d t %d r %d d %d, %s: error %.3g > %.3g", (int)p->s, (int)p->t, (int)p->r, (int)p->d,
                     NAMES[i], worst, bound);
    }
}

static void check_fused(Shape p) {
    for (DType dtype = F64; dtype <= F32; dtype++) {
        Run fused = run_new(p, dtype), plain = run_new(p, dtype);
        compute(&fused, 2, false);
        compute(&plain, 2, true);
        near(&fused, &plain);
        run_free(&fused), run_free(&plain);
    }
}

static const AttentionAttr CAUSAL = {.scale = 0.3, .window_left = WINDOW_OFF};

TEST(fused_is_the_definition) {
    const int64_t sizes[] = {1, 7, 37, 64, 65, 130};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            Shape p = {.s = sizes[i],
                       .t = sizes[j],
                       .b = 2,
                       .g = 2,
                       .r = 1 + j % 3,
                       .d = 10,
                       .e = 10,
                       .attr = CAUSAL};
            check_fused(p); /* if s > t, the last rows see all keys; if s < t, no row sees the last keys */
            p.attr.query.first = p.t > p.s ? p.t - p.s : 0; /* a cache */
            check_fused(p);
            p.d = 17, p.e = 33, p.attr.window_left = 5, p.attr.window_right = 40;
            check_fused(p);
            p.attr.window_left = p.attr.window_right = WINDOW_OFF;
            p.first_key = 30;
            check_fused(p);
            p.attr.window_right = 0, p.attr.chunk_size = 9 + j;
            check_fused(p);
            p.attr.window_right = WINDOW_OFF, p.attr.chunk_size = 0;
            p.attr.heads = p.g * p.r;
            p.attr.dropout =
                (DropoutAttr){.rate = 0.4, .seed = 3, .site = 4, .first_sample = 7, .seq_total = 131};
            check_fused(p);
            p.attr.softcap = 0.6;
            check_fused(p);
            p.length = p.t - p.t / 3;
            check_fused(p);
            p.attr.softcap = 0, p.buckets = 10 + j;
            p.attr.bias_max_distance = 30, p.attr.bias_bidirectional = i % 2;
            check_fused(p);
            p.buckets = 0, p.attr.alibi = 8, p.attr.heads += j, p.attr.first_head = j;
            check_fused(p);
        }
}

TEST(large_scores_do_not_overflow) {
    Run r = run_new((Shape){.s = 66, .t = 66, .b = 1, .g = 1, .r = 1, .d = 8, .e = 8, .attr = CAUSAL}, F32);
    r.shape.attr.scale = 1e5;
    compute(&r, 1, false);
    for (int i = Y; i < TENSORS; i++)
        for (int64_t e = 0; e < tensor_count(&r.x[i]); e++) assert_true(isfinite(get(&r.x[i], e)));
    run_free(&r);
}

TEST(a_row_without_keys_is_zero) {
    Shape p = {.s = 70, .t = 70, .b = 1, .g = 1, .r = 2, .d = 8, .e = 8, .attr = CAUSAL, .first_key = 40};
    p.attr.window_left = 3;
    Run r = run_new(p, F32);
    int64_t *first = r.first_key.data;
    for (int64_t i = 0; i < p.s; i++) first[i] = i < 30 ? i + 1 : 0;
    compute(&r, 1, false);
    for (int64_t i = 0; i < p.s; i++)
        for (int64_t head = 0; head < p.r; head++) {
            const double lse = get(&r.kept, head * p.s + i);
            assert_true(i < 30 ? lse == -INFINITY : isfinite(lse));
            for (int64_t c = 0; c < p.e; c++) {
                const int64_t e = (i * p.r + head) * p.e + c;
                assert_true((get(&r.x[Y], e) == 0) == (i < 30));
                assert_true(i < 30 ? get(&r.x[DQ], e) == 0 : isfinite(get(&r.x[DQ], e)));
            }
        }
    run_free(&r);
}

/* A row without keys attends only to its sink, so its output and gradients must be 0. */
TEST(a_row_without_keys_has_its_sink) {
    Shape p = {.s = 70, .t = 70, .b = 1, .g = 1, .r = 2, .d = 8, .e = 8, .attr = CAUSAL, .first_key = 40};
    p.attr.window_left = 3;
    Run r = run_new(p, F64);
    for (int64_t i = 0; i < p.s; i++) ((int64_t *)r.first_key.data)[i] = i < 30 ? i + 1 : 0;
    compute(&r, 1, false);
    double sinks[] = {-0.5, 2}, dsinks[2], blind[2];
    Tensor sink = tensor_make(sinks, F64, 1, &p.r), dsink = tensor_make(dsinks, F64, 1, &p.r), *y = &r.x[Y];
    Device *d = device_cpu(1);
    call_run(&OPS[OP_attention_sink],
             &(Call){.in = {y, &r.kept, &sink}, .out = {y, &r.kept}, .attr = &p.attr, .device = d});
    const Call grad = {.in = {&r.x[DY], y, &r.kept, &sink}, .out = {&dsink}, .attr = &p.attr, .device = d};
    call_run(&OPS[OP_attention_sink_grad], &grad);
    memcpy(blind, dsinks, sizeof blind);
    for (int64_t i = 0; i < 30; i++)
        for (int64_t e = 0; e < p.r * p.e; e++) {
            assert_true(get(y, i * p.r * p.e + e) == 0 && get(&r.kept, e / p.e * p.s + i) == sinks[e / p.e]);
            set(&r.x[DY], i * p.r * p.e + e, 1e3);
        }
    call_run(&OPS[OP_attention_sink_grad], &grad);
    assert_memory_equal(blind, dsinks, sizeof blind);
    assert_true(dsinks[0] != 0 && dsinks[1] != 0 && isfinite(dsinks[0]) && isfinite(dsinks[1]));
    device_free(d);
    run_free(&r);
}

static void same_rows(const Run *a, int64_t a_row, const Run *b, int64_t b_row, int64_t rows) {
    const size_t row = (size_t)a->x[Y].stride[0] * dtype_size((DType)a->x[Y].dtype);
    assert_memory_equal((char *)a->x[Y].data + (size_t)a_row * row,
                        (char *)b->x[Y].data + (size_t)b_row * row, (size_t)rows * row);
}

/* Compares rows of the same q, k, v with fewer positions, with different later keys, and one at a time with a
 * cache. */
TEST(later_positions_change_nothing) {
    const int64_t lengths[] = {1, 5, 31, 32, 33, 63, 64, 65, 100, 129};
    /* the windows: none; smaller than a tile; one such that tiles relative to the window would begin
     * elsewhere; and chunks */
    const int64_t windows[] = {WINDOW_OFF, 20, 70, WINDOW_OFF};
    for (int w = 0; w < 4; w++)
        for (DType dtype = F64; dtype <= F32; dtype++) {
            Shape p = {.s = 130, .t = 130, .b = 2, .g = 2, .r = 2, .d = 10, .e = 12, .attr = CAUSAL};
            p.attr.window_left = windows[w], p.attr.chunk_size = w == 3 ? 50 : 0;
            Run whole = run_new(p, dtype);
            compute(&whole, 1, false);
            for (int i = 0; i < 10; i++) {
                const int64_t n = lengths[i];
                Shape fewer = p, one = p;
                fewer.s = fewer.t = n;
                one.s = 1, one.t = n, one.attr.query.first = n - 1;
                Run prefix = run_new(fewer, dtype), step = run_new(one, dtype), other = run_new(p, dtype);
                const size_t element = dtype_size(dtype);
                memcpy(step.x[Q].data,
                       (char *)whole.x[Q].data + (size_t)((n - 1) * whole.x[Q].stride[0]) * element,
                       tensor_bytes(&step.x[Q]));
                for (int64_t e = n * other.x[K].stride[0]; e < tensor_count(&other.x[K]); e++)
                    set(&other.x[K], e, 1e3);
                for (int64_t e = n * other.x[V].stride[0]; e < tensor_count(&other.x[V]); e++)
                    set(&other.x[V], e, -1e30);
                compute(&prefix, 1, false);
                compute(&step, 1, false);
                compute(&other, 1, false);
                same_rows(&prefix, 0, &whole, 0, n);
                same_rows(&step, 0, &whole, n - 1, 1);
                same_rows(&other, 0, &whole, 0, n);
                run_free(&prefix), run_free(&step), run_free(&other);
            }
            run_free(&whole);
        }
}

/* The second sample of the padded run sees only `length` keys. The other run has only these keys. */
TEST(padding_changes_nothing) {
    const int64_t lengths[] = {1, 31, 64, 65, 129};
    for (DType dtype = F64; dtype <= F32; dtype++)
        for (int i = 0; i < 5; i++) {
            Shape p = {.s = 70, .t = 130, .b = 2, .g = 2, .r = 2, .d = 10, .e = 12, .attr = CAUSAL};
            p.attr.window_right = WINDOW_OFF, p.length = lengths[i];
            Shape fewer = p;
            fewer.t = p.length, fewer.length = 0;
            Run padded = run_new(p, dtype), whole = run_new(fewer, dtype);
            for (int which = K; which <= V; which++)
                for (int64_t e = p.length * padded.x[which].stride[0]; e < tensor_count(&padded.x[which]);
                     e++)
                    set(&padded.x[which], e, which == K ? 1e3 : -1e30);
            compute(&padded, 2, false);
            compute(&whole, 1, false);
            for (int which = Y; which < TENSORS; which++) {
                const Tensor *x = &padded.x[which];
                for (int64_t e = 0; e < tensor_count(x); e++) {
                    const bool seen = which < DK || e < p.length * x->stride[0],
                               second = e / x->stride[1] % p.b == 1;
                    const double want = seen && second ? get(&whole.x[which], e) : 0;
                    if (get(x, e) != want) fail_msg("%s %d", NAMES[which], (int)e);
                }
            }
            run_free(&padded), run_free(&whole);
        }
}

TEST(threads_change_nothing) {
    const Shape p = {.s = 130, .t = 130, .b = 1, .g = 3, .r = 2, .d = 20, .e = 20, .attr = CAUSAL};
    Run one = run_new(p, F32);
    compute(&one, 1, false);
    for (int threads = 2; threads <= 5; threads++) {
        Run r = run_new(p, F32);
        compute(&r, threads, false);
        for (int i = Y; i < TENSORS; i++)
            assert_memory_equal(r.x[i].data, one.x[i].data, tensor_bytes(&r.x[i]));
        assert_memory_equal(r.kept.data, one.kept.data, tensor_bytes(&r.kept));
        run_free(&r);
    }
    run_free(&one);
}

/* Checks the fraction of dropped probabilities, and the mean of the kept ones. With v = 1, a row of y is the
 * sum of its kept probabilities. */
TEST(dropout_keeps_the_mean) {
    Shape p = {.s = 128, .t = 128, .b = 2, .g = 2, .r = 2, .d = 4, .e = 1};
    const double rate = 0.25;
    p.attr = (AttentionAttr){.window_left = WINDOW_OFF,
                             .window_right = WINDOW_OFF,
                             .heads = 4,
                             .dropout = {.rate = rate, .seed = 1, .site = 2, .seq_total = 128}};
    Run r = run_new(p, F64);
    for (int64_t i = 0; i < tensor_count(&r.x[V]); i++) set(&r.x[V], i, 1);
    compute(&r, 1, false);
    double sum = 0;
    const int64_t rows = tensor_count(&r.x[Y]);
    for (int64_t i = 0; i < rows; i++) sum += get(&r.x[Y], i);
    /* the scale is 0, so every probability is 1/128, and the mean is that of 128 * rows Bernoulli draws; the
     * bound is 5 standard errors */
    const double error = 5 * sqrt(rate / (1 - rate) / (double)(128 * rows));
    assert_true(fabs(sum / (double)rows - 1) < error);
    run_free(&r);
}
