/* Tests attention on a GPU: cuDNN's kernels must agree with ours up to the rounding of 16 bits, even in a recorded
 * graph, and cuDNN's deterministic form must be bitwise repeatable. Skipped without a GPU. */
#include "unit/cmocka_all.h"

#include <stdio.h>

#include "base/fault.h"
#include "kernels/cuda/attention/attention_path.h"
#include "kernels/ops.h"
#include "tensor/cuda.h"
#include "unit/ops/attention_run.h"

/* Several devices on one GPU, so that a shape that is planned on one of them is not planned on the others. */
typedef struct Gpus {
    Device *own, *cudnn[2]; /* [1]: in any order */
} Gpus;

/* ---- operands in the memory of a device ---- */

static void *moved(const Run *from, const Run *to, const void *at) {
    for (int i = 0; i < TENSORS; i++) {
        const size_t offset = (size_t)((const char *)at - (const char *)from->memory[i]);
        if (from->memory[i] && offset < from->bytes[i]) return (char *)to->memory[i] + offset;
    }
    fail_msg("an operand outside of the run's memory");
    return NULL;
}

static Run on_device(const Run *host, Device *d) {
    Run r = *host;
    for (int i = 0; i < TENSORS; i++) {
        if (!host->memory[i]) continue;
        r.memory[i] = device_alloc(d, host->bytes[i], "a test");
        device_write(d, r.memory[i], host->memory[i], host->bytes[i]);
    }
    for (int i = 0; i < TENSORS; i++) r.x[i].data = moved(host, &r, host->x[i].data);
    r.lse.data = device_alloc(d, tensor_bytes(&r.lse), "a test");
    r.lengths.data = device_alloc(d, tensor_bytes(&r.lengths), "a test");
    device_write(d, r.lengths.data, host->lengths.data, tensor_bytes(&r.lengths));
    return r;
}

static void read_back(const Run *r, Device *d, Run *host) {
    for (int i = 0; i < TENSORS; i++)
        if (host->memory[i]) device_read(d, host->memory[i], r->memory[i], host->bytes[i]);
    device_read(d, host->lse.data, r->lse.data, tensor_bytes(&host->lse));
}

static void device_run_free(Run *r, Device *d) {
    for (int i = 0; i < TENSORS; i++) device_release(d, r->memory[i], r->bytes[i]);
    device_release(d, r->lse.data, tensor_bytes(&r->lse));
    device_release(d, r->lengths.data, tensor_bytes(&r->lengths));
}

/* ---- running ---- */

static void make_plans(Run *r, Device *d) {
    Device *planner = device_null_for(d);
    const Call forward = forward_call(r, planner), backward = backward_call(r, planner);
    call_run(&OPS[OP_attention], &forward);
    call_run(&OPS[OP_attention_grad], &backward);
    device_reserve_scratch(d, planner->scratch);
    device_free(planner);
}

static void compute(Run *r, Device *d) {
    const Call forward = forward_call(r, d), backward = backward_call(r, d);
    call_run(&OPS[OP_attention], &forward);
    call_run(&OPS[OP_attention_grad], &backward);
}

typedef enum Way { OWN, CUDNN, RECORDED } Way;

/* Whether the calls use this path. If they do not, the test fails, unless this version of cuDNN has a known
 * bug. */
static bool goes(Run *r, Device *d, Way way) {
    const Call calls[] = {forward_call(r, d), backward_call(r, d)};
    for (int i = 0; i < 2; i++) {
        const char *path = attention_path(&calls[i]);
        if (!strncmp(path, "cuDNN", 5) == (way != OWN)) continue;
        if (!strstr(path, "cuDNN up to 9.15.0") && !strstr(path, "9.14.0 is wrong")) fail_msg("%s", path);
        print_message("left out: %s\n", path);
        return false;
    }
    return true;
}

/* Returns the results in host memory, which was filled with NaN before. The result has no memory if the path
 * is not available. */
