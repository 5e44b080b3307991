/* Runs the stages in a separate process, unless a launcher has started several processes. If there are two NCCL
 * libraries, each library has a separate process. Stages that depend on the library run in the order A B, or A
 * B B A if they measure rates. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/isolated.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "comm/comm.h"
#include "comm/nccl/library.h"
#include "measure/exact.h"
#include "run/launch.h"
#include "validate/budget.h"
#include "validate/compare.h"
#include "validate/hang.h"
#include "validate/stage.h"

static Err (*const FUNCTIONS[])(const StageInput *) = {
#define STAGE(name, share, least, ranks, on_library, starts_processes, what) stage_##name,
#include "validate/stages.def"
};

static const ValidateRow ROWS[] = {
#define STAGE(name, share, least, ranks, on_library, starts_processes, what)                                 \
    {#name, what, share, least, ranks, on_library, starts_processes, false, NULL, NULL, false},
#include "validate/stages.def"
};

/* DEADLINE_S: the number of seconds for which a collective waits for a member, unless an option sets another
 * deadline. */
enum { DEADLINE_S = 20, SLACK_S = 30 };
static const double LEAST_SWEEP_S = 0.7, LEAST_GPU_SWEEP_S = 7, LEAST_VARIANT_S = 0.1;
/* The time in seconds to open and close GPUs and NCCL: in the process that the stages share, and in a drill of
 * `hang`. */
static const double OPENING_S = 6.5, DRILL_OPENING_S = 13;

/* A turn: one run of a stage with one library. Turns are in memory that the processes share. */
typedef struct Turn {
    StageInput in;
    int stage;
    Outcome out;
} Turn;

typedef struct Runner {
    const ValidateOptions *options;
    Turn *turn[2];  /* the current turns of library A and library B */
    bool exclusive; /* as in StageInput */
    /* the processes of earlier stages, with open devices and an open library; NULL if there is none */
    Isolation *kept[2];
    JobWatch watch; /* watches all processes */
    Validation *a;
    bool is_live;     /* whether stderr is a terminal, so that a line shows the current stage */
    int64_t shown_ns; /* time at which the progress line was written, or 0 if the line is hidden */
} Runner;

/* ---- the progress line ---- */

/* Shows "speed 6/9 | 3 s | run 41 of 60 s | all_reduce 4096 KiB". The stage's process can change the activity text
 * (`doing`) while this function reads it. */
static void show(Runner *x) {
    enum { INTERVAL_NS = 200000000 };
    const Validation *a = x->a;
    const int64_t now = clock_ns();
    if (!x->is_live || now - x->shown_ns < INTERVAL_NS) return;
    int at = 0, n = 0;
    for (int i = 0; i < STAGES; i++) n += a->row[i].selected, at += a->row[i].selected && i <= a->stage;
    char line[400], stage[64] = "start";
    if (a->row[a->stage].a)
        snprintf(stage, sizeof stage, "%s %d/%d | %d s", a->row[a->stage].name, at, n,
                 (int)((double)(now - a->stage_ns) * 1e-9));
    snprintf(line, sizeof line, "%s | run %d of %.0f s%s%s", stage, (int)((double)(now - a->start_ns) * 1e-9),
             x->options->seconds, *a->now->doing ? " | " : "", a->now->doing);
    terminal_show(stderr, line);
    x->shown_ns = now;
}

static void hide(Runner *x) {
    if (x->shown_ns) terminal_hide(stderr);
    x->shown_ns = 0;
}

static bool look(void *runner) {
    Runner *x = runner;
    if (!x->a->signal) x->a->signal = interrupt_poll();
    if (!x->a->signal) show(x);
    return x->a->signal;
}

/* ---- the NCCL library ---- */

enum { VERSION = 32 };

typedef struct Loading {
    const char *file;
    bool done;
    Err error;
    char version[VERSION];
} Loading;

static void load(void *arg) {
    Loading *l = arg;
    Nccl n;
    l->error = nccl_load(l->file, &n);
    if (!l->error.code) nccl_version_text(&n, l->version);
    l->done = true;
}

