#include "bench/ops/cases.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/ops/operands.h"
#include "bench/roofs.h"
#include "bench/work.h"
#include "kernels/attr.h"

typedef struct OpCase {
    const char *name;
    OpNumber op;
    const void *attr;
    BenchOperand in[CALL_IN], out[CALL_OUT];
} OpCase;

/* ---- what cases.def is written in ---- */

/* Types that a run chooses: of its activations, and of its main gradients. */
#define STORAGE ((DType)DTYPES)
#define PRECISE ((DType)(DTYPES + 1))

#define NONE            NULL
#define ATTR(type, ...) (&(const type){__VA_ARGS__})
#define IN(...)                                                                                              \
    { __VA_ARGS__ }
#define OUT(...)                                                                                             \
    { __VA_ARGS__ }
#define SHAPE(...) .ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}
#define OPERAND(type, what, is_updated, n, ...)                                                              \
    { .dtype = type, .content = CONTENT_##what, .updated = is_updated, .range = n, SHAPE(__VA_ARGS__) }
#define X(...)          OPERAND(STORAGE, SIGNED, false, 0, __VA_ARGS__)
#define Y(...)          OPERAND(STORAGE, SIGNED, true, 0, __VA_ARGS__)
#define M(...)          OPERAND(PRECISE, SIGNED, false, 0, __VA_ARGS__)
#define MY(...)         OPERAND(PRECISE, SIGNED, true, 0, __VA_ARGS__)
#define POSITIVE(...)   OPERAND(PRECISE, POSITIVE, false, 0, __VA_ARGS__)
#define MYP(...)        OPERAND(PRECISE, POSITIVE, true, 0, __VA_ARGS__)
#define COUNTS(...)     OPERAND(F64, POSITIVE, false, 0, __VA_ARGS__)
#define SUMS(...)       OPERAND(F64, POSITIVE, true, 0, __VA_ARGS__)
#define IDS(n, ...)     OPERAND(I64, IDS, false, n, __VA_ARGS__)
#define POSITIONS(...)  OPERAND(I64, POSITIONS, false, 0, __VA_ARGS__)
#define CHOICES(n, ...) OPERAND(I64, CHOICES, false, n, __VA_ARGS__)
#define ROWS(n, ...)    OPERAND(I64, ROWS, false, n, __VA_ARGS__)
#define COPIES(n, ...)  OPERAND(I64, COPIES, false, n, __VA_ARGS__)
#define OFFSETS(n, ...) OPERAND(I64, OFFSETS, false, n, __VA_ARGS__)
#define E4M3_CODES(...) OPERAND(F8E4M3, SIGNED, false, 0, __VA_ARGS__)
#define E5M2_CODES(...) OPERAND(F8E5M2, SIGNED, false, 0, __VA_ARGS__)
#define HALF(...)       OPERAND(BF16, SIGNED, false, 0, __VA_ARGS__)
#define HALVES(...)     OPERAND(BF16, SIGNED, true, 0, __VA_ARGS__)
#define HALVESP(...)    OPERAND(BF16, POSITIVE, true, 0, __VA_ARGS__)
#define SINGLE(...)     OPERAND(F32, POSITIVE, false, 0, __VA_ARGS__)
#define SINGLES(...)    OPERAND(F32, SIGNED, true, 0, __VA_ARGS__)
#define OUTPUT(...)     OPERAND(I64, SIGNED, false, 0, __VA_ARGS__)
#define LONGS(...)      OPERAND(I64, SIGNED, true, 0, __VA_ARGS__)

#define LINEAR     ATTR(LinearAttr, .fixed_order = false)
#define LAYER_NORM ATTR(NormAttr, .eps = 1e-5)
#define RMS_NORM   ATTR(NormAttr, .rms = true, .eps = 1e-5)
#define LOSS       ATTR(LossAttr, .vocab = VOCAB)
#define CAUSAL     ATTR(AttentionAttr, .scale = 0.125, .window_left = WINDOW_OFF)
#define ADAM                                                                                                 \
    ATTR(AdamAttr, .group = {{.lr = 1e-4}}, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .correction1 = 0.5,   \
         .correction2 = 0.5, .grad_scale = 1)

/* Of s positions, b samples, g groups of r heads of width d. */
#define ATTENTION(name, ...)    ATTENTION_OF(name, __VA_ARGS__)
#define UNFUSED(name, ...)      UNFUSED_OF(name, __VA_ARGS__)
#define MERGE(name, ...)        MERGE_OF(name, __VA_ARGS__)
#define QUERIES(s, b, g, r, d)  X(s, b, g, r, d)
#define KEYS_OF(s, b, g, r, d)  X(s, b, g, 1, d)
#define SUMS_OF(s, b, g, r, d)  M(b, g, r, s)
#define PROBS_OF(s, b, g, r, d) M(b, g, r, s, s)
#define ATTENTION_OF(name, ...)                                                                              \
    BENCH("attention/" name, attention, CAUSAL,                                                              \
          IN(QUERIES(__VA_ARGS__), KEYS_OF(__VA_ARGS__), KEYS_OF(__VA_ARGS__)),                              \
          OUT(QUERIES(__VA_ARGS__), SUMS_OF(__VA_ARGS__)))                                                   \
    BENCH("attention_grad/" name, attention_grad, CAUSAL,                                                    \
          IN(QUERIES(__VA_ARGS__), QUERIES(__VA_ARGS__), KEYS_OF(__VA_ARGS__), KEYS_OF(__VA_ARGS__),         \
             QUERIES(__VA_ARGS__), SUMS_OF(__VA_ARGS__)),                                                    \
          OUT(QUERIES(__VA_ARGS__), KEYS_OF(__VA_ARGS__), KEYS_OF(__VA_ARGS__)))
#define UNFUSED_OF(name, ...)                                                                                \
    BENCH("attention_unfused/" name, attention_unfused, CAUSAL,                                              \
          IN(QUERIES(__VA_ARGS__), KEYS_OF(__VA_ARGS__), KEYS_OF(__VA_ARGS__)),                              \
          OUT(QUERIES(__VA_ARGS__), PROBS_OF(__VA_ARGS__)))                                                  \
    BENCH("attention_unfused_grad/" name, attention_unfused_grad, CAUSAL,                                    \
          IN(QUERIES(__VA_ARGS__), QUERIES(__VA_ARGS__), KEYS_OF(__VA_ARGS__), KEYS_OF(__VA_ARGS__),         \
             PROBS_OF(__VA_ARGS__)),                                                                         \
          OUT(QUERIES(__VA_ARGS__), KEYS_OF(__VA_ARGS__), KEYS_OF(__VA_ARGS__)))
#define MERGED_OF(s, b, g, r, d)   MY(s, b, g, r, d)
#define MERGED_SUMS(s, b, g, r, d) MY(b, g, r, s)
#define PART_OF(s, b, g, r, d)     M(s, b, g, r, d)
#define MERGE_OF(name, ...)                                                                                  \
    BENCH("attention_merge/" name, attention_merge, NONE, IN(PART_OF(__VA_ARGS__), SUMS_OF(__VA_ARGS__)),    \
          OUT(MERGED_OF(__VA_ARGS__), MERGED_SUMS(__VA_ARGS__)))
#define SINKS(name, ...)        SINKS_OF(name, __VA_ARGS__)
#define SINK_OF(s, b, g, r, d)  X((g) * (r))
#define DSINK_OF(s, b, g, r, d) MY((g) * (r))
#define SINKS_OF(name, ...)                                                                                  \
    BENCH("attention_sink/" name, attention_sink, CAUSAL,                                                    \
          IN(QUERIES(__VA_ARGS__), SUMS_OF(__VA_ARGS__), SINK_OF(__VA_ARGS__)),                              \
          OUT(QUERIES(__VA_ARGS__), SUMS_OF(__VA_ARGS__)))                                                   \
    BENCH("attention_sink_grad/" name, attention_sink_grad, CAUSAL,                                          \
          IN(QUERIES(__VA_ARGS__), QUERIES(__VA_ARGS__), SUMS_OF(__VA_ARGS__), SINK_OF(__VA_ARGS__)),        \
          OUT(DSINK_OF(__VA_ARGS__)))

/* Of r rows of width h. */
#define NORMS(name, ...) NORMS_OF(name, __VA_ARGS__)
#define NORMS_OF(name, r, h)                                                                                 \
    BENCH("norm/layer-" name, norm, LAYER_NORM, IN(X(r, 1, h), X(h), X(h)), OUT(X(r, 1, h), M(r), M(r)))     \
    BENCH("norm_grad/layer-" name, norm_grad, LAYER_NORM,                                                    \
          IN(X(r, 1, h), X(r, 1, h), X(h), POSITIVE(r), M(r)), OUT(Y(r, 1, h), MY(h), MY(h)))                \
    BENCH("add_norm/layer-" name, add_norm, LAYER_NORM, IN(X(r, 1, h), X(r, 1, h), X(h), X(h)),              \
          OUT(X(r, 1, h), X(r, 1, h), M(r), M(r)))                                                           \
    BENCH("norm/rms-" name, norm, RMS_NORM, IN(X(r, 1, h), X(h)), OUT(X(r, 1, h), M(r)))                     \
    BENCH("norm_grad/rms-" name, norm_grad, RMS_NORM, IN(X(r, 1, h), X(r, 1, h), X(h), POSITIVE(r)),         \
          OUT(Y(r, 1, h), MY(h)))

/* Of t tokens of g groups of r heads of width d. */
#define ROPE(name, ...) ROPE_OF(name, __VA_ARGS__)
#define ROPE_OF(name, t, g, r, d)                                                                            \
    BENCH("rope/" name, rope, ATTR(RopeAttr, .dim = d),                                                      \
          IN(X(t, 1, g, r, d), M(t, d / 2), M(t, d / 2), POSITIONS(1, t)), OUT(X(t, 1, g, r, d)))

#define BENCH(name, op, attr, in, ...) {name, OP_##op, attr, in, __VA_ARGS__},
#define LONG_V                         128256
#define V                              50304
#define VOCAB                          50257

/* ---- the cases, in two sizes ---- */

#define S                 64
#define B                 4
#define H                 768
#define F                 3072
#define GATED             2048
#define HEAD              64
#define ROUTED            64
#define N                 38633472
#define SHORT_ATTENTION   64, 4, 12, 1, 64
#define MIDDLE_ATTENTION  256, 4, 12, 1, 64
#define LONG_ATTENTION    1024, 1, 12, 1, 64
#define LONGEST_ATTENTION 2048, 1, 12, 1, 64
#define GROUPS_ATTENTION  256, 1, 3, 4, 128
#define UNFUSED_ATTENTION 256, 1, 12, 1, 64
#define NARROW_ROWS       256, 128
#define MIDDLE_ROWS       256, 512
#define SHORT_ROWS        64, 1024
#define GROUPS_HEADS      64, 3, 5, 128
#define LONG_B            1

static const OpCase SMALL[] = {
#include "bench/ops/cases.def"
};

#undef S
#undef B
#undef H
#undef F
#undef GATED
#undef HEAD
#undef ROUTED
#undef N
#undef SHORT_ATTENTION
#undef MIDDLE_ATTENTION
#undef LONG_ATTENTION
#undef LONGEST_ATTENTION
#undef GROUPS_ATTENTION
#undef UNFUSED_ATTENTION
#undef NARROW_ROWS
#undef MIDDLE_ROWS
#undef SHORT_ROWS
#undef GROUPS_HEADS
#undef LONG_B
#define S                 2048
#define B                 8
#define H                 4096
#define F                 16384
#define GATED             14336
#define HEAD              128
#define ROUTED            16384
#define N                 (1 << 28)
#define SHORT_ATTENTION   1024, 64, 12, 1, 64
#define MIDDLE_ATTENTION  2048, 16, 16, 1, 128
#define LONG_ATTENTION    4096, 4, 16, 1, 128
#define LONGEST_ATTENTION 8192, 2, 16, 1, 128
#define GROUPS_ATTENTION  4096, 1, 8, 4, 128
#define UNFUSED_ATTENTION 2048, 1, 16, 1, 128
#define NARROW_ROWS       65536, 768
#define MIDDLE_ROWS       32768, 2048
#define SHORT_ROWS        4096, 4096
#define GROUPS_HEADS      4096, 8, 5, 128
#define LONG_B            2

static const OpCase LARGE[] = {
#include "bench/ops/cases.def"
};

enum { CASE_COUNT = sizeof SMALL / sizeof *SMALL };

/* ---- access ---- */

int bench_case_count(void) { return CASE_COUNT; }

const char *bench_case_name(int i) { return SMALL[i].name; }

OpNumber bench_case_op(int i) { return SMALL[i].op; }

bool bench_case_has_type(int i) {
    const OpCase *c = &SMALL[i];
    for (int k = 0; k < CALL_IN; k++)
        if (c->in[k].ndim && (int)c->in[k].dtype >= DTYPES) return true;
    for (int k = 0; k < CALL_OUT; k++)
        if (c->out[k].ndim && (int)c->out[k].dtype >= DTYPES) return true;
    return false;
}

static void choose_type(BenchOperand *o, DType type) {
    if (o->dtype == STORAGE) o->dtype = type;
    if (o->dtype == PRECISE) o->dtype = type == F64 ? F64 : F32;
}

BenchCalls *bench_case_open(int i, Device *d, DType type) {
    OpCase c = d->kind == DEVICE_CUDA ? LARGE[i] : SMALL[i];
    for (int k = 0; k < CALL_IN; k++) choose_type(&c.in[k], type);
    for (int k = 0; k < CALL_OUT; k++) choose_type(&c.out[k], type);
    return bench_calls_new(d, &OPS[c.op], c.attr, c.in, c.out);
}

/* ---- for the harness ---- */

struct BenchOp {
    Device *device;
    BenchCalls *calls;
    OpNumber op;
};

BenchRoofs bench_roofs(void) {
    Device *d = device_cpu(0);
    const BenchRoofs r = {bench_roof_product(d, F32), bench_roof_copy(d)};
    device_free(d);
    return r;
}

BenchOp *bench_op_open(int i) {
    BenchOp *b = mem_zero(1, sizeof *b);
    *b = (BenchOp){.device = device_cpu(0), .op = bench_case_op(i)};
    b->calls = bench_case_open(i, b->device, F32);
    return b;
}

void bench_op_run(BenchOp *b) { bench_calls_run(b->calls); }

void bench_op_close(BenchOp *b) {
    bench_calls_free(b->calls);
    device_free(b->device);
    free(b);
}

double bench_op_flops(const BenchOp *b) { return work_flops(b->op, bench_calls_shape(b->calls)); }
double bench_op_bytes(const BenchOp *b) { return work_bytes(b->op, bench_calls_shape(b->calls)); }
