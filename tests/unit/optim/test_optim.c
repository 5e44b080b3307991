#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "unit/config_helper.h"

#include "optim/optim.h"
#include "tensor/backend.h"
#include "unit/zero_grads.h"

/* Four parameters, one of each kind that an optimizer step treats differently. */
enum { EMBEDDING, WEIGHT, BIAS, GAIN, KINDS };
static const int64_t LOGICAL[KINDS] = {5 * 4, 3 * 4, 3, 4};

typedef struct Fixture {
    Setup *setup;
    Device *device;
    Registry *registry;
    Optimizer *optimizer;
} Fixture;

static Fixture fixture_new(const char *words, DType storage) {
    Fixture f = {.setup = setup_new("%s", words), .device = device_cpu(2)};
    Layout layout = layout_single();
    layout.data.bf16_grads = config_bf16_grads(&f.setup->config);
    f.registry = registry_new(&layout);
    const Init init = {INIT_NORMAL, 0.5};
    const ParamSpec specs[KINDS] = {
        [EMBEDDING] = {.name = "embedding",
                       .ndim = 2,
                       .dim = {5, 4},
                       .padded = 8,
                       .flags = PARAM_EMBEDDING,
                       .init = init},
        [WEIGHT] = {.name = "weight", .ndim = 2, .dim = {3, 4}, .init = init},
        [BIAS] = {.name = "bias", .ndim = 1, .dim = {3}, .flags = PARAM_NO_DECAY, .init = init},
        [GAIN] = {.name = "gain", .ndim = 1, .dim = {4}, .flags = PARAM_NO_DECAY, .init = init},
    };
    for (int i = 0; i < KINDS; i++) param_add(f.registry, specs[i]);
    registry_allocate(f.registry, f.device, storage, true);
    registry_init(f.registry, 7);
    f.optimizer = optim_new(&f.setup->config, f.registry, NULL);
    return f;
}

static void fixture_free(Fixture *f) {
    optim_free(f->optimizer);
    registry_free(f->registry);
    device_free(f->device);
    setup_free(f->setup);
}

static double *grad(const Fixture *f, int p) { return f->registry->params[p]->main_grad.data; }
static double *value(const Fixture *f, int p) { return f->registry->params[p]->value.data; }

/* Sets the gradients to 1/16, 2/16, 3/16, ... in registration order, and padding rows to values that must
 * never be read. Returns the sum of squares. */
static double set_grads(const Fixture *f, double sign) {
    double squares = 0;
    for (int p = 0, k = 1; p < KINDS; p++) {
        const Param *q = f->registry->params[p];
        for (int64_t i = 0; i < q->count; i++) grad(f, p)[i] = NAN;
        for (int64_t i = 0; i < LOGICAL[p]; i++, k++) {
            grad(f, p)[i] = sign * (k % 2 ? k : -k) / 16.0;
            squares += grad(f, p)[i] * grad(f, p)[i];
        }
    }
    return squares;
}

static void expect_relative(double x, double expected, double bound) {
    if (!(fabs(x - expected) <= bound * fabs(expected))) fail_msg("%.17g, expected %.17g", x, expected);
}

TEST(norm_counts_each_logical_element_once) {
    Fixture f = fixture_new("--fp64 --clip-grad 1", F64);
    double squares = set_grads(&f, 1);
    OptimResult r = optim_step(f.optimizer, (OptimStep){.lr = 0.1, .decoupled_lr = 0.1, .grad_scale = 0.25});
    /* the sum of 39 squares of dyadic numbers is exact, so only the root and the scale are rounded */
    expect_relative(r.grad_norm, 0.25 * sqrt(squares), 2 * DBL_EPSILON);
    expect_relative(r.clip, 1 / (0.25 * sqrt(squares) + 1e-6), 4 * DBL_EPSILON);
    assert_true(r.num_zeros == -1);
    fixture_free(&f);
}

/* Other lanes round the sum of a block, so that their result depends on the layout, which determines the
 * elements of a block. */
TEST(exact_lane_rounds_no_sum_of_the_norm) {
    Fixture f = fixture_new("--lane exact", F64);
    set_grads(&f, 1);
    for (int p = 0; p < KINDS; p++)
        for (int64_t i = 0; i < LOGICAL[p]; i++) grad(&f, p)[i] = ldexp(1, -27);
    grad(&f, EMBEDDING)[0] = 1;
    const OptimResult r =
        optim_step(f.optimizer, (OptimStep){.lr = 0.1, .decoupled_lr = 0.1, .grad_scale = 1});
    assert_true(r.grad_norm == sqrt(1 + ldexp(38, -54)));
    fixture_free(&f);
}

