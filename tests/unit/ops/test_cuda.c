/* Compares every op on a GPU with the CPU, in every type. The tests are:
 * - the rows of kernels/cases.def, as calls and on tapes;
 * - the tapes of tapes.def, as complete runs and call by call (vs_cpu.h), and the calls of calls.def;
 * - refused calls, consecutive ops (chain.h) and asynchronous copies (async_copy.h);
 * - tensors of more than 2^31 elements (over_2g.h).
 *
 * ops_test_cuda [cuda|cpu [--alone] [pattern of test names ...]]. `cpu` uses the CPU instead of the GPU,
 * which tests the cases themselves, and omits large ones (is_for_cpu). --alone uses a single process, which
 * ends at the first fatal error; it is for tools that watch a process. The exit status is 77 if there is no
 * GPU. */
#include "unit/cmocka_all.h"

#include <fnmatch.h>
#include <stdlib.h>

#include "unit/ops/async_copy.h"
#include "unit/ops/case_table.h"
#include "unit/ops/chain.h"
#include "unit/ops/compare.h"
#include "unit/ops/isolate.h"
#include "unit/ops/over_2g.h"
#include "unit/ops/raw_calls.h"
#include "unit/ops/vs_cpu.h"

static const OpCase TAPES[] = {
#define TAPE TAPE_ROW
#include "unit/ops/tapes.def"
};
static const OpCase LARGE_TAPES[] = {
#define LARGE_TAPE TAPE_ROW
#include "unit/ops/tapes.def"
};
static const DirectCall CALLS[] = {
#define CALL(name, op, attr, arrange, in, out) {{#name, OP_##op, attr, in, out}, arrange},
#include "unit/ops/calls.def"
#undef CALL
};
/* Refused calls. The CPU's and the GPU's error messages must both contain the text. */
static const struct {
    DirectCall call;
    const char *sentence;
} WRONG[] = {
    {{{"label", OP_cross_entropy, ATTR(LossAttr, .vocab = 5), IN(X(1, 2, 7), WHOLE(5, 1, 2, 1)),
       OUT(M(2, 1), M(2, 1))},
      NULL},
     "label 5"},
    {{{"label_of_gradient", OP_cross_entropy_grad, ATTR(LossAttr, .vocab = 5),
       IN(M(2, 1), X(1, 2, 7), WHOLE(-1, 1, 2, 1), M(2, 1)), OUT(X(1, 2, 7))},
      NULL},
     "label -1"},
    {{{"label_with_gradient", OP_cross_entropy_with_grad, ATTR(LossAttr, .vocab = 5),
       IN(X(1, 2, 7), WHOLE(6, 1, 2, 1), M(2, 1)), OUT(M(2, 1), M(2, 1), X(1, 2, 7))},
      NULL},
     "label 6"},
    {{{"label_of_shard", OP_cross_entropy_shard, ATTR(LossAttr, .vocab = 9),
       IN(X(1, 2, 7), WHOLE(9, 1, 2, 1)), OUT(M(2, 2, 1))},
      NULL},
     "label 9"},
    {{{"id", OP_embedding, ATTR(EmbeddingAttr, .total = 7), IN(WHOLE(7, 1, 2, 3), X(7, 5)), OUT(X(3, 2, 5))},
      NULL},
     "id 7"},
    {{{"id_of_gradient", OP_embedding_grad, ATTR(EmbeddingAttr, .total = 7),
       IN(X(3, 2, 5), WHOLE(-2, 1, 2, 3)), OUT(M(7, 5))},
      NULL},
     "id -2"},
    {{{"position", OP_rope, ATTR(RopeAttr, .dim = 6),
       IN(X(3, 2, 1, 1, 6), M(4, 3), M(4, 3), WHOLE(4, 1, 2, 3)), OUT(X(3, 2, 1, 1, 6))},
      NULL},
     "position 4"},
    {{{"expert", OP_dispatch, ATTR(DispatchAttr, .capacity = 0), IN({0}, WHOLE(8, 1, 3, 2, 1)),
       OUT(WHOLE(0, 1, 3, 2, 1), WHOLE(0, 1, 6), WHOLE(0, 1, 9))},
      NULL},
     "expert 8"},
    {{{"rows", OP_dispatch, ATTR(DispatchAttr, .capacity = 0), IN({0}, WHOLE(0, 8, 3, 2, 1)),
       OUT(WHOLE(0, 1, 3, 2, 1), WHOLE(0, 1, 5), WHOLE(0, 1, 9))},
      NULL},
     "6 rows"},
    {{{"token_of_choice", OP_choose, ATTR(ChooseAttr, 5), IN(X(1, 2, 7), WHOLE(6, 1, 2, 8)),
       OUT(ZEROS(1, 2, 4))},
      NULL},
     "token 6"},
    {{{"piece", OP_count_zeros, NONE, IN(X(100), WHOLE(0, 1, 2, PIECE_WORDS)), OUT(WHOLE(0, 1, 1))},
      a_piece_is_too_long},
     "piece of 100 elements"},
    {{{"rows_of_arrival", OP_arrival, ATTR(ArrivalAttr, .experts = 1, .etp = 1), IN(WHOLE(1, 1, 4, 2)),
       OUT(WHOLE(0, 1, 3, 1, 1))},
      offsets_ascend},
     "4 rows"},
};
enum { WRONG_COUNT = sizeof WRONG / sizeof WRONG[0] };
enum {
    TAPE_COUNT = sizeof TAPES / sizeof TAPES[0],
    LARGE_TAPE_COUNT = sizeof LARGE_TAPES / sizeof LARGE_TAPES[0],
    CALL_COUNT = sizeof CALLS / sizeof CALLS[0]
};

