#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/terminal.h"
#include "bench/gate/gate.h"
#include "comm/comm.h"
#include "main/command.h"
#include "run/launch.h"
#include "validate/validate.h"

typedef struct Options {
    ValidateOptions accept;
    const char *nccl_a, *allow, *memory, *json, *junit, *html;
    bool quick;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, accept.only, "only", ARG_TEXTS, "none", "Stages to run; none = all."),
    ARG_ROW(Options, quick, "quick", ARG_FLAG, "off", "Run for one minute instead of 10 minutes."),
    ARG_ROW(Options, accept.seconds, "seconds", ARG_F64, "none",
            "Run for this many seconds instead, at least 1."),
    ARG_ROW(Options, nccl_a, "nccl-a", ARG_TEXT, "none",
            "First NCCL library, for comparisons with --nccl-b."),
    ARG_ROW(Options, accept.nccl_b, "nccl-b", ARG_TEXT, "none",
            "Second NCCL library. Stages that depend on the library run alternately with both libraries."),
    ARG_ROW(Options, accept.good, "good", ARG_TEXT, "none",
            "Report that --json wrote in an earlier good run, to compare with this run."),
    ARG_ROW(
        Options, accept.golden, "golden", ARG_TEXT, "none",
        "Folder of golden cases for the stage parity; none = that of the installation or the source tree."),
    ARG_ROW(Options, memory, "memory-share", ARG_TEXT, "80%",
            "Largest share of each device's free memory to test. On a CPU, at most 1 GiB per rank is tested. "
            "Less is tested if time is short."),
    ARG_ROW(Options, allow, "allow", ARG_TEXT, "5%",
            "Accepted loss of speed relative to the good run, or of library B relative to library A."),
    ARG_ROW(Options, accept.allow_changes, "allow-changes", ARG_FLAG, "off",
            "Allow versions, devices and the environment to differ from those of the good run."),
    ARG_ROW(Options, json, "json", ARG_TEXT, "none", "Write the report to this file as JSON."),
    ARG_ROW(Options, junit, "junit", ARG_TEXT, "none", "Write the report to this file as JUnit XML."),
    ARG_ROW(Options, html, "html", ARG_TEXT, "none", "Write the report to this file as an HTML page."),
};

enum { FULL_S = 600, QUICK_S = 60 };

static void refuse_same_files(Args *args, const Options *o) {
    const NamedFile outputs[] = {{"--json", o->json}, {"--junit", o->junit}, {"--html", o->html}},
                    inputs[] = {{"--good", o->accept.good},
                                {"--nccl-a", o->nccl_a},
                                {"--nccl-b", o->accept.nccl_b},
                                {"--nccl-library", o->accept.config->nccl_library}};
    command_refuse_same_files(args, outputs, 3, inputs, 4);
}

/* Refuses a repeated --only. If only the last occurrence counted, as for other options, stages would be skipped
 * silently. */
static void refuse_repeated_only(Args *args, int argc, char **argv) {
    int n = 0;
    for (int i = 0; i < argc; i++) n += !strcmp(argv[i], "--only") || !strncmp(argv[i], "--only=", 7);
    if (n > 1) args_problem(args, "--only is given %d times: list all stages after one --only", n);
}