TEST(clip_only_shrinks) {
    Fixture f = fixture_new("--fp64 --clip-grad 1e6 --log-num-zeros-in-grad", F64);
    set_grads(&f, 1);
    grad(&f, EMBEDDING)[3] = 0;
    grad(&f, BIAS)[1] = -0.0;
    for (int64_t i = LOGICAL[EMBEDDING]; i < f.registry->params[EMBEDDING]->count; i++)
        grad(&f, EMBEDDING)[i] = 0;
    OptimResult r = optim_step(f.optimizer, (OptimStep){.lr = 0.1, .decoupled_lr = 0.1, .grad_scale = 1});
    assert_true(r.clip == 1);
    assert_true(r.num_zeros == 2); /* padding rows are also zero, but are not counted */
    fixture_free(&f);
    f = fixture_new("--fp64 --clip-grad 0", F64);
    set_grads(&f, 1);
    r = optim_step(f.optimizer, (OptimStep){.lr = 0.1, .decoupled_lr = 0.1, .grad_scale = 1e9});
    assert_true(r.clip == 1);
    fixture_free(&f);
}

/* The AdamW update of one element, as Loshchilov & Hutter and PyTorch define it. */
typedef struct Adam {
    double m, v, x;
} Adam;

static void adam_step(Adam *a, double g, double lr, double decay, int step) {
    a->x -= lr * decay * a->x;
    a->m = 0.9 * a->m + 0.1 * g;
    a->v = 0.95 * a->v + 0.05 * g * g;
    a->x -= lr * (a->m / (1 - pow(0.9, step))) / (sqrt(a->v / (1 - pow(0.95, step))) + 1e-8);
}

TEST(adamw_uses_decoupled_lr_and_decays_matrices_only) {
    Fixture f = fixture_new("--fp64 --clip-grad 2 --adam-beta2 0.95", F64);
    static const double LR[KINDS] = {0.3, 0.1, 0.1, 0.1}, DECAY[KINDS] = {0.2, 0.2, 0, 0};
    Adam a[KINDS][20] = {0};
    double padding[12];
    memcpy(padding, value(&f, EMBEDDING) + LOGICAL[EMBEDDING], sizeof padding);
    for (int p = 0; p < KINDS; p++)
        for (int64_t i = 0; i < LOGICAL[p]; i++) a[p][i].x = value(&f, p)[i];
    for (int step = 1; step <= 3; step++) {
        double norm = 0.5 * sqrt(set_grads(&f, step % 2 ? 1 : -0.75)), clip = 2 / (norm + 1e-6);
        assert_true(clip < 1);
        for (int p = 0; p < KINDS; p++)
            for (int64_t i = 0; i < LOGICAL[p]; i++)
                adam_step(&a[p][i], grad(&f, p)[i] * 0.5 * clip, LR[p], DECAY[p], step);
        OptimResult r = optim_step(
            f.optimizer, (OptimStep){.lr = 0.1, .decoupled_lr = 0.3, .weight_decay = 0.2, .grad_scale = 0.5});
        expect_relative(r.clip, clip, 4 * DBL_EPSILON);
        /* each step has about 20 operations on values below 1 */
        double bound = 20 * step * DBL_EPSILON;
        for (int p = 0; p < KINDS; p++)
            for (int64_t i = 0; i < LOGICAL[p]; i++)
                if (!(fabs(value(&f, p)[i] - a[p][i].x) <= bound * fmax(1, fabs(a[p][i].x))))
                    fail_msg("step %d, parameter %d, element %d: %.17g, expected %.17g", step, p, (int)i,
                             value(&f, p)[i], a[p][i].x);
    }
    assert_memory_equal(padding, value(&f, EMBEDDING) + LOGICAL[EMBEDDING], sizeof padding);
    fixture_free(&f);
}

TEST(sgd_follows_pytorch) {
    Fixture f = fixture_new("--fp64 --clip-grad 0 --optimizer sgd --sgd-momentum 0.8", F64);
    double x[20], momentum[20] = {0};
    for (int i = 0; i < LOGICAL[WEIGHT]; i++) x[i] = value(&f, WEIGHT)[i];
    for (int step = 1; step <= 3; step++) {
        set_grads(&f, step);
        for (int i = 0; i < LOGICAL[WEIGHT]; i++) {
            momentum[i] = 0.8 * momentum[i] + grad(&f, WEIGHT)[i] + 0.2 * x[i];
            x[i] -= 0.1 * momentum[i];
        }
        optim_step(f.optimizer,
                   (OptimStep){.lr = 0.1, .decoupled_lr = 0.3, .weight_decay = 0.2, .grad_scale = 1});
        for (int i = 0; i < LOGICAL[WEIGHT]; i++) /* each step has 6 operations on values below 16 */
            assert_true(fabs(value(&f, WEIGHT)[i] - x[i]) <= 6 * step * 16 * DBL_EPSILON);
    }
    fixture_free(&f);
}

