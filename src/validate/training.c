/* Performs the same short data-parallel training run on random tokens twice. Reports MFU, and the speed of the last
 * third of the steps relative to the first third. Losses and gradient norms of both runs must be bitwise equal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "comm/agree.h"
#include "measure/peaks.h"
#include "run/launch.h"
#include "train/trainer.h"
#include "validate/stage.h"

/* LEAST_STEPS: minimum number of steps for a comparison of two libraries */
enum { MOST_STEPS = 200, LEAST_STEPS = 8 };

typedef struct Training {
    const StageInput *in;
    Config config;
} Training;

/* The steps of one run. All members except the times are equal on all ranks. */
typedef struct Steps {
    int64_t n;
    double loss[MOST_STEPS], norm[MOST_STEPS], seconds[MOST_STEPS];
    double flops; /* FLOPs per step */
} Steps;

/* ---- options ---- */

static const char *const GPU_WORDS[] = {"--num-layers",
                                        "12",
                                        "--hidden-size",
                                        "768",
                                        "--num-attention-heads",
                                        "12",
                                        "--seq-length",
                                        "1024",
                                        "--max-position-embeddings",
                                        "1024",
                                        "--vocab-size",
                                        "50304",
                                        "--micro-batch-size",
                                        "16",
                                        "--lane",
                                        "bf16",
                                        "--device",
                                        "cuda"};
static const char *const CPU_WORDS[] = {"--num-layers",
                                        "2",
                                        "--hidden-size",
                                        "64",
                                        "--num-attention-heads",
                                        "4",
                                        "--seq-length",
                                        "64",
                                        "--max-position-embeddings",
                                        "64",
                                        "--vocab-size",
                                        "256",
                                        "--micro-batch-size",
                                        "2",
                                        "--lane",
                                        "fp32",
                                        "--cpu-threads",
                                        "1"};
static const char *const WORDS[] = {
    "--hidden-dropout", "0",          "--attention-dropout", "0", "--train-iters", "1000", "--lr",
    "0.0003",           "--mock-data"};
enum { N_OWN = sizeof CPU_WORDS / sizeof *CPU_WORDS, N_WORDS = sizeof WORDS / sizeof *WORDS };

static Err make_config(const StageInput *in, Arena *arena, Training *t) {
    const int ranks = stage_world(in);
    const bool gpu = stage_on_gpu(in);
    char *words[N_OWN + N_WORDS + 4];
    int n = 0;
    for (int i = 0; i < N_OWN; i++) words[n++] = arena_printf(arena, "%s", gpu ? GPU_WORDS[i] : CPU_WORDS[i]);
    for (int i = 0; i < N_WORDS; i++) words[n++] = arena_printf(arena, "%s", WORDS[i]);
    words[n++] = arena_printf(arena, "--ranks");
    words[n++] = arena_printf(arena, "%d", ranks);
    words[n++] = arena_printf(arena, "--global-batch-size");
    words[n++] = arena_printf(arena, "%d", ranks * (gpu ? 16 : 2));
    Args args;
    args_init(&args, arena, "validate", NULL);
    Err e = config_parse(&t->config, &args, USE_TRAINING_LOOP, CHECK_MODEL | CHECK_TRAIN, n, words);
    args_free(&args);
    if (e.code) return e;
    t->config.nccl_library = in->config.nccl_library;
    t->config.distributed_backend = in->config.distributed_backend;
    t->config.distributed_timeout_seconds = in->config.distributed_timeout_seconds;
    t->config.gemm_tuning = in->config.gemm_tuning;
    config_finish(&t->config, arena, 0);
    return ERR_OK;
}

/* ---- a run ---- */

static void take_step(const StageRank *r, const Training *t, Trainer *trainer, const Batch *x, Steps *s) {
    batch_draw(x, (uint64_t)s->n, (uint64_t)r->rank, t->config.derived.vocab_size);
    stage_barrier(r);
    const int64_t start = clock_ns();
    StepReport report = trainer_begin_step(trainer);
    trainer_microbatches(trainer, x, 1, 1, &report);
    trainer_update(trainer, &report);
    s->seconds[s->n] = (double)(clock_ns() - start) * 1e-9;
    s->loss[s->n] = report.loss, s->norm[s->n] = report.optim.grad_norm;
    s->n++;
}

/* Runs `steps` steps or, if `steps` is 0, until half of the budget has passed. Runs no step if the training does not
 * fit into memory. */