static Run results(Shape p, Device *d, Way way) {
    Run host = run_new(p, p.dtype), r = on_device(&host, d);
    if (way != OWN) make_plans(&r, d);
    const bool can = goes(&r, d, way);
    if (can && way == RECORDED) {
        device_graph_begin(d);
        compute(&r, d);
        DeviceGraph *graph = device_graph_end(d);
        device_graph_launch(d, graph);
        device_graph_free(d, graph);
    } else if (can) {
        compute(&r, d);
    }
    read_back(&r, d, &host);
    device_run_free(&r, d);
    if (can) return host;
    run_free(&host);
    return (Run){.shape = p};
}

static void same_bits(const Run *a, const Run *b) {
    for (int i = 0; i < TENSORS; i++)
        if (a->memory[i]) assert_memory_equal(a->memory[i], b->memory[i], a->bytes[i]);
    assert_memory_equal(a->lse.data, b->lse.data, tensor_bytes(&a->lse));
}

static double rms(const Tensor *x) {
    double sum = 0;
    for (int64_t row = 0; row < tensor_rows(x); row++)
        for (int64_t c = 0; c < tensor_width(x); c++) {
            const double v = get(x, tensor_row_offset(x, row) + c);
            if (isfinite(v)) sum += v * v;
        }
    return sqrt(sum / (double)tensor_count(x));
}

/* The bound of |difference| / |lse| for two computations. Partial sums of n random terms grow as the root of
 * their number, so their roundings add up to n / sqrt(2) roundings of a term. For a score of d products, that
 * is sqrt(d / 2) times the roundoff of a score; tensor cores may truncate, with twice the roundoff, and
 * scaling rounds once more. The terms of the sum of exponentials have one sign, so it is sqrt(t / 3) times
 * the roundoff of that sum. The hardware's exp has an error of 2 ulp, and lse is also rounded. */
static double lse_bound(const Run *r) {
    const Shape *p = &r->shape;
    const double u = dtype_roundoff(F32), size = rms(&r->lse),
                 score = p->attr.scale * sqrt((double)p->d) * rms(&r->x[Q]) * rms(&r->x[K]);
    const double off = (2 * sqrt((double)p->d / 2) + 1) * score + sqrt((double)p->t / 3) + 4;
    return 2 * u * (off / size + 1);
}

/* Each of the two computations rounds probabilities, their gradients and results to 16 bits, with an error of
 * about half a unit each. */
static void compare(const Run *a, const Run *b) {
    const Shape *p = &a->shape;
    print_message("s %d t %d b %d g %d r %d d %d e %d%s:", (int)p->s, (int)p->t, (int)p->b, (int)p->g,
                  (int)p->r, (int)p->d, (int)p->e, p->any_order ? ", any order" : "");
    for (int i = Y; i < TENSORS; i++) print_message(" %s %.2g", TENSOR_NAMES[i], error(&a->x[i], &b->x[i]));
    print_message(", lse %.2g\n", error(&a->lse, &b->lse));
    for (int i = Y; i < TENSORS; i++)
        if (!(error(&a->x[i], &b->x[i]) <= 2 * dtype_roundoff(p->dtype)))
            fail_msg("%s differs", TENSOR_NAMES[i]);
    if (!(error(&a->lse, &b->lse) <= lse_bound(b))) fail_msg("lse differs by more than %.2g", lse_bound(b));
}

static void judge_again(const Run *first, const Run *again, const Run *own) {
    if (first->shape.any_order)
        compare(again, own);
    else
        same_bits(first, again);
}

static void check_form(void **state, Shape p) {
    const Gpus *g = *state;
    Device *cudnn = g->cudnn[p.any_order];
    const size_t memory = cuda_of(cudnn)->memory;
    p.attr.scale = 1 / sqrt((double)p.d);
    if (p.memory) cuda_of(cudnn)->memory = p.memory;
    Run own = results(p, g->own, OWN), first = results(p, cudnn, CUDNN), second = results(p, cudnn, CUDNN),
        recorded = results(p, cudnn, RECORDED);
    cuda_of(cudnn)->memory = memory;
    if (first.lse.data) {
        compare(&first, &own);
        judge_again(&first, &second, &own);
        judge_again(&first, &recorded, &own);
    }
    run_free(&own), run_free(&first), run_free(&second), run_free(&recorded);
}