/* Loads the library in a separate process, because loading a file that is not NCCL can have any effect. If
 * there is an error, `version` is empty. */
static Err load_alone(Runner *x, const char *file, char version[VERSION]) {
    enum { LIMIT_S = 60 };
    Loading *l = isolated_memory(sizeof *l);
    l->file = file;
    if (comm_processes() > 1) {
        load(l);
    } else {
        Isolated i = isolated_run(load, l, LIMIT_S, &x->watch);
        if (!l->done && !x->a->signal)
            l->error = err_user("'%s' is not a usable NCCL library: the process that loaded it crashed or "
                                "hung. Give the path of a libnccl.so.2",
                                file ? file : "libnccl.so.2");
        str_free(&i.said);
    }
    const Err e = l->error;
    strcpy(version, l->version);
    isolated_free(l, sizeof *l);
    return e;
}

/* ---- one stage ---- */

static void take_turn(void *arg) {
    Turn *t = arg;
    const int64_t start = clock_ns();
    t->in.out->error = FUNCTIONS[t->stage](&t->in);
    t->in.out->seconds += (double)(clock_ns() - start) * 1e-9;
    t->in.out->done = true;
}

/* Formats the library's name as the stages print it, such as "NCCL 2.28.9 with NCCL_ALGO=Ring NCCL_PROTO=LL". */
static void name_library(Runner *x, const StageInput *in, char *out, size_t n) {
    char version[VERSION];
    load_alone(x, in->config.nccl_library, version);
    snprintf(out, n, "NCCL%s%s%s%s", *version ? " " : "", version, in->variant ? " with " : "",
             in->variant ? in->variant : "");
}

/* Records that the stage's process crashed or had to be killed. */
static void note_crash(Runner *x, const Turn *t, const Isolated *i, double limit) {
    Outcome *out = t->in.out;
    const Blame b = isolated_blame(i);
    char suspect[96] = "not known";
    if (t->in.variant && strstr(i->said.s ? i->said.s : "", "invalid usage")) {
        outcome_limit(out, "collectives: %s, which NCCL rejects here", t->in.variant);
        return;
    }
    if (b.of_library || t->in.variant) name_library(x, &t->in, suspect, sizeof suspect);
    if (b.rank >= 0) snprintf(suspect, sizeof suspect, "rank %d", b.rank);
    if (i->end == JOB_LATE)
        outcome_add(out, VALIDATE_FAIL, suspect, "the stage did not end within %.0f s, during: %s%s%s", limit,
                    out->doing, *b.line ? "; output: " : "", b.line);
    else
        outcome_add(out, VALIDATE_FAIL, suspect, "its process ended during: %s; output: %s", out->doing,
                    *b.line ? b.line : "none");
}

static void end_kept(Runner *x, bool is_b) {
    isolation_free(x->kept[is_b]);
    x->kept[is_b] = NULL;
}

/* Runs a turn in the kept process. If the kept process has ended since the previous stage, the current stage is
 * not at fault, and a new process runs the turn. */
static Isolated run_kept(Runner *x, bool is_b, double limit) {
    if (!x->kept[is_b]) x->kept[is_b] = isolation_new(take_turn, x->turn[is_b]);
    Isolated i = isolation_run(x->kept[is_b], limit, &x->watch);
    if (i.end != JOB_CRASHED || *x->turn[is_b]->out.doing) return i;
    str_free(&i.said);
    return isolation_run(x->kept[is_b], limit, &x->watch);
}

/* Returns the number of seconds after which a stage is killed. The drills of `hang` have separate limits. The
 * limit for the stage `hang` is longer, because the stage must judge the drills. */
static double limit_of(const Turn *t) {
    const StageInput *in = &t->in;
    const double most = t->stage == STAGE_hang ? hang_most_seconds(in->exclusive)
                                               : 2 * in->seconds + in->config.distributed_timeout_seconds;
    return most + SLACK_S;
}

