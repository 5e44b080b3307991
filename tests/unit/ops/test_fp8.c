/* Compares scales with a model of Transformer Engine's recipes (tests/data/fp8.txt), quantized tensors with
 * the definition of rounding in double, and a linear layer in FP8 with GEMMs of quantized tensors in
 * double. */
#include "tape/tape_backward.h"
#include "unit/err.h"
#include "unit/recording.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "kernels/ops.h"
#include "ops/fp8.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "param/fp8_weights.h"
#include "unit/ops/fp8_layer.h"
#include "unit/zero_grads.h"

/* ---- scales ---- */

static const char PATH[] = "tests/data/fp8.txt";
enum { HISTORY = 16, STEPS = 10 };

static float float_of(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void end_step(Tensor *state, Device *device, bool most_recent, float largest) {
    const Fp8ScaleAttr attr = {.largest = (double)largest, .most_recent = most_recent};
    call_run(&OPS[OP_fp8_scale], &(Call){.out = {state}, .attr = &attr, .device = device});
}

static void expect_scale(const char *line, const float *state, unsigned want) {
    const float scale = state[0] > 0 ? state[0] : 1; /* none yet */
    if (memcmp(&scale, &want, sizeof scale)) fail_msg("%s: the scale is %a", line, (double)scale);
}

TEST(a_tensors_own_scale) {
    Device *device = device_cpu(1);
    FILE *f = fopen(PATH, "r");
    assert_non_null(f);
    char line[64];
    unsigned amax, largest, want, n = 0;
    for (; fgets(line, sizeof line, f);) {
        if (sscanf(line, "scale %x %x %x", &amax, &largest, &want) != 3) continue;
        float scaling[2] = {0}, x[3] = {0, -float_of(amax), float_of(amax) / 2};
        Tensor s = tensor_make(scaling, F32, 1, (int64_t[]){2}), t = tensor_make(x, F32, 1, (int64_t[]){3});
        call_run(&OPS[OP_amax], &(Call){.in = {&t}, .out = {&s}, .device = device});
        end_step(&s, device, true, float_of(largest));
        expect_scale(line, scaling, want);
        const float by_steps = scaling[0];
        const Fp8ScaleAttr attr = {.largest = float_of(largest)};
        scaling[0] = scaling[1] = 7; /* the old values must not be read */
        call_run(&OPS[OP_fp8_own_scale], &(Call){.in = {&t}, .out = {&s}, .attr = &attr, .device = device});
        assert_memory_equal(&scaling[0], &by_steps, sizeof by_steps);
        assert_true(scaling[1] == 0);
        n++;
    }
    fclose(f);
    device_free(device);
    assert_true(n >= 40);
}

/* amax updates the newest entry of the window; only the end of a step shifts the window. */
TEST(scales_follow_the_window) {
    Device *device = device_cpu(1);
    FILE *f = fopen(PATH, "r");
    assert_non_null(f);
    char line[64];
    unsigned length = 0, recent = 0, largest = 0, amax, want, n = 0;
    float scaling[1 + HISTORY];
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "delayed %x %x %x", &length, &recent, &largest) == 3)
            memset(scaling, 0, sizeof scaling);
        if (sscanf(line, "step %x %x", &amax, &want) != 2) continue;
        float x[2] = {-float_of(amax), 0};
        Tensor s = tensor_make(scaling, F32, 1, (int64_t[]){1 + length}),
               a = tensor_make(x, F32, 1, (int64_t[]){1}), b = tensor_make(x + 1, F32, 1, (int64_t[]){1});
        call_run(&OPS[OP_amax], &(Call){.in = {&a}, .out = {&s}, .device = device});
        call_run(&OPS[OP_amax], &(Call){.in = {&b}, .out = {&s}, .device = device});
        end_step(&s, device, recent, float_of(largest));
        expect_scale(line, scaling, want);
        n++;
    }
    fclose(f);
    device_free(device);
    assert_int_equal(n, 8 * STEPS);
}

/* ---- a layer ---- */

/* The emulation supports any size, but an FP8 GEMM supports only multiples of its blocks. */
typedef struct Size {
    int64_t s, b, in, out;
} Size;

/* The operands' blocks, in a GEMM over columns and in a GEMM over rows. */
typedef struct Blocks {
    int64_t high, wide;
} Blocks;

