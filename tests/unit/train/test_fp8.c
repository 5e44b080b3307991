/* Tests FP8 GEMMs on ranks that are threads. Storage is F64, so different orders of summation differ by about
 * 2^-53, which rarely crosses the midpoint between two FP8 numbers. So layouts with equal scales agree, and
 * those with different scales differ by FP8 roundings. */
#include <math.h>
#include <stdlib.h>

#include "unit/err.h"
#include "unit/train/ranks_step.h"

#include "param/collect.h"
#include "run/launch.h"

enum { STEPS = 3 };

typedef struct Outcome {
    double loss[STEPS], *masters; /* masters of the whole model */
} Outcome;

typedef struct Trial {
    const Setup *setup;
    const Model *whole;
    Outcome outcome;
} Trial;

static bool is_native(const Setup *s) { return s->config.fp8_keep_weights || s->config.fp8_param_gather; }

/* Creates a trainer. If FP8 values of weights are kept or stored, FP8 GEMMs are native, which the CPU supports on
 * request. */
static Trainer *run_of(const Setup *s, Comm *comm) {
    Device *device;
    const DeviceSpec spec = {.threads = 1, .fp8_gemms = is_native(s) ? FP8_GEMM_WHOLE | FP8_GEMM_EXPERTS : 0};
    assert_ok(device_open(&spec, &device));
    Trainer *r = trainer_new(&s->config, NULL, comm, device);
    registry_init(r->run.model->registry, r->run.context.seed);
    trainer_publish(r);
    return r;
}

static Err train(void *arg, Comm *comm) {
    Trial *t = arg;
    const Registry *whole = t->whole->registry;
    Trainer *r = run_of(t->setup, comm);
    double loss[STEPS], *masters = mem_alloc((size_t)whole->elements * sizeof *masters);
    for (int i = 0; i < STEPS; i++) loss[i] = rank_step(t->setup, r).loss;
    registry_gather_whole(r->run.model->registry, FLAT_MASTERS, r->run.model->registry->masters, comm, whole,
                          masters);
    if (rank_is_printer(comm)) {
        memcpy(t->outcome.loss, loss, sizeof loss);
        t->outcome.masters = masters;
    } else
        free(masters);
    trainer_free(r);
    return ERR_OK;
}

#define MODEL                                                                                                \
    "--bf16 --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --vocab-size 32 "        \
    "--global-batch-size 4 --make-vocab-size-divisible-by 8 --swiglu --calculate-per-token-loss "            \
    "--fp8-amax-history-len 2 --fp8-amax-compute-algo max "

/* The options are checked with bf16, as for users, and the storage is F64. */
static Setup *setup_of(const char *recipe, const char *layout) {
    Setup *s = setup_new(MODEL "%s %s", recipe, layout);
    s->config.lane = LANE_FP64;
    return s;
}

static Outcome outcome(const char *recipe, const char *layout, const Model *whole) {
    Setup *s = setup_of(recipe, layout);
    Trial t = {.setup = s, .whole = whole};
    const Err e = world_run(&s->config, train, &t);
    assert_ok(e);
    setup_free(s);
    return t.outcome;
}

/* Losses must agree within 1e-12, and parameters within 1e-9, because Adam divides updates by the size of
 * gradients. Scales and amaxes are floats and may differ by one rounding. */
static void expect_same(const Outcome *a, const Outcome *b, const Registry *whole, const char *words) {
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(a->loss[i] - b->loss[i]) <= 1e-12 * fabs(b->loss[i])))
            fail_msg("%s: the loss of step %d is %.17g, not %.17g", words, i, a->loss[i], b->loss[i]);
    for (int i = 0; i < whole->n; i++) {
        const Param *p = whole->params[i];
        const bool is_state = p->spec.flags & PARAM_BUFFER;
        double square = 0, size = 0;
        for (int64_t e = p->offset; e < p->offset + p->count; e++) {
            const double d = a->masters[e] - b->masters[e];
            square += d * d, size += b->masters[e] * b->masters[e];
        }
        if (!(sqrt(square) <= (is_state ? 0x1p-23 : 1e-9) * sqrt(size)) || (is_state && size == 0))
            fail_msg("%s: %s differs by %g of %g", words, p->spec.name, sqrt(square), sqrt(size));
    }
}

