#include "train/loop.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "comm/agree.h"
#include "data/data.h"
#include "data/prefetch.h"
#include "data/sampler.h"
#include "run/launch.h"
#include "train/banner.h"
#include "train/checkpoint.h"
#include "train/log.h"
#include "train/stop_signals.h"
#include "train/trainer.h"

/* The state of a process, shared by all its ranks. */
typedef struct Session {
    const Config *config;
    const TokenFacts *facts;
    int64_t start_ns;
    StopSignals *signals;
    int save_lock;  /* descriptor of the --save folder's lock, or -1 if there is none */
    bool read_only; /* whether the session only checks files, without writing any */
    bool opens;     /* whether the first rank opens the data */
    Data *data;     /* read-only once the data is open */
    int stopped_by; /* the number of a signal, or 0 if there is none */
} Session;

typedef struct Loop {
    Session *session;
    const Config *config;
    Comm *comm;      /* NULL if there is only one rank */
    bool is_printer; /* whether this rank prints, writes logs and checks the time limit */
    Device *device;  /* NULL once the trainer owns the device */
    Trainer *trainer;
    Prefetch *train, *valid; /* NULL before the stream's first use */
    TrainLog *log;           /* NULL unless is_printer */
    Timers timers;
    Arena *step;             /* the batches of a step */
    int64_t first_iteration; /* number of steps before this run */
    int64_t saved_iteration, saved_samples;
    const char *exit_reason;
} Loop;

/* ---- data ---- */

/* Checks that there is data for each evaluation that the user requested. */
static Err check_evaluation(const Session *l) {
    const Config *c = l->config;
    const bool valid = data_split(l->data, SPLIT_VALID) != NULL,
               test = data_split(l->data, SPLIT_TEST) != NULL;
    const bool during = config_given(c, eval_interval), at_end = config_given(c, eval_iters);
    if (c->eval_iters <= 0 || valid || (!during && (!at_end || test))) return ERR_OK;
    return err_user(
        "--%s requests evaluation, but the data has no validation samples; make the second number of --split "
        "(%s) positive, set --valid-data-path, or disable evaluation with --eval-iters 0",
        during ? "eval-interval" : "eval-iters",
        l->config->derived.split ? l->config->derived.split : "not given");
}

/* As in Megatron-LM, --train-samples determines the data size, and the last step may need more samples. If the
 * data has too few samples, Megatron-LM fails in the last step, whereas this check reports the error at the
 * start. */
static Err check_last_step(const Session *l) {
    const Config *c = l->config;
    const Dataset *train = data_split(l->data, SPLIT_TRAIN);
    const int64_t needed = l->config->derived.samples_needed;
    const bool once = !c->skip_train && c->dataloader_type == DATALOADER_SINGLE;
    if (!once || !train || needed <= l->config->derived.train_samples || needed <= data_length(train))
        return ERR_OK;
    return err_user("the last step of --step-batch-size-schedule ends at sample %lld, but the data has only "
                    "%lld samples; set --train-samples %lld",
                    (long long)needed, (long long)data_length(train), (long long)needed);
}

static Err open_data(Session *l) {
    ERR_RETURN(data_open_options(l->config, l->facts, l->read_only, &l->data));
    ERR_RETURN(check_last_step(l));
    return check_evaluation(l);
}

static Err open_samples(Loop *l, const Dataset *dataset, bool cyclic, int64_t consumed, Prefetch **out) {
    const Config *c = l->config;
    const Mesh *mesh = &l->trainer->run.layout.mesh;
    Sampler *sampler;
    ERR_RETURN(
        sampler_open(&(SamplerConfig){.kind = cyclic ? SAMPLER_CYCLIC : SAMPLER_SINGLE,
                                      .total_samples = data_length(dataset),
                                      .consumed_samples = consumed,
                                      .micro_batch_size = l->config->derived.micro_batch_size,
                                      .dp_rank = mesh->coordinate[AXIS_DP],
                                      .dp_size = mesh->size[AXIS_DP],
                                      .no_data_sharding = !c->data_sharding,
                                      .deal = c->batch_invariant_mode ? l->config->derived.choices : 0},
                     &sampler));
    *out = prefetch_start(dataset, sampler, l->config->derived.micro_batch_size,
                          l->trainer->run.model->plan.sample, c->num_workers > 1 ? (int)c->num_workers : 1);
    return ERR_OK;
}