typedef enum Way { EMULATED, STORED_EMULATED, NATIVE, KEPT, STORED, INPUTS_KEPT, WAYS } Way;

static void count_casts(void *arg, const OpDef *op, const Call *c) {
    (void)c;
    *(int *)arg += op == &OPS[OP_fp8_cast];
}

/* The expected number of casts of x, w and dy, including second casts of w and x in the backward pass. */
static int casts_of(QuantSpec spec, Way way) {
    const int of_dy = spec.wgrad && spec.recipe == QUANT_BLOCKWISE ? 2 : 1,
              of_w = way == KEPT || way == STORED ? 0 : 2;
    return way <= STORED_EMULATED ? 0 : of_w + of_dy + (spec.wgrad && !spec.keep_inputs ? 2 : 1);
}

/* GEMMs read FP8 values or dequantized numbers, and FP8 values of w or x are computed in each pass or kept. Or w is
 * stored only in FP8. All of these must give equal results. */
static void check_layer(QuantSpec spec, Way way) {
    const bool native = way > STORED_EMULATED;
    spec.keep_weights = way == KEPT;
    spec.store_weights = way == STORED || way == STORED_EMULATED;
    spec.keep_inputs = way == INPUTS_KEPT && spec.wgrad && spec.recipe != QUANT_BLOCKWISE;
    const Size size = native ? (Size){128, 2, 384, 128} : (Size){131, 2, 260, 133};
    const int64_t ROWS = size.s * size.b, IN = size.in, OUT = size.out;
    Layer l;
    layer_open(&l, spec, (ParamSpec){.dim = {size.out, size.in}},
               native ? FP8_GEMM_WHOLE | FP8_GEMM_BLOCKS : 0);
    assert_int_equal(!quantize_emulation(l.device, spec, ROWS, IN, OUT), native);
    assert_int_equal(l.w->value.dtype, spec.store_weights ? F8E4M3 : F64);
    const StateContext state = {.device = l.device, .tokens = ROWS, .training = true};
    states_prepare(l.registry, &state);
    if (way == KEPT) assert_true(states_bytes(l.registry) >= 2 * (size_t)(IN * OUT));
    const bool blocks = spec.recipe == QUANT_BLOCKWISE;
    const Fp8Type grad = spec.format == QUANT_HYBRID ? E5M2 : E4M3;
    const int64_t all = INT64_C(1) << 40;
    const Blocks over_columns = blocks ? (Blocks){1, BLOCK} : (Blocks){all, all},
                 over_rows = blocks ? (Blocks){BLOCK, 1} : (Blocks){all, all},
                 square = blocks ? (Blocks){BLOCK, BLOCK} : (Blocks){all, all};
    double *x0 = numbers(ROWS * IN, 1, 1), *dy0 = numbers(ROWS * OUT, 2, 2), *x = numbers(ROWS * IN, 0, 0),
           *w = numbers(OUT * IN, 0, 0), *dy = numbers(ROWS * OUT, 0, 0),
           *dx = mem_alloc((size_t)(ROWS * IN) * sizeof *dx);
    const double *w0 = l.w->master.data;
    for (int pass = 0; pass < 2; pass++) { /* a delayed scale is 1 until the first step has ended */
        zero_grads(l.registry);
        fp8_weights_cast(l.registry, NULL);
        states_refresh(l.registry, &state);
        tape_begin(l.tape, &RECORDING);
        int passes = 0;
        tape_trace(l.tape, count_casts, &passes);
        Tensor *input = tape_input(l.tape, NULL, F64, 3, (int64_t[]){size.s, size.b, IN}, 0);
        memcpy(input->data, x0, tensor_bytes(input));
        Tensor *y = op_linear(l.tape, input, &(LinearLayer){.w_oi = &l.w->value, .quantiser = l.quantiser});
        Tensor seed = tensor_make(dy0, F64, 3, y->dim);
        double *out = mem_alloc(tensor_bytes(y));
        memcpy(out, y->data, tensor_bytes(y));
        tape_backward(l.tape, y, &seed, NEED_ALL);
        assert_int_equal(passes, casts_of(spec, way));
        memcpy(dx, tape_grad(l.tape, input)->data, tensor_bytes(input));
        states_end_step(l.registry, &state);
        if (pass == 1 || spec.recipe != QUANT_DELAYED) {
            quantised(E4M3, w0, OUT, IN, square.high, square.wide, blocks, w);
            quantised(E4M3, x0, ROWS, IN, over_columns.high, over_columns.wide, blocks, x);
            quantised(grad, dy0, ROWS, OUT, over_columns.high, over_columns.wide, blocks, dy);
            expect_gemm("y", out, (ExpectedGemm){x, w, ROWS, OUT, IN, true, true});
            expect_gemm("dx", dx, (ExpectedGemm){dy, w, ROWS, IN, OUT, true, false});
            quantised(E4M3, x0, ROWS, IN, over_rows.high, over_rows.wide, blocks, x);
            quantised(grad, dy0, ROWS, OUT, over_rows.high, over_rows.wide, blocks, dy);
            expect_gemm(
                "dw", l.w->main_grad.data,
                (ExpectedGemm){spec.wgrad ? dy : dy0, spec.wgrad ? x : x0, OUT, IN, ROWS, false, false});
        }
        tape_end(l.tape);
        free(out);
    }
    free(x0), free(dy0), free(x), free(w), free(dy), free(dx);
    layer_close(&l);
}