/* ---- gradients in bf16 ---- */

/* Sets gradients that bf16 represents exactly: k / 16 with k up to 39. */
static void set_bf16_grads(const Fixture *f, int step) {
    for (int p = 0, k = 1; p < KINDS; p++) {
        const Tensor *g = &f->registry->params[p]->main_grad;
        for (int64_t i = 0; i < LOGICAL[p]; i++, k++) {
            const double x = k == 4 ? 0 : (k % 3 == step % 3 ? k : -k) / 16.0;
            dtype_convert((char *)g->data + i * (int64_t)dtype_size((DType)g->dtype), (DType)g->dtype, &x,
                          F64, 1);
        }
    }
}

static void expect_equal_states(const Fixture *a, const Fixture *b) {
    for (int p = 0; p < KINDS; p++) {
        const Param *x = a->registry->params[p], *y = b->registry->params[p];
        assert_memory_equal(x->master.data, y->master.data, tensor_bytes(&x->master));
        assert_memory_equal(x->value.data, y->value.data, tensor_bytes(&x->value));
        for (int i = 0; i < a->optimizer->n_buffers; i++) {
            const size_t each = dtype_size(a->optimizer->buffer[i].dtype), at = (size_t)x->offset * each;
            assert_memory_equal((char *)a->optimizer->buffer[i].flat + at,
                                (char *)b->optimizer->buffer[i].flat + at, (size_t)x->count * each);
        }
    }
}

/* The optimizer computes in float, so gradients that both types represent exactly must give bitwise equal
 * norms, clipping coefficients, counts of zeros, parameters and moments. */
TEST(bf16_gradients_that_are_exact_change_no_bit) {
    static const char *const WORDS[][2] = {
        {"--bf16", "--grad-reduce-in-bf16"},
        {"--bf16 --optimizer sgd", "--grad-reduce-in-bf16"},
        {"--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
         "--main-grads-dtype bf16"},
        {"--bf16 --use-precision-aware-optimizer --exp-avg-dtype fp16", "--main-grads-dtype bf16"},
    };
    for (size_t k = 0; k < sizeof WORDS / sizeof *WORDS; k++) {
        Fixture f[2];
        for (int i = 0; i < 2; i++) {
            char words[200];
            snprintf(words, sizeof words, "%s %s --clip-grad 2 --log-num-zeros-in-grad", WORDS[k][0],
                     i ? WORDS[k][1] : "");
            f[i] = fixture_new(words, BF16);
            assert_int_equal(f[i].registry->gradients, i ? BF16 : F32);
        }
        for (int step = 0; step < 3; step++) {
            OptimResult r[2];
            for (int i = 0; i < 2; i++) {
                zero_grads(f[i].registry);
                set_bf16_grads(&f[i], step);
                r[i] = optim_step(
                    f[i].optimizer,
                    (OptimStep){.lr = 0.1, .decoupled_lr = 0.3, .weight_decay = 0.2, .grad_scale = 0.5});
            }
            assert_memory_equal(&r[0], &r[1], sizeof(double) * 3);
            assert_true(r[1].clip < 1 && r[1].num_zeros == 1 && !r[1].found_inf);
            expect_equal_states(&f[0], &f[1]);
        }
        for (int i = 0; i < 2; i++) fixture_free(&f[i]);
    }
}

