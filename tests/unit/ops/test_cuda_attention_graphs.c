/* Tests cuDNN attention without cuDNN or a GPU. A mock computes the graphs; the result must be that of the CPU kernel
 * for every supported mask and layout. Other calls must report why they are not supported. All steps of a ring of
 * context parallelism must be supported. */
#include "unit/cmocka_all.h"

#include "kernels/cuda/attention/attention_lengths.h"
#include "kernels/cuda/attention/attention_path.h"
#include "kernels/ops.h"
#include "tensor/backend.h"
#include "tensor/cuda.h"
#include "unit/expect_fault.h"
#include "unit/ops/attention_run.h"
#include "unit/ops/cudnn_stand_in.h"
#include "unit/ops/ring_run.h"

/* A simulated GPU with scratch memory that is allocated in advance. */
typedef struct Gpu {
    Cuda cuda;
    Device device, planner;
} Gpu;
enum { SCRATCH = 1 << 20 };

static Gpu *gpu_new(Shape p) {
    Gpu *g = mem_zero(1, sizeof *g);
    g->cuda =
        (Cuda){.capability = 90, .memory = p.memory ? p.memory : (size_t)128 << 30, .scratch_bytes = SCRATCH};
    g->cuda.scratch = aligned_alloc(SPACE_ALIGN, SCRATCH);
    memset(g->cuda.scratch, 0xff, SCRATCH);
    g->device = (Device){.kind = DEVICE_CUDA, .state = &g->cuda, .any_order = p.any_order};
    g->planner = (Device){.kind = DEVICE_NULL, .target = &g->device, .any_order = p.any_order};
    return g;
}

static void gpu_free(Gpu *g) {
    CudaState *s = &g->cuda.state[CUDA_ATTENTION];
    if (s->at) s->free(s->at);
    free(g->cuda.scratch);
    free(g);
}

static void by_cudnn(int op, const Call *call, Gpu *g) {
    Call plan = *call;
    plan.device = &g->planner;
    const int64_t before = mock.plans;
    const size_t scratch = OPS[op].cuda_plans(&plan);
    assert_true(scratch >= MOCK_WORKSPACE && scratch <= SCRATCH);
    const char *path = attention_path(call);
    if (strncmp(path, "cuDNN ", 6)) fail_msg("%s: %s", OPS[op].name, path);
    assert_int_equal(!strstr(path, "deterministic"), op == OP_attention);
    assert_int_equal(!strstr(path, "not deterministic"), op == OP_attention || !g->device.any_order);
    const int64_t made = mock.plans;
    assert_true(made > before);
    OPS[op].cuda(call);
    assert_int_equal(OPS[op].cuda_plans(&plan), scratch);
    assert_int_equal(mock.plans, made); /* the second lookup finds the graphs */
}

/* The mock rounds only y, lse and the gradients, each with an error of half a unit. The gradients are
 * computed from the rounded y. */
static void check_form(Shape p) {
    Run r = run_new(p, p.dtype), exact = run_new(p, F64);
    Gpu *g = gpu_new(p);
    Device *cpu = device_cpu(2);
    const Call forward = forward_call(&r, &g->device), backward = backward_call(&r, &g->device);
    Call call = forward_call(&exact, cpu);
    OPS[OP_attention].cpu_f64(&call);
    call = backward_call(&exact, cpu);
    OPS[OP_attention_grad].cpu_f64(&call);
    by_cudnn(OP_attention, &forward, g);
    by_cudnn(OP_attention_grad, &backward, g);
    for (int i = Y; i < TENSORS; i++) {
        const double e = error(&r.x[i], &exact.x[i]), bound = (i == Y ? 1 : 3) * dtype_roundoff(p.dtype);
        if (!(e <= bound))
            fail_msg("s %d t %d b %d g %d r %d d %d e %d, %s: error %.3g > %.3g", (int)p.s, (int)p.t,
                     (int)p.b, (int)p.g, (int)p.r, (int)p.d, (int)p.e, TENSOR_NAMES[i], e, bound);
    }
    assert_true(error(&r.lse, &exact.lse) <= 2 * dtype_roundoff(F32));
    device_free(cpu);
    gpu_free(g);
    run_free(&r), run_free(&exact);
    assert_int_equal(mock.descriptors, 0);
}