TEST(gemms_are_of_quantised_operands) {
    for (QuantRecipe recipe = QUANT_DELAYED; recipe <= QUANT_BLOCKWISE; recipe++)
        for (int which = 0; which < 2 * WAYS; which++)
            check_layer((QuantSpec){.format = QUANT_HYBRID,
                                    .recipe = recipe,
                                    .history = 3,
                                    .most_recent = which & 1,
                                    .wgrad = which & 1},
                        (Way)(which / 2));
}

/* ---- logits in chunks ---- */

enum { POSITIONS = 256, WIDTH = 128, VOCAB = 256 };

typedef struct HeadOutcome {
    double loss[POSITIONS], dx[POSITIONS * WIDTH], dw[VOCAB * WIDTH], state[QUANT_ROLES * 4];
} HeadOutcome;

/* The second half of the positions repeats the first, so that both halves have the same scales. */
static void run_head(QuantSpec spec, Way way, int64_t positions, HeadOutcome *o) {
    spec.keep_weights = way == KEPT, spec.store_weights = way == STORED,
    spec.keep_inputs = way == INPUTS_KEPT;
    Layer l;
    layer_open(&l, spec, (ParamSpec){.dim = {VOCAB, WIDTH}},
               way == EMULATED ? 0 : FP8_GEMM_WHOLE | FP8_GEMM_BLOCKS);
    const StateContext state = {.device = l.device, .tokens = POSITIONS, .training = true};
    double *x0 = numbers(POSITIONS / 2 * WIDTH, 1, 1), *dloss0 = numbers(POSITIONS / 2, 2, 0);
    double dloss[POSITIONS];
    int64_t ids[POSITIONS];
    for (int i = 0; i < POSITIONS; i++) {
        dloss[i] = dloss0[i % (POSITIONS / 2)];
        ids[i] = 7 * (i % (POSITIONS / 2)) % VOCAB;
    }
    Tensor label = tensor_make(ids, I64, 2, (int64_t[]){1, POSITIONS}),
           seed = tensor_make(dloss, F64, 2, (int64_t[]){1, POSITIONS});
    states_prepare(l.registry, &state);
    for (int pass = 0; pass < 2; pass++) {
        int casts = 0;
        zero_grads(l.registry);
        fp8_weights_cast(l.registry, NULL);
        states_refresh(l.registry, &state);
        tape_begin(l.tape, &RECORDING);
        tape_trace(l.tape, count_casts, &casts);
        Tensor *x = tape_input(l.tape, NULL, F64, 3, (int64_t[]){POSITIONS, 1, WIDTH}, 0), *loss;
        for (int half = 0; half < 2; half++)
            memcpy((double *)x->data + half * POSITIONS / 2 * WIDTH, x0, tensor_bytes(x) / 2);
        if (positions) {
            loss = op_linear_cross_entropy(
                l.tape, x, &l.w->value, &label,
                (LinearLoss){
                    .vocab = VOCAB, .positions = positions, .quantiser = l.quantiser, .dloss = &seed});
        } else {
            Tensor *y = op_linear(l.tape, x, &(LinearLayer){.w_oi = &l.w->value, .quantiser = l.quantiser});
            loss = op_cross_entropy_of(l.tape, y, &label, VOCAB, &seed);
        }
        memcpy(o->loss, loss->data, sizeof o->loss);
        tape_backward(l.tape, loss, &seed, NEED_ALL);
        memcpy(o->dx, tape_grad(l.tape, x)->data, sizeof o->dx);
        memcpy(o->dw, l.w->main_grad.data, sizeof o->dw);
        if (spec.recipe == QUANT_DELAYED)
            memcpy(o->state, tensor_at(&l.quantiser->state->master, 0), sizeof o->state);
        if (positions == POSITIONS / 2 && way == NATIVE) {
            const int blocks = spec.recipe == QUANT_BLOCKWISE ? 2 : 1, of_w = blocks;
            assert_int_equal(casts, of_w + 2 * (2 + blocks)); /* of x twice and of dy, in each chunk */
        }
        states_end_step(l.registry, &state);
        tape_end(l.tape);
    }
    free(x0), free(dloss0);
    layer_close(&l);
}

