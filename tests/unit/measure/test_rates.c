/* Tests the sizes of calls, predictions that are calculated by hand, and that predictions are monotone. */
#include "unit/cmocka_all.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "measure/rates.h"

#define DIMS(...)                                                                                            \
    (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define TENSOR(type, ...) tensor_make(NULL, type, DIMS(__VA_ARGS__))

/* ---- sizes ---- */

static void check_rate(OpNumber op, const Call *c, const char *name, int sizes, const double *size) {
    const Rate r = rate_of(&OPS[op], c);
    assert_string_equal(r.name, name);
    assert_int_equal(r.sizes, sizes);
    for (int i = 0; i < sizes; i++) assert_true(r.size[i] == size[i]);
}

TEST(sizes_of_calls) {
    Tensor x = TENSOR(BF16, 5, 2, 7), w = TENSOR(BF16, 11, 7), y = TENSOR(BF16, 5, 2, 11),
           id = TENSOR(I64, 5, 2);
    const Call forward = {.in = {&x, &w}, .out = {&y}}, bias = {.in = {&y, &x}, .out = {NULL, &w}},
               lookup = {.in = {&id, &w}, .out = {&x}};
    check_rate(OP_linear, &forward, "linear BF16", 3, (double[]){10, 11, 7});
    check_rate(OP_linear_wgrad, &bias, "linear_wgrad BF16", 1, (double[]){2 * (110 + 70 + 77)});
    check_rate(OP_embedding, &lookup, "embedding BF16", 1, (double[]){80 + 2 * 140});
    /* 4 experts with 6 rows each */
    Tensor rows = TENSOR(F32, 24, 1, 7), experts = TENSOR(F32, 4 * 11, 7), offsets = TENSOR(I64, 5),
           out = TENSOR(F32, 24, 1, 11);
    const Call grouped = {.in = {&rows, &experts, &offsets}, .out = {&out}},
               wgrad = {.in = {&out, &rows, &offsets}, .out = {&experts}};
    check_rate(OP_grouped_linear, &grouped, "grouped_linear F32", 4, (double[]){6, 11, 7, 4});
    check_rate(OP_grouped_linear_wgrad, &wgrad, "grouped_linear_wgrad F32", 4, (double[]){11, 7, 6, 4});
}

TEST(sizes_of_attention) {
    static const struct {
        int64_t left, right, chunk;
        const char *mask;
        double keys;
    } ROWS[] = {{WINDOW_OFF, 0, 0, "causal", 100}, {WINDOW_OFF, WINDOW_OFF, 0, "full", 100},
                {9, 0, 0, "causal", 20},           {9, WINDOW_OFF, 0, "full", 10},
                {WINDOW_OFF, 0, 32, "causal", 32}, {299, 0, 0, "causal", 100}};
    Tensor q = TENSOR(F32, 6, 2, 3, 4, 8), k = TENSOR(F32, 100, 2, 3, 1, 8);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const AttentionAttr attr = {
            .window_left = ROWS[i].left, .window_right = ROWS[i].right, .chunk_size = ROWS[i].chunk};
        const Call forward = {.in = {&q, &k, &k}, .out = {&q}, .attr = &attr},
                   grad = {.in = {&q, &q, &k, &k}, .out = {&q}, .attr = &attr};
        char name[2][RATE_NAME];
        snprintf(name[0], RATE_NAME, "attention F32 %s", ROWS[i].mask);
        snprintf(name[1], RATE_NAME, "attention_grad F32 %s", ROWS[i].mask);
        check_rate(OP_attention, &forward, name[0], 3, (double[]){6 * 24, ROWS[i].keys, 8});
        check_rate(OP_attention_grad, &grad, name[1], 3, (double[]){6 * 24, ROWS[i].keys, 8});
    }
}

