/* Compares the optimizers' kernels with closed forms; test_oracle.c compares them with PyTorch. */
#include "unit/cmocka_all.h"
#include "unit/expect_fault.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/exact_sum.h"
#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

static Tensor flat(void *data, DType dtype, int64_t n) { return tensor_make(data, dtype, 1, &n); }

/* If the state begins at 0 and the gradient is constant, m / correction1 = g and v / correction2 = g^2 in
 * every step, so the update is lr * (sign(g) / (1 + eps / |g|) + decay p). */
TEST(adamw_with_a_constant_gradient) {
    const double lr = 0.25, decay = 0.125, eps = 0.5, g[3] = {2, -0.5, 0};
    double p[3] = {1, -3, 5}, m[3] = {0}, v[3] = {0}, want[3] = {1, -3, 5}, grad[3];
    for (int i = 0; i < 3; i++) grad[i] = g[i] / 4; /* grad_scale 4 */
    Tensor gt = flat(grad, F64, 3), pt = flat(p, F64, 3), mt = flat(m, F64, 3), vt = flat(v, F64, 3);
    Device *d = device_cpu(1);
    for (int step = 1; step <= 10; step++) {
        const AdamAttr attr = {.group = {{lr, decay, eps}},
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .correction1 = 1 - pow(0.9, step),
                               .correction2 = 1 - pow(0.95, step),
                               .grad_scale = 4};
        call_run(&OPS[OP_adamw], &(Call){.in = {&gt}, .out = {&pt, &mt, &vt}, .attr = &attr, .device = d});
        for (int i = 0; i < 3; i++) {
            want[i] -= lr * (g[i] / (fabs(g[i]) + eps) + decay * want[i]);
            /* about 16 roundings per step of numbers up to 5 */
            assert_true(fabs(p[i] - want[i]) <= 16 * step * 0x1p-53 * 5);
        }
    }
    device_free(d);
}

/* With momentum 0.5, a constant gradient g and no decay, buf_k = g (2 - 2^(1-k)), which is exact in
 * binary. */
TEST(sgd_momentum_builds_up) {
    float p = 64, m = 0, g = 2;
    Tensor gt = flat(&g, F32, 1), pt = flat(&p, F32, 1), mt = flat(&m, F32, 1);
    Device *d = device_cpu(1);
    const SgdAttr attr = {.group = {{.lr = 0.5}}, .momentum = 0.5, .grad_scale = 2};
    double want = 64;
    for (int step = 1; step <= 8; step++) {
        call_run(&OPS[OP_sgd], &(Call){.in = {&gt}, .out = {&pt, &mt}, .attr = &attr, .device = d});
        const double buffer = 4 * (2 - ldexp(1, 1 - step));
        want -= 0.5 * buffer;
        assert_true(m == buffer && p == want);
    }
    const SgdAttr decay = {.group = {{.lr = 0.5, .weight_decay = 0.5}}, .grad_scale = 0};
    p = 8, m = 0;
    call_run(&OPS[OP_sgd], &(Call){.in = {&gt}, .out = {&pt, &mt}, .attr = &decay, .device = d});
    assert_true(m == 4 && p == 6);
    device_free(d);
}

/* Adds the op's result for x to `sum` [words]. */
static void add_up(OpNumber op, const Tensor *x, int threads, int64_t block, void *sum, int64_t words) {
    Tensor in = *x, out = flat(sum, I64, words);
    out.flags = TENSOR_ACCUM;
    Device *d = device_cpu(threads);
    call_run(&OPS[op], &(Call){.in = {&in}, .out = {&out}, .attr = &(SumAttr){block}, .device = d});
    device_free(d);
}

static ExactSum squares_of(const Tensor *x, int threads) {
    ExactSum sum = {0};
    add_up(OP_sum_squares, x, threads, SUM_BLOCK, &sum, EXACT_WORDS);
    return sum;
}

/* The elements are integers, so that the sum is exact in any order. Lengths are close to multiples of a
 * block. */
TEST(sums_take_every_element_once) {
    const int64_t sizes[] = {0, 1, 15, 16, 17, 63, 64, 65, 128, 40001};
    float *x = mem_alloc(40001 * sizeof *x);
    for (int64_t e = 0; e < 40001; e++) x[e] = (float)(e % 7) - 3;
    for (int i = 0; i < 10; i++) {
        Tensor t = flat(x, F32, sizes[i]);
        double squares = 0;
        int64_t zeros = 0, found = 5;
        for (int64_t e = 0; e < sizes[i]; e++) squares += (double)x[e] * (double)x[e], zeros += x[e] == 0;
        add_up(OP_count_zeros, &t, 1, SUM_BLOCK, &found, 1);
        assert_int_equal(found, 5 + zeros);
        assert_true(exact_value(squares_of(&t, 1)) == squares);
    }
    free(x);
}

