/* Tests every algorithm that cuBLASLt has for the GEMMs of a linear layer, with and without fusion of bias,
 * activation, the activation's derivative and the bias gradient. Any of them may be measured as the fastest,
 * so each must agree with the CPU and be bitwise repeatable. The same holds for algorithms that leave
 * multiprocessors free for other work (--gemm-sm-margin). Skipped without a GPU. */
#include "unit/cmocka_all.h"

#include "kernels/cuda/gemm/linear_algos.h"
#include "unit/ops/case_table.h"
#include "unit/ops/raw_calls.h"
#include "unit/ops/vs_cpu.h"

#define PLAIN  ATTR(LinearAttr, .fixed_order = false)
#define GELU   ATTR(LinearAttr, .activation = ACT_GELU_TANH)
#define B(...) TYPED(BF16, __VA_ARGS__)
static const DirectCall CALLS[] = {
#define CALL(name, op, attr, in, out)                                                                        \
    {                                                                                                        \
        .row = { #name, OP_##op, attr, in, out }                                                             \
    }
#define MAIN(name, op, attr, in, out)                                                                        \
    { {#name, OP_##op, attr, in, out}, results_are_main_gradients }
    CALL(plain, linear, PLAIN, IN(X(192, 2, 512), X(320, 512)), OUT(X(192, 2, 320))),
    CALL(bias, linear, PLAIN, IN(X(192, 2, 512), X(320, 512), X(320)), OUT(X(192, 2, 320))),
    CALL(gelu, linear, GELU, IN(X(192, 2, 512), X(320, 512)), OUT(X(192, 2, 320), X(192, 2, 320))),
    CALL(both, linear, GELU, IN(X(192, 2, 512), X(320, 512), X(320)), OUT(X(192, 2, 320), X(192, 2, 320))),
    CALL(odd, linear, GELU, IN(X(37, 3, 61), X(75, 61), X(75)), OUT(X(37, 3, 75), X(37, 3, 75))),
    CALL(dgrad, linear_dgrad, PLAIN, IN(X(192, 2, 320), X(320, 512)), OUT(X(192, 2, 512))),
    CALL(dgelu, linear_dgrad, GELU, IN(X(192, 2, 320), X(320, 512), X(192, 2, 512)), OUT(X(192, 2, 512))),
    CALL(odd_dgelu, linear_dgrad, GELU, IN(X(37, 3, 75), X(75, 61), X(37, 3, 61)), OUT(X(37, 3, 61))),
    CALL(wgrad, linear_wgrad, PLAIN, IN(X(192, 2, 320), X(192, 2, 512)), OUT(M(320, 512))),
    CALL(dbias, linear_wgrad, PLAIN, IN(X(192, 2, 320), X(192, 2, 512)), OUT(M(320, 512), M(320))),
    CALL(many_rows, linear_wgrad, PLAIN, IN(X(4096, 2, 64), X(4096, 2, 128)), OUT(M(64, 128), M(64))),
    MAIN(main_bf16, linear_wgrad, PLAIN, IN(B(192, 2, 320), B(192, 2, 512)), OUT(B(320, 512))),
    MAIN(main_bf16_dbias, linear_wgrad, PLAIN, IN(B(4096, 2, 64), B(4096, 2, 128)), OUT(B(64, 128), B(64))),
#undef CALL
#undef MAIN
};

enum { KINDS = 16 };

/* Checks algorithm n; returns false if it does not exist. The replays have equal alignments, so they use the
 * same plan. */
static bool goes(Agree *a, const OpDef *op, const Call *c, const Replay *want, ReplayHow how, int n,
                 int count[KINDS]) {
    Replay got, again;
    how.device = a->other;
    replay_open(&got, op, c, how);
    replay_open(&again, op, c, how);
    const int fused = linear_take_algo(op, &got.call, n);
    if (fused >= 0) {
        replay_run(&got, op);
        expect_outputs(a, op, &got, want);
        replay_run(&again, op);
        for (int j = 0; j < CALL_OUT; j++)
            if (got.call.out[j]) expect_same(op, &again, &got, j, "differ from the run before");
        count[fused]++;
    }
    replay_free(&got), replay_free(&again);
    return fused >= 0;
}

/* Whether cuBLASLt has algorithms for the call. Sums that are added to 16 bits, or to a bias of unaligned
 * rows, are rounded by a separate kernel instead (gemm.cu). */
static bool has_algos(const KernelCase *c, DType dtype, bool add) {
    const bool odd_bias = c->op == OP_linear && c->in[2].dim[0] % 8;
    return !dtype_is_16bit(dtype) || !((c->op == OP_linear_dgrad && add) || odd_bias);
}

static void every_algorithm_agrees(Agree *a, const DirectCall *d, DType dtype, bool add) {
    const OpDef *op = &OPS[d->row.op];
    Arena *arena = arena_new();
    const Call c = direct_call(arena, d, dtype);
    ReplayHow how = {.device = a->cpu, .aligned = true, .add = add};
    Replay want;
    int count[KINDS] = {0}, n = 0;
    replay_open(&want, op, &c, how);
    replay_run(&want, op);
    while (goes(a, op, &c, &want, how, n, count)) n++;
    if ((n > 0) != has_algos(&d->row, dtype, add))
        fail_msg("%s %s: %d algorithms", dtype_name(dtype), d->row.name, n);
    print_message("%s %s%s: %d algorithms", dtype_name(dtype), d->row.name, add ? ", adding" : "", n);
    for (int k = 1; k < KINDS; k++)
        if (count[k])
            print_message(", %d with%s%s%s%s fused", count[k], k & 1 ? " the bias" : "",
                          k & 2 ? " the activation" : "", k & 4 ? " dbias" : "",
                          k & 8 ? " the activation's derivative" : "");
    print_message("; largest error over bound %.2g\n", a->worst[d->row.op]);
    a->worst[d->row.op] = 0;
    replay_free(&want);
    arena_free(arena);
}

/* cuBLASLt has other algorithms for fewer multiprocessors. */
static void algorithms_with_a_margin_agree(void **state) {
    Agree *a = *state;
    Device *all = a->other;
    CHECK(!device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .gemm_sm_margin = 32}, &a->other).code,
          "the GPU has no second device");
    for (size_t i = 0; i < sizeof CALLS / sizeof CALLS[0]; i++)
        every_algorithm_agrees(a, &CALLS[i], BF16, false);
    device_free(a->other);
    a->other = all;
}

static void algorithms_agree(void **state) {
    for (DType dtype = F64; dtype <= F16; dtype++)
        for (size_t i = 0; i < sizeof CALLS / sizeof CALLS[0]; i++) {
            if (!has_storage(&CALLS[i].row) && dtype != BF16) continue;
            every_algorithm_agrees(*state, &CALLS[i], dtype, false);
            if (CALLS[i].row.op != OP_linear && !CALLS[i].row.in[2].ndim)
                every_algorithm_agrees(*state, &CALLS[i], dtype, true);
        }
}

/* Fills a new tensor of BF16 on the device with random numbers. */
static Tensor random_rows(Device *d, int64_t rows, int64_t width, uint64_t site) {
    const int64_t dim[] = {rows, 1, width};
    Tensor x = tensor_make(NULL, BF16, 3, dim);
    uint16_t *host = mem_alloc(tensor_bytes(&x));
    for (int64_t i = 0; i < rows * width; i++) {
        const float value = (float)philox_normal(3, site, (uint64_t)i);
        dtype_convert(&host[i], BF16, &value, F32, 1);
    }
    x.data = device_alloc(d, tensor_bytes(&x), "a test");
    device_write(d, x.data, host, tensor_bytes(&x));
    free(host);
    return x;
}

/* With a fixed order, rows are bitwise equal in GEMMs of each tile size, even if a block copies several tiles before it
 * multiplies the first one. */
static void rows_do_not_depend_on_their_number(void **state) {
    enum { MOST = 2100, WIDTH = 5128 };
    static const int64_t ROWS[] = {MOST, 1, 8, 9, 64, 65, 300, 1000}, TERMS[] = {264, 40};
    const LinearAttr attr = {.fixed_order = true, .steady = true};
    Device *d = ((Agree *)*state)->other;
    for (size_t t = 0; t < sizeof TERMS / sizeof *TERMS; t++) {
        Tensor x = random_rows(d, MOST, TERMS[t], 1), w = random_rows(d, WIDTH, TERMS[t], 2),
               y = random_rows(d, MOST, WIDTH, 3);
        char *want = mem_alloc(tensor_bytes(&y)), *got = mem_alloc(tensor_bytes(&y));
        w.ndim = 2, w.dim[1] = TERMS[t], w.stride[1] = 1;
        for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
            x.dim[0] = y.dim[0] = ROWS[i];
            call_run(&OPS[OP_linear], &(Call){.in = {&x, &w}, .out = {&y}, .attr = &attr, .device = d});
            device_read(d, i ? got : want, y.data, tensor_bytes(&y));
            if (i && memcmp(got, want, tensor_bytes(&y)))
                fail_msg("%lld rows of %lld terms differ", (long long)ROWS[i], (long long)TERMS[t]);
        }
        x.dim[0] = y.dim[0] = MOST;
        device_release(d, x.data, tensor_bytes(&x)), device_release(d, w.data, tensor_bytes(&w));
        device_release(d, y.data, tensor_bytes(&y));
        free(want), free(got);
    }
}

int main(void) {
    Agree agree = {.cpu = device_cpu(0)};
    const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA}, &agree.other);
    if (e.code) {
        printf("skipped: %s\n", e.msg);
        device_free(agree.cpu);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(rows_do_not_depend_on_their_number, &agree),
                                       cmocka_unit_test_prestate(algorithms_agree, &agree),
                                       cmocka_unit_test_prestate(algorithms_with_a_margin_agree, &agree)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_free(agree.other), device_free(agree.cpu);
    return failed;
}