/* This and the following functions replace kernels, because there is no GPU. */
static int64_t keys_of(const PaddedPairs *p, int64_t pair) {
    const int64_t n = p->lengths[pair / p->groups];
    return n < p->keys ? n : p->keys;
}
void attention_put_lengths(const Call *c, const PaddedPairs *p, int32_t *queries, int32_t *keys) {
    (void)c;
    for (int64_t i = 0; i < p->count; i++)
        queries[i] = (int32_t)p->queries, keys[i] = (int32_t)keys_of(p, p->first + i);
}
void attention_clear_blind(const Call *c, const PaddedPairs *p, const Tensor *x) {
    (void)c;
    for (int64_t row = 0; x && row < tensor_rows(x); row++) {
        const int64_t pair = row / x->dim[3] % (x->dim[1] * x->dim[2]);
        if (pair < p->first || pair >= p->first + p->count || keys_of(p, pair) > 0) continue;
        for (int64_t i = 0; i < x->dim[4]; i++) set(x, tensor_row_offset(x, row) + i, 0);
    }
}
void attention_clear_blind_lse(const Call *c, const PaddedPairs *p, const Tensor *lse) {
    (void)c;
    const int64_t of_pair = lse->stride[1];
    for (int64_t i = p->first * of_pair; i < (p->first + p->count) * of_pair; i++)
        if (keys_of(p, i / of_pair) == 0) set(lse, i, -INFINITY);
}

/* Checks both forms of the backward pass: deterministic, and in any order. */
static void check(Shape p) {
    check_form(p);
    p.any_order = true;
    check_form(p);
}

TEST(layouts) {
    for (int64_t b = 1; b <= 2; b++)
        for (int64_t g = 1; g <= 3; g += 2)
            for (int64_t r = 1; r <= 3; r++) {
                Shape p = {
                    .s = 9, .t = 9, .b = b, .g = g, .r = r, .d = 16, .e = 16, .attr = CAUSAL, .dtype = BF16};
                check(p);
                p.packed = true;
                check(p);
            }
    check((Shape){.s = 20, .t = 20, .b = 2, .g = 2, .r = 2, .d = 24, .e = 16, .attr = CAUSAL, .dtype = BF16});
    check((Shape){.s = 20, .t = 20, .b = 2, .g = 2, .r = 2, .d = 8, .e = 8, .attr = CAUSAL, .dtype = F16});
}

TEST(masks) {
    Shape p = {.s = 20, .t = 20, .b = 2, .g = 2, .r = 2, .d = 16, .e = 16, .attr = ALL, .dtype = BF16};
    check(p);
    p.t = 29;
    check(p);
    p.attr = CAUSAL;
    check(p);
    p.attr.query.first = 9; /* after a cache */
    check(p);
    p.attr.query.first = 109, p.attr.key.first = 100;
    check(p);
    p.attr.query.first = 128; /* all keys precede the queries */
    check(p);
    p.t = 11, p.attr = CAUSAL; /* the last queries see all keys */
    check(p);
    p.t = 20, p.attr.window_left = 7;
    check(p);
    p.attr.query.first = p.attr.key.first = 40;
    check(p);
    p.attr.window_left = 6, p.t = 25;
    check(p);
    p.attr.window_left = 19; /* the window contains all earlier keys */
    check(p);
    p.attr.window_left = WINDOW_OFF, p.attr.chunk_size = 20; /* all keys are in the first chunk */
    check(p);
    p.attr.chunk_size = 0;
    p.any_order = true;
    for (p.attr.window_left = 1; p.attr.window_left < 5; p.attr.window_left++)
        check_form(p); /* these windows are too narrow for the deterministic form */
}

/* One sample has all keys, one has some, one has none. */
TEST(padding) {
    for (int64_t r = 1; r <= 2; r++) {
        Shape p = {.s = 20,
                   .t = 20,
                   .b = 3,
                   .g = 2,
                   .r = r,
                   .d = 16,
                   .e = 16,
                   .attr = ALL,
                   .dtype = BF16,
                   .padded = true};
        check(p);
        p.packed = true;
        check(p);
        p.packed = false, p.t = 29;
        check(p);
        p.t = 20, p.attr = CAUSAL;
        check(p);
    }
}

/* Checks the backward pass on a GPU with so little memory that it is computed in `parts` parts. */
static void check_parts(Shape p, int64_t memory, int64_t parts) {
    const int64_t runs = mock.runs;
    p.memory = (size_t)memory;
    check_form(p);
    assert_int_equal(mock.runs - runs, 1 + parts);
}