/* A weight of three chunks, and a vector in a fourth. The device's copies are synchronous. */
TEST(the_host_updates_in_chunks) {
    static const char *const WORDS[] = {"", "--optimizer-cpu-offload",
                                        "--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d"};
    enum { WIDTH = 1 << 20, WAYS = 3 };
    for (DType storage = F32; storage <= BF16; storage++) {
        Setup *setup[WAYS];
        Registry *r[WAYS];
        Device *d = device_cpu(2);
        for (int k = 0; k < WAYS; k++) {
            setup[k] = setup_new("%s %s", storage == BF16 ? "--bf16" : "", WORDS[k]);
            r[k] = registry_new(NULL);
            param_add(r[k], (ParamSpec){
                                .name = "weight", .ndim = 2, .dim = {3, WIDTH}, .init = {INIT_NORMAL, 0.5}});
            param_add(r[k], (ParamSpec){.name = "gain", .ndim = 1, .dim = {5}, .flags = PARAM_NO_DECAY});
            if (k) registry_mark_offloaded(r[k], 1);
            registry_allocate(r[k], d, storage, true);
            registry_init(r[k], 7);
            Optimizer *o = optim_new(&setup[k]->config, r[k], NULL);
            assert_int_equal(o->offloaded.n, k ? 4 : 0);
            for (int step = 0; step < 2; step++) {
                for (int64_t i = 0; i < r[k]->held[FLAT_GRADS]; i++)
                    ((float *)r[k]->grads)[i] = (float)((i * 37 + step) % 101 - 50);
                optim_step(
                    o, (OptimStep){.lr = 0.1, .decoupled_lr = 0.1, .weight_decay = 0.2, .grad_scale = 0.5});
            }
            optim_free(o);
        }
        for (int k = 1; k < WAYS; k++)
            for (int p = 0; p < 2; p++) {
                const Param *x = r[0]->params[p], *y = r[k]->params[p];
                assert_memory_equal(x->master.data, y->master.data, tensor_bytes(&x->master));
                assert_memory_equal(x->value.data, y->value.data, tensor_bytes(&x->value));
            }
        for (int k = 0; k < WAYS; k++) registry_free(r[k]), setup_free(setup[k]);
        device_free(d);
    }
}

/* Each of the two moments may have a narrow type. */
TEST(each_moment_has_the_type_of_its_option) {
    static const struct {
        const char *words;
        DType type[2];
    } CASES[] = {{"", {F32, F32}},
                 {"--use-precision-aware-optimizer --exp-avg-dtype bf16", {BF16, F32}},
                 {"--use-precision-aware-optimizer --exp-avg-dtype fp16", {F16, F32}},
                 {"--use-precision-aware-optimizer --exp-avg-sq-dtype bf16", {F32, BF16}}};
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        Fixture f = fixture_new(CASES[k].words, F32);
        for (int i = 0; i < 2; i++) {
            assert_string_equal(f.optimizer->buffer[i].suffix, i ? ".exp_avg_sq" : ".exp_avg");
            assert_int_equal(f.optimizer->buffer[i].dtype, CASES[k].type[i]);
        }
        fixture_free(&f);
    }
}

/* Compares with the formula in fp32, applied to gradients that were rounded to bf16. */
TEST(adamw_of_bf16_gradients_is_the_formula) {
    Fixture f = fixture_new("--bf16 --grad-reduce-in-bf16 --clip-grad 0 --adam-beta2 0.95", BF16);
    const Param *p = f.registry->params[WEIGHT];
    Adam a[12] = {0};
    for (int i = 0; i < 12; i++) a[i].x = ((float *)p->master.data)[i];
    for (int step = 1; step <= 3; step++) {
        zero_grads(f.registry);
        for (int i = 0; i < 12; i++) {
            const uint16_t g = bf16_from_float((float)sin(i + 100 * step));
            ((uint16_t *)p->main_grad.data)[i] = g;
            adam_step(&a[i], 0.5 * (double)bf16_to_float(g), 0.1, 0.2, step);
        }
        optim_step(f.optimizer,
                   (OptimStep){.lr = 0.1, .decoupled_lr = 0.3, .weight_decay = 0.2, .grad_scale = 0.5});
        /* each step has about 20 operations on values below 2 */
        for (int i = 0; i < 12; i++) {
            const double x = ((float *)p->master.data)[i];
            if (!(fabs(x - a[i].x) <= 20 * step * 2 * FLT_EPSILON))
                fail_msg("step %d, element %d: %.9g, expected %.9g", step, i, x, a[i].x);
        }
    }
    fixture_free(&f);
}

/* ---- steps that must change nothing ---- */

typedef struct Bytes {
    char *at;
    size_t n;
} Bytes;

static Bytes everything(const Fixture *f) {
    const Registry *r = f->registry;
    const size_t n = (size_t)r->elements;
    Str s = {0};
    str_add(&s, r->values, n * dtype_size(r->storage));
    str_add(&s, r->masters, n * dtype_size(r->masters == r->values ? r->storage : r->precise));
    for (int i = 0; i < f->optimizer->n_buffers; i++)
        str_add(&s, f->optimizer->buffer[i].flat, n * dtype_size(r->precise));
    str_add(&s, &f->optimizer->step, sizeof f->optimizer->step);
    return (Bytes){s.s, s.len};
}