/* The sum must not depend on threads or sharding; a shard begins at a block boundary. */
TEST(sums_do_not_depend_on_threads) {
    enum { N = 300001, FIRST = 7 * SUM_BLOCK };
    float *x = mem_alloc(N * sizeof *x);
    for (int i = 0; i < N; i++) x[i] = (float)philox_normal(1, 2, (uint64_t)i);
    Tensor t = flat(x, F32, N), first = flat(x, F32, FIRST), rest = flat(x + FIRST, F32, N - FIRST);
    const ExactSum one = squares_of(&t, 1);
    for (int threads = 2; threads <= 5; threads++) {
        ExactSum sum = squares_of(&t, threads), parts = squares_of(&first, threads);
        assert_memory_equal(&sum, &one, sizeof one);
        add_up(OP_sum_squares, &rest, threads, SUM_BLOCK, &parts, EXACT_WORDS);
        assert_memory_equal(&parts, &one, sizeof one);
    }
    assert_true(fabs(exact_value(one) / N - 1) <
                5 * sqrt(2.0 / N)); /* five standard errors of the variance */
    free(x);
}

/* A call with pieces must equal one call per piece with the numbers of the piece's group. It must not change
 * the gaps. */
TEST(pieces_are_as_calls_of_their_own) {
    enum { N = 6 * 1024, PIECES = 4 };
    FlatPiece piece[PIECES] = {{0, 2048, 0}, {2112, 1, 3}, {2176, 1000, 1}, {4000, 2048, 2}};
    AdamAttr all = {.group = {{0.1, 0.2, 1e-3}, {.lr = 0.1, .eps = 1e-2}, {0.3, 0.2, 1e-3}, {.lr = 0.3}},
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .correction1 = 0.19,
                    .correction2 = 0.0975,
                    .grad_scale = 0.5};
    float *x = mem_alloc(7 * N * sizeof *x), *part = x + 4 * N;
    for (int i = 0; i < 4 * N; i++) x[i] = fabsf((float)philox_normal(5, 6, (uint64_t)i));
    memcpy(part, x, 3 * N * sizeof *x);
    Tensor g = flat(x + 3 * N, F32, N), out[3], rows = tensor_make(piece, I64, 2, (int64_t[]){PIECES, 3});
    for (int k = 0; k < 3; k++) out[k] = flat(x + k * N, F32, N);
    Device *d = device_cpu(2);
    call_run(&OPS[OP_adamw],
             &(Call){.in = {&g, &rows}, .out = {&out[0], &out[1], &out[2]}, .attr = &all, .device = d});
    ExactSum sum = {0}, sums = {0};
    Tensor total = flat(&sum, I64, EXACT_WORDS);
    call_run(&OPS[OP_sum_squares],
             &(Call){.in = {&out[0], &rows}, .out = {&total}, .attr = &(SumAttr){SUM_BLOCK}, .device = d});
    for (int i = 0; i < PIECES; i++) {
        AdamAttr one = all;
        one.group[0] = all.group[piece[i].group];
        Tensor grad = flat(x + 3 * N + piece[i].begin, F32, piece[i].count), its[3];
        for (int k = 0; k < 3; k++) its[k] = flat(part + k * N + piece[i].begin, F32, piece[i].count);
        call_run(&OPS[OP_adamw],
                 &(Call){.in = {&grad}, .out = {&its[0], &its[1], &its[2]}, .attr = &one, .device = d});
        add_up(OP_sum_squares, &its[0], 1, SUM_BLOCK, &sums, EXACT_WORDS);
    }
    assert_memory_equal(x, part, 3 * N * sizeof *x);
    assert_memory_equal(&sum, &sums, sizeof sum);
    device_free(d);
    free(x);
}

static void update_piece(Device *d, int64_t begin, int64_t count, int64_t group) {
    float x[3] = {1, 1, 1};
    FlatPiece piece = {begin, count, group};
    Tensor p = flat(x, F32, 1), m = flat(x + 1, F32, 1), g = flat(x + 2, F32, 1),
           row = tensor_make(&piece, I64, 2, (int64_t[]){1, 3});
    call_run(&OPS[OP_sgd],
             &(Call){.in = {&g, &row}, .out = {&p, &m}, .attr = &(SgdAttr){.grad_scale = 1}, .device = d});
}