static void end_turn(Runner *x, Turn *t, Isolated *i) {
    if (!t->out.done) t->out.seconds += i->seconds;
    if (!t->out.done && i->end != JOB_STOPPED) note_crash(x, t, i, limit_of(t));
    x->exclusive |= t->out.exclusive;
    str_free(&i->said);
}

/* Runs a turn. Opening GPUs and NCCL takes seconds, so stages share a process. A new process is needed if the
 * environment changes, or if a stage forks. */
static void run_turn(Runner *x, bool is_b, bool in_new) {
    Turn *t = x->turn[is_b];
    x->a->now = &t->out;
    if (comm_processes() > 1) {
        take_turn(t);
        return;
    }
    Isolated i = in_new ? isolated_run(take_turn, t, limit_of(t), &x->watch) : run_kept(x, is_b, limit_of(t));
    end_turn(x, t, &i);
    if (!in_new && (t->out.error.code || x->exclusive || outcome_verdict(&t->out) >= VALIDATE_FAIL))
        end_kept(x, is_b);
}

/* Starts a turn. GEMM tuning is off by default, because measuring the algorithms of a GEMM takes seconds, which is too
 * long for a stage. */
static Turn *next_turn(Runner *x, int stage, bool is_b, double seconds) {
    const ValidateOptions *o = x->options;
    Turn *t = x->turn[is_b];
    memset(t, 0, sizeof *t);
    t->in = (StageInput){
        .options = o, .config = *o->config, .seconds = seconds, .exclusive = x->exclusive, .out = &t->out};
    t->stage = stage;
    Config *c = &t->in.config;
    if (is_b) c->nccl_library = o->nccl_b;
    if (!config_given(c, gemm_tuning)) c->gemm_tuning = TUNING_OFF;
    if (!config_given(c, distributed_timeout_seconds) && !config_given(c, distributed_timeout_minutes))
        c->distributed_timeout_seconds = DEADLINE_S;
    else if (!config_given(c, distributed_timeout_seconds))
        c->distributed_timeout_seconds = 60 * (double)c->distributed_timeout_minutes;
    return t;
}

/* NCCL's environment variables for another turn of the stage `collectives`. NCCL reads its environment once per
 * process. */
typedef struct Variant {
    const char *algorithm, *protocol; /* NULL if NCCL chooses */
} Variant;