typedef struct Test {
    void (*run)(const struct Test *);
    const OpCase *c;
    const DirectCall *call;
    const char *sentence;
    DType dtype;
    int number;
} Test;

/* State that all processes share, and state of each process. */
static struct {
    Isolated *ends;
    OpProfile *profile; /* calls on the device, per op */
    Agree *agree;
    struct CMUnitTest tests[ISOLATE_TESTS];
    Test data[ISOLATE_TESTS];
    int n, first;
    bool cpu;              /* instead of the GPU */
    DirectCall *row_calls; /* of kernels/cases.def */
    OpCase *row_tapes;
    char **patterns; /* patterns of test names */
    int n_patterns;  /* 0: all tests */
} all;

/* ---- tests ---- */

/* The roundings of both runs are independent, so the bound is sqrt(2) times that of one run. */
static void a_whole_run_is_near_the_cpu(const Test *t) {
    const OpLane cpu = {.dtype = t->dtype, .threads = -1, .coarse = dtype_is_16bit(t->dtype)};
    OpLane other = cpu;
    other.device = all.agree->other;
    Result want = run_case(t->c, cpu), got = run_case(t->c, other), again = run_case(t->c, other);
    compare_all(t->c, &got, &want, dtype_roundoff(t->dtype), 4 * M_SQRT2);
    same_all(t->c, &again, &got, true);
    result_free(&want), result_free(&got), result_free(&again);
}

static void its_calls_agree(const Test *t) {
    Result r = run_case(t->c, (OpLane){.dtype = t->dtype,
                                       .device = all.agree->cpu,
                                       .coarse = dtype_is_16bit(t->dtype),
                                       .trace = agree_check,
                                       .trace_arg = all.agree});
    expect_gradients(t->c, &r);
    result_free(&r);
}

static void a_call_agrees(const Test *t) {
    Arena *arena = arena_new();
    const Call c = direct_call(arena, t->call, t->dtype);
    agree_check(all.agree, &OPS[t->call->row.op], &c);
    arena_free(arena);
}

/* The sum and the norm must be bitwise equal whether one op computes them, or two ops with another op in
 * between. */
