/* Compares the chunked linear layer and loss with the separate ops, which test_ops.c checks. */
#include "tape/tape_backward.h"
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/softcap.h"
#include "unit/ops/elements.h"
#include "unit/ops/isolate.h"

enum { S = 7, H = 12, V = 24, VOCAB = 21, MOST_SAMPLES = 3 };

typedef struct LossLane {
    DType dtype;
    int64_t b;
    bool exact, free_order; /* free_order: not batch-invariant, so BLAS chooses the order of sums */
} LossLane;

typedef struct How {
    int64_t positions; /* positions per chunk; 0 means that the two separate ops are used */
    bool fresh;        /* w's main gradient is unwritten */
    bool split;        /* a DX sweep, then a DW sweep */
    bool evaluates;
    double softcap; /* 0: none */
} How;

typedef struct Outcome {
    double loss[MOST_SAMPLES * S], dx[S * MOST_SAMPLES * H], x_after[S * MOST_SAMPLES * H], dw[V * H];
} Outcome;

static DType precise(const LossLane *l) { return l->dtype == F64 ? F64 : F32; }

static Tensor filled(const char *name, DType dtype, int ndim, const int64_t *dim) {
    Tensor t = tensor_make(NULL, dtype, ndim, dim);
    t.data = mem_aligned(tensor_bytes(&t));
    for (int64_t i = 0; i < tensor_count(&t); i++) store_element(&t, i, grid_value(name, 0, i, GRID_COARSE));
    return t;
}

static void read_all(const Tensor *t, double *out) {
    for (int64_t i = 0; i < tensor_count(t); i++) out[i] = load_element(t, i);
}

/* The initial main gradient of w. */
static double dw_before(const How *h, int64_t i) {
    return h->fresh ? 0 : grid_value("dw", 0, i, GRID_COARSE);
}

/* A tape and its operands. */
typedef struct Work {
    How how;
    RunContext context;
    Space *slot, *transient;
    Tape *tape;
    int64_t ids[MOST_SAMPLES * S];
    Tensor w, main_grad, label, dloss, other, *x;
} Work;

static void work_open(Work *k, const LossLane *l, How h) {
    const int64_t bs[] = {l->b, S};
    *k = (Work){.how = h,
                .context = {.device = device_cpu(1),
                            .dtype = l->dtype,
                            .exact = l->exact,
                            .batch_invariant = !l->free_order},
                .w = filled("w", l->dtype, 2, (int64_t[]){V, H}),
                .main_grad = filled("dw", precise(l), 2, (int64_t[]){V, H}),
                .dloss = filled("dloss", precise(l), 2, bs),
                .other = filled("dloss", precise(l), 2, bs)};
    k->label = tensor_make(k->ids, I64, 2, bs);
    for (int64_t i = 0; i < l->b * S; i++) k->ids[i] = philox_u32(5, 1, (uint64_t)i) % VOCAB;
    if (h.fresh) memset(k->main_grad.data, 0xff, tensor_bytes(&k->main_grad)); /* NaN */
    k->main_grad.flags = TENSOR_MAIN_GRAD | (h.fresh ? 0 : TENSOR_ACCUM);
    k->w.flags = TENSOR_NEEDS_GRAD;
    k->w.grad = &k->main_grad;
    k->slot = space_new(k->context.device, "slot", SPACE_UNPLANNED);
    k->transient = space_new(k->context.device, "transient", SPACE_UNPLANNED);
    k->tape = tape_new(&k->context, k->slot, k->transient);
    tape_begin(k->tape, &(MicrobatchContext){.recording = !h.evaluates, .training = !h.evaluates});
    k->x = tape_input(k->tape, NULL, l->dtype, 3, (int64_t[]){S, l->b, H}, 0);
    for (int64_t i = 0; i < tensor_count(k->x); i++)
        store_element(k->x, i, grid_value("x", 0, i, GRID_COARSE));
}

static void work_close(Work *k) {
    tape_free(k->tape);
    space_free(k->slot), space_free(k->transient);
    device_free(k->context.device);
    free(k->w.data), free(k->main_grad.data), free(k->dloss.data), free(k->other.data);
}

static Tensor *loss_of(Work *k) {
    const int64_t positions = k->how.positions;
    Tensor *dloss = k->how.evaluates ? NULL : &k->dloss;
    if (positions)
        return op_linear_cross_entropy(
            k->tape, k->x, &k->w, &k->label,
            (LinearLoss){.vocab = VOCAB, .positions = positions, .softcap = k->how.softcap, .dloss = dloss});
    Tensor *logits =
        op_softcap(k->tape, op_linear(k->tape, k->x, &(LinearLayer){.w_oi = &k->w}), k->how.softcap);
    return op_cross_entropy_of(k->tape, logits, &k->label, VOCAB, dloss);
}

static void play_back(Work *k, Tensor *loss, Tensor *dloss) {
    tape_backward(k->tape, loss, dloss, k->how.split ? NEED_DX : NEED_ALL);
    if (k->how.split) tape_backward(k->tape, loss, NULL, NEED_DW);
}

static Outcome run(const LossLane *l, How h) {
    Outcome o = {0};
    Work k;
    work_open(&k, l, h);
    Tensor *loss = loss_of(&k);
    read_all(loss, o.loss);
    if (!h.evaluates) {
        play_back(&k, loss, &k.dloss);
        read_all(tape_grad(k.tape, k.x), o.dx);
    }
    read_all(k.x, o.x_after);
    read_all(&k.main_grad, o.dw);
    work_close(&k);
    return o;
}

