#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/hash.h"
#include "ckpt/ckpt.h"
#include "data/indexed.h"
#include "main/command.h"
#include "pipeline/report.h"

typedef struct Options {
    const char *checkpoint, *dataset;
    int64_t ckpt_step;
    bool verify, hash, schedule;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, checkpoint, "checkpoint", ARG_TEXT, "none",
            "Print the options, size and tensors of a checkpoint in this folder."),
    ARG_ROW(Options, ckpt_step, "ckpt-step", ARG_I64, "none",
            "Step of the checkpoint to print; none = the newest."),
    ARG_ROW(Options, verify, "verify", ARG_FLAG, "off",
            "Check the hash of every stored byte against the manifest."),
    ARG_ROW(Options, hash, "hash", ARG_FLAG, "off",
            "Print a hash of each tensor and a hash of all tensors. Equal content has equal hashes in any "
            "layout."),
    ARG_ROW(Options, dataset, "dataset", ARG_TEXT, "none",
            "Print the sizes of the dataset with this .bin/.idx prefix."),
    ARG_ROW(Options, schedule, "schedule", ARG_FLAG, "off",
            "Print the pipeline schedule for these options: a diagram, layers, slots and bubble."),
};

/* ---- a checkpoint ---- */

/* Prints the model options that differ from their defaults, as lines for --config. */
static Err print_model(const Manifest *m, Arena *arena) {
    const json_t *stored = json_object_get(m->state, "config");
    if (!stored) return puts("the checkpoint does not record the options of its model"), ERR_OK;
    Config c, defaults;
    Str notes = {0};
    config_defaults(&c, arena);
    config_defaults(&defaults, arena);
    char *text = json_dumps(stored, JSON_ENCODE_ANY);
    const Err e = config_from_json(&c, arena, text, strlen(text), CLASS_ARCH, &notes);
    for (int i = 0; !e.code && i < OPTIONS; i++) {
        const Arg *row = &CONFIG_ROWS[i];
        Str ours = {0}, usual = {0};
        arg_print(row, config_value(&c, i), &ours);
        arg_print(row, config_value(&defaults, i), &usual);
        if (row->type != ARG_GROUP && config_option_class(i) == CLASS_ARCH && strcmp(ours.s, usual.s))
            printf("  %.*s = %s\n", (int)arg_name_len(row), row->names, ours.s);
        str_free(&ours), str_free(&usual);
    }
    free(text);
    str_free(&notes);
    return e;
}

static void print_size(const Manifest *m) {
    int64_t parameters = 0, bytes = 0, all = 0;
    for (int64_t i = 0; i < m->count; i++) {
        const CkptTensor *t = &m->tensors[i];
        all += t->bytes;
        if (*t->suffix) continue;
        bytes += t->bytes;
        parameters += t->box.shape[0] * t->box.shape[1];
    }
    printf("%s of %.3f MB, %.3f MB with the state of the optimizer\n", amount(parameters, "parameter").s,
           1e-6 * (double)bytes, 1e-6 * (double)all);
}

static void list_boxes(const Manifest *m) {
    for (int64_t i = 0; i < m->count; i++) {
        const CkptTensor *t = &m->tensors[i];
        char hash[33];
        hash_hex(t->hash, hash);
        printf("%s  %-4s [%lld, %lld] of [%lld, %lld]  %s%s (%s)\n", hash, dtype_name(t->dtype),
               (long long)t->box.shape[0], (long long)t->box.shape[1], (long long)t->global[0],
               (long long)t->global[1], t->name, t->suffix, t->part);
    }
}

static Err print_checkpoint(const Manifest *m, Arena *arena) {
    printf("iteration %lld, %s\n", (long long)m->iteration, amount(m->count, "tensor").s);
    print_size(m);
    ERR_RETURN(print_model(m, arena));
    list_boxes(m);
    return ERR_OK;
}

static Err inspect_checkpoint(const Options *o, Arena *arena) {
    Ckpt *ckpt;
    ERR_RETURN(setup_checkpoint(o->checkpoint, o->ckpt_step, &ckpt));
    Str digest = {0};
    Err e = o->hash ? ckpt_digest(ckpt, &digest) : print_checkpoint(ckpt_manifest(ckpt), arena);
    if (digest.s && !e.code) fputs(digest.s, stdout);
    str_free(&digest);
    if (!e.code && o->verify) e = ckpt_verify(ckpt);
    if (o->verify && !e.code) puts("all stored bytes match the hashes of the manifest");
    ckpt_close(ckpt);
    return e;
}