static void expect_close(const char *what, const double *a, const double *b, int64_t n) {
    double square = 0, size = 0;
    for (int64_t i = 0; i < n; i++) square += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
    /* sums of at most 256 terms in another order */
    if (!(size > 0 && square <= size * 0x1p-88))
        fail_msg("%s differs by %g of %g", what, sqrt(square), sqrt(size));
}

TEST(logits_in_chunks_are_quantised_like_whole_logits) {
    static HeadOutcome whole, chunks;
    for (QuantRecipe recipe = QUANT_DELAYED; recipe <= QUANT_BLOCKWISE; recipe++)
        for (Way way = EMULATED; way < WAYS; way++)
            for (int64_t positions = POSITIONS / 2; positions < 180; positions += 48) {
                const QuantSpec spec = {
                    .format = QUANT_HYBRID, .recipe = recipe, .history = 3, .wgrad = true};
                /* only delayed scales are the same in chunks of 176 and 80 */
                if (positions > POSITIONS / 2 && recipe != QUANT_DELAYED) continue;
                if (recipe == QUANT_BLOCKWISE && way == INPUTS_KEPT) continue;
                run_head(spec, way, 0, &whole);
                run_head(spec, way, positions, &chunks);
                expect_close("loss", chunks.loss, whole.loss, POSITIONS);
                expect_close("dx", chunks.dx, whole.dx, POSITIONS * WIDTH);
                expect_close("dw", chunks.dw, whole.dw, VOCAB * WIDTH);
                if (recipe == QUANT_DELAYED)
                    expect_close("state", chunks.state, whole.state, QUANT_ROLES * 4);
            }
}

/* ---- quantizers ---- */

TEST(a_weight_has_one_quantiser) {
    Layer l;
    const QuantSpec spec = {.format = QUANT_E4M3, .recipe = QUANT_DELAYED, .history = 1};
    layer_open(&l, spec, (ParamSpec){.dim = {WIDTH, WIDTH}}, 0);
    assert_ptr_equal(quantize_new(l.registry, "layer", l.w, spec), l.quantiser);
    layer_close(&l);
}

/* The first rule with a matching pattern applies if the layer has FP8, or has no FP8, as the rule requires. */
TEST(rules_replace_the_recipe_of_a_layer) {
    static const QuantRule RULES[] = {{"*.fc?", QUANT_OFF, QUANT_DELAYED, true, false},
                                      {"*qkv", QUANT_E4M3, QUANT_TENSORWISE, false, true},
                                      {"*q*", QUANT_E4M3, QUANT_TENSORWISE, true, true},
                                      {"*", QUANT_HYBRID, QUANT_BLOCKWISE, true, false}};
    static const struct {
        const char *name;
        QuantFormat before, after;
        QuantRecipe recipe;
    } LAYERS[] = {{"mlp.fc1", QUANT_E4M3, QUANT_OFF, QUANT_DELAYED},
                  {"mlp.fc1", QUANT_OFF, QUANT_OFF, QUANT_DELAYED},
                  {"qkv", QUANT_OFF, QUANT_E4M3, QUANT_TENSORWISE},
                  {"qkv", QUANT_HYBRID, QUANT_HYBRID, QUANT_DELAYED},
                  {"q_down", QUANT_HYBRID, QUANT_E4M3, QUANT_TENSORWISE},
                  {"mlp.fc12", QUANT_E4M3, QUANT_HYBRID, QUANT_BLOCKWISE},
                  {"mlp.fc12", QUANT_OFF, QUANT_OFF, QUANT_DELAYED}};
    for (size_t i = 0; i < sizeof LAYERS / sizeof *LAYERS; i++) {
        Registry *r = registry_new(NULL);
        const QuantSpec spec = {
            .format = LAYERS[i].before, .history = 1, .keep_inputs = true, .rules = RULES, .n_rules = 4};
        Param *w =
            param_add(r, (ParamSpec){.name = "w", .ndim = 2, .dim = {WIDTH, WIDTH}, .tp_split = SPLIT_NONE});
        const Quantiser *q = quantize_new(r, LAYERS[i].name, w, spec);
        assert_int_equal(q ? q->spec.format : QUANT_OFF, LAYERS[i].after);
        if (q) assert_int_equal(q->spec.recipe, LAYERS[i].recipe);
        if (q) assert_int_equal(q->spec.keep_inputs, q->spec.recipe != QUANT_BLOCKWISE);
        states_free(r);
        registry_free(r);
    }
}

