/* Compares a step's bf16 main gradients, on one rank and with every sharding, with the sum of its microbatches' fp32
 * gradients. With --batch-invariant-mode, the gradient of a microbatch is bitwise equal in all layouts, so results
 * differ only in the rounding of sums. */
#include <math.h>
#include <stdlib.h>

#include "unit/err.h"
#include "unit/train/ranks_step.h"

#include "param/collect.h"
#include "run/launch.h"

enum { MICROBATCHES = 4 };

#define MODEL                                                                                                \
    "--bf16 --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 8 --vocab-size 32 "         \
    "--make-vocab-size-divisible-by 8 --global-batch-size 4 --swiglu --normalization RMSNorm "               \
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope "            \
    "--hidden-dropout 0 --attention-dropout 0 --batch-invariant-mode "

typedef struct Trial {
    const Setup *setup;
    const Model *whole;
    double *grads, scale; /* gradients of the whole model, and the factor that they include */
} Trial;

/* Runs this rank's microbatches [first, first + count) of a step. */
static void accumulate(Trial *t, Comm *comm, Trainer *r, int64_t first, int64_t count) {
    const Setup *s = t->setup;
    const int64_t ranks = s->config.derived.data_parallel_size, n = MICROBATCHES / ranks;
    const Registry *whole = t->whole->registry;
    Batch batches[MICROBATCHES];
    for (int64_t i = 0; i < count; i++)
        batches[i] = numbered_batch(s, &r->run.model->plan.sample,
                                    (first + i) * ranks + r->run.layout.mesh.coordinate[AXIS_DP]);
    StepReport report = trainer_begin_step(r);
    trainer_microbatches(r, batches, count, n, &report);
    trainer_reduce(r, &report);
    double *grads = mem_alloc((size_t)whole->elements * sizeof *grads);
    registry_gather_whole(r->run.model->registry, FLAT_GRADS, r->run.model->registry->grads, comm, whole,
                          grads);
    for (int64_t e = 0; rank_is_printer(comm) && e < whole->elements; e++) t->grads[e] = grads[e];
    if (rank_is_printer(comm)) t->scale = report.grad_scale;
    for (int64_t i = 0; i < count; i++) batch_free(&batches[i]);
    free(grads);
}

static Err whole_step(void *arg, Comm *comm) {
    Trial *t = arg;
    Trainer *r = rank_trainer(t->setup, NULL, comm);
    assert_int_equal(r->run.model->registry->gradients, BF16);
    accumulate(t, comm, r, 0, MICROBATCHES / t->setup->config.derived.data_parallel_size);
    trainer_free(r);
    return ERR_OK;
}

/* The expected result: the sum of the gradients of microbatches, and the sum of their absolute values. */
typedef struct Truth {
    Setup *setup;
    Model *whole;
    Device *null;
    double *sum, *sizes;
} Truth;

static Truth truth_new(void) {
    Truth t = {.setup = setup_new(MODEL), .null = device_null()};
    t.whole = model_new(&t.setup->config, NULL);
    registry_allocate(t.whole->registry, t.null, F64, true);
    const size_t n = (size_t)t.whole->registry->elements;
    t.sum = mem_zero(n, sizeof *t.sum), t.sizes = mem_zero(n, sizeof *t.sizes);
    Trial one = {t.setup, t.whole, mem_alloc(n * sizeof *one.grads), 0};
    Trainer *r = rank_trainer(one.setup, NULL, NULL);
    assert_int_equal(r->run.model->registry->gradients, F32);
    for (int64_t i = 0; i < MICROBATCHES; i++) {
        accumulate(&one, NULL, r, i, 1);
        for (size_t e = 0; e < n; e++) {
            t.sum[e] += one.scale * one.grads[e];
            t.sizes[e] += one.scale * fabs(one.grads[e]);
        }
    }
    trainer_free(r);
    free(one.grads);
    return t;
}

static void truth_free(Truth *t) {
    model_free(t->whole), device_free(t->null), setup_free(t->setup);
    free(t->sum), free(t->sizes);
}

/* The bound: the gradient of a microbatch is rounded to float and then to bf16 when it is written or added,
 * when another one is added to it, and when ranks are summed. That is at most MICROBATCHES + 1 times. */
static void expect_sums(const Truth *truth, const Trial *t, const char *layout) {
    const double each = (1 + dtype_roundoff(BF16)) * (1 + dtype_roundoff(F32)),
                 most = pow(each, MICROBATCHES + 1) - 1;
    int64_t rounded = 0;
    for (int64_t e = 0; e < truth->whole->registry->elements; e++) {
        const double x = t->grads[e], error = fabs(t->scale * x - truth->sum[e]);
        if (x != (double)bf16_to_float(bf16_from_float((float)x)))
            fail_msg("'%s': element %lld is %.17g, which bf16 does not hold", layout, (long long)e, x);
        if (!(error <= most * truth->sizes[e]))
            fail_msg("'%s': element %lld is %.9g, the sum %.9g: off by more than %.3g of %.9g", layout,
                     (long long)e, t->scale * x, truth->sum[e], most, truth->sizes[e]);
        rounded += error > 0;
    }
    assert_true(rounded > truth->whole->registry->elements / 2);
}

TEST(sums_are_near_the_exact_ones_in_any_layout) {
    static const char *const LAYOUTS[] = {
        "--ranks 1",
        "--ranks 2",
        "--ranks 2 --overlap-grad-reduce --ddp-bucket-size 500",
        "--ranks 2 --use-distributed-optimizer",
        "--ranks 4 --use-distributed-optimizer --num-distributed-optimizer-instances 2",
        "--ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
        "--ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
        "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-schedule zero-bubble",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    };
    static const char *const OPTIONS[] = {"--grad-reduce-in-bf16",
                                          "--use-precision-aware-optimizer --main-grads-dtype bf16"};
    Truth truth = truth_new();
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        Setup *s = setup_new(MODEL "%s %s", LAYOUTS[i], OPTIONS[i % 2]);
        Trial t = {.setup = s, .whole = truth.whole};
        t.grads = mem_zero((size_t)truth.whole->registry->elements, sizeof *t.grads);
        assert_ok(world_run(&s->config, whole_step, &t));
        expect_sums(&truth, &t, LAYOUTS[i]);
        free(t.grads);
        setup_free(s);
    }
    truth_free(&truth);
}
