#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/terminal.h"
#include "comm/comm.h"
#include "main/command.h"
#include "parity/parity.h"
#include "parity/sweep.h"
#include "run/launch.h"

typedef struct Options {
    const char *json, *sweep, *junit, *html;
    int64_t jobs;
    double deadline;
    bool dry_run;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, json, "json", ARG_TEXT, "none", "Write the report to this file as JSON."),
    ARG_ROW(Options, sweep, "sweep", ARG_TEXT, "none",
            "File with a list of cells to run, one per line: [case] lane options... With a list, several "
            "case folders can be given."),
    ARG_ROW(Options, junit, "junit", ARG_TEXT, "none", "Write the sweep's report to this file as JUnit XML."),
    ARG_ROW(Options, html, "html", ARG_TEXT, "none",
            "Write the sweep's report to this file as a page with figures."),
    ARG_ROW(Options, jobs, "sweep-jobs", ARG_I64, "0",
            "Number of cells that run at the same time; 0 = one for each core, or one on a GPU."),
    ARG_ROW(Options, deadline, "sweep-deadline", ARG_F64, "60",
            "Seconds after which a cell is stopped and counts as failed."),
    ARG_ROW(Options, dry_run, "sweep-dry-run", ARG_FLAG, "off",
            "Print which cells would run, and which rules forbid the others, but run no cell."),
};

/* ---- sweeps ---- */

typedef void WriteSweep(const Sweep *, Str *out);

static Err write_report(const char *path, WriteSweep *report, const Sweep *s) {
    if (!path) return ERR_OK;
    Str text = {0};
    report(s, &text);
    const Err e = command_write_report(path, &text);
    str_free(&text);
    return e;
}

/* Checks before the run whether the reports can be written. Skips the check with several processes: it could fail only
 * in the process that writes, and the others would then wait for that process. */
static Err check_places(const Options *o) {
    const char *const paths[] = {o->json, o->junit, o->html};
    for (size_t i = 0; i < sizeof paths / sizeof *paths && comm_processes() == 1; i++)
        if (paths[i]) ERR_RETURN(file_check_target(paths[i]));
    return ERR_OK;
}

static bool is_inside(const char *path, const char *folder) {
    char *file = realpath(path, NULL), *dir = realpath(folder, NULL);
    const size_t n = dir ? strlen(dir) : 0;
    const bool inside = file && dir && !strncmp(file, dir, n) && file[n] == '/';
    free(file), free(dir);
    return inside;
}

static void refuse_inputs(Args *args, const Options *o, int n_dirs, char **dirs) {
    const NamedFile outputs[] = {{"--json", o->json}, {"--junit", o->junit}, {"--html", o->html}};
    enum { OUTPUTS = sizeof outputs / sizeof *outputs };
    command_refuse_same_files(args, outputs, OUTPUTS, &(NamedFile){"--sweep", o->sweep}, 1);
    for (int i = 0; i < OUTPUTS; i++)
        for (int k = 0; outputs[i].path && k < n_dirs; k++)
            if (is_inside(outputs[i].path, dirs[k]))
                args_problem(args, "%s is the file '%s' of the golden case '%s': choose another path.",
                             outputs[i].option, outputs[i].path, dirs[k]);
}

/* Removes an earlier report. If the path is a symbolic link, removes only its target, because a later write replaces
 * only the target. Keeps an empty file, because it contains no verdict. */
static Err remove_report(const char *path) {
    if (!path || file_is_stream(path) || file_size(path) <= 0) return ERR_OK;
    if (!parity_is_report(path))
        return err_user("'%s' exists and is not a parity report: choose another path, or remove it", path);
    char *target = realpath(path, NULL);
    const Err e = target ? file_remove(target) : ERR_OK;
    free(target);
    return e;
}

/* Removes earlier reports, so that no old report remains if this run ends before it writes its own. Only the first
 * process writes reports. */
static Err remove_reports(const Options *o) {
    const char *const paths[] = {o->json, o->junit, o->html};
    Err first = ERR_OK;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && comm_process() <= 0; i++) {
        const Err e = remove_report(paths[i]);
        if (!first.code) first = e;
    }
    return first;
}

static Err report_sweep(const Options *o, const Sweep *s, bool *pass) {
    Str text = {0};
    sweep_print(s, &text);
    terminal_report(stdout, text.s);
    str_free(&text);
    const SweepCounts n = sweep_counts(s);
    *pass = o->dry_run || (n.of[VERDICT_FAIL] == 0 && n.of[VERDICT_PASS] > 0);
    ERR_RETURN(write_report(o->json, sweep_json, s));
    ERR_RETURN(write_report(o->junit, sweep_junit, s));
    return write_report(o->html, sweep_html, s);
}

