#include <stdio.h>

#include "main/command.h"
#include "run/launch.h"
#include "run/source.h"
#include "tokenizer/special.h"
#include "train/checkpoint.h"
#include "train/loop.h"

enum { CHECKS = CHECK_MODEL | CHECK_TRAIN | CHECK_TASK };

/* Checks the options, and reads missing options from the checkpoint. */
static Err check_options(Setup *s, Args *args) {
    Config *c = &s->config;
    c->train_iters = 0;                                     /* set_options sets the number of steps */
    if (c->epochs == 0) c->skip_train = c->finetune = true; /* evaluation needs only the weights */
    /* If the model is unsuitable, its other options need not be checked. */
    Err loaded = checkpoint_check_task(c);
    if (loaded.code) return args->num_problems ? args_end(args) : loaded;
    if (c->use_checkpoint_args) loaded = source_args(c, s->arena, &args->notes);
    if (!loaded.code && c->use_checkpoint_opt_param_scheduler) loaded = checkpoint_schedule(c, s->arena);
    if (!loaded.code) loaded = world_size(c);
    if (loaded.code) return args->num_problems ? args_end(args) : loaded;
    config_check(c, CHECKS, args);
    if (!c->tokenizer_type)
        args_problem(
            args, "Fine-tuning needs --tokenizer-type with the files of the pretrained model's tokenizer.");
    return args_end(args);
}

/* Sets the options that depend on the data: the classes and the number of steps. */
static Err set_options(Setup *s, const Data *data, const TaskLabels *labels, Args *args) {
    Config *c = &s->config;
    const Dataset *train = data_split(data, SPLIT_TRAIN);
    const char **names = arena_alloc(s->arena, (size_t)labels->n * sizeof *names + 1);
    for (int64_t i = 0; i < labels->n; i++) names[i] = arena_printf(s->arena, "%s", labels->at[i]);
    c->class_labels = (TextList){names, labels->n};
    c->train_iters = train ? c->epochs * (data_facts(train).epoch / s->config.derived.global_batch_size) : 0;
    if (c->keep_last) c->calculate_per_token_loss = true; /* batches have unequal numbers of samples */
    /* Repeats the check, because the number of steps is now known. */
    config_check(c, CHECKS, args);
    const Err e = args_end(args);
    if (e.code) return e;
    config_finish(c, s->arena, s->tokenizer ? tokenizer_vocab_size(s->tokenizer) : 0);
    return setup_check_type(s);
}

static Err run(Setup *s, Args *args, int *stopped_by) {
    const Tokenizer *t = s->tokenizer;
    TaskLabels labels = {0};
    const TokenFacts facts = {
        .eod = -1,
        .pad = tokenizer_pad(t),
        .vocab_size = tokenizer_vocab_size(t),
        .mask = {.cls = tokenizer_special(t, SPECIAL_CLS), .sep = tokenizer_special(t, SPECIAL_SEP)},
        .encode = setup_encode,
        .text_ctx = s->tokenizer,
        .labels = &labels};
    Data *data;
    Err e = data_open_options(&s->config, &facts, false, &data);
    if (!e.code) e = set_options(s, data, &labels, args);
    if (e.code)
        data_close(data);
    else
        e = train(&s->config, &facts, data, stopped_by);
    task_labels_free(&labels);
    return e;
}

int command_finetune(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    Args args;
    args_init(
        &args, s.arena,
        "isotron finetune [--config FILE] [options]\n\n"
        "Fine-tunes a BERT that pretrain or convert saved, and prints its accuracy on a task after each "
        "epoch.\n\n"
        "example: isotron finetune --task MNLI --train-data train.tsv --valid-data dev_matched.tsv --epochs "
        "3\n"
        "           --pretrained-checkpoint checkpoints --use-checkpoint-args --micro-batch-size 16 --lr "
        "5e-5",
        NULL);
    Err e = config_parse(&s.config, &args, USE_FINETUNE, 0, argc, argv);
    if (!args.help) e = check_options(&s, &args);
    int status, stopped_by = 0;
    if (command_ready(&args, e, &status)) {
        str_clear(&args.notes); /* command_ready has printed the notes */
        e = setup_finish(&s);
        if (!e.code) e = run(&s, &args, &stopped_by);
        status = e.code ? command_fail(e) : stopped_by ? ERR_SIGNAL + stopped_by : 0;
    }
    args_free(&args);
    setup_free(&s);
    return status;
}