/* ---- a dataset, a schedule ---- */

static Err inspect_dataset(const char *prefix) {
    IndexedDataset d;
    ERR_RETURN(indexed_open(prefix, &d));
    int64_t tokens = 0, longest = 0;
    for (int64_t i = 0; i < d.sequences; i++) {
        int64_t n = indexed_length(&d, i);
        tokens += n;
        if (n > longest) longest = n;
    }
    printf("%s: %s, %s, %s of type %s, longest sequence %lld\n", prefix, amount(d.documents, "document").s,
           amount(d.sequences, "sequence").s, amount(tokens, "token").s, indexed_dtype_name(d.dtype),
           (long long)longest);
    indexed_close(&d);
    return ERR_OK;
}

/* Returns the batch size at the end of the run, or 0 if the options do not set a batch size. */
static int64_t last_batch(const Config *c) {
    const int64_t n = config_batch_steps(c, NULL, 0);
    if (n < 1 || (!c->step_batch_size_schedule && !i64_is_set(c->global_batch_size))) return 0;
    BatchStep *steps = mem_zero((size_t)n, sizeof *steps);
    const int64_t size = steps[config_batch_steps(c, steps, n) - 1].size;
    free(steps);
    return size;
}

/* Prints the schedule of one data-parallel replica. The batch size is therefore also per replica. */
static Err inspect_schedule(const Config *c, Arena *arena) {
    PipelineLayout layout;
    PipelineSpec spec;
    ERR_RETURN(pipeline_layout(c, arena, &layout));
    ERR_RETURN(
        pipeline_spec(c, &layout, pipeline_units(c, last_batch(c) / c->micro_batch_size), false, &spec));
    Str text = {0};
    Err e = pipeline_report(&spec, &layout, &text);
    if (!e.code) fputs(text.s, stdout);
    str_free(&text);
    return e;
}

static void inspect_check(const Options *o, const Config *c, Args *args) {
    static const char *const OF_CHECKPOINT[] = {"ckpt-step", "verify", "hash"};
    if (!o->checkpoint && !o->dataset && !o->schedule)
        args_problem(args, "specify what to inspect: --checkpoint DIR, --dataset PREFIX or --schedule");
    for (size_t i = 0; i < sizeof OF_CHECKPOINT / sizeof *OF_CHECKPOINT && !o->checkpoint; i++)
        args_refuse(args, OF_CHECKPOINT[i], "without --checkpoint");
    if (!o->schedule) {
        args_refuse_all(args, c, "without --schedule");
        return;
    }
    config_check(c, CHECK_LAYOUT | CHECK_STRICT, args);
    if (c->micro_batch_size < 1 || last_batch(c) < 1 || last_batch(c) % c->micro_batch_size)
        args_problem(args,
                     "--schedule needs --micro-batch-size, and --global-batch-size or "
                     "--step-batch-size-schedule whose batch sizes are multiples of --micro-batch-size");
}

int command_inspect(int argc, char **argv) {
    Arena *arena = arena_new();
    Options o;
    Config config;
    Args args;
    args_init(&args, arena,
              "isotron inspect [--checkpoint DIR [--verify] [--hash]] [--dataset PREFIX]\n"
              "                       [--schedule --num-layers N ...]\n\n"
              "Prints what a checkpoint or a dataset contains, or how a pipeline schedule runs.\n\n"
              "example: isotron inspect --checkpoint checkpoints --verify",
              NULL);
    args_use(&args, ARG_TABLE(ROWS, &o));
    Err e = config_parse(&config, &args, USE_SCHEDULE, 0, argc, argv);
    if (!e.code && !args.help) inspect_check(&o, &config, &args), e = args_end(&args);
    int status;
    if (command_ready(&args, e, &status)) {
        if (o.checkpoint) e = inspect_checkpoint(&o, arena);
        if (!e.code && o.dataset) e = inspect_dataset(o.dataset);
        if (!e.code && o.schedule) e = inspect_schedule(&config, arena);
        status = e.code ? command_fail(e) : 0;
    }
    args_free(&args);
    arena_free(arena);
    return status;
}
