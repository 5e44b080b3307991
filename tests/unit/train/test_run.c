/* Tests single training steps: planned memory, results that do not depend on microbatches, and skipped
 * steps. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit/err.h"
#include "unit/config_helper.h"

#include "base/philox.h"
#include "data/prefetch.h"
#include "train/loop.h"
#include "train/trainer.h"
#include "unit/zero_grads.h"

static const char GPT2[] = "--num-layers 3 --seq-length 9 --vocab-size 45 ";
static const char LLAMA[] =
    "--num-layers 3 --seq-length 9 --vocab-size 45 --num-attention-heads 4 --hidden-size 32 --swiglu "
    "--group-query-attention --num-query-groups 2 --position-embedding-type rope --normalization "
    "RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --qk-layernorm ";

/* Returns b samples of an endless random text, from sample `first` on. If `masked`, every other label of every
 * third sample is masked. */
static Batch batch_of(const Setup *s, int64_t first, int64_t b, bool masked) {
    Batch x = batch_new(b, (SampleShape){.positions = s->config.seq_length, .fields = GPT_FIELDS});
    batch_reset(&x);
    for (int64_t i = 0; i < b * x.shape.positions; i++) {
        uint64_t at = (uint64_t)(first * x.shape.positions + i);
        x.tokens[i] = philox_u32(3, 1, at) % (uint32_t)s->config.derived.vocab_size;
        x.labels[i] = philox_u32(3, 2, at) % (uint32_t)s->config.derived.vocab_size;
        if (masked && (first + i / x.shape.positions) % 3 == 0 && i % x.shape.positions % 2)
            x.loss_mask[i] = 0;
    }
    return x;
}

static Trainer *run_start(const Setup *s, const MemoryPlan *plan) {
    Trainer *r = trainer_new(&s->config, plan, NULL, NULL);
    registry_init(r->run.model->registry, r->run.context.seed);
    return r;
}

/* Runs one global batch forward and backward. */
static StepReport accumulate(const Setup *s, Trainer *r, bool masked) {
    int64_t micro = s->config.derived.micro_batch_size, n = s->config.derived.global_batch_size / micro;
    StepReport report = trainer_begin_step(r);
    for (int64_t i = 0; i < n; i++) {
        Batch b = batch_of(s, r->consumed_samples + i * micro, micro, masked);
        trainer_microbatch(r, &b, n, &report);
        batch_free(&b);
    }
    trainer_reduce(r, &report);
    trainer_read(r, &report);
    return report;
}

static StepReport step(const Setup *s, Trainer *r, bool masked) {
    StepReport report = accumulate(s, r, masked);
    trainer_update(r, &report);
    return report;
}

/* ---- memory ---- */

TEST(the_plan_is_what_the_run_takes) {
    static const char *const WORDS[] = {
        "",
        "--fp64 --hidden-dropout 0",
        "--bf16 --optimizer sgd",
        "--bf16 --grad-reduce-in-bf16",
        "--fp16",
        "--attention-backend unfused",
        "--batch-invariant-mode",
        "--recompute-activations",
        "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --cross-entropy-chunk-size 6",
        "--recompute-granularity selective --recompute-modules core_attn mlp",
        "--recompute-granularity selective --recompute-modules layernorm",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--cpu-offloading-num-layers 2",
        "--bf16 --optimizer-cpu-offload --optimizer-offload-fraction 0.5",
        ("--fine-grained-activation-offloading --offload-modules attn_norm qkv_linear core_attn mlp_norm "
         "--min-offloaded-tensor-size 100"),
    };
    for (size_t k = 0; k < 2 * sizeof WORDS / sizeof *WORDS; k++) {
        Setup *s =
            setup_new("%s %s --micro-batch-size 3 --global-batch-size 6 --make-vocab-size-divisible-by %d",
                      k % 2 ? LLAMA : GPT2, WORDS[k / 2], k % 2 ? 1 : 128);
        MemoryPlan plan = memory_plan_new(&s->config, NULL, NULL);
        Trainer *r = run_start(s, &plan); /* an allocation beyond the plan would be a fault */
        for (int i = 0; i < 2; i++) step(s, r, false);
        Batch b = batch_of(s, 0, 3, false);
        LossSum sum[MODEL_LOSSES] = {{0}};
        trainer_evaluate(r, &b, sum); /* an evaluation must not need more memory */
        batch_free(&b);
        const ExecutorMemory peak = executor_peak(r->executor);
        size_t slots = OFFLOAD_SLOTS * peak.offload.slot;
        for (int m = 0; m < OFFLOAD_MODULES; m++) slots += OFFLOAD_SLOTS * peak.module[m].slot;
        assert_int_equal(peak.slot + slots, plan.part[MEMORY_slots]);
        assert_int_equal(executor_host_bytes(&peak), plan.part[MEMORY_offloaded]);
        assert_int_equal(peak.transient, plan.part[MEMORY_transient]);
        assert_int_equal(registry_bytes(r->run.model->registry) + optim_bytes(r->optimizer),
                         memory_plan_state(&plan));
        trainer_free(r);
        setup_free(s);
    }
}

