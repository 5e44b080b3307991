#include "unit/cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "param/bucket.h"
#include "unit/expect_fault.h"
#include "unit/zero_grads.h"

static ParamSpec matrix(const char *name, int64_t rows, int64_t padded, int64_t columns) {
    return (ParamSpec){.name = name,
                       .ndim = 2,
                       .dim = {rows, columns},
                       .padded = padded,
                       .tp_split = 0,
                       .init = {INIT_NORMAL, 0.02}};
}

/* Megatron-LM's fused QKV with 2 groups of [2 queries of 3 rows | k of 3 rows | v of 3 rows]. */
TEST(parts_of_fused_qkv) {
    Registry *r = registry_new(NULL);
    ParamSpec spec = matrix("qkv", 24, 0, 5);
    spec.groups = 2, spec.n_parts = 3;
    spec.parts[0] = (ParamPart){"q", 6}, spec.parts[1] = (ParamPart){"k", 3},
    spec.parts[2] = (ParamPart){"v", 3};
    Param *p = param_add(r, spec);
    const int64_t q[] = {0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17}, k[] = {6, 7, 8, 18, 19, 20},
                  v[] = {9, 10, 11, 21, 22, 23};
    assert_int_equal(param_part_rows(p, 0), 12);
    assert_int_equal(param_part_rows(p, 1), 6);
    for (int i = 0; i < 12; i++) assert_int_equal(param_memory_row(p, 0, i), q[i]);
    for (int i = 0; i < 6; i++) assert_int_equal(param_memory_row(p, 1, i), k[i]);
    for (int i = 0; i < 6; i++) assert_int_equal(param_memory_row(p, 2, i), v[i]);
    Param *whole = param_add(r, matrix("whole", 7, 0, 2));
    assert_int_equal(param_part_rows(whole, 0), 7);
    for (int i = 0; i < 7; i++) assert_int_equal(param_memory_row(whole, 0, i), i);
    registry_free(r);
}

TEST(layout_is_aligned_and_registered_once) {
    Registry *r = registry_new(NULL);
    Param *a = param_add(r, matrix("a", 5, 8, 3)), *b = param_add(r, matrix("b", 100, 0, 7));
    assert_int_equal(a->count, 24);
    assert_int_equal(param_logical_count(a), 15);
    assert_int_equal(param_filled_rows(a), 5);
    r->storage = F32;
    buckets_lay(r);
    assert_int_equal(b->offset, 0); /* the last parameter comes first */
    assert_int_equal(a->offset, 704);
    assert_int_equal(r->elements, 704 + PARAM_ALIGN);
    assert_ptr_equal(registry_find(r, "b"), b);
    assert_null(registry_find(r, "c"));
    EXPECT_FAULT("parameter 'a' is registered twice", param_add(r, matrix("a", 1, 0, 1)));
    registry_free(r);
}

static double value(const Tensor *t, int64_t i) {
    double x;
    dtype_convert(&x, F64, (char *)t->data + (size_t)i * dtype_size((DType)t->dtype), (DType)t->dtype, 1);
    return x;
}

/* The bounds are five standard errors of each moment: s/sqrt(n) for the mean, s^2 sqrt(2/n) for the variance,
 * s^4 sqrt(96/n) for the fourth moment. */