/* Checks both forms of the backward pass: deterministic, and in any order. */
static void check(void **state, Shape p) {
    check_form(state, p);
    p.any_order = true;
    check_form(state, p);
}

static Shape causal(int64_t s, int64_t b, int64_t g, int64_t r, int64_t d, bool packed) {
    return (Shape){.s = s,
                   .t = s,
                   .b = b,
                   .g = g,
                   .r = r,
                   .d = d,
                   .e = d,
                   .attr = CAUSAL,
                   .dtype = BF16,
                   .packed = packed};
}

static void layouts_and_sizes(void **state) {
    const int64_t d[] = {8, 64, 80, 96, 128, 192, 256}, s[] = {2, 7, 77, 128, 200, 1024};
    for (int i = 0; i < 7; i++)
        for (int64_t r = 1; r <= 4; r += 3) check(state, causal(200, 2, 3, r, d[i], r > 1));
    for (int i = 0; i < 6; i++)
        for (int packed = 0; packed < 2; packed++)
            check(state, causal(s[i], 2, 2, 1 + 2 * packed, 64, packed));
    check(state, causal(2048, 2, 8, 1, 128, true));
    check(state, causal(4096, 1, 2, 4, 128, true));
    Shape p = causal(512, 2, 4, 2, 128, true);
    p.dtype = F16;
    check(state, p);
    p = causal(512, 2, 4, 1, 192, false), p.e = 128;
    check(state, p);
    p = causal(300, 2, 2, 2, 96, false), p.e = 64;
    check(state, p);
}

static void masks(void **state) {
    Shape p = causal(512, 2, 2, 4, 128, false);
    p.attr = ALL;
    check(state, p);
    p.t = 1000;
    check(state, p);
    p.attr = CAUSAL; /* no query sees the last keys */
    check(state, p);
    p.attr.query.first = 488; /* with a cache */
    check(state, p);
    p.t = 300, p.attr = CAUSAL; /* the last queries see all keys */
    check(state, p);
    p.t = 512, p.attr.window_left = 150;
    check(state, p);
    p.attr.window_left = 300, p.t = 700;
    check(state, p);
    p.any_order = true;
    const int64_t narrow[] = {1, 7, 30, 64, 128};
    for (int i = 0; i < 5; i++) {
        p.attr.window_left = narrow[i];
        check_form(state, p);
    }
}

static void padding(void **state) {
    Shape p = causal(256, 3, 4, 1, 64, true);
    p.padded = true;
    check(state, p);
    p.attr = ALL;
    check(state, p);
    p.r = 2, p.packed = false, p.t = 512;
    check(state, p);
    p.dtype = F16;
    check(state, p);
}

static void parts(void **state) {
    Shape p = causal(256, 2, 5, 2, 64, true);
    const int64_t of_one = 2 * 2 * (256 * 256 + 256 * 128);
    p.memory = (size_t)(64 * of_one * 4); /* 4 of 10 pairs fit at a time, so the last part has 2 */
    check_form(state, p);
    p.any_order = true;
    p.memory = (size_t)(64 * 2 * 256 * (4 * 64 + 2 * 128) * 4);
    check_form(state, p);
    p = causal(77, 2, 5, 1, 64, true);
    p.memory = (size_t)(64 * 2 * 128 * 128 * 5);
    check_form(state, p);
    p.any_order = true;
    p.memory = (size_t)(64 * 77 * 4 * 64 * 5);
    check_form(state, p);
}

int main(void) {
    Gpus g;
    const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .threads = 1}, &g.own);
    if (e.code) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    for (int i = 0; i < 2; i++) {
        const DeviceSpec spec = {.kind = DEVICE_CUDA, .threads = 1, .any_order = i == 1};
        CHECK(!device_open(&spec, &g.cudnn[i]).code, "the GPU has no second device");
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(layouts_and_sizes, &g),
        cmocka_unit_test_prestate(masks, &g),
        cmocka_unit_test_prestate(padding, &g),
        cmocka_unit_test_prestate(parts, &g),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_free(g.own), device_free(g.cudnn[0]), device_free(g.cudnn[1]);
    return failed;
}
