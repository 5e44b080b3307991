#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "main/command.h"
#include "train/world.h"
#include "validate/parity.h"

typedef struct Options {
    const char *json;
} Options;

static const Arg ROWS[] = {
    {.names = "json",
     .type = ARG_TEXT,
     .offset = offsetof(Options, json),
     .fallback = "none",
     .help = "File that gets the report as JSON."},
};

static Err run(Setup *s, const Golden *g, const Options *o, bool *pass) {
    config_finish(&s->config, s->arena, 0, &s->derived);
    ParityReport report;
    ERR_RETURN(parity_run(&s->config, &s->derived, g, &report));
    *pass = true;
    if (!report.is_heard) return ERR_OK;
    Str text = {0}, json = {0};
    parity_print(&report, g->name, &s->config, &text);
    fputs(text.s, stdout);
    parity_json(&report, g->name, &s->config, &json);
    Err e = o->json ? file_write_atomic(o->json, json.s, json.len) : ERR_OK;
    if (e.code) e.code = ERR_INFRA; /* the case has been judged; it is the report that has no place */
    str_free(&text);
    str_free(&json);
    *pass = report.pass;
    return e;
}

/* The folder is the first word; its run.conf takes that place, so that the rest of the line overrides it. */
static Err read_options(Setup *s, Args *args, Golden **g, int argc, char **argv) {
    args_use(args, config_table(&s->config, CONFIG_ALL_GROUPS));
    bool named = argc > 0 && argv[0][0] != '-';
    if (named) {
        ERR_RETURN(golden_open(argv[0], g));
        args_file(args, arena_printf(s->arena, "%s/run.conf", argv[0]));
    } else
        args_problem(
            args,
            "name the golden case first: a folder with run.conf, init.safetensors and the oracle's results");
    args_line(args, argc - named, argv + named);
    if (args->help || !named) return args_end(args);
    golden_complete(*g, &s->config);
    ERR_RETURN(world_size(&s->config));
    config_check(&s->config, CHECK_MODEL | CHECK_TRAIN, args);
    return args_end(args);
}

int command_parity(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    Options o;
    Golden *g = NULL;
    Args args;
    args_init(&args, s.arena, "isotron parity DIR [layout and precision options]", NULL);
    args_use(&args, (ArgTable){.rows = ROWS, .count = sizeof ROWS / sizeof *ROWS, .target = &o});
    Err e = read_options(&s, &args, &g, argc, argv);
    int status;
    if (command_ready(&args, e, &status)) {
        bool pass = false;
        e = run(&s, g, &o, &pass);
        status = e.code ? command_fail(e) : pass ? 0 : ERR_FAILED;
    }
    golden_close(g);
    args_free(&args);
    setup_free(&s);
    return status;
}