TEST(pieces_lie_inside_the_parameters) {
    Device *d = device_cpu(1);
    update_piece(d, 0, 1, 0);
    EXPECT_FAULT("a piece of 1 elements at element 1 of 1, group 0, is invalid", update_piece(d, 1, 1, 0));
    EXPECT_FAULT("a piece of 2 elements", update_piece(d, 0, 2, 0));
    EXPECT_FAULT("a piece of -1 elements", update_piece(d, 1, -1, 0));
    EXPECT_FAULT("at element -1 of", update_piece(d, -1, 1, 0));
    EXPECT_FAULT("group 8", update_piece(d, 0, 1, 8));
    EXPECT_FAULT("group -1", update_piece(d, 0, 1, -1));
    device_free(d);
}

/* The squares are 2^60 and 1, and their rounded sum would lose the 1. The sum of one block loses it. */
TEST(blocks_of_one_lose_nothing) {
    double x[2] = {0x1p30, 1};
    Tensor t = flat(x, F64, 2);
    ExactSum each = {0};
    add_up(OP_sum_squares, &t, 1, 1, &each, EXACT_WORDS);
    const double large = -0x1p60;
    ExactSum pair = squares_of(&t, 1);
    exact_add(&each, &large, 1);
    exact_add(&pair, &large, 1);
    assert_true(exact_value(each) == 1 && exact_value(pair) == 0);
}

static void square_of_one(Device *d, int64_t block) {
    double x = 1;
    ExactSum sum = {0};
    Tensor t = flat(&x, F64, 1), s = flat(&sum, I64, EXACT_WORDS);
    call_run(&OPS[OP_sum_squares],
             &(Call){.in = {&t}, .out = {&s}, .attr = &(SumAttr){.block = block}, .device = d});
}

TEST(blocks_divide_a_piece) {
    Device *d = device_cpu(1);
    square_of_one(d, SUM_BLOCK);
    EXPECT_FAULT("blocks of 0 elements", square_of_one(d, 0));
    EXPECT_FAULT("blocks of -1 elements", square_of_one(d, -1));
    EXPECT_FAULT("blocks of 3 elements", square_of_one(d, 3));
    device_free(d);
}

/* ---- numbers in memory ---- */

enum { FEW = 5 };

static void run_adamw(Device *d, Tensor *step, const AdamAttr *attr, double out[3 * FEW]) {
    double grad[FEW];
    for (int i = 0; i < 3 * FEW; i++) out[i] = 1 + fabs(philox_normal(7, 8, (uint64_t)i));
    for (int i = 0; i < FEW; i++) grad[i] = philox_normal(9, 8, (uint64_t)i);
    Tensor g = flat(grad, F64, FEW), p = flat(out, F64, FEW), m = flat(out + FEW, F64, FEW),
           v = flat(out + 2 * FEW, F64, FEW);
    call_run(&OPS[OP_adamw], &(Call){.in = {&g, NULL, step}, .out = {&p, &m, &v}, .attr = attr, .device = d});
}

TEST(numbers_in_memory_take_the_place_of_the_attributes) {
    StepNumbers numbers = {
        .group = {{0.1, 0.2, 1e-3}}, .unbias1 = 1 / 0.19, .unbias2 = 1 / 0.0975, .grad_scale = 0.5};
    AdamAttr attr = {.beta1 = 0.9, .beta2 = 0.95, .correction1 = 3, .correction2 = 5, .grad_scale = 7};
    Tensor step = flat(&numbers, F64, STEP_WORDS);
    double before[3 * FEW], memory[3 * FEW], attributes[3 * FEW];
    Device *d = device_cpu(1);
    run_adamw(d, &step, &attr, before); /* step.updates is 0 */
    for (int i = 0; i < 3 * FEW; i++) assert_true(before[i] == 1 + fabs(philox_normal(7, 8, (uint64_t)i)));
    numbers.updates = 1;
    run_adamw(d, &step, &attr, memory);
    attr.group[0] = numbers.group[0], attr.correction1 = 0.19, attr.correction2 = 0.0975,
    attr.grad_scale = 0.5;
    run_adamw(d, NULL, &attr, attributes);
    assert_memory_equal(memory, attributes, sizeof memory);
    assert_true(memory[0] != before[0]);
    device_free(d);
}