static Err train(StageRank *r, const Training *t, int64_t steps, Steps *s) {
    char transport[200];
    Device *device;
    ERR_RETURN(rank_open_device(&t->config, r->comm, &device, transport));
    const MemoryPlan plan = memory_plan_new(&t->config, r->comm, device);
    const size_t available = device_memory_available(device);
    if (memory_plan_fits(&plan, device, r->comm).code) {
        rank_free_device(r->comm, device);
        if (r->out)
            outcome_limit(r->out,
                          "training: a rank needs %s of memory, but only %s are available for all ranks",
                          bytes_text((double)memory_plan_total(&plan)).s, bytes_text((double)available).s);
        if (r->out) outcome_add(r->out, VALIDATE_INCONCLUSIVE, "", "too little memory");
        return ERR_OK;
    }
    Trainer *trainer = trainer_new(&t->config, &plan, r->comm, device);
    registry_init(trainer->run.model->registry, trainer->run.context.seed);
    trainer_publish(trainer);
    Batch x = batch_new(t->config.derived.micro_batch_size, trainer->run.model->plan.sample);
    *s = (Steps){.flops = trainer_flops(trainer, t->config.derived.global_batch_size)};
    while (s->n < (steps ? steps : MOST_STEPS)) {
        STAGE_DOING(r, "step %d of run %d", (int)s->n, steps ? 2 : 1);
        take_step(r, t, trainer, &x, s);
        if (!steps && s->n >= LEAST_STEPS && !stage_has_time(r, 0.5)) break;
    }
    batch_free(&x);
    trainer_free(trainer);
    return ERR_OK;
}

/* ---- judging ---- */

static void judge_determinism(const StageRank *r, const Steps *a, const Steps *b) {
    for (int64_t i = 0; i < a->n; i++) {
        if (!isfinite(a->loss[i]) || !isfinite(a->norm[i])) {
            outcome_add(r->out, VALIDATE_FAIL, "not known",
                        "the loss of step %d is %g, and its gradient norm is %g", (int)i + 1, a->loss[i],
                        a->norm[i]);
            return;
        }
        if (a->loss[i] == b->loss[i] && a->norm[i] == b->norm[i]) continue;
        outcome_add(
            r->out, VALIDATE_FAIL, r->world > 1 ? "rank or transport" : stage_suspect(r, 0).s,
            "two equal runs differ, beginning at step %d: loss %.17g and %.17g, gradient norm %.17g and "
            "%.17g%s",
            (int)i + 1, a->loss[i], b->loss[i], a->norm[i], b->norm[i],
            r->world > 1 ? "; the stages compute and collectives show the cause" : "");
        return;
    }
}

/* Judges whether the speed drifts. Ignores the first step, which is slower because it is the first to access
 * the memory. */
static void judge_drift(const StageRank *r, const Steps *s) {
    static const double MOST = 1.05;
    const int64_t third = (s->n - 1) / 3;
    Interval first, last;
    if (!stage_on_gpu(r->in))
        outcome_limit(r->out, "training: a drift in speed, because a CPU may be busy with other work");
    else if (!interval_of_median(s->seconds + 1, third, INTERVAL_ERROR / 2, &first) ||
             !interval_of_median(s->seconds + s->n - third, third, INTERVAL_ERROR / 2, &last))
        outcome_limit(r->out, "training: a drift in speed, because there are only %s",
                      amount(s->n, "step").s);
    else if (last.low > MOST * first.high)
        outcome_add(r->out, VALIDATE_DEGRADED, "clocks or cooling",
                    "steps take %.2f ms at the end, compared with %.2f ms at the start", last.median * 1e3,
                    first.median * 1e3);
}

static void finish(const StageRank *r, const Training *t, const Steps *s) {
    double sorted[MOST_STEPS];
    Interval all;
    memcpy(sorted, s->seconds, sizeof sorted);
    interval_of_median(sorted + 1, s->n - 1, INTERVAL_ERROR, &all);
    const double peak = bench_peak(r->described, BF16) * 1e12 * r->world, rate = s->flops / all.median;
    for (int64_t i = 1; i < s->n && i <= OUTCOME_ROUNDS; i++)
        outcome_sample(r->out, "steps/s", 1 / s->seconds[i], "training step");
    char mfu[40] = "";
    if (peak > 0) snprintf(mfu, sizeof mfu, ", %.1f %% MFU", 100 * rate / peak);
    outcome_sum_up(r->out, "%s of %lld tokens, twice, %s: %.2f ms a step, %.3g TFLOP/s%s",
                   amount(s->n, "step").s,
                   (long long)(t->config.derived.global_batch_size * t->config.seq_length), r->transport,
                   all.median * 1e3, rate * 1e-12, mfu);
    judge_drift(r, s);
}

static Err on_rank(StageRank *r) {
    Arena *arena = arena_new();
    Training t = {.in = r->in};
    Steps *a = mem_zero(2, sizeof *a), *b = a + 1;
    Err e = make_config(r->in, arena, &t);
    stage_note_transport(r);
    rank_free_device(r->comm, r->device); /* each of the two training runs opens the device again */
    if (!e.code) e = train(r, &t, 0, a);
    if (!e.code && a->n) e = train(r, &t, a->n, b);
    if (!e.code && a->n && b->n && r->out) {
        finish(r, &t, a);
        judge_determinism(r, a, b);
    }
    free(a);
    arena_free(arena);
    r->device = NULL;
    return e;
}

Err stage_training(const StageInput *in) { return stage_on_ranks(in, on_rank); }