TEST(recompute_takes_less) {
    static const char *const LESS[] = {
        "", "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2"};
    size_t before = SIZE_MAX;
    for (int k = 0; k < 4; k++) {
        Setup *s = setup_new("--num-layers 4 --seq-length 64 --micro-batch-size 4 %s", LESS[k]);
        MemoryPlan plan = memory_plan_new(&s->config, NULL, NULL);
        assert_true(plan.part[MEMORY_slots] < before);
        before = plan.part[MEMORY_slots];
        setup_free(s);
    }
}

TEST(recomputing_shared_experts_takes_less) {
    static const char *const LESS[] = {
        "", "--recompute-granularity selective --recompute-modules shared_experts"};
    size_t taken[2];
    for (int k = 0; k < 2; k++) {
        Setup *s =
            setup_new("--num-experts 4 --moe-shared-expert-intermediate-size 256 --disable-bias-linear "
                      "--seq-length 64 --micro-batch-size 4 %s",
                      LESS[k]);
        const MemoryPlan plan = memory_plan_new(&s->config, NULL, NULL);
        taken[k] = plan.part[MEMORY_slots];
        setup_free(s);
    }
    assert_true(taken[1] < taken[0]);
}

/* In fp32, with the slots of three layers. An offloaded tensor is on the host instead of the device, but each module has
 * two slots. A tensor with fewer elements than the minimum stays. */
TEST(offloaded_modules_are_in_the_hosts_memory) {
    enum { SEQ = 64, MICRO = 4, HIDDEN = 64, FFN = 128, TOKENS = SEQ * MICRO, LAYERS = 3 };
    const size_t x = TOKENS * HIDDEN * 4, factors = TOKENS * 4;
    const struct {
        const char *modules;
        int64_t least;
        size_t tensor, layers;
    } ROWS[] = {
        {"attn_norm", 0, x, LAYERS - 1}, /* the first layer's input is the embedding's output */
        {"mlp_norm", TOKENS * HIDDEN, x, LAYERS},
        {"mlp_norm", TOKENS * HIDDEN + 1, 0, LAYERS},
        {"qkv_linear", 0, x + 2 * factors, LAYERS},
        {"qkv_linear", TOKENS + 1, x, LAYERS},
        {"core_attn", TOKENS * HIDDEN, 4 * x, LAYERS},  /* qkv and the output */
        {"expert_fc1", TOKENS * HIDDEN, 2 * x, LAYERS}, /* each token has two experts */
        {"moe_act", TOKENS * FFN, 2 * TOKENS * FFN * 4, LAYERS},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        MemoryPlan plan[2];
        for (int k = 0; k < 2; k++) {
            Setup *s = setup_new(
                "--num-layers 3 --hidden-size 64 --seq-length 64 --micro-batch-size 4 --num-experts 4 "
                "--moe-router-topk 2 --moe-ffn-hidden-size 128 --disable-bias-linear --squared-relu "
                "--hidden-dropout 0 --attention-dropout 0 --offload-modules %s "
                "--min-offloaded-tensor-size %lld %s",
                ROWS[i].modules, (long long)ROWS[i].least, k ? "--fine-grained-activation-offloading" : "");
            plan[k] = memory_plan_new(&s->config, NULL, NULL);
            setup_free(s);
        }
        assert_int_equal(plan[1].part[MEMORY_offloaded], ROWS[i].layers * ROWS[i].tensor);
        assert_int_equal(plan[0].part[MEMORY_slots] - plan[1].part[MEMORY_slots],
                         ROWS[i].layers * ROWS[i].tensor - OFFLOAD_SLOTS * ROWS[i].tensor);
        assert_true(plan[1].part[MEMORY_transient] == plan[0].part[MEMORY_transient]);
    }
}