static void set_or_clear(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* The verdict of a stage that cannot run is FAIL, because an earlier stage was able to open devices and
 * libraries. */
static void note_error(const Turn *t) {
    Outcome *out = t->in.out;
    if (t->in.variant)
        outcome_limit(out, "collectives: %s, because %s", t->in.variant, out->error.msg);
    else
        outcome_add(out, VALIDATE_FAIL, "not known", "the stage could not run: %s", out->error.msg);
}

/* Returns whether a stage needs a new process. On GPUs, the cells of parity run in the process of the stage. */
static bool needs_new_process(const ValidateOptions *o, int stage) {
    return ROWS[stage].starts_processes && !(stage == STAGE_parity && o->config->device == ON_CUDA);
}

static bool compares_libraries(const ValidateOptions *o, int stage) {
    return o->nccl_b && ROWS[stage].on_library;
}

static void add_outcome(const Turn *t, Outcome *to) {
    if (t->out.error.code) note_error(t);
    outcome_merge(to, &t->out);
}

/* Runs one turn and adds the result to the row. If `v` is NULL, the environment is unchanged. Returns whether the turn
 * ended; returns false after a signal. */
static bool add_turn(Runner *x, int stage, bool is_b, double seconds, const Variant *v, Outcome *to) {
    if (x->a->signal) return false;
    Turn *t = next_turn(x, stage, is_b, seconds);
    t->in.variant = v ? mem_printf("NCCL_ALGO=%s NCCL_PROTO=%s", v->algorithm, v->protocol) : NULL;
    if (v) set_or_clear("NCCL_ALGO", v->algorithm), set_or_clear("NCCL_PROTO", v->protocol);
    run_turn(x, is_b, v || needs_new_process(x->options, stage));
    if (v) set_or_clear("NCCL_ALGO", NULL), set_or_clear("NCCL_PROTO", NULL);
    add_outcome(t, to);
    free((char *)t->in.variant);
    return t->out.done;
}

/* Runs as many of NCCL's combinations of algorithm and protocol as time allows, and at least one if `seconds` is not
 * 0. Each combination needs a new process, and the time to start the process counts. */
static void sweep_variants(Runner *x, int stage, bool is_b, double seconds, Outcome *to) {
    static const Variant VARIANTS[] = {{"Ring", "LL"},     {"Ring", "LL128"},     {"Tree", "Simple"},
                                       {"Ring", "Simple"}, {"Tree", "LL"},        {"Tree", "LL128"},
                                       {"NVLS", "Simple"}, {"NVLSTree", "Simple"}};
    enum { N = sizeof VARIANTS / sizeof *VARIANTS };
    const int64_t start = clock_ns();
    /* starting: time to start a turn, in addition to the time of the turn itself */
    double left = seconds, starting = 0;
    int i = 0;
    for (; i < N && (i ? left > starting + LEAST_VARIANT_S : seconds > 0); i++) {
        const double own = left / (N - i) - starting, turn = own > LEAST_VARIANT_S ? own : LEAST_VARIANT_S;
        add_turn(x, stage, is_b, turn, &VARIANTS[i], to);
        const double rest = seconds - (double)(clock_ns() - start) * 1e-9, took = left - rest;
        starting = took > turn ? took - turn : 0;
        left = rest;
    }
    if (i < N)
        outcome_limit(to,
                      "collectives: %d of NCCL's %d combinations of algorithm and protocol, for which there "
                      "was no time",
                      N - i, (int)N);
}

/* Returns whether variants are run. Variants are not run under a launcher, or if the user has chosen a
 * variant. */
static bool sweeps_variants(int stage, const Outcome *out) {
    return stage == STAGE_collectives && stage_is_nccl(out->transport) && !getenv("NCCL_ALGO") &&
           !getenv("NCCL_PROTO") && comm_processes() == 1 && outcome_verdict(out) < VALIDATE_FAIL;
}

/* Returns the number of seconds for a turn with variants, or 0 if that time is too short to start a
 * process. */
static double variants_seconds(const ValidateOptions *o, int stage, double seconds) {
    const double least = o->config->device == ON_CUDA ? LEAST_GPU_SWEEP_S : LEAST_SWEEP_S;
    return stage == STAGE_collectives && seconds / 2 >= least ? seconds / 2 : 0;
}

/* Returns whether both libraries run concurrently, as in the drills, which spend most of their time waiting. */
static bool runs_both(const Runner *x, int stage) {
    return stage == STAGE_hang && compares_libraries(x->options, stage) && !x->exclusive;
}

static void run_both(Runner *x, ValidateRow *row, int stage, double seconds) {
    Turn *turns[] = {next_turn(x, stage, false, seconds), next_turn(x, stage, true, seconds)};
    Outcome *const to[] = {row->a, row->b};
    Isolated results[2];
    x->a->now = &turns[0]->out;
    isolated_run_all(take_turn, (void *const *)turns, results, 2, limit_of(turns[0]), &x->watch);
    for (int i = 0; i < 2; i++) {
        end_turn(x, turns[i], &results[i]);
        add_outcome(turns[i], to[i]);
    }
}

/* Returns the order of the turns. Rates are measured twice, so that a drift of the machine affects both libraries
 * equally. */
static const char *order_of(const Runner *x, int stage) {
    if (!compares_libraries(x->options, stage) || runs_both(x, stage)) return "a";
    return stage == STAGE_speed || stage == STAGE_training ? "abba" : "ab";
}

/* Runs the turns of a stage. If a turn did not end, more turns with the same library are skipped, because they
 * would reach the time limit again. The second pair of turns is skipped if the first pair has used the time for
 * both pairs. */
static void run_stage(Runner *x, ValidateRow *row, int stage, double all_seconds) {
    static const double MOST_OF_A_PAIR = 0.75;
    const char *order = order_of(x, stage);
    const int turns = (int)strlen(order);
    const double seconds = all_seconds / turns, for_variants = variants_seconds(x->options, stage, seconds);
    const int64_t start = clock_ns();
    bool ended[] = {true, true};
    for (int i = 0; i < turns; i++) {
        const bool is_b = order[i] == 'b';
        row->once = i == 2 && (double)(clock_ns() - start) * 1e-9 > MOST_OF_A_PAIR * all_seconds;
        if (row->once) break;
        if (!ended[is_b]) continue;
        Outcome *out = is_b ? row->b : row->a;
        ended[is_b] = add_turn(x, stage, is_b, seconds - for_variants, NULL, out);
        if (i < 2 && sweeps_variants(stage, out)) sweep_variants(x, stage, is_b, for_variants, out);
    }
}

/* Opens the devices and library B before B's first stage, so that opening them takes no time from the stage.
 * Errors are ignored, because they will occur again in the stage. */
static void open_b(Runner *x, int stage) {
    if (!compares_libraries(x->options, stage) || x->kept[true] || x->exclusive || comm_processes() > 1)
        return;
    next_turn(x, STAGE_inventory, true, 1);
    run_turn(x, true, false);
}

/* ---- the table ---- */

static Err check_names(const ValidateOptions *o) {
    const char *names[STAGES];
    for (int i = 0; i < STAGES; i++) names[i] = ROWS[i].name;
    return text_list_check(&o->only, "only", names, STAGES);
}

/* Returns the reason why a stage cannot run on this machine, or NULL if it can run. */
static const char *obstacle(const ValidateOptions *o, const ValidateRow *row) {
    if (config_ranks(o->config) < row->least_ranks) return "it needs 2 ranks, and there is 1";
    if (comm_processes() > 1 && row->starts_processes)
        return "it starts processes: run it without a launcher, with --ranks";
    return NULL;
}

static bool any_ran(const Validation *a) {
    bool any = false;
    for (int i = 0; i < STAGES; i++) {
        const Outcome *r = a->row[i].a;
        any |= r && r->seconds > 0 && !r->error.code;
    }
    return any;
}

/* Returns the time for a stage in seconds. Under a launcher, processes have different clocks but need equal
 * budgets, so they ignore `gone` (the elapsed seconds) and count all stages as remaining. */
static double budget(const Runner *x, const Validation *a, int stage, double gone) {
    const ValidateOptions *o = x->options;
    const bool by_clock = comm_processes() == 1, gpu = o->config->device == ON_CUDA,
               opens_b = o->nccl_b && !x->kept[true];
    StageTime times[STAGES];
    int n = 0;
    for (int k = 0; k < STAGES; k++) {
        const int i = (stage + k) % STAGES;
        const ValidateRow *row = &a->row[i];
        if ((by_clock && i < stage) || !row->selected || obstacle(o, row)) continue;
        const double opening = i == STAGE_hang && gpu ? DRILL_OPENING_S : 0;
        times[n++] = (StageTime){row->share, (double)strlen(order_of(x, i)) * (row->least_seconds + opening)};
    }
    return stage_budget(times, n, o->seconds, by_clock ? gone : 0, gpu ? (1 + opens_b) * OPENING_S : 0);
}

/* ---- a signal ---- */

/* Marks a stage as interrupted, and keeps its findings. `doing` describes what the signal interrupted; it is NULL if
 * the stage had not begun. */
static void note_interrupt(ValidateRow *row, const char *doing) {
    if (!row->a) row->a = isolated_memory(sizeof *row->a);
    outcome_add(row->a, VALIDATE_INTERRUPTED, "", doing ? "it was interrupted" : "the run was interrupted");
    if (!doing) {
        outcome_limit(row->a, "%s: the run was interrupted", row->name);
        return;
    }
    outcome_sum_up(row->a, "interrupted during: %s", *doing ? doing : "its start");
    outcome_limit(row->a, "%s: %s", row->name, row->a->summary);
}

static void note_later(Validation *a, int stage) {
    for (int i = stage; i < STAGES; i++)
        if (a->row[i].selected) note_interrupt(&a->row[i], NULL);
    a->seconds = (double)(clock_ns() - a->start_ns) * 1e-9;
}

static void print_row(const Validation *a, const ValidateRow *row) {
    if (!a->is_heard) return;
    Str line = {0};
    validate_print_row(a, row, &line);
    terminal_report(stdout, line.s);
    fflush(stdout);
    str_free(&line);
}

/* Under a launcher, this function runs in a separate thread when a signal arrives during a stage. If one
 * process ended, the other processes would report its loss as a fault, and the launcher would end them.
 * Processes that do not write the report therefore wait for the process that writes it. */
static void report_interrupt(void *validation) {
    enum { REPORT_S = 1 }; /* longer than rank 0 needs to write the report */
    Validation *a = validation;
    if (a->stage == STAGES) return;
    if (!a->is_heard) {
        sleep(REPORT_S);
        return;
    }
    ValidateRow *row = &a->row[a->stage];
    Outcome *now = mem_alloc(sizeof *now);
    *now = *a->now; /* this rank may be writing to *a->now */
    now->seconds = (double)(clock_ns() - a->stage_ns) * 1e-9;
    outcome_merge(row->a, now);
    note_interrupt(row, now->doing);
    note_later(a, a->stage + 1);
    print_row(a, row);
    a->options->report(a, a->options->arg);
    fflush(stdout);
    free(now);
}

/* ---- a row ---- */

static void run_turns(Runner *x, ValidateRow *row, int stage, double seconds) {
    Interrupt *interrupt = x->a->interrupt;
    if (interrupt) interrupt_release(interrupt);
    if (runs_both(x, stage))
        run_both(x, row, stage, seconds);
    else
        run_stage(x, row, stage, seconds);
    if (interrupt) interrupt_hold(interrupt);
}

static Err run_row(Runner *x, Validation *a, int stage) {
    const ValidateOptions *o = x->options;
    ValidateRow *row = &a->row[stage];
    const char *why = obstacle(o, row);
    row->a = isolated_memory(sizeof *row->a);
    a->stage = stage, a->stage_ns = clock_ns();
    if (compares_libraries(o, stage) && !why) row->b = isolated_memory(sizeof *row->b);
    if (why) {
        outcome_limit(row->a, "%s: %s", row->name, why);
        outcome_add(row->a, VALIDATE_INCONCLUSIVE, "", "%s", why);
        row->a->done = true;
    } else {
        open_b(x, stage);
        run_turns(x, row, stage, budget(x, a, stage, a->seconds + (double)(clock_ns() - a->stage_ns) * 1e-9));
        hide(x);
        /* the cause is probably an error in the options */
        if (row->a->error.code && !any_ran(a)) return row->a->error;
        if (a->signal) note_interrupt(row, a->now->doing);
        if (!a->signal) compare_with_good(a, row);
        if (!a->signal && row->b) compare_libraries(a, row);
    }
    print_row(a, row);
    return ERR_OK;
}

/* Determines whether processes can share a GPU. If --device cuda is given without --ranks, also counts the
 * GPUs, and sets one rank per GPU. */
static Err look_at_devices(Runner *x, Config *c) {
    if (c->device != ON_CUDA || comm_processes() > 1) return ERR_OK;
    Turn *t = next_turn(x, STAGE_inventory, false, 1);
    t->in.config.ranks = 1;
    world_raise_queues();
    run_turn(x, false, false);
    if (x->a->signal) return ERR_OK;
    if (!t->out.done)
        return err_user("the process that opened the first GPU ended: %s. Check the GPU with nvidia-smi.",
                        t->out.n_evidence ? t->out.evidence[0].text : "no output");
    if (!config_given(c, ranks) && !t->out.error.code && t->out.devices > 1) c->ranks = t->out.devices;
    return t->out.error;
}

/* ---- checks before the first stage ---- */

/* Names the two libraries by their versions or, if the versions are equal, by their files. */
static Err check_libraries(Runner *x, Validation *a) {
    const ValidateOptions *o = x->options;
    const char *const files[] = {o->config->nccl_library, o->nccl_b};
    char version[2][VERSION] = {"", ""};
    for (int b = 0; b < 2; b++)
        if (files[b] || o->nccl_b) ERR_RETURN(load_alone(x, files[b], version[b]));
    const bool same = !strcmp(version[0], version[1]);
    for (int b = 0; b < 2 && o->nccl_b; b++) {
        const char *file = files[b] ? files[b] : "libnccl.so.2", *slash = strrchr(file, '/');
        snprintf(a->nccl_name[b], sizeof a->nccl_name[b], "%s%s", same ? "" : "NCCL ",
                 same ? slash ? slash + 1 : file : version[b]);
    }
    return ERR_OK;
}

static Err check_options(Runner *x, Validation *a) {
    const ValidateOptions *o = x->options;
    ERR_RETURN(check_libraries(x, a));
    if (config_ranks(o->config) > EXACT_RANKS)
        return err_user("%lld ranks are too many: validate runs on at most %d",
                        (long long)config_ranks(o->config), (int)EXACT_RANKS);
    return ERR_OK;
}

static Err run_rows(Runner *x, Config *config, Validation *a) {
    for (int i = 0; i < STAGES; i++)
        a->row[i].selected = text_list_selects(&x->options->only, a->row[i].name);
    ERR_RETURN(look_at_devices(x, config));
    ERR_RETURN(check_options(x, a));
    a->ranks = (int)config_ranks(config);
    int i = 0;
    for (; i < STAGES && !a->signal; i++) {
        if (!a->row[i].selected) continue;
        ERR_RETURN(run_row(x, a, i));
        a->seconds = (double)(clock_ns() - a->start_ns) * 1e-9;
    }
    if (a->signal) note_later(a, i);
    return ERR_OK;
}

/* Golden cases are checked if --golden is given, or if the stage parity will run. */
static Err find_golden(const ValidateOptions *o, char **out) {
    const bool runs = text_list_selects(&o->only, ROWS[STAGE_parity].name) && comm_processes() == 1;
    return o->golden || runs ? parity_find_golden(o->golden, out) : ERR_OK;
}

Err validate_run(const ValidateOptions *given, Validation *a) {
    *a = (Validation){.options = given, .is_heard = comm_process() <= 0, .start_ns = clock_ns()};
    memcpy(a->row, ROWS, sizeof a->row);
    const bool alone = comm_processes() == 1;
    if (alone)
        interrupt_block(), jobs_adopt();
    else
        a->interrupt = interrupt_watch(report_interrupt, a, NULL);
    ERR_RETURN(check_names(given));
    if (given->good) ERR_RETURN(compare_open_good(given->good, &a->good));
    Config config = *given->config;
    ValidateOptions options = *given;
    options.config = &config;
    char *golden = NULL;
    Err e = find_golden(given, &golden);
    options.golden = golden;
    Runner x = {
        .options = &options, .watch = {look, &x}, .a = a, .is_live = alone && terminal_is_live(stderr)};
    for (int b = 0; b < 2; b++) x.turn[b] = isolated_memory(sizeof **x.turn);
    a->now = &x.turn[0]->out;
    if (!e.code) e = run_rows(&x, &config, a);
    a->stage = STAGES;
    hide(&x);
    for (int b = 0; b < 2; b++) {
        end_kept(&x, b);
        isolated_free(x.turn[b], sizeof **x.turn);
    }
    free(golden);
    return e;
}

void validate_free(Validation *a) {
    if (a->interrupt) interrupt_end(a->interrupt);
    if (a->signal) jobs_wait_for_adopted();
    for (int i = 0; i < STAGES; i++) {
        isolated_free(a->row[i].a, sizeof *a->row[i].a);
        isolated_free(a->row[i].b, sizeof *a->row[i].b);
    }
    json_decref(a->good);
}
