#include <stdio.h>

#include "ckpt/hf_config.h"
#include "main/command.h"
#include "train/loop.h"
#include "train/checkpoint.h"
#include "train/launch.h"

int command_pretrain(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    Args args;
    args_init(
        &args, s.arena,
        "isotron pretrain [--config FILE] [options]\n\n"
        "Trains a model, from scratch or from a checkpoint (--load).\n\n"
        "example: isotron pretrain --config run.conf --data-path corpus_text_document --save checkpoints",
        NULL);
    Err e = config_parse(&s.config, &args, USE_PRETRAIN, 0, argc, argv);
    Err loaded =
        ERR_OK; /* what follows a problem of the line is looked at too, so that all are reported at once */
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
    if (command_ready(&args, e, &status)) {
        e = setup_finish(&s);
        if (!e.code && config_given(&s.config, hf_model_type))
            e = hf_config_check_type(&s.config, &s.derived);
        if (!e.code) {
            TokenFacts facts = {.eod = s.tokenizer ? tokenizer_eod(s.tokenizer) : -1,
                                .pad = s.tokenizer ? tokenizer_pad(s.tokenizer) : -1};
            e = train(&s.config, &s.derived, &facts, &stopped_by);
        }
        status = e.code ? command_fail(e) : stopped_by ? ERR_SIGNAL + stopped_by : 0;
    }
    args_free(&args);
    setup_free(&s);
    return status;
}
