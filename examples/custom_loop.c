/* An example training loop that uses the installed library. The example shows options, the model, batches, the forward
 * and backward passes, the reduction of gradients, the optimizer and a checkpoint. It supports every layout. Ranks are
 * threads (--ranks) or processes (mpirun).
 *
 *     custom_loop --config tiny.conf --ranks 2 --save checkpoints
 *
 * The program accepts the options of `isotron pretrain` for the model, training and layout. The losses are bitwise
 * equal to the losses of `isotron pretrain`. --load resumes from a checkpoint. */
#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "data/prefetch.h"
#include "data/sampler.h"
#include "models/option_map.h"
#include "run/launch.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

typedef struct Run {
    Config config; /* the options */
    Data *data;    /* the data, which all ranks of this process share */
} Run;

/* Opens a dataset of generated samples. To read your text, set .paths instead. For any other source, fill a Batch. */
static Err open_data(Run *run) {
    const Config *c = &run->config;
    const Derived *d = &run->config.derived;
    if (!c->mock_data) return err_user("this example reads no files: give --mock-data");
    const DataConfig data = {.mock = true,
                             .samples = {d->train_iters * d->global_batch_size},
                             .sequence_length = c->seq_length,
                             .vocab_size = d->vocab_size,
                             .eod = -1,
                             .pad = -1,
                             .seed = (uint32_t)c->seed};
    return data_open(&data, &run->data);
}

/* Starts a thread that prefetches this data-parallel rank's samples. */
static Err open_stream(const Run *run, const Trainer *t, Prefetch **stream) {
    const Dataset *dataset = data_split(run->data, SPLIT_TRAIN);
    const SamplerConfig s = {.kind = SAMPLER_SINGLE,
                             .total_samples = data_length(dataset),
                             .consumed_samples = t->consumed_samples,
                             .micro_batch_size = run->config.derived.micro_batch_size,
                             .dp_rank = t->run.layout.mesh.coordinate[AXIS_DP],
                             .dp_size = t->run.layout.mesh.size[AXIS_DP]};
    Sampler *sampler;
    ERR_RETURN(sampler_open(&s, &sampler));
    *stream = prefetch_start(dataset, sampler, s.micro_batch_size, t->run.model->plan.sample, 2);
    return ERR_OK;
}

/* Sets `batches` to the next n microbatches of this rank, with the positions of its context-parallel rank. */
static Err take_batches(const Trainer *t, Prefetch *stream, int64_t n, Arena *arena, Batch *out) {
    const Mesh *mesh = &t->run.layout.mesh;
    for (int64_t i = 0; i < n; i++) {
        const Batch *whole;
        ERR_RETURN(prefetch_next(stream, &whole));
        if (!whole) return err_user("the data ended early");
        out[i] = batch_slice(whole, mesh->size[AXIS_CP], mesh->coordinate[AXIS_CP], arena);
    }
    return ERR_OK;
}

static Err step(Trainer *t, Prefetch *stream, StepReport *report) {
    const Derived *d = &t->run.config->derived;
    const int64_t n =
        config_batch_size(t->run.config, t->consumed_samples) / (d->micro_batch_size * d->data_parallel_size);
    Arena *arena = arena_new();
    Batch *batches = arena_alloc(arena, (size_t)n * sizeof *batches);
    Err e = comm_agree(t->run.comm,
                       take_batches(t, stream, n, arena, batches)); /* an error on one rank ends all ranks */
    if (!e.code) {
        *report = trainer_begin_step(t);                /* sets the gradients to zero */
        trainer_microbatches(t, batches, n, n, report); /* runs the forward and backward passes */
        trainer_reduce(t, report);                      /* sums gradients and losses over the ranks */
        /* clips gradients, updates parameters and advances the schedules */
        trainer_update(t, report);
    }
    arena_free(arena);
    return e;
}

static Err train_steps(const Run *run, Trainer *t) {
    Prefetch *stream = NULL;
    Err e = comm_agree(t->run.comm, open_stream(run, t, &stream));
    while (!e.code && t->iteration < run->config.derived.train_iters) {
        StepReport report;
        e = step(t, stream, &report);
        if (!e.code && rank_is_printer(t->run.comm))
            printf("iteration %lld: loss %.17g, gradient norm %.6g, learning rate %.3e\n",
                   (long long)t->iteration, report.loss, report.optim.grad_norm, report.lr);
    }
    prefetch_stop(stream);
    if (e.code || !run->config.save) return e;
    ERR_RETURN(trainer_save(t));
    return trainer_finish_save(t, true, &(int64_t){0}); /* waits for the save that --async-save started */
}

/* Runs the training of one rank. */
static Err train_rank(void *arg, Comm *comm) {
    const Run *run = arg;
    const DeviceSpec spec = map_device_spec(&run->config, comm ? comm_rank(comm) : 0);
    Device *device;
    ERR_RETURN(comm_agree(comm, device_open(&spec, &device)));
    const MemoryPlan plan = memory_plan_new(&run->config, comm, device);
    Trainer *t = trainer_new(&run->config, &plan, comm, device);
    bool loaded;
    Err e = comm_agree(comm, trainer_load(t, &loaded)); /* loads the checkpoint in --load */
    if (!e.code && !loaded) {
        registry_init(t->run.model->registry, t->run.context.seed);
        trainer_publish(t);
    }
    if (!e.code) e = train_steps(run, t);
    trainer_free(t);
    return e;
}

/* Parses and checks the options, derives values from them, and opens the data. */
static Err prepare(Run *run, Args *args, int argc, char **argv) {
    ERR_RETURN(config_parse(&run->config, args, USE_TRAINING_LOOP, 0, argc, argv));
    if (args->help) return ERR_OK;
    ERR_RETURN(world_size(&run->config)); /* sets --ranks to the number of processes under mpirun */
    config_check(&run->config, CHECK_MODEL | CHECK_TRAIN, args);
    ERR_RETURN(args_end(args));
    config_finish(&run->config, args->arena, 0);
    ERR_RETURN(trainer_check(&run->config));
    return open_data(run);
}

int main(int argc, char **argv) {
    enum { HELP_WIDTH = 100 };
    Run run = {0};
    Args args;
    Str help = {0};
    args_init(&args, arena_new(), "custom_loop [--config FILE] [options]", NULL);
    Err e = prepare(&run, &args, argc - 1, argv + 1);
    if (args.help) args_help(&args, HELP_WIDTH, &help), fputs(help.s, stdout);
    if (!e.code && !args.help) e = world_run(&run.config, train_rank, &run);
    if (e.code) /* if there are several problems, e.msg contains only the first */
        fprintf(stderr, "custom_loop: %s\n%s", e.msg,
                args.num_problems > 1 ? strchr(args.problems.s, '\n') + 1 : "");
    data_close(run.data);
    arena_free(args.arena);
    args_free(&args);
    str_free(&help);
    return (int)e.code;
}