TEST(init_is_normal_with_the_given_deviation) {
    Registry *r = registry_new(NULL);
    Device *d = device_cpu(1);
    Param *p = param_add(r, matrix("w", 500, 0, 401));
    ParamSpec one = matrix("gain", 9, 0, 1);
    one.ndim = 1, one.init = (Init){INIT_CONSTANT, 1};
    Param *gain = param_add(r, one);
    registry_allocate(r, d, F64, true);
    registry_init(r, 1234);
    const double n = 500 * 401, s = 0.02;
    double sum = 0, square = 0, fourth = 0;
    for (int64_t i = 0; i < 500 * 401; i++) {
        const double x = value(&p->value, i) / s;
        sum += x, square += x * x, fourth += x * x * x * x;
    }
    assert_true(fabs(sum / n) < 5 / sqrt(n));
    assert_true(fabs(square / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(fourth / n - 3) < 5 * sqrt(96 / n));
    for (int i = 0; i < 9; i++) assert_true(value(&gain->value, i) == 1);
    registry_free(r), device_free(d);
}

typedef struct Model {
    Registry *r;
    Device *d;
    Param *w, *v;
} Model;

static Model model(DType storage, int64_t padded, bool v_first, uint64_t seed) {
    Model m = {registry_new(NULL), device_cpu(1), NULL, NULL};
    if (v_first) m.v = param_add(m.r, matrix("v", 6, 0, 5));
    m.w = param_add(m.r, matrix("w", 13, padded, 5));
    if (!v_first) m.v = param_add(m.r, matrix("v", 6, 0, 5));
    registry_allocate(m.r, m.d, storage, true);
    memset(m.w->master.data, 0x3f, tensor_bytes(&m.w->master)); /* padding becomes 0 */
    registry_init(m.r, seed);
    return m;
}

static void model_free(Model *m) { registry_free(m->r), device_free(m->d); }

TEST(init_depends_on_seed_name_and_index_only) {
    Model want = model(F64, 0, false, 7);
    for (DType storage = F64; storage <= F16; storage++)
        for (int variant = 0; variant < 4; variant++) {
            Model m = model(storage, variant & 1 ? 16 : 0, variant & 2, 7);
            const DType precise = storage == F64 ? F64 : F32;
            assert_int_equal(m.w->master.dtype, precise);
            for (int64_t i = 0; i < 65; i++) {
                assert_true(value(&m.w->master, i) == value(&want.w->master, i));
                float x = (float)value(&want.w->master, i);
                const double rounded = storage == BF16  ? (double)bf16_to_float(bf16_from_float(x))
                                       : storage == F16 ? (double)f16_to_float(f16_from_float(x))
                                                        : (double)x;
                assert_true(value(&m.w->value, i) == rounded);
            }
            for (int64_t i = 0; i < 30; i++) assert_true(value(&m.v->master, i) == value(&want.v->master, i));
            for (int64_t i = 65; i < m.w->count; i++) assert_true(value(&m.w->value, i) == 0);
            model_free(&m);
        }
    Model other = model(F64, 0, false, 8);
    assert_true(value(&other.w->master, 0) != value(&want.w->master, 0));
    assert_true(value(&want.v->master, 0) != value(&want.w->master, 0));
    model_free(&other), model_free(&want);
}

/* The number of elements is odd, and large enough for every thread. */
TEST(init_does_not_depend_on_the_threads) {
    enum { ROWS = 101, COLUMNS = 97 };
    Tensor want;
    Registry *r[2];
    Device *d[2];
    for (int i = 0; i < 2; i++) {
        r[i] = registry_new(NULL), d[i] = device_cpu(i ? 3 : 1);
        Param *p = param_add(r[i], matrix("w", ROWS, 128, COLUMNS));
        registry_allocate(r[i], d[i], F32, true);
        registry_init(r[i], 7);
        if (i == 0) want = p->value;
        assert_memory_equal(p->value.data, want.data, tensor_bytes(&want));
        assert_true(value(&p->value, ROWS * COLUMNS - 1) != 0);
    }
    for (int i = 0; i < 2; i++) registry_free(r[i]), device_free(d[i]);
}

TEST(gradients_are_zeroed_and_linked) {
    Model m = model(BF16, 16, false, 7);
    assert_ptr_equal(m.w->value.grad, &m.w->main_grad);
    assert_int_equal(m.w->main_grad.dtype, F32);
    assert_int_equal(m.w->main_grad.flags, TENSOR_ACCUM | TENSOR_MAIN_GRAD);
    float *g = m.w->main_grad.data;
    for (int i = 0; i < 80; i++) g[i] = 1;
    zero_grads(m.r);
    for (int i = 0; i < 80; i++) assert_true(g[i] == 0);
    assert_int_equal(registry_bytes(m.r), m.r->elements * (2 + 4 + 4));
    model_free(&m);
}

/* A model for inference has only values and, if values have 16 bits, masters of buffers. Values are marked as
 * parameters. */
TEST(a_model_that_computes_has_values_alone) {
    for (DType storage = F64; storage <= F16; storage++) {
        Registry *r = registry_new(NULL);
        Device *d = device_cpu(1);
        Param *w = param_add(r, matrix("w", 13, 16, 5));
        ParamSpec scale = matrix("scale", 7, 0, 1);
        scale.ndim = 1, scale.flags = PARAM_BUFFER;
        Param *buffer = param_add(r, scale);
        registry_allocate(r, d, storage, false);
        const DType precise = storage == F64 ? F64 : F32;
        const bool apart = dtype_is_16bit(storage);
        assert_int_equal(r->elements, 128 + 64);
        assert_int_equal(registry_bytes(r),
                         192 * dtype_size(storage) + (apart ? 64 * dtype_size(precise) : 0));
        assert_int_equal(d->allocated, registry_bytes(r));
        assert_ptr_equal(w->value.grad, &w->main_grad);
        assert_null(w->main_grad.data);
        assert_ptr_equal(w->master.data, apart ? NULL : w->value.data);
        assert_int_equal(buffer->master.dtype, precise);
        memset(buffer->master.data, 0xff, tensor_bytes(&buffer->master)); /* NaN */
        registry_round_buffers(r);
        for (int64_t i = 0; i < w->count; i++) assert_true(value(&w->value, i) == 0);
        for (int64_t i = 0; i < buffer->count; i++) assert_true(isnan(value(&buffer->value, i)));
        registry_free(r), device_free(d);
    }
}

/* A name covers all names below it, but not names that merely begin with it. Frozen weights have only values
 * and masters in the layout. */
TEST(frozen_weights_have_no_gradient) {
    static const char *const NAMES[] = {"layers.1.w", "layers.1.w_gate", "layers.10.w", "layers.1.w.bias"};
    Device *d = device_cpu(1);
    Registry *r = registry_new(NULL);
    Param *p[4];
    for (int i = 0; i < 4; i++) p[i] = param_add(r, matrix(NAMES[i], 8, 0, 8));
    assert_int_equal(registry_mark(r, "layers.1.w", PARAM_FROZEN), 2);
    assert_int_equal(registry_mark(r, "layers.1.w.bias", PARAM_FROZEN), 1);
    assert_int_equal(registry_mark(r, "layer", PARAM_FROZEN), 0);
    registry_allocate(r, d, BF16, true);
    registry_init(r, 7);
    for (int i = 0; i < 4; i++) {
        const bool trained = i == 1 || i == 2;
        assert_int_equal(param_is_trained(p[i]), trained);
        assert_int_equal(p[i]->value.grad != NULL, trained);
        assert_int_equal(p[i]->main_grad.data != NULL, trained);
        assert_int_equal(r->ranges[FLAT_STATE][p[i]->bucket].end > r->ranges[FLAT_STATE][p[i]->bucket].begin,
                         trained);
        assert_true(value(&p[i]->value, 0) != 0);
    }
    assert_int_equal(registry_bytes(r), 4 * 64 * (2 + 4) + 2 * 64 * 4);
    registry_free(r), device_free(d);
}

/* If the storage is BF16, gradients may be BF16. In any other lane, they have the arithmetic type. */
TEST(gradients_may_be_bf16) {
    for (DType storage = F64; storage <= F16; storage++) {
        Layout layout = layout_single();
        layout.data.bf16_grads = true;
        Registry *r = registry_new(&layout);
        Device *d = device_cpu(1);
        Param *p = param_add(r, matrix("w", 13, 16, 5));
        registry_allocate(r, d, storage, true);
        const DType precise = storage == F64 ? F64 : F32, want = storage == BF16 ? BF16 : precise;
        assert_int_equal(p->main_grad.dtype, want);
        assert_int_equal(registry_dtype(r, FLAT_GRADS), want);
        assert_int_equal(p->master.dtype, precise);
        const size_t masters = dtype_is_16bit(storage) ? dtype_size(precise) : 0;
        assert_int_equal(registry_bytes(r),
                         (size_t)r->elements * (dtype_size(storage) + dtype_size(want) + masters));
        memset(p->main_grad.data, 0xff, tensor_bytes(&p->main_grad)); /* NaN */
        grads_mark_unwritten(r);
        grads_zero_unwritten(r);
        for (int64_t i = 0; i < p->count; i++) assert_true(value(&p->main_grad, i) == 0);
        registry_free(r), device_free(d);
    }
}

/* Only gradients that were never written are filled with zeros. */
TEST(fresh_gradients_settle_to_zero) {
    Model m = model(BF16, 16, false, 7);
    float *written = m.w->main_grad.data, *fresh = m.v->main_grad.data;
    assert_false(grads_are_unwritten(m.r));
    grads_mark_unwritten(m.r);
    assert_true(grads_are_unwritten(m.r) && grad_is_unwritten(&m.w->main_grad) &&
                grad_is_unwritten(&m.v->main_grad));
    for (int i = 0; i < m.w->count; i++) written[i] = 3;
    for (int i = 0; i < m.v->count; i++) fresh[i] = NAN;
    m.w->main_grad.flags |= TENSOR_ACCUM;
    grads_zero_unwritten(m.r);
    for (int i = 0; i < m.w->count; i++) assert_true(written[i] == 3);
    for (int i = 0; i < m.v->count; i++) assert_true(fresh[i] == 0);
    assert_false(grads_are_unwritten(m.r));
    grads_mark_unwritten(m.r);
    zero_grads(m.r);
    assert_false(grads_are_unwritten(m.r));
    model_free(&m);
}