static Err open_stream(Loop *l, DataSplit split, int64_t consumed, Prefetch **out) {
    const Dataset *dataset = data_split(l->session->data, split);
    static const char *const NAMES[SPLIT_COUNT] = {"training", "validation", "test"};
    if (!dataset)
        return err_user("the data has no %s samples; check --split and the data paths", NAMES[split]);
    return open_samples(l, dataset, split == SPLIT_TRAIN && l->config->dataloader_type == DATALOADER_CYCLIC,
                        consumed, out);
}

/* Returns the number of microbatches that a data-parallel rank has in a global batch of `samples` samples. */
static int64_t microbatches(const Loop *l, int64_t samples) {
    return samples / (l->config->derived.micro_batch_size * l->config->derived.data_parallel_size);
}

/* Sets *batch to this rank's part of the next batch. The batch's memory is valid until the next step. */
static Err next_batch(Loop *l, Prefetch *stream, Batch *batch) {
    const Mesh *mesh = &l->trainer->run.layout.mesh;
    const Batch *whole;
    timer_start(&l->timers, TIMER_BATCH);
    Err e = prefetch_next(stream, &whole);
    timer_stop(&l->timers, TIMER_BATCH);
    if (!e.code && !whole)
        return err_user("the data ended early; check that there are enough samples for --train-iters");
    if (!e.code) *batch = batch_slice(whole, mesh->size[AXIS_CP], mesh->coordinate[AXIS_CP], l->step);
    return e;
}

/* Makes all ranks stop if the printing rank fails to write a log. */
static Err say(Loop *l, Err e) { return comm_agree(l->comm, e); }

/* ---- reasons to stop ---- */

static bool is_multiple(int64_t x, int64_t of) { return i64_is_set(of) && of > 0 && x % of == 0; }

static int64_t minutes(const Loop *l) {
    return (clock_ns() - l->session->start_ns) / (INT64_C(60) * 1000000000);
}

/* Returns the reason to exit, or NULL if there is none. The reasons of all ranks are combined, because a signal
 * may reach any of the processes. */
static const char *reason_to_exit(Loop *l, bool after_step) {
    enum { INTERRUPT, SIGNAL, DURATION, REASONS };
    const Config *c = l->config;
    const char *const names[] = {"SIGINT", ExitSignal_spellings[c->exit_signal], "--exit-duration-in-mins"};
    const bool watches = l->is_printer || comm_processes() > 1;
    const int number = watches ? stop_signals_seen(l->session->signals) : 0;
    double seen[REASONS] = {
        [INTERRUPT] = number == SIGINT,
        [SIGNAL] = number && number == stop_signals_number(c),
        [DURATION] = after_step && l->is_printer && i64_is_set(c->exit_duration_in_mins) &&
                     minutes(l) >= c->exit_duration_in_mins,
    };
    trainer_sum(l->trainer, seen, REASONS);
    for (int i = 0; i < REASONS; i++) {
        if (seen[i] == 0) continue;
        train_log_hide_status(l->log);
        if (l->is_printer && !number) printf("%s: stopping after this step\n", names[i]);
        if (watches && i != DURATION) l->session->stopped_by = i == SIGNAL ? stop_signals_number(c) : SIGINT;
        return names[i];
    }
    return after_step && is_multiple(l->trainer->iteration, c->exit_interval) ? "--exit-interval" : NULL;
}

/* ---- evaluation ---- */

/* Sums the losses over `batches` batches of each data-parallel rank. If a signal stops the evaluation, the sums
 * are incomplete, and l->exit_reason is set. */
static Err evaluate_batches(Loop *l, Prefetch *stream, int64_t batches, LossSum sum[MODEL_LOSSES]) {
    timer_start(&l->timers, TIMER_EVALUATE);
    for (int64_t i = 0; i < batches && !l->exit_reason; i++) {
        Batch b;
        arena_reset(l->step);
        ERR_RETURN(comm_agree(l->comm, next_batch(l, stream, &b)));
        trainer_evaluate(l->trainer, &b, sum);
        l->exit_reason = reason_to_exit(l, false);
    }
    timer_stop(&l->timers, TIMER_EVALUATE);
    trainer_total(l->trainer, sum);
    return ERR_OK;
}

static Err evaluate(Loop *l, Prefetch *stream, double loss[MODEL_LOSSES]) {
    LossSum sum[MODEL_LOSSES] = {{0}};
    ERR_RETURN(evaluate_batches(l, stream, microbatches(l, l->config->derived.eval_samples), sum));
    for (int i = 0; i < MODEL_LOSSES; i++) loss[i] = trainer_mean(sum[i]);
    return ERR_OK;
}