/* Per layer, in fp32: the norm's output, its factors for each token and head, and the gated output. */
TEST(a_discarded_gated_norm_is_not_planned) {
    enum { TOKENS = 64 * 4, HEADS = 4, WIDTH = 16, LAYERS = 2 };
    size_t slots[2];
    for (int k = 0; k < 2; k++) {
        Setup *s =
            setup_new("--num-layers 4 --hidden-size 64 --seq-length 64 --micro-batch-size 4 --normalization "
                      "RMSNorm --experimental-attention-variant gdn --linear-attention-freq 2 "
                      "--linear-num-key-heads 2 --linear-num-value-heads 4 --linear-key-head-dim 8 "
                      "--linear-value-head-dim 16 %s",
                      k ? "--recompute-granularity selective --recompute-modules gdn_norm_out" : "");
        slots[k] = memory_plan_new(&s->config, NULL, NULL).part[MEMORY_slots];
        setup_free(s);
    }
    assert_int_equal(slots[0] - slots[1], LAYERS * (2 * TOKENS * HEADS * WIDTH + TOKENS * HEADS) * 4);
}

static size_t slot_of_run(const char *modules) {
    Setup *s =
        setup_new("--num-layers 3 --hidden-size 64 --seq-length 64 --micro-batch-size 4 --num-experts 4 "
                  "--moe-router-topk 2 --moe-ffn-hidden-size 128 --disable-bias-linear --squared-relu %s",
                  modules);
    const size_t bytes = memory_plan_new(&s->config, NULL, NULL).part[MEMORY_slots];
    setup_free(s);
    return bytes;
}

/* For each of three layers, in fp32: two norms with their means and factors; the activations of two experts per
 * token. */
TEST(discarded_outputs_are_not_planned) {
    const size_t tokens = 64 * 4, norms = 3 * 2 * tokens * (64 + 2) * 4,
                 activations = 3 * 2 * tokens * 128 * 4, all = slot_of_run("");
    assert_int_equal(all - slot_of_run("--recompute-granularity selective --recompute-modules layernorm"),
                     norms);
    assert_int_equal(all - slot_of_run("--recompute-granularity selective --recompute-modules moe_act"),
                     activations);
    assert_int_equal(
        all - slot_of_run("--recompute-granularity selective --recompute-modules moe_act layernorm"),
        norms + activations);
}

/* Memory that is offloaded to the host must be absent from the device. The first layer has one sum fewer than
 * the others, so the test starts at 3 layers. */
