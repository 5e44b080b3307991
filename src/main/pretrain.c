#include <stdio.h>

#include "comm/comm.h"
#include "main/command.h"
#include "plan/plan.h"
#include "run/launch.h"
#include "run/source.h"
#include "train/banner.h"
#include "train/checkpoint.h"
#include "train/loop.h"

typedef struct Options {
    bool check_options;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, check_options, "check-options", ARG_FLAG, "off",
            "Check the options and the files that the run would open, print model, layout and memory, and "
            "exit. No file is changed."),
};

/* Opens the tokenizer, and sets `facts` to its properties. */
static Err prepare(Setup *s, TokenFacts *facts) {
    const Config *c = &s->config;
    ERR_RETURN(setup_finish(s));
    ERR_RETURN(setup_check_type(s));
    *facts = (TokenFacts){.eod = s->tokenizer ? tokenizer_eod(s->tokenizer) : -1,
                          .pad = s->tokenizer ? tokenizer_pad(s->tokenizer) : -1,
                          .vocab_size = s->tokenizer ? tokenizer_vocab_size(s->tokenizer) : 0,
                          .encode = setup_encode,
                          .decode = setup_decode,
                          .text_ctx = s->tokenizer};
    if (c->fim_data) return setup_fim_tokens(s, &facts->fim);
    if (c->model == MODEL_gpt) return ERR_OK;
    const Err e = setup_mask_tokens(s, &facts->mask);
    if (facts->eod < 0) facts->eod = facts->mask.eos;
    return e;
}

static void print_memory(const RunPlan *plan) {
    Str text = {0};
    memory_plan_describe(&plan->stages[plan->largest].memory, &text);
    banner_line("memory", "rank %d%s: %s", plan->stages[plan->largest].rank,
                config_ranks(plan->config) > 1 ? ", the largest" : "", text.s);
    str_free(&text);
}

/* Prints the run's banner, and then each problem with the run's files. Returns the exit status. */
static int check(Setup *s, int64_t idle) {
    TokenFacts facts;
    RunPlan plan;
    Err problem[TRAIN_FILE_PROBLEMS];
    if (comm_process() > 0) return 0;
    printf("options are valid, %lld %s no effect\n", (long long)idle, idle == 1 ? "has" : "have");
    Err e = prepare(s, &facts);
    if (!e.code) e = plan_make(&s->config, NULL, s->arena, &plan);
    if (e.code) return command_fail(e);
    banner_print(&s->config, facts.vocab_size, &plan.parameters);
    print_memory(&plan);
    const int n = train_check_files(&s->config, &facts, problem);
    fflush(stdout);
    for (int i = 0; i < n; i++) command_fail(problem[i]);
    if (!n) puts("all files can be opened and match each other");
    return n ? (int)problem[0].code : 0;
}

static int run(Setup *s) {
    TokenFacts facts;
    int stopped_by = 0;
    Err e = prepare(s, &facts);
    if (!e.code) e = train(&s->config, &facts, NULL, &stopped_by);
    return e.code ? command_fail(e) : stopped_by ? ERR_SIGNAL + stopped_by : 0;
}

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
    args.keeps_idle = true;
    args_use(&args, ARG_TABLE(ROWS, &o));
    Err e = config_parse(&s.config, &args, USE_PRETRAIN, 0, argc, argv);
    /* The checks continue after a problem on the command line, so that a single run reports all problems. */
    Err loaded = ERR_OK;
    if (!args.help && s.config.use_checkpoint_args) loaded = source_args(&s.config, s.arena, &args.notes);
    if (!args.help && !loaded.code && s.config.use_checkpoint_opt_param_scheduler)
        loaded = checkpoint_schedule(&s.config, s.arena);
    if (!args.help && !loaded.code) loaded = world_size(&s.config);
    if (!args.help && !loaded.code) {
        config_check(&s.config, CHECK_MODEL | CHECK_TRAIN | CHECK_DATA, &args);
        e = args_end(&args);
    } else if (!e.code) {
        e = loaded;
    }
    int status;
    args_print_idle(&args, o.check_options);
    if (command_ready(&args, e, &status)) status = o.check_options ? check(&s, args.num_remarks) : run(&s);
    args_free(&args);
    setup_free(&s);
    return status;
}