static Err evaluate_valid(Loop *l) {
    if (l->config->eval_iters <= 0 || !data_split(l->session->data, SPLIT_VALID)) return ERR_OK;
    Trainer *r = l->trainer;
    double loss[MODEL_LOSSES];
    char where[64];
    /* The data contains the samples that the current options need, but a run that continues with different
     * options can already have used more samples. If so, the evaluation begins again at the first sample. */
    const int64_t samples = l->config->derived.eval_samples;
    if (r->consumed_valid_samples > data_length(data_split(l->session->data, SPLIT_VALID)) - samples) {
        prefetch_stop(l->valid);
        l->valid = NULL;
        r->consumed_valid_samples = 0;
    }
    if (!l->valid) ERR_RETURN(open_stream(l, SPLIT_VALID, r->consumed_valid_samples, &l->valid));
    Err e = evaluate(l, l->valid, loss);
    if (e.code) return e;
    /* A stopped evaluation also consumes its samples, so that later evaluations use the same samples as a run
     * without the stop. */
    r->consumed_valid_samples += samples;
    if (l->exit_reason) return ERR_OK;
    snprintf(where, sizeof where, "iteration %lld on validation set", (long long)r->iteration);
    return say(l, l->is_printer ? train_log_eval(l->log, r, where, "validation", loss) : ERR_OK);
}

static Err evaluate_test(Loop *l) {
    if (l->config->eval_iters <= 0 || !data_split(l->session->data, SPLIT_TEST)) return ERR_OK;
    Prefetch *stream;
    double loss[MODEL_LOSSES];
    char where[64];
    ERR_RETURN(open_stream(l, SPLIT_TEST, 0, &stream));
    Err e = evaluate(l, stream, loss);
    prefetch_stop(stream);
    if (e.code || l->exit_reason) return e;
    snprintf(where, sizeof where, "iteration %lld on test set", (long long)l->trainer->iteration);
    return say(l, l->is_printer ? train_log_eval(l->log, l->trainer, where, "test", loss) : ERR_OK);
}

/* Evaluates each sample in a file once. */
static Err evaluate_file(Loop *l, int file, Accuracy *out) {
    const Dataset *samples = data_file(l->session->data, file);
    LossSum sum[MODEL_LOSSES] = {{0}};
    Prefetch *stream;
    ERR_RETURN(open_samples(l, samples, false, 0, &stream));
    const Err e = evaluate_batches(l, stream, microbatches(l, data_length(samples)), sum);
    prefetch_stop(stream);
    *out = (Accuracy){.name = data_facts(samples).file,
                      .correct = (int64_t)sum[1].loss,
                      .total = (int64_t)sum[1].weight,
                      .loss = trainer_mean(sum[0])};
    return e;
}

/* Returns the number of steps per epoch of records, or 0 if the data has no epochs. */
static int64_t epoch_steps(const Loop *l) {
    const Dataset *train = data_split(l->session->data, SPLIT_TRAIN);
    return train ? data_facts(train).epoch / l->config->derived.global_batch_size : 0;
}

static Err evaluate_files(Loop *l) {
    const int n = data_files(l->session->data);
    const int64_t steps = epoch_steps(l);
    Accuracy *files = mem_zero((size_t)n + 1, sizeof *files);
    Err e = ERR_OK;
    for (int i = 0; i < n && !e.code && !l->exit_reason; i++) e = evaluate_file(l, i, &files[i]);
    if (n && !e.code && !l->exit_reason)
        e = say(l, l->is_printer ? train_log_accuracy(l->log, l->trainer,
                                                      steps ? l->trainer->iteration / steps : 0, files, n)
                                 : ERR_OK);
    free(files);
    return e;
}

/* ---- checkpoints ---- */

/* Reports that the newest checkpoint is complete. With an asynchronous save, the run may be several steps ahead
 * of the checkpoint. */
static Err tell_saved(Loop *l, const char *event) {
    if (!l->is_printer) return say(l, ERR_OK);
    train_log_hide_status(l->log);
    printf("  successfully saved checkpoint at iteration %7lld to %s\n", (long long)l->saved_iteration,
           l->config->save);
    fflush(stdout);
    return say(l, train_log_progress(l->trainer, event, l->saved_iteration, l->saved_samples));
}