/* ---- tests ---- */

/* The bound for dw: both values are sums of b S products and the earlier value in any order, so they differ
 * by at most 2 K u times the sum of magnitudes. The gradient of a logit is at most that of the loss, rounded
 * to the storage type. */
static void expect_near(const LossLane *l, const How *h, const Outcome *want, const Outcome *got) {
    const double k = (double)(l->b * S + 1), u = dtype_roundoff(precise(l)),
                 v = 1 + 2 * dtype_roundoff(l->dtype);
    for (int64_t i = 0; i < V * H; i++) {
        double sum = fabs(dw_before(h, i));
        for (int64_t p = 0; p < S; p++)
            for (int64_t b = 0; b < l->b; b++)
                sum += v * fabs(grid_value("dloss", 0, b * S + p, GRID_COARSE) *
                                grid_value("x", 0, (p * l->b + b) * H + i % H, GRID_COARSE));
        if (!(fabs(want->dw[i] - got->dw[i]) <= 2 * k * u * sum))
            fail_msg("%s, %lld samples, chunks of %lld: dw[%lld] is %.17g, not %.17g, bound %.3g",
                     dtype_name(l->dtype), (long long)l->b, (long long)h->positions, (long long)i, got->dw[i],
                     want->dw[i], 2 * k * u * sum);
    }
}

static const LossLane LANES[] = {{F64, 1, false, false}, {F64, 3, false, false},  {F32, 1, false, false},
                                 {F32, 3, false, false}, {BF16, 1, false, false}, {BF16, 3, false, false},
                                 {F16, 3, false, false}, {F64, 1, true, false},   {F64, 3, true, false},
                                 {F64, 3, true, true}};
enum { LANE_COUNT = sizeof LANES / sizeof *LANES };

TEST(chunks_have_the_bits_of_the_two_ops) {
    for (int i = 0; i < LANE_COUNT; i++)
        for (int k = 0; k < 8; k++) {
            const LossLane *l = &LANES[i];
            const How whole = {.fresh = k & 1, .split = k & 2, .softcap = k & 4 ? 0.75 : 0};
            const Outcome want = run(l, whole);
            for (int64_t positions = 1; positions <= S + 1; positions++) {
                How h = whole;
                h.positions = positions;
                const Outcome got = run(l, h);
                assert_memory_equal(want.loss, got.loss, sizeof want.loss);
                assert_memory_equal(want.dx, got.dx, sizeof want.dx);
                if (l->exact || positions >= S)
                    assert_memory_equal(want.dw, got.dw, sizeof want.dw);
                else
                    expect_near(l, &h, &want, &got);
            }
        }
}

/* If the tape does not record, neither x nor the main gradient may be changed. */
TEST(an_evaluation_only_has_losses) {
    for (int i = 0; i < LANE_COUNT; i++) {
        for (int k = 0; k < 2; k++) {
            const How whole = {.evaluates = true, .softcap = k}, parts = {2, .evaluates = true, .softcap = k};
            const Outcome want = run(&LANES[i], whole), got = run(&LANES[i], parts);
            assert_memory_equal(&want, &got, sizeof want);
        }
    }
}

static void run_with_other_gradient(void *work) {
    Work *k = work;
    play_back(k, loss_of(k), &k->other);
}

TEST(another_gradient_than_was_announced_is_a_fault) {
    const LossLane l = {.dtype = F64, .b = 1};
    Work k;
    FaultScope scope;
    work_open(&k, &l, (How){.positions = 2});
    assert_false(without_fault(run_with_other_gradient, &k, &scope));
    assert_non_null(
        strstr(scope.message, "the loss's gradient differs from the gradient that the forward pass used"));
    work_close(&k);
}

/* The memory of a chunk must be freed before the next chunk begins. */
TEST(chunks_keep_no_memory) {
    for (int i = 0; i < LANE_COUNT; i++) {
        size_t used[2];
        for (int k = 0; k < 2; k++) {
            Work work;
            work_open(&work, &LANES[i], (How){.positions = k ? 1 : S, .softcap = 2});
            loss_of(&work);
            used[k] = space_used(work.transient);
            work_close(&work);
        }
        assert_int_equal(used[0], used[1]);
    }
}

TEST(chunks_are_whole_positions) {
    const int64_t gib = LINEAR_LOSS_BYTES;
    assert_int_equal(linear_loss_positions(1024, 64, 8192, 1), 128);
    assert_int_equal(linear_loss_positions(1024, 64, 8191, 1), 127);
    assert_int_equal(linear_loss_positions(1024, 64, 63, 1),
                     1); /* the limit is less than one position of each sample */
    assert_int_equal(linear_loss_positions(1024, 64, 1 << 20, 1), 1024);
    assert_int_equal(linear_loss_positions(1024, 64, 0, (size_t)gib / 65536), 1024);
    assert_int_equal(linear_loss_positions(1024, 64, 0, (size_t)gib / 65536 + 1), 512);
    assert_int_equal(linear_loss_positions(1024, 64, 0, 2 * 50304), 128); /* 824 MB instead of 6.6 GB */
    assert_int_equal(linear_loss_positions(1000, 1, 0, (size_t)gib / 300), 250);
    assert_int_equal(linear_loss_positions(7, 1, 0, (size_t)gib / 3), 2);
    assert_int_equal(linear_loss_positions(3, 5, 0, (size_t)gib), 1); /* at least one position */
}