static void add_norm_is_add_and_norm(const Test *t) {
    Arena *arena = arena_new();
    const Call c = direct_call(arena, t->call, t->dtype);
    const ReplayHow how = {.device = all.agree->other, .aligned = true};
    Replay both, add, norm;
    replay_open(&both, &OPS[OP_add_norm], &c, how);
    replay_run(&both, &OPS[OP_add_norm]);
    replay_open(&add, &OPS[OP_add], &(Call){.in = {c.in[0], c.in[1]}, .out = {c.out[0]}}, how);
    replay_run(&add, &OPS[OP_add]);
    replay_open(&norm, &OPS[OP_norm],
                &(Call){.in = {&add.out[0].image, c.in[2], c.in[3]},
                        .out = {c.out[1], c.out[2], c.out[3]},
                        .attr = c.attr},
                how);
    replay_run(&norm, &OPS[OP_norm]);
    assert_true(same_elements(&both.out[0].image, &add.out[0].image));
    for (int j = 1; j < CALL_OUT; j++)
        if (c.out[j]) assert_true(same_elements(&both.out[j].image, &norm.out[j - 1].image));
    replay_free(&both), replay_free(&add), replay_free(&norm);
    arena_free(arena);
}

/* A scaled activation must be bitwise equal to an activation and scale_rows, forward and backward. */
static void scaled_activation_is_two_ops(const Test *t) {
    Arena *arena = arena_new();
    const Call c = direct_call(arena, t->call, t->dtype);
    const ReplayHow how = {.device = all.agree->other, .aligned = true};
    const bool backward = t->call->row.op == OP_activation_grad;
    const Tensor *x = c.in[backward], *y = backward ? c.in[0] : c.out[0];
    const OpDef *op = &OPS[t->call->row.op];
    const ScaleAttr attr = {false};
    Tensor result = *y; /* of the activation or, backward, of its gradient */
    result.data = NULL; /* no operand shares its memory */
    Replay both, act, scale, grad;
    replay_open(&both, op, &c, how);
    replay_run(&both, op);
    replay_open(&act, &OPS[OP_activation], &(Call){.in = {(Tensor *)x}, .out = {&result}, .attr = c.attr},
                how);
    replay_run(&act, &OPS[OP_activation]);
    if (!backward) {
        replay_open(&scale, &OPS[OP_scale_rows],
                    &(Call){.in = {&act.out[0].image, c.in[1]}, .out = {&result}, .attr = &attr}, how);
        replay_run(&scale, &OPS[OP_scale_rows]);
        assert_true(same_elements(&both.out[0].image, &scale.out[0].image));
    } else {
        replay_open(
            &scale, &OPS[OP_scale_rows_grad],
            &(Call){.in = {c.in[0], &act.out[0].image, c.in[2]}, .out = {&result, c.out[1]}, .attr = &attr},
            how);
        replay_run(&scale, &OPS[OP_scale_rows_grad]);
        replay_open(&grad, &OPS[OP_activation_grad],
                    &(Call){.in = {&scale.out[0].image, c.in[1]}, .out = {c.out[0]}, .attr = c.attr}, how);
        replay_run(&grad, &OPS[OP_activation_grad]);
        assert_true(same_elements(&both.out[0].image, &grad.out[0].image));
        assert_true(same_elements(&both.out[1].image, &scale.out[1].image));
        replay_free(&grad);
    }
    replay_free(&both), replay_free(&act), replay_free(&scale);
    arena_free(arena);
}

typedef struct WrongRun {
    Replay *replay;
    const OpDef *op;
} WrongRun;

static void run_replay(void *arg) {
    WrongRun *r = arg;
    replay_run(r->replay, r->op);
}

/* The device must report the error at the next wait, and must not have changed other memory. */
static void a_wrong_operand_is_named(const Test *t) {
    Arena *arena = arena_new();
    Device *device; /* the device stays open, because it cannot be closed after a failure */
    const Err e =
        device_open(&(DeviceSpec){.kind = all.cpu ? DEVICE_CPU : DEVICE_CUDA, .threads = 1}, &device);
    if (e.code) fail_msg("%s", e.msg);
    const Call c = direct_call(arena, t->call, t->dtype);
    Replay r;
    replay_open(&r, &OPS[t->call->row.op], &c, (ReplayHow){.device = device, .aligned = true});
    FaultScope scope;
    if (without_fault(run_replay, &(WrongRun){&r, &OPS[t->call->row.op]}, &scope))
        fail_msg("nothing is said");
    if (!strstr(scope.message, t->sentence))
        fail_msg("'%s' says nothing of '%s'", scope.message, t->sentence);
    arena_free(arena);
}