/* The backward pass's scratch memory has space for only some of the (sample, group) pairs at a time. */
TEST(parts) {
    const int64_t gradients = 2 * 12 * 32, of_two_heads = 2 * (2 * 64 * 128 + gradients),
                  of_their_sums = 2 * (4 * 12 * 16 + gradients), of_one = 2 * 64 * 128,
                  of_its_sums = 4 * 13 * 16;
    Shape p = {.s = 12,
               .t = 12,
               .b = 2,
               .g = 5,
               .r = 2,
               .d = 16,
               .e = 16,
               .attr = CAUSAL,
               .dtype = BF16,
               .packed = true};
    for (int most = 1; most <= 11; most++)
        for (int any_order = 0; any_order < 2; any_order++) {
            p.any_order = any_order;
            check_parts(p, 64 * most * (any_order ? of_their_sums : of_two_heads), (10 + most - 1) / most);
        }
    p.padded = true, p.any_order = false, p.b = 3;
    check_parts(p, 64 * 5 * of_two_heads, 3);
    p.padded = false, p.b = 2;
    p.s = p.t = 13, p.r = 1; /* lse is 16-byte aligned again after four pairs */
    p.any_order = false, check_parts(p, 64 * 7 * of_one, 3);
    p.any_order = true, check_parts(p, 64 * 7 * of_its_sums, 3);
}

/* ---- calls that cuDNN does not support ---- */

typedef enum Change { AS_IT_IS, STRIDE, TYPE, OFFSET, FLAGS, ABSENT, VERSION, CAPABILITY, OPERAND } Change;

/* Checks that cuDNN refuses the backward pass of `p` after one change to an operand or to the available features. */
static void refused(const char *why, Shape p, int which, Change change, int64_t value) {
    Run r = run_new(p, p.dtype);
    Gpu *g = gpu_new(p);
    Tensor *x = &r.x[which];
    if (change == STRIDE) x->stride[1] = value;
    if (change == TYPE) x->dtype = (uint8_t)value;
    if (change == OFFSET) x->data = (char *)x->data + value;
    if (change == FLAGS) x->flags = (uint8_t)value;
    if (change == CAPABILITY) g->cuda.capability = (int)value;
    if (change == VERSION) mock.version = (size_t)value;
    Call call = backward_call(&r, &g->device);
    Tensor first_key = tensor_make(NULL, I64, 2, (int64_t[]){p.b, p.s}),
           lengths = tensor_make(NULL, I64, 1, &p.b),
           bias = tensor_make(NULL, p.dtype, 2, (int64_t[]){8, p.g * p.r});
    if (change == ABSENT && which >= DQ) call.out[which - DQ] = NULL;
    Tensor *const operand[CALL_IN] = {[6] = &first_key, [7] = &lengths, [8] = &bias};
    if (change == OPERAND) call.in[which] = operand[which];
    Call plan = call;
    plan.device = &g->planner;
    const int64_t plans = mock.plans;
    OPS[OP_attention_grad].cuda_plans(&plan);
    const char *path = attention_path(&call);
    if (strncmp(path, "own kernels: ", 13) || !strstr(path, why)) fail_msg("\"%s\" is not \"%s\"", path, why);
    assert_int_equal(mock.plans, plans);
    mock.version = 91900;
    gpu_free(g);
    run_free(&r);
}

static const Shape SMALL = {.s = 8,
                            .t = 8,
                            .b = 2,
                            .g = 2,
                            .r = 2,
                            .d = 16,
                            .e = 16,
                            .attr = {.scale = 1, .window_left = WINDOW_OFF},
                            .dtype = BF16};

static Shape of_size(int64_t s, int64_t b, int64_t g, int64_t d, int64_t e) {
    Shape p = SMALL;
    p.s = s, p.b = b, p.g = g, p.d = d, p.e = e;
    return p;
}
static Shape with(AttentionAttr attr, int64_t s) {
    Shape p = SMALL;
    p.attr = attr, p.s = s;
    return p;
}

TEST(refused_operands) {
    Shape wide = SMALL, poor = SMALL;
    for (wide.dtype = F64; wide.dtype <= F32; wide.dtype++)
        refused("more than 16 bits", wide, Q, AS_IT_IS, 0);
    refused("different types", SMALL, DQ, TYPE, F16);
    refused("multiples of 8 up", of_size(8, 2, 2, 20, 20), Q, AS_IT_IS, 0);
    refused("wider than keys", of_size(8, 2, 2, 16, 24), Q, AS_IT_IS, 0);
    refused("less than two", of_size(1, 2, 2, 16, 16), Q, AS_IT_IS, 0);
    refused("no heads", of_size(8, 0, 2, 16, 16), Q, AS_IT_IS, 0);
    refused("evenly spaced", SMALL, K, STRIDE, 16);
    refused("16 bytes", of_size(8, 2, 1, 16, 16), K, STRIDE, 20);
    refused("16 bytes", SMALL, V, OFFSET, 8);
    refused("added to", SMALL, DK, FLAGS, TENSOR_ACCUM);
    refused("is not needed", SMALL, DV, ABSENT, 0);
    poor.memory = 100000;
    refused("too large", poor, Q, AS_IT_IS, 0);
}

