#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/file.h"
#include "base/terminal.h"
#include "main/command.h"
#include "models/option_map.h"
#include "plan/report.h"
#include "plan/timeline.h"
#include "run/source.h"

typedef struct Options {
    double device_memory;
    int64_t node;
    bool search;
    const char *json, *rates, *timeline, *tokens;
    TextList links;
    double save_bandwidth;
    RunTerms terms;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, device_memory, "device-memory-gib", ARG_F64, "none",
            "Device memory per rank in GiB (140 for an H200). The report states whether the run fits. none = "
            "the memory of the GPU, if the machine has one and --device is not cpu."),
    ARG_ROW(
        Options, search, "search", ARG_FLAG, "off",
        "Also list the layouts that fit, for the smallest possible number of ranks or for --ranks. The "
        "search varies tensor, context, pipeline, expert and data parallelism, virtual stages, ZeRO, "
        "recomputation and microbatches. Other options are unchanged. With --rates, also varies sequence and "
        "expert tensor parallelism, and lists the fastest layouts first."),
    ARG_ROW(Options, node, "gpus-per-node", ARG_I64, "8",
            "Maximum tensor-parallel size that --search tries."),
    ARG_ROW(Options, rates, "rates", ARG_TEXT, "none",
            "Also predict the time of a step from the rates in this file, which bench rates measured."),
    ARG_ROW(Options, links, "links", ARG_TEXTS, "none",
            "Files that add links to --rates: results of bench comm, and a description of hosts, such as "
            "bench/rates/hgx-h100-ndr400.json."),
    ARG_ROW(
        Options, timeline, "timeline", ARG_TEXT, "none",
        "Draw the predicted step into this file: an SVG (.svg) or a trace for Chrome and Perfetto (.json)."),
    ARG_ROW(Options, tokens, "tokens", ARG_TEXT, "none",
            "Number of tokens to train on, with a suffix M, B or T (1e6, 1e9, 1e12). The report states the "
            "days that the run takes."),
    ARG_ROW(Options, terms.price, "price", ARG_F64, "none",
            "Price of a GPU for an hour, in any currency. The report states the cost per million tokens and, "
            "with --tokens, of the run."),
    ARG_ROW(
        Options, terms.gpu_failure_hours, "gpu-failure-hours", ARG_F64, "none",
        "Mean time in hours between failures of one GPU that stop the run, including those of its host and "
        "network. Days and cost then include lost time. The report states the best checkpoint interval."),
    ARG_ROW(Options, terms.save_seconds, "save-seconds", ARG_F64, "none",
            "Time that training stops for a checkpoint."),
    ARG_ROW(Options, save_bandwidth, "save-bandwidth", ARG_F64, "none",
            "Bandwidth of the run's storage in GB/s, which defines the time of a checkpoint instead of "
            "--save-seconds."),
    ARG_ROW(Options, terms.restart_seconds, "restart-seconds", ARG_F64, "none",
            "Time in seconds from a failure until training continues from the last checkpoint."),
    ARG_ROW(Options, json, "json", ARG_TEXT, "none", "Also write the plan to this file as JSON."),
};

static void check_positive(const char *name, double x, Args *args) {
    if (f64_is_set(x) && !(x > 0 && isfinite(x)))
        args_problem(args, "--%s must be above 0 and finite.", name);
}

/* Checks the options that define the run's duration and cost. */
static void check_terms(Options *o, const Config *c, Args *args) {
    RunTerms *t = &o->terms;
    t->tokens = o->tokens ? tokens_parse(o->tokens) : NAN;
    t->save_interval = c->save_interval;
    if (o->tokens && !f64_is_set(t->tokens))
        args_problem(args, "--tokens must be a positive number, such as 15T, 300B, 10M or 1e9, not '%.40s'.",
                     o->tokens);
    check_positive("price", t->price, args);
    check_positive("gpu-failure-hours", t->gpu_failure_hours, args);
    check_positive("save-seconds", t->save_seconds, args);
    check_positive("save-bandwidth", o->save_bandwidth, args);
    check_positive("restart-seconds", t->restart_seconds, args);
    static const char *const NEED_RATES[] = {"tokens", "price", "gpu-failure-hours"},
                             *const NEED_FAILURES[] = {"save-seconds", "save-bandwidth", "restart-seconds"};
    for (size_t i = 0; !o->rates && i < sizeof NEED_RATES / sizeof *NEED_RATES; i++)
        args_refuse(args, NEED_RATES[i], "without --rates");
    if (!f64_is_set(t->gpu_failure_hours)) {
        for (size_t i = 0; i < sizeof NEED_FAILURES / sizeof *NEED_FAILURES; i++)
            args_refuse(args, NEED_FAILURES[i], "without --gpu-failure-hours");
        return;
    }
    if (f64_is_set(t->save_seconds) == f64_is_set(o->save_bandwidth))
        args_problem(args, "--gpu-failure-hours needs either --save-seconds or --save-bandwidth.");
    if (!f64_is_set(t->restart_seconds)) args_problem(args, "--gpu-failure-hours needs --restart-seconds.");
    if (c->async_save)
        args_refuse(args, "save-bandwidth",
                    "with --async-save, which stops training only for a copy: set --save-seconds");
}