TEST(offloading_takes_less) {
    size_t before = SIZE_MAX, all = 0;
    for (int n = 0; n < 6; n = n ? n + 1 : 3) {
        Setup *s = setup_new(
            "--num-layers 6 --seq-length 64 --micro-batch-size 4 --cpu-offloading-num-layers %d", n);
        MemoryPlan plan = memory_plan_new(&s->config, NULL, NULL);
        if (!n) all = plan.part[MEMORY_slots];
        assert_true(plan.part[MEMORY_slots] < before && (plan.part[MEMORY_offloaded] > 0) == (n > 0));
        assert_int_equal(plan.part[MEMORY_slots] + plan.part[MEMORY_offloaded], all);
        const size_t total = memory_plan_total(&plan);
        assert_int_equal(memory_plan_host(&plan), 0); /* the memory of a CPU device is host memory */
        plan.discrete = true;
        assert_int_equal(memory_plan_host(&plan), plan.part[MEMORY_offloaded]);
        assert_int_equal(memory_plan_total(&plan), total - plan.part[MEMORY_offloaded]);
        before = plan.part[MEMORY_slots];
        setup_free(s);
    }
}

/* In bf16, the master and two moments of every element, each as large as the fp32 gradient, move to host memory. The
 * host also has memory for the gradients of two chunks, each of which contains at most all elements. */
TEST(offloaded_state_is_in_the_hosts_memory) {
    MemoryPlan plan[2];
    for (int k = 0; k < 2; k++) {
        Setup *s = setup_new("--bf16 %s", k ? "--optimizer-cpu-offload" : "");
        plan[k] = memory_plan_new(&s->config, NULL, NULL);
        setup_free(s);
    }
    const size_t gradients = plan[0].part[MEMORY_gradients], host = plan[1].part[MEMORY_offloaded_state];
    assert_int_equal(plan[0].part[MEMORY_optimizer] - plan[1].part[MEMORY_optimizer], 3 * gradients);
    assert_in_range(host, 4 * gradients, 5 * gradients);
    assert_int_equal(plan[0].part[MEMORY_offloaded_state], 0);
    plan[1].discrete = true;
    assert_int_equal(memory_plan_host(&plan[1]), host);
}

TEST(a_checkpoints_copy_is_in_the_hosts_memory) {
    MemoryPlan plan = {.part = {[MEMORY_parameters] = 5, [MEMORY_snapshot] = 7, [MEMORY_offloaded] = 11}};
    assert_int_equal(memory_plan_total(&plan), 23);
    assert_int_equal(memory_plan_host(&plan), 0);
    plan.discrete = true;
    assert_int_equal(memory_plan_total(&plan), 5);
    assert_int_equal(memory_plan_host(&plan), 18);
}

TEST(too_little_memory_is_said) {
    enum { ENOUGH = 1000 };
    const MemoryPlan on_host = {.discrete = true, .part = {[MEMORY_offloaded] = (size_t)1 << 52}},
                     model = {.part = {[MEMORY_parameters] = 3 * ENOUGH}},
                     activations = {.part = {[MEMORY_parameters] = ENOUGH, [MEMORY_slots] = 2048}},
                     fits = {.part = {[MEMORY_parameters] = ENOUGH}};
    Err e = memory_plan_check(&on_host, ENOUGH);
    assert_int_equal(e.code, ERR_USER);
    assert_non_null(strstr(e.msg, "together need 4.0 PiB of host memory"));
    assert_non_null(strstr(e.msg, "--cpu-offloading-num-layers"));
    e = memory_plan_check(&model, ENOUGH);
    assert_int_equal(e.code, ERR_USER);
    assert_non_null(strstr(e.msg, "already need 2.9 KiB of memory, but only 1000 B are available"));
    assert_null(strstr(e.msg, "--micro-batch-size"));
    e = memory_plan_check(&activations, ENOUGH);
    assert_int_equal(e.code, ERR_USER);
    assert_non_null(strstr(e.msg, "2.0 KiB for activations"));
    assert_non_null(strstr(e.msg, "--micro-batch-size"));
    assert_ok(memory_plan_check(&fits, ENOUGH));
}

/* The saving is all logits except for those of one chunk, minus copies of the chunk's labels, losses and
 * gradients. */