/* Finishes the save in progress if its files have been written. If `wait` is true, waits for the files. */
static Err finish_save(Loop *l, bool wait) {
    int64_t iteration;
    if (!l->trainer->saving) return ERR_OK;
    timer_start(&l->timers, TIMER_SAVE);
    Err e = trainer_finish_save(l->trainer, wait, &iteration);
    timer_stop(&l->timers, TIMER_SAVE);
    return e.code || iteration < 0 ? e : tell_saved(l, "Saved async checkpoint");
}

static Err save(Loop *l) {
    Trainer *r = l->trainer;
    if (!l->config->save || l->saved_iteration == r->iteration) return ERR_OK;
    ERR_RETURN(finish_save(l, true));
    timer_start(&l->timers, TIMER_SAVE);
    Err e = trainer_save(r);
    timer_stop(&l->timers, TIMER_SAVE);
    if (e.code) return e;
    l->saved_iteration = r->iteration, l->saved_samples = r->consumed_samples;
    if (!r->saving) return tell_saved(l, "Saved checkpoint");
    train_log_hide_status(l->log);
    if (l->is_printer)
        printf("  scheduled an async checkpoint save at iteration %7lld to %s\n", (long long)r->iteration,
               l->config->save);
    return ERR_OK;
}

/* ---- steps ---- */

/* Checks that gradients are finite. If loss scaling is not dynamic, a gradient that is not finite means that
 * the run has failed. */
static Err check_finite(Loop *l, const StepReport *s) {
    const Trainer *r = l->trainer;
    bool bad = s->loss_is_nan || s->optim.found_inf;
    if (!bad || !l->config->check_for_nan_in_loss_and_grad || r->scaler.dynamic) return ERR_OK;
    char newest[60] = "";
    if (l->saved_iteration >= 0)
        snprintf(newest, sizeof newest, "; the newest checkpoint is that of iteration %lld",
                 (long long)l->saved_iteration);
    return err_failed(
        "the %s of iteration %lld is not finite. Its update was not saved%s. Lower --lr, or check the data "
        "of this step (samples %lld to %lld). --no-check-for-nan-in-loss-and-grad skips such steps",
        s->loss_is_nan ? "loss" : "gradient", (long long)r->iteration, newest,
        (long long)(r->consumed_samples - s->samples), (long long)(r->consumed_samples - 1));
}

/* Copies n batches. The copies remain valid until the next step. A pipeline uses all n batches at the same
 * time. */
static Err take_batches(Loop *l, int64_t n, Batch **out) {
    arena_reset(l->step);
    *out = arena_alloc(l->step, (size_t)n * sizeof **out);
    for (int64_t i = 0; i < n; i++) { ERR_RETURN(next_batch(l, l->train, &(*out)[i])); }
    return ERR_OK;
}

static Err one_step(Loop *l) {
    Trainer *r = l->trainer;
    int64_t start = clock_ns();
    int64_t n = microbatches(l, config_batch_size(l->config, r->consumed_samples));
    Batch *batches;
    ERR_RETURN(comm_agree(l->comm, take_batches(l, n, &batches)));
    StepReport report = trainer_begin_step(r);
    timer_start(&l->timers, TIMER_FORWARD_BACKWARD);
    trainer_microbatches(r, batches, n, n, &report);
    trainer_reduce(r, &report);
    /* waits so that the timer includes the GPU's work */
    if (l->config->timing_log_level > 0) device_wait(r->run.device);
    timer_stop(&l->timers, TIMER_FORWARD_BACKWARD);
    timer_start(&l->timers, TIMER_OPTIMIZER);
    trainer_update(r, &report);
    timer_stop(&l->timers, TIMER_OPTIMIZER);
    ERR_RETURN(check_finite(l, &report));
    const int64_t ns = clock_ns() - start;
    const Times *times = train_log_wants_times(r) ? timers_gather(&l->timers, l->comm, l->step) : NULL;
    return say(l, l->is_printer ? train_log_step(l->log, r, &report, ns, times) : ERR_OK);
}

/* Saves and evaluates after each epoch of records, as Megatron-LM's tasks do. */
static Err end_epoch(Loop *l) {
    if (!is_multiple(l->trainer->iteration, epoch_steps(l))) return ERR_OK;
    ERR_RETURN(save(l));
    return evaluate_files(l);
}