/* Runs a sweep. The words before the first option are case folders. Options that are not in ROWS apply to all cells. */
static Err sweep(const Options *given, ArgTable own, int n_dirs, int argc, char **argv, bool *pass) {
    const Options kept = *given, *o = &kept; /* a copy, because every cell parses the options again */
    SweepOptions options = {.own = own,
                            .dirs = (const char *const *)argv,
                            .n_dirs = n_dirs,
                            .list = o->sweep,
                            .words = argv + n_dirs,
                            .n_words = argc - n_dirs,
                            .at_once = (int)o->jobs,
                            .deadline_s = o->deadline};
    Sweep s;
    Err e = sweep_open(&options, &s);
    if (!e.code && !o->dry_run) e = sweep_check_device(&s);
    if (!e.code && !o->dry_run) sweep_run(&options, &s);
    if (!e.code) e = report_sweep(o, &s, pass);
    sweep_free(&s);
    return e;
}

/* ---- one run ---- */

static Err run(Setup *s, const Golden *g, const Options *o, int *status) {
    config_finish(&s->config, s->arena, 0);
    ParityReport report;
    ERR_RETURN(parity_run(&s->config, g, &report));
    *status = 0;
    if (!report.is_heard) return ERR_OK;
    Str text = {0}, json = {0};
    parity_print(&report, g->name, &s->config, s->config.derived.cpu_threads, &text);
    terminal_report(stdout, text.s);
    parity_json(&report, g->name, &s->config, s->config.derived.cpu_threads, &json);
    const Err e = command_write_report(o->json, &json);
    str_free(&text);
    str_free(&json);
    *status = report.pass ? 0 : report.is_weak ? ERR_INCONCLUSIVE : ERR_FAILED;
    return e;
}

static void refuse_without_sweep(Args *args, const Options *o) {
    static const char *const NAMES[] = {"junit", "html", "sweep-jobs", "sweep-deadline", "sweep-dry-run"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !o->sweep; i++)
        args_refuse(args, NAMES[i], "without --sweep");
}

/* Reads the options. The first words are case folders. If there is only one folder, its run.conf is read first, so that
 * the rest of the command line overrides it. A sweep reads the run.conf of each case itself. */
static Err read_options(Setup *s, Args *args, const Options *o, Golden **g, int n_dirs, int argc,
                        char **argv) {
    args_use(args, config_table(&s->config, USE_PARITY));
    if (n_dirs == 1) args_file(args, arena_printf(s->arena, "%s/run.conf", argv[0]));
    /* number of problems in run.conf, excluding problems on the command line */
    const int64_t of_case = args->num_problems;
    args_line(args, argc - n_dirs, argv + n_dirs);
    if (n_dirs == 0)
        args_problem(
            args,
            "name the golden case first: a folder with run.conf, init.safetensors and the oracle's results");
    if (n_dirs > 1 && !o->sweep) args_problem(args, "several golden cases need --sweep");
    if (o->jobs < 0 || o->jobs > 1024) args_problem(args, "--sweep-jobs must be from 0 to 1024.");
    if (!(o->deadline > 0)) args_problem(args, "--sweep-deadline must be above 0 seconds.");
    if (o->sweep && comm_processes() > 1)
        args_problem(args, "--sweep starts processes itself: run it without a launcher");
    refuse_without_sweep(args, o);
    refuse_inputs(args, o, n_dirs, argv);
    golden_refuse(args);
    if (o->sweep) args_refuse(args, "lane", "with --sweep, because each cell names its precision");
    if (!args->help && args->num_problems == of_case) ERR_RETURN(remove_reports(o));
    if (args->help || n_dirs != 1 || o->sweep) return args_end(args);
    ERR_RETURN(golden_open(argv[0], g));
    config_complete(&s->config, args);
    golden_complete(*g, &s->config);
    ERR_RETURN(world_size(&s->config));
    config_check(&s->config, CHECK_MODEL | CHECK_TRAIN | CHECK_STRICT, args);
    return args_end(args);
}

int command_parity(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    Options o;
    Golden *g = NULL;
    Args args;
    const ArgTable own = ARG_TABLE(ROWS, &o);
    args_init(&args, s.arena,
              "isotron parity DIR [DIR ... --sweep LIST] [layout and precision options]\n\n"
              "Runs a golden case and compares every result with that of an independent implementation.\n"
              "With --sweep, runs a list of precisions and layouts. Exit status 1: a comparison failed;\n"
              "4: the case is too small to judge the precision.\n\n"
              "example: isotron parity golden/llama-gqa --fp64 --tensor-model-parallel-size 2",
              NULL);
    args_use(&args, own);
    int n_dirs = 0;
    while (n_dirs < argc && argv[n_dirs][0] != '-') n_dirs++;
    Err e = read_options(&s, &args, &o, &g, n_dirs, argc, argv);
    int status;
    if (command_ready(&args, e, &status)) {
        bool pass = true;
        status = 0;
        e = check_places(&o);
        if (!e.code) e = o.sweep ? sweep(&o, own, n_dirs, argc, argv, &pass) : run(&s, g, &o, &status);
        if (e.code || !pass) status = e.code ? command_fail(e) : ERR_FAILED;
    }
    golden_close(g);
    args_free(&args);
    setup_free(&s);
    return status;
}