TEST(chunks_of_logits_take_less) {
    static const char *const WORDS[] = {
        "", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --cross-entropy-chunk-size 32"};
    enum { TOKENS = 4 * 64, COLUMNS = 4096, CHUNK = 32, COPIES = 4096 };
    size_t bytes[2], slots[2];
    for (int k = 0; k < 2; k++) {
        Setup *s =
            setup_new("--num-layers 1 --seq-length 64 --micro-batch-size 4 --vocab-size 4000 %s", WORDS[k]);
        const MemoryPlan plan = memory_plan_new(&s->config, NULL, NULL);
        bytes[k] = plan.part[MEMORY_slots] + plan.part[MEMORY_transient], slots[k] = plan.part[MEMORY_slots];
        setup_free(s);
    }
    const size_t logits = (size_t)TOKENS * COLUMNS * sizeof(float), chunk = logits / TOKENS * CHUNK;
    assert_true(slots[0] - slots[1] >= logits);
    assert_true(bytes[0] - bytes[1] >= logits - chunk - COPIES);
}

/* ---- microbatches ---- */

typedef struct Outcome {
    LossSum train, valid[MODEL_LOSSES];
    double grad_norm;
    char *grads, *values;
    size_t grad_bytes, bytes;
} Outcome;

static char *copy_of(const void *from, size_t n) { return memcpy(mem_alloc(n), from, n); }

static Outcome outcome_of(const char *words, int micro, bool masked) {
    Setup *s =
        setup_new("%s --batch-invariant-mode --micro-batch-size %d --global-batch-size 8", words, micro);
    Trainer *r = run_start(s, NULL);
    Registry *g = r->run.model->registry;
    Outcome o = {.grad_bytes = (size_t)g->elements * dtype_size(g->gradients),
                 .bytes = (size_t)g->elements * dtype_size(g->precise)};
    for (int i = 0; i < 2; i++) { /* the second step starts from updated parameters */
        StepReport report = accumulate(s, r, masked);
        free(o.grads);
        o.grads = copy_of(g->grads, o.grad_bytes);
        trainer_update(r, &report);
        o.train = report.sum[0], o.grad_norm = report.optim.grad_norm;
    }
    for (int i = 0; i < 8; i += micro) {
        Batch b = batch_of(s, i, micro, masked);
        trainer_evaluate(r, &b, o.valid);
        batch_free(&b);
    }
    o.values = copy_of(g->masters, o.bytes);
    trainer_free(r);
    setup_free(s);
    return o;
}

static void expect_same(const Outcome *a, Outcome b) {
    assert_memory_equal(&a->train, &b.train, sizeof b.train);
    assert_memory_equal(a->valid, b.valid, sizeof b.valid);
    assert_true(a->grad_norm == b.grad_norm);
    assert_memory_equal(a->grads, b.grads, b.grad_bytes);
    assert_memory_equal(a->values, b.values, b.bytes);
    free(b.grads), free(b.values);
}

TEST(microbatch_size_changes_nothing) {
    static const char *const LANES[] = {"--fp64", "", "--bf16", "--bf16 --grad-reduce-in-bf16"};
    char words[512];
    for (int k = 0; k < 16; k++) {
        bool masked = k / 2 % 2; /* with masks, only the per-token loss does not depend on microbatches */
        snprintf(words, sizeof words, "%s %s %s", k % 2 ? LLAMA : GPT2, LANES[k / 4],
                 masked ? "--calculate-per-token-loss" : "");
        Outcome one = outcome_of(words, 1, masked);
        const double tokens = one.train.weight + one.valid[0].weight;
        assert_true(masked ? tokens < 2 * 8 * 9 : tokens == 2 * 8 * 9);
        for (int micro = 2; micro <= 8; micro *= 2) expect_same(&one, outcome_of(words, micro, masked));
        free(one.grads), free(one.values);
    }
}

/* Dropout depends on the number of the sample in the whole run, so a sample loses the same elements in any
 * batch. A different grouping changes matrix sizes and the order of sums. In double, this changes a loss by
 * at most a few thousand ulps, one for each term of its sums. If other elements were dropped, the loss would
 * differ by more than a thousandth. */
TEST(dropout_follows_the_sample) {
    double loss[3][2];
    static const int MICRO[] = {1, 4, 8};
    for (int k = 0; k < 3; k++) {
        Setup *s = setup_new("%s --fp64 --lr 0 --micro-batch-size %d --global-batch-size 8", GPT2, MICRO[k]);
        Trainer *r = run_start(s, NULL);
        for (int i = 0; i < 2; i++) {
            StepReport report = accumulate(s, r, false);
            if (i == 0) trainer_update(r, &report);
            loss[k][i] = report.sum[0].loss;
        }
        Batch again = batch_of(s, 8, MICRO[k],
                               false); /* samples of the second step, with the numbers of the first step */
        StepReport report = trainer_begin_step(r);
        r->consumed_samples = 0;
        trainer_microbatch(r, &again, 8 / MICRO[k], &report);
        trainer_read(r, &report);
        trainer_free(r);
        setup_free(s);
        batch_free(&again);
        for (int i = 0; k && i < 2; i++) assert_true(fabs(loss[k][i] / loss[0][i] - 1) < 0x1p-40);
        if (MICRO[k] == 8) assert_true(fabs(report.sum[0].loss / loss[k][1] - 1) > 1e-3);
    }
}

/* Sums are never split over threads, so results must be bitwise equal. */
TEST(threads_change_nothing) {
    char words[512];
    snprintf(words, sizeof words, "%s --cpu-threads 1", LLAMA);
    Outcome one = outcome_of(words, 2, false);
    snprintf(words, sizeof words, "%s --cpu-threads 3", LLAMA);
    expect_same(&one, outcome_of(words, 2, false));
    free(one.grads), free(one.values);
}

/* ---- the first gradient of a step is written ---- */

/* Overwrites the main gradients of the previous step with NaN, because a step must not read them. */
static void spoil_gradients(const Registry *g) {
    for (int i = 0; i < g->n; i++) {
        const Tensor *x = &g->params[i]->main_grad;
        for (int64_t k = 0; !(g->params[i]->spec.flags & PARAM_BUFFER) && k < g->params[i]->count; k++)
            dtype_convert((char *)x->data + k * (int64_t)dtype_size(g->gradients), g->gradients,
                          &(double){NAN}, F64, 1);
    }
}

/* Returns the gradients of a step. If `added`, all microbatches add to zeros; otherwise the first one
 * overwrites NaN. */
static double *gradients_of(const Setup *s, bool added, int64_t *n) {
    Trainer *r = run_start(s, NULL);
    Registry *g = r->run.model->registry;
    const int64_t micro = s->config.derived.micro_batch_size,
                  passes = s->config.derived.global_batch_size / micro;
    StepReport report = trainer_begin_step(r);
    spoil_gradients(g);
    if (added) zero_grads(g);
    for (int64_t i = 0; i < passes; i++) {
        Batch b = batch_of(s, i * micro, micro, false);
        trainer_microbatch(r, &b, passes, &report);
        batch_free(&b);
    }
    trainer_reduce(r, &report);
    *n = g->elements;
    double *all = mem_alloc((size_t)*n * sizeof *all);
    dtype_convert(all, F64, g->grads, g->gradients, (size_t)*n);
    trainer_free(r);
    return all;
}

TEST(first_gradient_is_written) {
    static const char *const WORDS[] = {
        "--fp64",
        "",
        "--bf16",
        "--bf16 --grad-reduce-in-bf16",
        "--lane exact --hidden-dropout 0 --attention-dropout 0",
        "--bf16 --fp8-format hybrid --fp8-recipe tensorwise",
        "--batch-invariant-mode",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        "--num-experts 8 --moe-router-topk 1 --moe-router-pre-softmax",
        "--bf16 --num-experts 8 --moe-router-topk 2 --moe-expert-capacity-factor 1",
    };
    for (size_t k = 0; k < 4 * sizeof WORDS / sizeof *WORDS; k++) {
        if (k % 2 == 0 && strstr(WORDS[k / 4], "experts"))
            continue; /* experts do not support GPT-2's biases */
        Setup *s = setup_new("%s %s --micro-batch-size 2 --global-batch-size %d", k % 2 ? LLAMA : GPT2,
                             WORDS[k / 4], k % 4 / 2 ? 6 : 2);
        int64_t n, same;
        double *written = gradients_of(s, false, &n), *added = gradients_of(s, true, &same);
        assert_int_equal(n, same);
        for (int64_t i = 0; i < n; i++) /* values are compared, because the signs of zeros may differ */
            if (!(written[i] == added[i]))
                fail_msg("%s: element %lld is %g, not %g", WORDS[k / 4], (long long)i, written[i], added[i]);
        free(written), free(added);
        setup_free(s);
    }
}

/* ---- what a step counts ---- */

TEST(skipped_step_advances_data_but_not_schedules) {
    /* with a loss scale of 2^32, any gradient of this model exceeds the range of fp16 */
    Setup *s =
        setup_new("%s --fp16 --global-batch-size 4 --lr-warmup-iters 5 --hysteresis 1 --train-iters 100 "
                  "--decoupled-lr 0.002 --weight-decay-incr-style linear --start-weight-decay 0.25 "
                  "--end-weight-decay 0.75",
                  GPT2);
    Trainer *r = run_start(s, NULL);
    Registry *g = r->run.model->registry;
    size_t n = (size_t)g->elements * dtype_size(F32);
    char *before = copy_of(g->masters, n);
    StepReport report = step(s, r, false);
    assert_true(report.optim.found_inf && !report.loss_is_nan);
    assert_true(report.loss_scale == 0x1p32);
    assert_true(r->scaler.scale == 0x1p31);
    assert_memory_equal(before, g->masters, n);
    assert_int_equal(r->iteration, 1);
    assert_int_equal(r->consumed_samples, 4);
    assert_int_equal(r->schedule_samples, 0);
    assert_int_equal(r->skipped_iterations, 1);
    for (int i = 0; i < 40 && report.optim.found_inf; i++) report = step(s, r, false);
    assert_false(report.optim.found_inf); /* the loss scale has decreased sufficiently */
    assert_int_equal(r->schedule_samples, 4);
    /* both learning rates are 0 in the first update of a warm-up */
    assert_true(report.lr == 0 && report.weight_decay == 0.25);
    assert_memory_equal(before, g->masters, n);
    report = step(s, r, false); /* 4 of 400 samples */
    assert_true(report.lr == 0.001 / 5);
    assert_true(fabs(report.weight_decay - 0.255) <= 4 * DBL_EPSILON * 0.255); /* four roundings */
    free(before);
    trainer_free(r);
    setup_free(s);
}

TEST(loss_scale_leaves_the_gradient_alone) {
    double norm[2];
    for (int i = 0; i < 2; i++) {
        Setup *s = setup_new("%s --fp16 --loss-scale %d --global-batch-size 2", GPT2, i ? 256 : 16);
        Trainer *r = run_start(s, NULL);
        StepReport report = step(s, r, false);
        assert_true(report.loss_scale == (i ? 256 : 16));
        norm[i] = report.optim.grad_norm;
        trainer_free(r);
        setup_free(s);
    }
    /* a power of two changes only exponents, except for subnormal fp16 numbers: elements below 2^-14 are
     * rounded to multiples of 2^-24 */
    assert_true(fabs(norm[0] / norm[1] - 1) < 0x1p-10);
}

TEST(evaluation_has_no_dropout_and_changes_nothing) {
    Setup *plain = setup_new("%s --fp64 --hidden-dropout 0 --attention-dropout 0", GPT2),
          *s = setup_new("%s --fp64", GPT2);
    Trainer *p = run_start(plain, NULL), *r = run_start(s, NULL);
    Batch b = batch_of(s, 0, 1, true);
    StepReport with = trainer_begin_step(r), without = trainer_begin_step(p);
    trainer_microbatch(r, &b, 1, &with);
    trainer_microbatch(p, &b, 1, &without);
    trainer_read(r, &with), trainer_read(p, &without);
    const Registry *g = r->run.model->registry;
    size_t n = (size_t)g->elements * dtype_size(F64);
    char *grads = copy_of(g->grads, n);
    LossSum sum[MODEL_LOSSES] = {{0}};
    trainer_evaluate(r, &b, sum);
    assert_memory_equal(sum, without.sum, sizeof sum);
    assert_true(with.sum[0].loss != without.sum[0].loss);
    assert_memory_equal(grads, g->grads, n);
    free(grads);
    batch_free(&b);
    trainer_free(p), trainer_free(r);
    setup_free(plain), setup_free(s);
}

TEST(nan_in_a_parameter_is_reported) {
    Setup *s = setup_new("%s", GPT2);
    Trainer *r = run_start(s, NULL);
    ((float *)registry_find(r->run.model->registry, "decoder.final_layernorm.weight")->value.data)[3] = NAN;
    StepReport report = step(s, r, false);
    assert_true(report.loss_is_nan && report.optim.found_inf);
    trainer_free(r);
    setup_free(s);
}

/* A batch in which all labels are masked must have loss 0 and zero gradients, without a division by zero. */
TEST(fully_masked_batch_is_no_gradient) {
    for (int per_token = 0; per_token < 2; per_token++) {
        Setup *s = setup_new("%s %s", GPT2, per_token ? "--calculate-per-token-loss" : "");
        Trainer *r = run_start(s, NULL);
        Batch b = batch_of(s, 0, 1, false);
        for (int64_t i = 0; i < b.b * b.shape.positions; i++) b.loss_mask[i] = 0;
        StepReport report = trainer_begin_step(r);
        trainer_microbatch(r, &b, 1, &report);
        trainer_update(r, &report);
        assert_true(report.loss == 0 && report.sum[0].weight == 0 && report.optim.grad_norm == 0 &&
                    !report.optim.found_inf);
        batch_free(&b);
        trainer_free(r);
        setup_free(s);
    }
}

/* ---- data ---- */

static int streams, least_depth,
    most_depth; /* number of started prefetches; their smallest and largest depth */

/* Linked with --wrap=prefetch_start. */
Prefetch *__real_prefetch_start(const Dataset *, Sampler *, int64_t, SampleShape, int);
Prefetch *__wrap_prefetch_start(const Dataset *, Sampler *, int64_t, SampleShape, int);
Prefetch *__wrap_prefetch_start(const Dataset *d, Sampler *s, int64_t micro, SampleShape shape, int depth) {
    if (!streams++ || depth < least_depth) least_depth = depth;
    if (streams == 1 || depth > most_depth) most_depth = depth;
    return __real_prefetch_start(d, s, micro, shape, depth);
}

TEST(num_workers_are_the_depth_of_the_prefetch) {
    static const struct {
        const char *words;
        int depth;
    } ROWS[] = {{"", 2}, {"--num-workers 0", 1}, {"--num-workers 1", 1}, {"--num-workers 7", 7}};
    const TokenFacts facts = {.eod = 31, .pad = -1, .vocab_size = 32};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        Setup *s = setup_new("--seq-length 64 --train-iters 1 --eval-iters 1 %s", ROWS[i].words);
        int stopped_by;
        streams = 0;
        assert_ok(train(&s->config, &facts, NULL, &stopped_by));
        assert_int_equal(streams, 3); /* training, validation, test */
        assert_int_equal(least_depth, ROWS[i].depth);
        assert_int_equal(most_depth, ROWS[i].depth);
        setup_free(s);
    }
}