static Err train_steps(Loop *l) {
    const Config *c = l->config;
    Trainer *r = l->trainer;
    if (r->iteration >= l->config->derived.train_iters) {
        if (l->is_printer)
            printf("already at step %lld of %lld: nothing to train; raise %s to continue\n",
                   (long long)r->iteration, (long long)l->config->derived.train_iters,
                   epoch_steps(l) ? "--epochs" : "--train-iters or --train-samples");
        return evaluate_files(l);
    }
    ERR_RETURN(open_stream(l, SPLIT_TRAIN, r->consumed_samples, &l->train));
    stop_signals_defer(l->session->signals);
    while (r->iteration < l->config->derived.train_iters && !l->exit_reason) {
        ERR_RETURN(one_step(l));
        ERR_RETURN(finish_save(l, false));
        if (is_multiple(r->iteration, c->eval_interval)) ERR_RETURN(evaluate_valid(l));
        if (is_multiple(r->iteration, c->save_interval)) ERR_RETURN(save(l));
        ERR_RETURN(end_epoch(l));
        if (!l->exit_reason) l->exit_reason = reason_to_exit(l, true);
    }
    train_log_hide_status(l->log);
    const int64_t replays = r->run.device->graph_replays;
    if (replays && l->is_printer) printf("CUDA graphs replayed %lld times\n", (long long)replays);
    return ERR_OK;
}

/* Returns whether the completed steps should be saved. After an error in the data or the machine, they are
 * saved, because the failed step has changed nothing. After a numeric error, the last regular checkpoint
 * remains the newest, and no checkpoint is deleted. */
static bool saves_at_end(const Loop *l, Err e) {
    if (l->config->skip_train) return false;
    return !e.code || (e.code != ERR_FAILED && l->trainer->iteration > l->first_iteration);
}

static Err train_and_save(Loop *l) {
    Err e = l->config->skip_train ? evaluate_files(l) : train_steps(l);
    Err saved = saves_at_end(l, e) ? save(l) : ERR_OK;
    Err finished = finish_save(l, true);
    if (!saved.code) saved = finished;
    if (e.code || saved.code) return e.code ? e : saved;
    if (!l->exit_reason) ERR_RETURN(evaluate_valid(l));
    if (!l->exit_reason) ERR_RETURN(evaluate_test(l));
    if (l->exit_reason && l->is_printer)
        printf("exiting at iteration %lld because of %s%s\n", (long long)l->trainer->iteration,
               l->exit_reason, l->config->save ? "" : "; nothing is saved without --save");
    return ERR_OK;
}

/* ---- start and end ---- */

static Err check_memory(const Loop *l, const MemoryPlan *p) {
    const size_t have = device_memory_available(l->device);
    Str text = {0};
    memory_plan_describe(p, &text);
    if (l->is_printer)
        banner_line("memory", "%s%s; %s are available", l->comm ? "rank 0: " : "", text.s,
                    bytes_text((double)have).s);
    str_free(&text);
    return memory_plan_fits(p, l->device, l->comm);
}

/* Opens the data. Process 0 opens the data and builds the index cache before the other processes open the
 * data. */
static Err open_shared(Loop *l) {
    Session *s = l->session;
    Err e = ERR_OK;
    if (l->is_printer && l->config->save) e = ckpt_lock(l->config->save, &s->save_lock);
    if (l->is_printer && !e.code && s->opens) e = open_data(s);
    ERR_RETURN(comm_agree(l->comm, e));
    if (!l->is_printer && comm_processes() > 1 && s->opens) e = open_data(s);
    ERR_RETURN(comm_agree(l->comm, e));
    const int64_t hash = (int64_t)hash_name(data_fingerprint(s->data));
    if (comm_first_difference(l->comm, &hash, 1) < 0) return ERR_OK;
    return err_user("the processes have different data: copy the same %s to all hosts",
                    s->opens ? ".bin and .idx files" : "files of the task");
}

static Err open_device(Loop *l) {
    char text[200], transport[200];
    ERR_RETURN(rank_open_device(l->config, l->comm, &l->device, transport));
    if (!l->is_printer) return ERR_OK;
    banner_line("device", "%s", device_describe(l->device, text, sizeof text));
    if (l->comm && (l->config->nccl_library || device_is_discrete(l->device) || comm_processes() > 1))
        banner_line("transport", "%s", transport);
    return ERR_OK;
}