static const char *const RECIPES[] = {
    "--fp8-format hybrid --fp8-recipe delayed",
    "--fp8-format hybrid --fp8-recipe tensorwise",
    ("--fp8-format e4m3 --fp8-recipe tensorwise --no-fp8-wgrad --first-last-layers-bf16 "
     "--num-layers-at-end-in-bf16 0"),
    "--fp8-format hybrid --fp8-recipe delayed --fp8-keep-weights",
    "--fp8-format hybrid --fp8-recipe tensorwise --fp8-keep-weights",
    "--fp8-format hybrid --fp8-recipe delayed --fp8-param-gather --use-distributed-optimizer",
    "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather --use-megatron-fsdp",
    "--fp8-format hybrid --fp8-recipe tensorwise --fp8-output-proj",
    "--fp8-format hybrid --fp8-recipe delayed --fp8-output-proj --fp8-param-gather "
    "--use-distributed-optimizer "
    "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --cross-entropy-chunk-size 16",
    "--fp8-format hybrid --fp8-recipe tensorwise --fp8-output-proj --fp8-param-gather --use-megatron-fsdp "
    "--untie-embeddings-and-output-weights",
    "--fp8-format hybrid --fp8-recipe delayed --fp8-output-proj --mtp-num-layers 2 --mtp-use-repeated-layer "
    "--position-embedding-type rope --untie-embeddings-and-output-weights",
};
static const char *const LAYOUTS[] = {
    "--ranks 2 --tensor-model-parallel-size 2",
    "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel",
    "--ranks 2 --pipeline-model-parallel-size 2",
    "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-schedule zero-bubble",
    "--ranks 2 --context-parallel-size 2",
    "--ranks 2",
    "--ranks 2 --use-distributed-optimizer",
    "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
};

static void expect_one_curve(const char *recipe, const char *const *layouts, size_t n) {
    Setup *s = setup_of(recipe, "");
    Model *whole = model_new(&s->config, NULL);
    Device *null = device_null();
    registry_allocate(whole->registry, null, F64, true);
    const Outcome one = outcome(recipe, "", whole);
    for (size_t i = 0; i < n; i++) {
        const Outcome other = outcome(recipe, layouts[i], whole);
        expect_same(&other, &one, whole->registry, layouts[i]);
        free(other.masters);
    }
    free(one.masters);
    model_free(whole);
    device_free(null);
    setup_free(s);
}

TEST(layouts_have_one_curve) {
    for (size_t k = 0; k < sizeof RECIPES / sizeof *RECIPES; k++)
        expect_one_curve(RECIPES[k], LAYOUTS, sizeof LAYOUTS / sizeof *LAYOUTS);
}

#define EXPERTS                                                                                              \
    "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 32 --disable-bias-linear "                    \
    "--moe-shared-expert-intermediate-size 16 --moe-token-dispatcher-type alltoall "
/* With delayed scales, experts may have any rows. With current scales, a rank must have all of a microbatch's. */
static const char *const DELAYED_EXPERTS = EXPERTS "--fp8-format hybrid --fp8-recipe delayed",
                         *const OWN_EXPERTS = EXPERTS "--fp8-format hybrid --fp8-recipe tensorwise";
static const char *const WITH_ALL_ROWS[] = {
    "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel",
    "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 "
    "--expert-tensor-parallel-size 1",
    "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 "
    "--expert-tensor-parallel-size 1 --moe-token-dispatcher-type allgather",
    "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-schedule zero-bubble",
    "--ranks 2 --use-distributed-optimizer",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "--recompute-granularity selective --recompute-modules layernorm moe_act",
    "--fp8-keep-weights --fp8-keep-inputs",
    "--ranks 2 --fp8-param-gather --use-distributed-optimizer",
    "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --fp8-param-gather --use-megatron-fsdp",
};
static const char *const WITH_SOME_ROWS[] = {
    "--ranks 2 --expert-model-parallel-size 2",
    "--ranks 2 --expert-model-parallel-size 2 --overlap-moe-expert-parallel-comm",
    "--ranks 4 --expert-model-parallel-size 2 --expert-tensor-parallel-size 2",
    "--ranks 4 --expert-model-parallel-size 2 --fp8-param-gather --use-distributed-optimizer",
    "--ranks 4 --expert-model-parallel-size 2 --fp8-param-gather --use-megatron-fsdp",
    "--ranks 2 --context-parallel-size 2",
};