TEST(reasons_for_the_emulation_are_given) {
    Device *none = fp8_cpu(0), *whole_only = fp8_cpu(FP8_GEMM_WHOLE),
           *all = fp8_cpu(FP8_GEMM_WHOLE | FP8_GEMM_BLOCKS);
    const QuantSpec whole = {.recipe = QUANT_TENSORWISE}, blocks = {.recipe = QUANT_BLOCKWISE},
                    emulated = {.recipe = QUANT_TENSORWISE, .emulated = true},
                    invariant = {.recipe = QUANT_TENSORWISE, .fixed_order = true};
    assert_null(quantize_emulation(all, whole, 32, 16, 48));
    assert_non_null(strstr(quantize_emulation(none, whole, 32, 16, 48), "FP8"));
    assert_non_null(strstr(quantize_emulation(whole_only, blocks, 128, 128, 128), "128 terms"));
    assert_non_null(strstr(quantize_emulation(all, emulated, 32, 16, 48), "--fp8-emulated"));
    assert_non_null(strstr(quantize_emulation(all, invariant, 32, 16, 48), "--batch-invariant-mode"));
    for (int i = 0; i < 3; i++) {
        const int64_t size[3] = {i == 0 ? 8 : 16, i == 1 ? 8 : 16, i == 2 ? 8 : 16};
        assert_non_null(strstr(quantize_emulation(all, whole, size[0], size[1], size[2]), "of 16"));
    }
    assert_null(quantize_emulation(all, blocks, 128, 256, 384));
    assert_non_null(strstr(quantize_emulation(all, blocks, 128, 256, 144), "of 128"));
    device_free(none), device_free(whole_only), device_free(all);
}

/* The inverse scales of 128 x 128 blocks are in rows whose length is a multiple of four. The padding after
 * the last block must become 0, whatever its value was. */
TEST(what_pads_the_inverses_of_squares_is_0) {
    enum { ROWS = 130, COLUMNS = 300, DOWN = 2, ACROSS = 3, PITCH = 4 };
    static float x[ROWS * COLUMNS];
    static unsigned char values[ROWS * COLUMNS];
    float inverse[DOWN * PITCH];
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 17 + 1);
    for (int i = 0; i < DOWN * PITCH; i++) inverse[i] = NAN;
    assert_int_equal(fp8_blocks_count(FP8_SQUARES, ROWS, COLUMNS), DOWN * PITCH);
    Device *device = device_cpu(1);
    const Fp8CastAttr attr = {.blocks = FP8_SQUARES};
    Tensor from = tensor_make(x, F32, 2, (int64_t[]){ROWS, COLUMNS}),
           to = tensor_make(values, F8E4M3, 2, (int64_t[]){ROWS, COLUMNS}),
           inverses = tensor_make(inverse, F32, 1, (int64_t[]){DOWN * PITCH});
    call_run(&OPS[OP_fp8_cast],
             &(Call){.in = {&from}, .out = {&to, NULL, &inverses}, .attr = &attr, .device = device});
    for (int i = 0; i < DOWN * PITCH; i++)
        assert_true(i % PITCH < ACROSS ? inverse[i] > 0 && isfinite(inverse[i]) : inverse[i] == 0);
    device_free(device);
}