/* Prints the choices that the options leave to the program. */
static void say_how(const Trainer *r) {
    int64_t chunks, tokens = trainer_loss_chunk(r, &chunks);
    if (tokens) printf("logits: %s of at most %s\n", amount(chunks, "chunk").s, amount(tokens, "token").s);
    if (r->run.config->fp8_format == FP8_NONE) return;
    model_note_precision(r->run.config, stdout);
    const char *why;
    if (!trainer_fp8_linears(r, &why))
        printf("FP8 GEMMs: none in the layers of rank 0\n"); /* only rank 0 prints */
    else
        printf("FP8 GEMMs: %s%s\n", why ? "emulated in fp32, because " : "on the device", why ? why : "");
}

static Err start(Loop *l) {
    const Config *c = l->config;
    ERR_RETURN(comm_agree(l->comm, l->is_printer ? checkpoint_check_folders(c) : ERR_OK));
    const ModelCount parameters = l->is_printer ? model_count(c) : (ModelCount){0};
    if (l->is_printer) banner_print(c, l->session->facts->vocab_size, &parameters);
    ERR_RETURN(open_device(l));
    MemoryPlan plan = memory_plan_new(c, l->comm, l->device);
    memory_plan_worst(&plan, c, l->comm, l->device);
    if (l->is_printer) printf("%s", plan.attention.text);
    ERR_RETURN(check_memory(l, &plan));
    ERR_RETURN(open_shared(l));
    if (l->is_printer) banner_print_data(c, l->session->data);
    l->trainer = trainer_new(c, &plan, l->comm, l->device);
    l->trainer->data_fingerprint = data_fingerprint(l->session->data);
    l->device = NULL;
    if (l->is_printer) say_how(l->trainer);
    bool loaded;
    ERR_RETURN(comm_agree(l->comm, trainer_load(l->trainer, &loaded)));
    if (!loaded) {
        registry_init(l->trainer->run.model->registry, l->trainer->run.context.seed);
        trainer_publish(l->trainer);
    }
    l->first_iteration = l->trainer->iteration;
    l->saved_iteration = loaded && checkpoint_saves_where_it_loads(c) ? l->trainer->iteration : -1;
    return say(l, l->is_printer ? train_log_open(l->trainer, l->session->data, parameters.all, &l->log)
                                : ERR_OK);
}

static Err train_rank(void *arg, Comm *comm) {
    Session *s = arg;
    Loop l = {.session = s,
              .config = s->config,
              .comm = comm,
              .is_printer = rank_is_printer(comm),
              .step = arena_new()};
    Err e = start(&l);
    if (!e.code) e = train_and_save(&l);
    prefetch_stop(l.train);
    prefetch_stop(l.valid);
    train_log_close(l.log);
    trainer_free(l.trainer);
    rank_free_device(l.comm, l.device);
    arena_free(l.step);
    return e;
}

Err train(const Config *c, const TokenFacts *facts, Data *data, int *stopped_by) {
    Session s = {
        .config = c, .facts = facts, .start_ns = clock_ns(), .save_lock = -1, .opens = !data, .data = data};
    Err e = trainer_check(c);
    s.signals = stop_signals_new(c);
    if (!e.code) e = world_run(c, train_rank, &s);
    stop_signals_free(s.signals);
    *stopped_by = s.stopped_by;
    data_close(s.data);
    if (s.save_lock >= 0) close(s.save_lock);
    return e;
}

/* ---- checks of the files (pretrain --check-options) ---- */

/* Checks that the ids in the first samples of each split are in the vocabulary. */
static Err check_samples(const Session *s) {
    enum { READ = 256 };
    Arena *arena = arena_new();
    Batch batch = batch_new(1, model_plan(s->config, arena).sample);
    Err e = ERR_OK;
    for (int split = 0; split < SPLIT_COUNT; split++) {
        const Dataset *samples = data_split(s->data, (DataSplit)split);
        for (int64_t i = 0; samples && i < READ && i < data_length(samples) && !e.code; i++)
            e = data_batch(samples, &i, 1, &batch);
    }
    batch_free(&batch);
    arena_free(arena);
    return e;
}

int train_check_files(const Config *c, const TokenFacts *facts, Err problem[TRAIN_FILE_PROBLEMS]) {
    Session s = {.config = c, .facts = facts, .read_only = true};
    Err e = open_data(&s);
    if (!e.code) e = check_samples(&s);
    if (!e.code) banner_print_data(c, s.data);
    data_close(s.data);
    const Err found[] = {e, checkpoint_check_files(c), train_log_check(c)};
    int n = 0;
    for (int i = 0; i < TRAIN_FILE_PROBLEMS; i++)
        if (found[i].code) problem[n++] = found[i];
    return n;
}