static void copies_beside_kernels(const Test *t) {
    (void)t;
    copies_run_beside(all.agree->other);
}

static void ops_in_a_row(const Test *t) {
    (void)t;
    ops_have_bits_of_waits(all.agree->other);
}

static void elements_beyond_32_bits(const Test *t) {
    Device *d = all.agree->other;
    if (device_memory_available(d) < BEYOND_BYTES) {
        print_message("left out: it needs %zu GB of the device's memory\n", BEYOND_BYTES >> 30);
        all.ends->end[t->number] = TEST_LEFT_OUT;
        return;
    }
    far_elementwise(d);
    far_linear(d);
    far_vocabulary(d);
    far_loss(d);
}

/* ---- all of them ---- */

static void wait_for_it(void *device) { device_wait(device); }

static void run_body(void *test) {
    const Test *t = test;
    t->run(t);
}

/* If a test has broken the device, the process ends, and the next process begins with this test. */
static void run_one(void **state) {
    const Test *t = *state;
    FaultScope scope;
    if (t->number != all.first && !without_fault(wait_for_it, all.agree->other, &scope)) {
        fflush(NULL);
        _exit(ISOLATE_AGAIN);
    }
    all.ends->begun = t->number;
    all.ends->end[t->number] = TEST_STARTED;
    if (!without_fault(run_body, (void *)t, &scope)) fail_msg("%s", scope.message);
    if (all.ends->end[t->number] == TEST_STARTED) all.ends->end[t->number] = TEST_PASSED;
}

static int run_from(int first) {
    all.first = first;
    all.agree->cpu = device_cpu(0);
    const Err e = device_open(&(DeviceSpec){.kind = all.cpu ? DEVICE_CPU : DEVICE_CUDA}, &all.agree->other);
    if (e.code) {
        printf("skipped: %s\n", e.msg);
        return ISOLATE_SKIPPED;
    }
    char name[200];
    printf("on %s\n", device_describe(all.agree->other, name, sizeof name));
    all.agree->other->profile = all.profile;
    _cmocka_run_group_tests("ops", all.tests + first, (size_t)(all.n - first), NULL, NULL);
    return 0;
}

static bool wanted(const char *name) {
    bool is = !all.n_patterns;
    for (int i = 0; i < all.n_patterns; i++) is |= !fnmatch(all.patterns[i], name, 0);
    return is;
}

static void add(void (*run)(const Test *), const char *mode, Test t, const char *name) {
    char *full = mem_printf("%s %s %s", mode, dtype_name(t.dtype), name);
    if (!wanted(full)) {
        free(full);
        return;
    }
    CHECK(all.n < ISOLATE_TESTS, "more than %d tests", ISOLATE_TESTS);
    t.run = run, t.number = all.n;
    all.data[all.n] = t;
    all.tests[all.n] = (struct CMUnitTest){full, run_one, NULL, NULL, &all.data[all.n]};
    all.n++;
}

static bool has_large_operand(const CaseOperand *operands, int n) {
    enum { LARGE = 1 << 19 };
    bool large = false;
    for (int i = 0; i < n; i++) {
        int64_t elements = operands[i].ndim > 0;
        for (int d = 0; d < operands[i].ndim; d++) elements *= operands[i].dim[d];
        large |= elements > LARGE;
    }
    return large;
}

/* Large cases are omitted on the CPU, because only a GPU has special kernels for them. The CPU's kernels are
 * the same for F32 and F64, and for both 16-bit types. */
static bool is_for_cpu(DType type, bool is_large) { return !is_large && (type == F32 || type == BF16); }

