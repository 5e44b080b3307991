#include <stdio.h>

#include "ckpt/hf_config.h"
#include "main/command.h"
#include "train/loop.h"
#include "train/checkpoint.h"
#include "train/launch.h"

typedef struct Options {
    bool check_options;
} Options;

static const Arg ROWS[] = {
    {.names = "check-options",
     .type = ARG_FLAG,
     .offset = offsetof(Options, check_options),
     .fallback = "off",
     .help = "Check the options, print errors and options without effect, and exit."},
};

int command_pretrain(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    Options o;
    Args args;
    args_init(
        &args, s.arena,
        "isotron pretrain [--config FILE] [options]\n\n"
        "Trains a model, from scratch or from a checkpoint (--load).\n\n"
        "example: isotron pretrain --config run.conf --data-path corpus_text_document --save checkpoints",
        NULL);
    args_use(&args, (ArgTable){.rows = ROWS, .count = sizeof ROWS / sizeof *ROWS, .target = &o});
    Err e = config_parse(&s.config, &args, USE_PRETRAIN, 0, argc, argv);
    /* The next checks run even if the line has a problem, so that all problems are reported at once. */
    Err loaded = ERR_OK;
    if (!args.help && s.config.use_checkpoint_args) loaded = checkpoint_args(&s.config, s.arena, &args.notes);
    if (!args.help && !loaded.code && s.config.use_checkpoint_opt_param_scheduler)
        loaded = checkpoint_schedule(&s.config, s.arena);
    if (!args.help && !loaded.code) loaded = world_size(&s.config);
    if (!args.help && !loaded.code) {
        config_check(&s.config, CHECK_MODEL | CHECK_TRAIN | CHECK_DATA, &args);
        e = args_end(&args);
    } else if (!e.code) {
        e = loaded;
    }
    int status, stopped_by = 0;
    const bool ready = command_ready(&args, e, &status);
    if (ready && o.check_options) {
        status = 0;
    } else if (ready) {
        e = setup_finish(&s);
        if (!e.code && config_given(&s.config, hf_model_type))
            e = hf_config_check_type(&s.config, &s.derived);
        if (!e.code) {
            TokenFacts facts = {.eod = s.tokenizer ? tokenizer_eod(s.tokenizer) : -1,
                                .pad = s.tokenizer ? tokenizer_pad(s.tokenizer) : -1,
                                .vocab_size = s.tokenizer ? tokenizer_vocab_size(s.tokenizer) : 0};
            if (s.config.model != MODEL_gpt) e = setup_mask_tokens(&s, &facts.mask);
            if (facts.eod < 0 && s.config.model != MODEL_gpt) facts.eod = facts.mask.eos;
            if (!e.code) e = train(&s.config, &s.derived, &facts, NULL, &stopped_by);
        }
        status = e.code ? command_fail(e) : stopped_by ? ERR_SIGNAL + stopped_by : 0;
    }
    args_free(&args);
    setup_free(&s);
    return status;
}