/* Clips n gradients with these squared norms. */
static void clip_each_of(int n, double most, const double *squares, StepNumbers from, StepNumbers *numbers,
                         ClipOutcome *outcomes) {
    ExactSum sums[CLIP_NORMS] = {0};
    for (int i = 0; i < n; i++) exact_add(&sums[i], &squares[i], 1);
    Tensor s = flat(sums, I64, n * EXACT_WORDS), before = flat(&from, F64, STEP_WORDS),
           to = flat(numbers, F64, n * STEP_WORDS), outcome = flat(outcomes, F64, n * CLIP_WORDS);
    Device *d = device_cpu(1);
    call_run(&OPS[OP_clip],
             &(Call){.in = {&s, &before}, .out = {&to, &outcome}, .attr = &(ClipAttr){most}, .device = d});
    device_free(d);
}

static ClipOutcome clipped(double most, double square, StepNumbers *numbers) {
    ClipOutcome o;
    clip_each_of(1, most, &square, *numbers, numbers, &o);
    return o;
}

/* If one gradient overflows, the others must not update either. */
TEST(each_norm_clips_its_gradient) {
    const StepNumbers given = {.grad_scale = 0.5};
    StepNumbers numbers[2];
    ClipOutcome o[2];
    clip_each_of(2, 1, (double[]){64, 4}, given, numbers, o);
    assert_true(o[0].norm == 4 && o[1].norm == 1 && o[0].updates == 1 && o[1].updates == 1);
    assert_true(numbers[0].grad_scale == 0.5 * o[0].clip && numbers[1].grad_scale == 0.5 * o[1].clip);
    assert_true(o[0].clip == 1 / (4 + 1e-6) && o[1].clip == 1 / (1 + 1e-6));
    for (int bad = 0; bad < 2; bad++) {
        clip_each_of(2, 1, (double[]){bad ? 64 : INFINITY, bad ? INFINITY : 64}, given, numbers, o);
        for (int i = 0; i < 2; i++) assert_true(o[i].updates == 0 && numbers[i].updates == 0);
    }
}

TEST(the_norm_of_the_scaled_gradient_is_clipped) {
    const StepNumbers plain = {
        .group = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, .unbias1 = 9, .unbias2 = 10, .grad_scale = -0.5};
    static const struct {
        double most, square, norm, clip, updates;
    } CASES[] = {
        {1, 64, 4, 1 / (4 + 1e-6), 1}, {8, 64, 4, 1, 1},    {0, 64, 4, 1, 1}, {1, 0, 0, 1, 1},
        {1, INFINITY, INFINITY, 1, 0}, {1, NAN, NAN, 1, 0},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        StepNumbers numbers = plain, want = plain;
        const ClipOutcome o = clipped(CASES[i].most, CASES[i].square, &numbers);
        assert_true(o.norm == CASES[i].norm || (isnan(o.norm) && isnan(CASES[i].norm)));
        assert_true(o.clip == CASES[i].clip && o.updates == CASES[i].updates);
        want.grad_scale = -0.5 * CASES[i].clip, want.updates = CASES[i].updates;
        assert_memory_equal(&numbers, &want, sizeof want);
    }
}

/* Runs clip with operand `shorter` one word too short. */
static void clip_without_a_word(Device *d, int shorter) {
    ExactSum sum = {0};
    StepNumbers before = {0}, after;
    ClipOutcome o;
    Tensor s = flat(&sum, I64, EXACT_WORDS - (shorter == 0)),
           from = flat(&before, F64, STEP_WORDS - (shorter == 1)),
           to = flat(&after, F64, STEP_WORDS - (shorter == 2)),
           outcome = flat(&o, F64, CLIP_WORDS - (shorter == 3));
    call_run(&OPS[OP_clip],
             &(Call){.in = {&s, &from}, .out = {&to, &outcome}, .attr = &(ClipAttr){1}, .device = d});
}

TEST(clip_refuses_operands_of_other_sizes) {
    Device *d = device_cpu(1);
    EXPECT_FAULT("clip: ", clip_without_a_word(d, 0));
    EXPECT_FAULT("clip: ", clip_without_a_word(d, 1));
    EXPECT_FAULT("clip: ", clip_without_a_word(d, 2));
    EXPECT_FAULT("clip: ", clip_without_a_word(d, 3));
    device_free(d);
}