static void add_tape(const OpCase *c, DType type, bool is_large) {
    if (all.cpu && !is_for_cpu(type, is_large || has_large_operand(c->in, CASE_INPUTS))) return;
    add(a_whole_run_is_near_the_cpu, "run", (Test){.c = c, .dtype = type}, c->name);
    add(its_calls_agree, "calls", (Test){.c = c, .dtype = type}, c->name);
}

static void add_call(const DirectCall *call, DType type) {
    const Test t = {.call = call, .dtype = type};
    const bool is_long =
        has_large_operand(call->row.in, CALL_IN) || has_large_operand(call->row.out, CALL_OUT);
    if (all.cpu && !is_for_cpu(type, is_long)) return;
    if (dtype_is_16bit(type) && !has_storage(&call->row)) return;
    add(a_call_agrees, "direct", t, call->row.name);
    if (call->row.op == OP_add_norm) add(add_norm_is_add_and_norm, "two ops", t, call->row.name);
    const int op = call->row.op, scale = op == OP_activation ? 1 : op == OP_activation_grad ? 2 : -1;
    if (scale > 0 && call->row.in[scale].ndim)
        add(scaled_activation_is_two_ops, "two ops", t, call->row.name);
}

static void add_all(void) {
    const int rows = kernel_case_count();
    all.row_calls = mem_zero((size_t)rows, sizeof *all.row_calls);
    all.row_tapes = mem_zero((size_t)rows, sizeof *all.row_tapes);
    for (DType type = F64; type <= F16; type++) {
        for (int i = 0; i < rows; i++) {
            all.row_calls[i] = (DirectCall){.row = *kernel_case(CASE_TEST, i)};
            add_call(&all.row_calls[i], type);
            if (case_on_tape(i, &all.row_tapes[i])) add_tape(&all.row_tapes[i], type, false);
        }
        for (int i = 0; i < TAPE_COUNT; i++) add_tape(&TAPES[i], type, false);
        for (int i = 0; i < LARGE_TAPE_COUNT; i++) add_tape(&LARGE_TAPES[i], type, true);
        for (int i = 0; i < CALL_COUNT; i++) add_call(&CALLS[i], type);
    }
    for (int i = 0; i < WRONG_COUNT; i++)
        add(a_wrong_operand_is_named, "wrong",
            (Test){.call = &WRONG[i].call, .sentence = WRONG[i].sentence, .dtype = F32},
            WRONG[i].call.row.name);
    add(copies_beside_kernels, "device", (Test){.dtype = F32}, "copies beside kernels");
    add(ops_in_a_row, "device", (Test){.dtype = BF16}, "ops in a row");
    if (!all.cpu) add(elements_beyond_32_bits, "far", (Test){.dtype = BF16}, "elements");
}

/* Prints the number of runs of each op, and its largest error relative to the bound. */
static void report_ops(void) {
    for (int op = 0; op < OP_KERNELS; op++)
        printf("  %-24s %6lld calls, largest error over bound %.2g\n", OPS[op].name,
               (long long)all.profile[op].calls, all.agree->worst[op]);
}

static int run_all(bool alone) {
    if (!alone) return isolate(all.ends, all.tests, all.n, run_from);
    const int status = run_from(0);
    return status ? status : isolated_report(all.ends, all.tests, all.n, stdout);
}

int main(int argc, char **argv) {
    const bool alone = argc > 2 && !strcmp(argv[2], "--alone");
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* so that an interrupted process has printed its results */
    all.cpu = argc > 1 && !strcmp(argv[1], "cpu");
    if (argc > 2 + alone) all.patterns = argv + 2 + alone, all.n_patterns = argc - 2 - alone;
    all.ends = shared_memory(sizeof *all.ends);
    all.profile = shared_memory(OP_KERNELS * sizeof *all.profile);
    all.agree = shared_memory(sizeof *all.agree);
    add_all();
    const int status = run_all(alone);
    if (status != ISOLATE_SKIPPED && !all.n_patterns) report_ops();
    for (int i = 0; i < all.n; i++) free((char *)all.tests[i].name);
    free(all.row_calls), free(all.row_tapes);
    return status;
}