/* Our kernels must also refuse the call, in the dry run. */
TEST(refused_by_all) {
    Run r = run_new(of_size(8, 2, 2, 264, 16), BF16);
    Gpu *g = gpu_new(SMALL);
    const Call plan = backward_call(&r, &g->planner);
    EXPECT_FAULT("the widths of heads are 264 and 16; at most 256", OPS[OP_attention_grad].cuda_plans(&plan));
    gpu_free(g);
    run_free(&r);
}

TEST(refused_masks_and_versions) {
    AttentionAttr chunks = CAUSAL, dropout = CAUSAL, open = ALL, ahead = CAUSAL, late = CAUSAL,
                  narrow = CAUSAL, most = CAUSAL, short_chunks = CAUSAL;
    chunks.query.chunk = 4;
    refused("positions in chunks", with(chunks, 8), Q, AS_IT_IS, 0);
    short_chunks.chunk_size = 7;
    refused("keys in chunks", with(short_chunks, 8), Q, AS_IT_IS, 0);
    dropout.dropout.rate = 0.1;
    refused("dropout", with(dropout, 8), Q, AS_IT_IS, 0);
    refused("packed into a sequence", with(CAUSAL, 8), 6, OPERAND, 0);
    most.window_left = 6;
    refused("padded keys with a window", with(most, 8), 7, OPERAND, 0);
    refused("relative position bias", with(ALL, 8), 8, OPERAND, 0);
    open.window_left = 3;
    refused("without a causal", with(open, 8), Q, AS_IT_IS, 0);
    ahead.window_right = 2;
    refused("not aligned with", with(ahead, 8), Q, AS_IT_IS, 0);
    late.key.first = 1;
    refused("attends to no key", with(late, 8), Q, AS_IT_IS, 0);
    narrow.window_left = 1;
    refused("narrow window", with(narrow, 8), Q, AS_IT_IS, 0);
    refused("attends to no key", with(narrow, 20), Q, AS_IT_IS, 0);
    refused("position of the query", with(most, 9), Q, AS_IT_IS, 0);
    refused("9.14.0 is wrong for windows", with(most, 8), Q, VERSION, 91400);
    refused("older than 9.14.0", SMALL, Q, VERSION, 91001);
    refused("padding mask", SMALL, Q, VERSION, 91500);
    refused("only on sm_90", SMALL, Q, CAPABILITY, 100);
}

TEST(unplanned) {
    Run r = run_new(SMALL, BF16);
    Gpu *g = gpu_new(SMALL);
    const Call call = forward_call(&r, &g->device);
    assert_non_null(strstr(attention_path(&call), "no dry run"));
    by_cudnn(OP_attention, &call, g);
    const AttentionCounts counts = attention_counts(&g->device);
    assert_int_equal(counts.cudnn, 1);
    assert_int_equal(counts.own, 0);
    gpu_free(g);
    run_free(&r);
}

/* ---- a ring of context parallelism ---- */

static size_t plan_on_gpu(const OpDef *op, const Call *c) { return op->cuda_plans ? op->cuda_plans(c) : 0; }
static const char *path_on_gpu(const OpDef *op, const Call *c) { return op->cuda_path(c); }

/* In a dry run of every rank, all steps of a causal ring must use cuDNN, and must have few shapes. */
TEST(steps_of_a_ring) {
    static const DeviceBackend BACKEND = {.plan = plan_on_gpu, .path = path_on_gpu};
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (DType type = BF16; type <= F16; type++) {
            Gpu *g = gpu_new(SMALL);
            g->device.backend = &BACKEND;
            const int64_t plans = mock.plans;
            for (int rank = 0; rank < ranks; rank++) {
                const RingPaths paths = ring_plan(&g->device, ranks, rank, type);
                if (*paths.other) fail_msg("rank %d of %d, %s", rank, ranks, paths.other);
                assert_int_equal(paths.calls, 2 * ranks);
            }
            assert_int_equal(mock.plans - plans,
                             2 * 3); /* shapes: own keys, half of the keys, half of the queries */
            gpu_free(g);
        }
}