static void check(Options *o, const Config *c, Args *args) {
    enum { GIB_MOST = 1 << 20, NODE_MOST = 1 << 16 };
    config_check(c, CHECK_MODEL | CHECK_TRAIN, args);
    if (f64_is_set(o->device_memory) && !(o->device_memory > 0 && o->device_memory <= GIB_MOST))
        args_problem(args, "--device-memory-gib must be above 0 and at most %d.", GIB_MOST);
    if (o->node < 1 || o->node > NODE_MOST)
        args_problem(args, "--gpus-per-node must be from 1 to %d.", NODE_MOST);
    if (!o->search) args_refuse(args, "gpus-per-node", "without --search");
    if (!o->rates) args_refuse(args, "links", "without --rates");
    if (!o->rates) args_refuse(args, "timeline", "without --rates");
    check_terms(o, c, args);
    const NamedFile written[] = {{"--json", o->json}, {"--timeline", o->timeline}};
    command_refuse_same_files(args, written, 2, &(NamedFile){"--rates", o->rates}, 1);
    for (int64_t i = 0; i < o->links.count; i++)
        command_refuse_same_files(args, written, 2, &(NamedFile){"--links", o->links.at[i]}, 1);
}

/* Opens the GPU if the plan is for GPUs and this machine has a GPU. With an open GPU, the plan includes the
 * scratch memory of kernels. */
static Device *open_gpu(const Setup *s) {
    Device *device = NULL;
    const DeviceSpec spec = map_device_spec(&s->config, 0);
    if (s->config.device == ON_CPU) return NULL;
    if (device_open(&spec, &device).code)
        terminal_print(stdout,
                       "there is no GPU here, so the plan does not include kernels' scratch memory\n");
    return device;
}

/* Returns the terms, with the time of a checkpoint if it follows from --save-bandwidth. */
static RunTerms terms_of(const Options *o, const Config *c) {
    RunTerms t = o->terms;
    if (f64_is_set(o->save_bandwidth)) t.save_seconds = plan_checkpoint_bytes(c) * 1e-9 / o->save_bandwidth;
    return t;
}

/* Sets *pass to whether the layout fits; with --search, whether any layout does. If the device's memory size is
 * unknown, sets *pass to true. */
static Err plan(const Setup *s, const Options *o, bool *pass) {
    if (o->json) ERR_RETURN(file_check_target(o->json));
    if (o->timeline) ERR_RETURN(timeline_check(o->timeline));
    const Config *c = &s->config;
    RunPlan run;
    Search found;
    Rates rates = {.n = 0};
    StepTime time;
    RunCost cost;
    Device *gpu = open_gpu(s);
    const size_t available = f64_is_set(o->device_memory) ? (size_t)(o->device_memory * 0x1p30)
                             : gpu                        ? device_memory_available(gpu)
                                                          : 0;
    Err e = o->search && !available
                ? err_user("--search needs the device's memory size: set --device-memory-gib")
                : ERR_OK;
    if (!e.code) e = plan_make(c, gpu, s->arena, &run);
    if (!e.code && o->search && !o->rates) found = plan_search(c, gpu, available, o->node);
    if (!e.code && o->rates) e = rates_read(o->rates, &rates);
    for (int64_t i = 0; !e.code && i < o->links.count; i++) e = links_read(o->links.at[i], &rates.links);
    if (!e.code && o->rates) e = step_time(&run, gpu, &rates, o->timeline, s->arena, &time);
    if (!e.code && o->search && o->rates) e = plan_search_fastest(c, gpu, available, o->node, &rates, &found);
    if (!e.code) {
        *pass = o->search ? found.n > 0 : !available || plan_bytes(&run) <= available;
        Str text = {0};
        plan_print(&run, available, terminal_width(stdout), &text);
        const RunTerms terms = terms_of(o, c);
        if (o->rates) {
            cost = run_cost(&terms, time.ranks, time.ns, time.tokens_per_second);
            step_time_print(&time, &text);
            run_cost_print(&cost, &terms, time.ranks, time.ns, &text);
        }
        if (o->search) search_print(&found, &terms, c->ranks, available, terminal_width(stdout), &text);
        terminal_print(stdout, text.s);
        str_free(&text);
        if (o->json)
            e = plan_write_json(&run, o->rates ? &time : NULL, &cost, o->search ? &found : NULL, available,
                                o->json);
    }
    rates_free(&rates);
    device_free(gpu);
    return e;
}

int command_plan(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    Options o;
    Args args;
    args_init(&args, s.arena,
              "isotron plan [--config FILE] [options of pretrain]\n\n"
              "Prints the parameters, memory and pipeline schedule of a run without starting it.\n"
              "The plan is for GPUs, with NCCL's memory, unless --device cpu is given.\n"
              "Exit status 1: the layout does not fit into the device, or with --search no layout fits.\n\n"
              "example: isotron plan --config run.conf --ranks 64 --device-memory-gib 140 --search",
              NULL);
    args_use(&args, ARG_TABLE(ROWS, &o));
    Err e = config_parse(&s.config, &args, USE_PRETRAIN, 0, argc, argv);
    Err loaded = ERR_OK;
    if (!args.help && s.config.use_checkpoint_args) loaded = source_args(&s.config, s.arena, &args.notes);
    s.config.skip_train = true; /* a plan does not need --lr and --train-iters */
    if (!config_given(&s.config, device)) s.config.device = ON_CUDA;
    const bool interval = i64_is_set(s.config.save_interval) && f64_is_set(o.terms.gpu_failure_hours);
    if (interval && !s.config.save)
        s.config.save = ""; /* the rules would note that --save-interval is not used */
    if (!args.help && !loaded.code) {
        check(&o, &s.config, &args);
        e = args_end(&args);
    } else if (!e.code) {
        e = loaded;
    }
    int status;
    if (command_ready(&args, e, &status)) {
        bool pass = false;
        e = setup_finish(&s);
        if (!e.code) e = setup_check_type(&s);
        if (!e.code) e = plan(&s, &o, &pass);
        status = e.code ? command_fail(e) : pass ? 0 : ERR_FAILED;
    }
    args_free(&args);
    setup_free(&s);
    return status;
}