TEST(layouts_of_experts_have_one_curve) {
    const char *const recipes[] = {DELAYED_EXPERTS, OWN_EXPERTS};
    for (int k = 0; k < 2; k++) {
        expect_one_curve(recipes[k], WITH_ALL_ROWS, sizeof WITH_ALL_ROWS / sizeof *WITH_ALL_ROWS);
        if (k == 0)
            expect_one_curve(recipes[k], WITH_SOME_ROWS, sizeof WITH_SOME_ROWS / sizeof *WITH_SOME_ROWS);
    }
}

/* Shows that the comparison detects rounding to FP8. */
TEST(formats_differ) {
    Setup *s = setup_of(RECIPES[1], "");
    Model *whole = model_new(&s->config, NULL);
    Device *null = device_null();
    registry_allocate(whole->registry, null, F64, true);
    const Outcome hybrid = outcome(RECIPES[1], "", whole),
                  e4m3 = outcome("--fp8-format e4m3 --fp8-recipe tensorwise", "", whole),
                  none = outcome("--fp8-format none", "", whole);
    assert_true(hybrid.loss[0] == e4m3.loss[0] && hybrid.loss[1] != e4m3.loss[1]);
    assert_true(fabs(hybrid.loss[0] - none.loss[0]) > 1e-6);
    free(hybrid.masters), free(e4m3.masters), free(none.masters);
    model_free(whole);
    device_free(null);
    setup_free(s);
}

static Err count_linears(void *arg, Comm *comm) {
    const Setup *s = arg;
    Trainer *r = trainer_new(&s->config, NULL, comm, NULL);
    const char *emulation;
    const int64_t n = trainer_fp8_linears(r, &emulation);
    trainer_free(r);
    if (n != (comm_rank(comm) ? 4 : 0) || !emulation != !n)
        return err_failed("rank %d has %lld", comm_rank(comm), (long long)n);
    return ERR_OK;
}

/* The first of two layers is computed in bf16, and each layer is on a different rank. */
TEST(a_rank_may_have_no_fp8_layer) {
    Setup *s = setup_of(RECIPES[2], "--ranks 2 --pipeline-model-parallel-size 2");
    const Err e = world_run(&s->config, count_linears, s);
    if (e.code) fail_msg("%s", e.msg);
    setup_free(s);
}

/* Only training steps may change scales, with emulated GEMMs as well as with native GEMMs of kept FP8
 * values. */
TEST(evaluation_leaves_scales_alone) {
    for (int native = 0; native < 2; native++) {
        Setup *s = setup_of(RECIPES[0], native ? "--fp8-keep-weights" : "");
        Trainer *r = run_of(s, NULL);
        const char *emulation;
        assert_int_equal(trainer_fp8_linears(r, &emulation), 8);
        assert_int_equal(!emulation, native);
        rank_step(s, r);
        const Registry *g = r->run.model->registry;
        const size_t n = (size_t)g->elements * sizeof(double);
        double *before = mem_alloc(n);
        LossSum sum[MODEL_LOSSES] = {{0}};
        memcpy(before, g->masters, n);
        Batch b = numbered_batch(s, &r->run.model->plan.sample, 100);
        trainer_evaluate(r, &b, sum);
        assert_memory_equal(before, g->masters, n);
        batch_free(&b);
        free(before);
        trainer_free(r);
        setup_free(s);
    }
}

/* --fp8-margin divides delayed scales by a power of two. Other recipes ignore it. */
TEST(margin_divides_delayed_scales_only) {
    static const char *const MARGIN[] = {"", "--fp8-margin 3"};
    double scale[2][3], loss[2];
    for (int i = 0; i < 2; i++) {
        Setup *delayed = setup_of(RECIPES[0], MARGIN[i]), *own = setup_of(RECIPES[1], MARGIN[i]);
        Trainer *r = run_of(delayed, NULL), *o = run_of(own, NULL);
        rank_step(delayed, r);
        const Tensor *t =
            &registry_find(r->run.model->registry, "decoder.layers.1.mlp.linear_fc1.fp8_state")->master;
        for (int role = 0; role < 3; role++) scale[i][role] = ((double *)t->data)[role * t->dim[1]];
        rank_step(own, o);
        loss[i] = rank_step(own, o).loss;
        trainer_free(r), trainer_free(o);
        setup_free(delayed), setup_free(own);
    }
    for (int role = 0; role < 3; role++)
        assert_true(scale[0][role] > 0 && scale[0][role] == 8 * scale[1][role]);
    assert_true(loss[0] == loss[1]);
}