static Err read_options(Config *c, Options *o, Args *args, int argc, char **argv) {
    args_use(args, ARG_TABLE(ROWS, o));
    args_use(args, config_table(c, USE_VALIDATE));
    args_line(args, argc, argv);
    if (args->help) return ERR_OK;
    ValidateOptions *a = &o->accept;
    a->config = c, a->argc = argc, a->argv = argv;
    refuse_same_files(args, o);
    if (f64_is_set(a->seconds) && o->quick)
        args_problem(args, "--seconds and --quick are mutually exclusive: choose one.");
    if (f64_is_set(a->seconds) && !(a->seconds >= 1 && a->seconds <= COMMAND_MOST_S))
        args_problem(args, "--seconds must be from 1 to %d.", (int)COMMAND_MOST_S);
    if (!f64_is_set(a->seconds)) a->seconds = o->quick ? QUICK_S : FULL_S;
    if (!gate_parse_percentage(o->allow, &a->allow) || a->allow >= 1)
        args_problem(args, "--allow expects a percentage below 100%%, such as 5%%, not '%s'", o->allow);
    if (!gate_parse_percentage(o->memory, &a->memory_share) || a->memory_share < 0.01 ||
        a->memory_share > 0.95)
        args_problem(args, "--memory-share expects a percentage from 1%% to 95%%, not '%s'", o->memory);
    if (a->allow_changes && !a->good) args_problem(args, "--allow-changes needs --good");
    if (o->nccl_a && c->nccl_library)
        args_problem(args, "--nccl-a and --nccl-library are mutually exclusive: choose one.");
    if (a->nccl_b && !o->nccl_a && !c->nccl_library && c->device == ON_CPU)
        args_problem(args, "without --device cuda, --nccl-b needs --nccl-a or --nccl-library");
    refuse_repeated_only(args, argc, argv);
    if (o->nccl_a && !a->nccl_b)
        args_problem(args, "--nccl-a needs --nccl-b; for one library use --nccl-library");
    if (o->nccl_a) c->nccl_library = o->nccl_a;
    const Err e = world_size(c);
    if (e.code) args_problem(args, "%s", e.msg);
    config_check(c, CHECK_STRICT, args);
    return args_end(args);
}

static Err check_places(const Options *o) {
    const char *const paths[] = {o->json, o->junit, o->html};
    for (size_t i = 0; i < sizeof paths / sizeof *paths && comm_process() <= 0; i++)
        if (paths[i]) ERR_RETURN(file_check_target(paths[i]));
    return ERR_OK;
}

typedef void WriteReport(const Validation *, Str *out);

static Err write_report(const char *path, WriteReport *report, const Validation *a) {
    if (!path) return ERR_OK;
    Str text = {0};
    report(a, &text);
    const Err e = command_write_report(path, &text);
    str_free(&text);
    return e;
}

static Err write_reports(const Options *o, const Validation *a) {
    if (!a->is_heard) return ERR_OK;
    Str text = {0};
    validate_print(a, &text);
    terminal_report(stdout, text.s);
    str_free(&text);
    ERR_RETURN(write_report(o->json, validate_json, a));
    ERR_RETURN(write_report(o->junit, validate_junit, a));
    return write_report(o->html, validate_html, a);
}

static void report_now(const Validation *a, void *options) {
    const Err e = write_reports(options, a);
    if (e.code) command_fail(e);
}

static int validate(Options *o) {
    static const ErrCode STATUS[] = {[VALIDATE_PASS] = ERR_NONE,
                                     [VALIDATE_INCONCLUSIVE] = ERR_INCONCLUSIVE,
                                     [VALIDATE_INTERRUPTED] = ERR_SIGNAL,
                                     [VALIDATE_DEGRADED] = ERR_FAILED,
                                     [VALIDATE_FAIL] = ERR_FAILED};
    Validation a = {0};
    o->accept.report = report_now, o->accept.arg = o;
    Err e = check_places(o);
    if (!e.code) e = validate_run(&o->accept, &a);
    if (!e.code) e = write_reports(o, &a);
    const int status = e.code       ? command_fail(e)
                       : a.signal   ? ERR_SIGNAL + a.signal
                       : a.is_heard ? (int)STATUS[validate_verdict(&a)]
                                    : 0;
    validate_free(&a);
    return status;
}

int command_validate(int argc, char **argv) {
    Arena *arena = arena_new();
    Config config = {0};
    Options o = {.quick = false};
    Args args;
    int status;
    args_init(&args, arena,
              "isotron validate [--device cuda] [--ranks N] [options]\n\n"
              "Tests a machine, a driver or an NCCL library in stages. Prints a verdict for each stage, with "
              "evidence and a suspect. Exit status: 1 if results are wrong or degraded, 4 if no stage "
              "passed, 130 after Ctrl-C. After Ctrl-C, the reports end with the interrupted stage.\n\n"
              "example: isotron validate --ranks 4 --quick",
              NULL);
    const Err e = read_options(&config, &o, &args, argc, argv);
    if (command_ready(&args, e, &status)) status = validate(&o);
    args_free(&args);
    arena_free(arena);
    return status;
}