/* A name distinguishes kernels whose times differ. */
TEST(names_of_kernels) {
    static const LinearAttr ANY = {.fixed_order = false}, FIXED = {.fixed_order = true},
                            CHUNKS = {.fixed_order = true, .by_chunks = true};
    static const LinearHeadsAttr HEADS = {.fixed_order = true};
    static const Fp8GemmAttr FAST = {.fast = true}, SLOW = {.fast = false},
                             BLOCKS = {.a = FP8_ROWS, .b = FP8_SQUARES}, IN_ORDER = {.fixed_order = true};
    static const AttentionAttr CAUSAL = {.window_left = WINDOW_OFF}, BIASED = {.window_left = WINDOW_OFF,
                                                                               .window_right = WINDOW_OFF,
                                                                               .bias_max_distance = 8};
    Device any_order = {.any_order = true}, ordered = {.any_order = false};
    Tensor x = TENSOR(BF16, 16, 16), y = TENSOR(F8E5M2, 16, 16), z = TENSOR(F8E4M3, 16, 16),
           sum = TENSOR(F32, 16, 16), q = TENSOR(BF16, 6, 2, 3, 4, 8);
    const struct {
        OpNumber op;
        const void *attr;
        Tensor *in, *out;
        Device *device;
        const char *name;
    } ROWS[] = {
        {OP_linear, &ANY, &x, &x, NULL, "linear BF16"},
        {OP_linear, &FIXED, &x, &x, NULL, "linear BF16 fixed"},
        {OP_linear, &CHUNKS, &x, &x, NULL, "linear BF16 fixed"},
        {OP_linear_wgrad, &CHUNKS, &x, &x, NULL, "linear_wgrad BF16 chunks"},
        {OP_linear_dgrad, &FIXED, &sum, &x, NULL, "linear_dgrad F32 fixed"},
        {OP_grouped_linear_wgrad, &FIXED, &x, &x, NULL, "grouped_linear_wgrad BF16 fixed"},
        {OP_linear_heads, &HEADS, &x, &x, NULL, "linear_heads BF16 fixed"},
        {OP_fp8_gemm, &FAST, &z, &x, NULL, "fp8_gemm FP8 fast"},
        {OP_fp8_gemm, &SLOW, &y, &x, NULL, "fp8_gemm FP8"},
        {OP_fp8_gemm, &SLOW, &z, &sum, NULL, "fp8_gemm FP8 to F32"},
        {OP_fp8_grouped_linear, &BLOCKS, &y, &x, NULL, "fp8_grouped_linear FP8 blocks"},
        {OP_fp8_grouped_wgrad, &BLOCKS, &z, &sum, NULL, "fp8_grouped_wgrad FP8 blocks to F32"},
        {OP_fp8_grouped_wgrad, &IN_ORDER, &z, &sum, NULL, "fp8_grouped_wgrad FP8 fixed"},
        {OP_attention, &CAUSAL, &q, &q, &ordered, "attention BF16 causal"},
        {OP_attention_grad, &CAUSAL, &q, &q, &any_order, "attention_grad BF16 causal"},
        {OP_attention_grad, &CAUSAL, &q, &q, &ordered, "attention_grad BF16 causal deterministic"},
        {OP_attention_grad, &BIASED, &q, &q, &ordered, "attention_grad BF16 full biased deterministic"},
        {OP_add, NULL, &x, &x, &ordered, "add BF16"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        Tensor *in = ROWS[i].in;
        const Call c = {
            .in = {in, in, in, in}, .out = {ROWS[i].out}, .attr = ROWS[i].attr, .device = ROWS[i].device};
        assert_string_equal(rate_of(&OPS[ROWS[i].op], &c).name, ROWS[i].name);
    }
}

/* ---- predictions ---- */

/* Predicts the time of an addition of two arrays whose three tensors together have this many bytes. */
static double add_time(const Rates *r, int64_t bytes, RateSource *source) {
    Tensor x = TENSOR(F32, bytes / 12);
    return rates_time(r, &OPS[OP_add], &(Call){.in = {&x, &x}, .out = {&x}}, source);
}

static double linear_time(const Rates *r, const int64_t *s, RateSource *source) {
    Tensor x = TENSOR(F32, s[0], s[2]), w = TENSOR(F32, s[1], s[2]), y = TENSOR(F32, s[0], s[1]);
    return rates_time(r, &OPS[OP_linear], &(Call){.in = {&x, &w}, .out = {&y}}, source);
}

/* An interpolated time is the result of fewer than 64 rounded operations. */
#define ROUNDING (64 * DBL_EPSILON)

static void check_near(double a, double b) {
    if (fabs(a - b) > ROUNDING * fabs(b)) fail_msg("%.12g, not %.12g", a, b);
}

/* The times at 2400 and 3600 bytes decrease, so both become their mean, 55. Two rates for 1200 bytes become 15. */
TEST(times_by_bytes) {
    Rate rows[] = {{"add F32", 1, {3600}, 50}, {"add F32", 1, {1200}, 10},   {"add F32", 1, {2400}, 60},
                   {"add F32", 1, {1200}, 20}, {"add F32", 1, {12000}, 100}, {"mul F32", 1, {12000}, 3}};
    static const struct {
        int64_t bytes;
        double ns;
        RateSource source;
    } WANTED[] = {{1200, 15, RATE_MEASURED}, {1800, 35, RATE_MEASURED},   {2400, 55, RATE_MEASURED},
                  {3600, 55, RATE_MEASURED}, {7800, 77.5, RATE_MEASURED}, {24000, 200, RATE_BEYOND},
                  {600, 7.5, RATE_BEYOND},   {12, 3, RATE_BEYOND}};
    Rates r = {.rate = rows, .n = sizeof rows / sizeof *rows};
    rates_sort(&r);
    assert_int_equal(r.n, 5);
    for (size_t i = 0; i < sizeof WANTED / sizeof *WANTED; i++) {
        RateSource source;
        check_near(add_time(&r, WANTED[i].bytes, &source), WANTED[i].ns);
        assert_int_equal(source, WANTED[i].source);
    }
}

/* Sides of 72, 272 and 872 become 200, 400 and 1000 with the additional 128. */
TEST(times_of_gemms) {
    Rate rows[] = {{"linear F32", 3, {72, 72, 72}, 16}, {"linear F32", 3, {872, 872, 872}, 1000}};
    const double each = 1016 / (8e6 + 1e9); /* ns per volume */
    const struct {
        int64_t size[3];
        double ns;
    } WANTED[] = {
        {{72, 72, 72}, 16},
        {{872, 872, 872}, 1000},
        {{272, 272, 272}, 6.4e7 * each}, /* between 64 and 128 */
        {{872, 72, 872}, 2e8 * each},    /* between 200 and 400 */
        {{872, 872, 1872}, 1000 * 2.}, /* the estimate is above t(p) f(max(x, p)) / f(p) of the second rate */
        {{72, 72, 22},
         16 * 150 / 200.}}; /* the estimate is below t(p) f(min(x, p)) / f(p) of the first rate */
    Rates r = {.rate = rows, .n = 2, .tile = 128};
    rates_sort(&r);
    for (size_t i = 0; i < sizeof WANTED / sizeof *WANTED; i++) {
        RateSource source;
        check_near(linear_time(&r, WANTED[i].size, &source), WANTED[i].ns);
        assert_int_equal(source, i < 4 ? RATE_MEASURED : RATE_BEYOND);
    }
}

TEST(times_without_rates_are_rooflines) {
    Rates r = {.copy = 2};
    RateSource source;
    check_near(add_time(&r, 1200, &source), 600);
    assert_int_equal(source, RATE_ROOF);
    check_near(linear_time(&r, (int64_t[]){10, 20, 30}, &source), 0);
    assert_int_equal(source, RATE_NONE);
    r.gemm[F32] = 4;
    check_near(linear_time(&r, (int64_t[]){10, 20, 30}, &source), 12000 / 4.);
    check_near(linear_time(&r, (int64_t[]){1, 20, 1}, &source), 4 * 41 / 2.);
    assert_int_equal(source, RATE_ROOF);
}

/* ---- monotony ---- */

static uint32_t draw(uint64_t *at, uint32_t below) { return philox4x32(7, 0, (*at)++).v[0] % below; }

/* Makes random rates, whose times need not increase with size. */
static Rates random_rates(uint64_t *at) {
    Rates r = {.n = 1 + (int)draw(at, 12)};
    r.rate = mem_zero((size_t)r.n, sizeof *r.rate);
    for (Rate *p = r.rate; p < r.rate + r.n; p++) {
        *p = draw(at, 2) ? (Rate){.name = "add F32", .sizes = 1} : (Rate){.name = "linear F32", .sizes = 3};
        for (int i = 0; i < p->sizes; i++) p->size[i] = 1 + draw(at, p->sizes == 1 ? 4000 : 500);
        p->ns = 1 + draw(at, 1000);
    }
    r.tile = draw(at, 200), r.copy = 1 + draw(at, 10), r.gemm[F32] = 1 + draw(at, 100);
    return r;
}

/* Returns a copy in which some times are longer and rooflines may be lower. */
static Rates slower(const Rates *r, uint64_t *at) {
    Rates s = *r;
    s.rate = mem_zero((size_t)r->n, sizeof *r->rate);
    memcpy(s.rate, r->rate, (size_t)r->n * sizeof *r->rate);
    for (int i = 0; i < s.n; i++) s.rate[i].ns += draw(at, 3) ? 0 : draw(at, 500);
    if (draw(at, 2)) s.copy /= 2;
    if (draw(at, 2)) s.gemm[F32] /= 2;
    return s;
}

TEST(predictions_are_monotone) {
    uint64_t at = 0;
    for (int trial = 0; trial < 20000; trial++) {
        Rates fast = random_rates(&at), slow = slower(&fast, &at);
        rates_sort(&fast), rates_sort(&slow);
        int64_t small[4], large[4];
        RateSource source;
        for (int i = 0; i < 4; i++)
            small[i] = 1 + draw(&at, 600), large[i] = small[i] + (draw(&at, 2) ? draw(&at, 400) : 0);
        const double least = 1 - ROUNDING, sum = add_time(&fast, 12 * small[3], &source),
                     gemm = linear_time(&fast, small, &source);
        assert_true(add_time(&fast, 12 * large[3], &source) >= sum * least);
        assert_true(add_time(&slow, 12 * small[3], &source) >= sum * least);
        assert_true(linear_time(&fast, large, &source) >= gemm * least);
        assert_true(linear_time(&slow, small, &source) >= gemm * least);
        rates_free(&fast), rates_free(&slow);
    }
}