TEST(infinite_gradient_changes_no_byte) {
    static const double BAD[] = {INFINITY, -INFINITY, NAN};
    static const char *const LANES[] = {"--fp64", "--bf16", "--bf16 --grad-reduce-in-bf16"};
    for (int i = 0; i < 9; i++) {
        Fixture f = fixture_new(LANES[i % 3], i % 3 ? BF16 : F64);
        const OptimStep s = {.lr = 0.1, .decoupled_lr = 0.3, .weight_decay = 0.2, .grad_scale = 1};
        for (int step = 0; step < 2; step++) {
            zero_grads(f.registry);
            Tensor *g = &f.registry->params[WEIGHT]->main_grad;
            char *at = g->data;
            const DType type = (DType)g->dtype;
            dtype_convert(at + 5 * dtype_size(type), type, &(double){3}, F64, 1);
            if (step == 0) assert_false(optim_step(f.optimizer, s).found_inf);
            dtype_convert(at + 7 * dtype_size(type), type, &BAD[i / 3], F64, 1);
        }
        Bytes before = everything(&f);
        assert_true(optim_step(f.optimizer, s).found_inf);
        Bytes after = everything(&f);
        assert_int_equal(before.n, after.n);
        assert_memory_equal(before.at, after.at, before.n);
        free(before.at), free(after.at);
        fixture_free(&f);
    }
}

TEST(bf16_values_are_rounded_masters) {
    Fixture f = fixture_new("--bf16", BF16);
    zero_grads(f.registry);
    for (int i = 0; i < 12; i++) ((float *)f.registry->params[WEIGHT]->main_grad.data)[i] = (float)(i + 1);
    optim_step(f.optimizer, (OptimStep){.lr = 0.1, .decoupled_lr = 0.1, .grad_scale = 1});
    const Param *p = f.registry->params[WEIGHT];
    for (int i = 0; i < 12; i++)
        assert_int_equal(((uint16_t *)p->value.data)[i], bf16_from_float(((float *)p->master.data)[i]));
    fixture_free(&f);
}

static double l2_of_values(const Fixture *f) {
    double squares = 0;
    for (int p = 0; p < KINDS; p++)
        for (int64_t i = 0; i < LOGICAL[p]; i++) squares += value(f, p)[i] * value(f, p)[i];
    return sqrt(squares);
}

TEST(params_norm_is_the_masters_l2_after_the_update) {
    Fixture f = fixture_new("--fp64 --log-params-norm", F64);
    for (int64_t i = LOGICAL[EMBEDDING]; i < f.registry->params[EMBEDDING]->count; i++)
        value(&f, EMBEDDING)[i] = 1e9;
    const OptimStep s = {.lr = 0.1, .decoupled_lr = 0.3, .weight_decay = 0.2, .grad_scale = 1};
    const double begin = l2_of_values(&f);
    set_grads(&f, 1);
    OptimResult r = optim_step(f.optimizer, s);
    expect_relative(r.params_norm, l2_of_values(&f), 39 * DBL_EPSILON);
    assert_true(fabs(l2_of_values(&f) - begin) > 1e-3);
    grad(&f, WEIGHT)[0] = INFINITY; /* nothing may be updated, but the norm must be reported */
    r = optim_step(f.optimizer, s);
    expect_relative(r.params_norm, l2_of_values(&f), 39 * DBL_EPSILON);
    fixture_free(&f);
    f = fixture_new("--fp64", F64);
    set_grads(&f, 1);
    assert_true(optim_step(f.optimizer, s).params_norm == -1);
    fixture_free(&f);
}

typedef struct Waits {
    DeviceBackend backend; /* the CPU's backend, extended by a count of waits */
    int n;
} Waits;

static void count_wait(Device *d) { ((Waits *)d->backend)->n++; }

TEST(one_rank_waits_once_a_step) {
    Fixture f = fixture_new("--fp64 --log-params-norm --log-num-zeros-in-grad", F64);
    const DeviceBackend *cpu = f.device->backend;
    Waits waits = {.backend = *cpu};
    waits.backend.wait = count_wait;
    f.device->backend = &waits.backend;
    for (int step = 1; step <= 3; step++) {
        set_grads(&f, 1);
        optim_step(f.optimizer, (OptimStep){.lr = 0.1, .decoupled_lr = 0.1, .grad_scale = 1});
        assert_int_equal(waits.n, step);
    }
    f.device->backend = cpu;
    fixture_free(&f);
}
