/* Runs the stages in a separate process, except if a launcher has started several. With two NCCL libraries, stages
 * that depend on the library run alternately for both (A B B A). */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acceptance/budget.h"
#include "acceptance/compare.h"
#include "acceptance/hang.h"
#include "acceptance/isolated.h"
#include "acceptance/stage.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "bench/comm/exact.h"
#include "comm/comm.h"
#include "comm/nccl_library.h"
#include "train/launch.h"

static Err (*const FUNCTIONS[])(const StageInput *) = {
#define STAGE(name, share, least, ranks, on_library, starts_processes, what) stage_##name,
#include "acceptance/stages.def"
};

static const AcceptRow ROWS[] = {
#define STAGE(name, share, least, ranks, on_library, starts_processes, what)                                 \
    {#name, what, share, least, ranks, on_library, starts_processes, false, NULL, NULL},
#include "acceptance/stages.def"
};

/* DEADLINE_S: how long a collective may wait for a member, unless an option sets it. */
enum { DEADLINE_S = 20, SLACK_S = 30 };
static const double LEAST_SWEEP_S = 0.7, LEAST_GPU_SWEEP_S = 7, LEAST_VARIANT_S = 0.1;
/* Opening and closing GPUs and NCCL, in the process that stages share and in those of the drills of `hang`. */
static const double OPENING_S = 6.5, DRILL_OPENING_S = 13;

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

/* Runs in a separate process, because a file that is not NCCL may do anything when it is loaded. `version` is empty
 * after an error. */
static Err load_alone(const char *file, char version[VERSION]) {
    enum { LIMIT_S = 60 };
    Loading *l = isolated_memory(sizeof *l);
    l->file = file;
    if (comm_processes() > 1) {
        load(l);
    } else {
        Isolated i = isolated_run(load, l, LIMIT_S);
        if (!l->done)
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

/* In memory that the processes share. */
typedef struct Turn {
    StageInput in;
    int stage;
    Outcome out;
} Turn;

typedef struct Runner {
    const AcceptOptions *options;
    Turn *turn;      /* the present one */
    bool exclusive;  /* as in StageInput */
    Isolation *kept; /* the process with the devices and the library A of earlier stages; NULL: none */
} Runner;

static void take_turn(void *arg) {
    Turn *t = arg;
    const int64_t start = clock_ns();
    t->in.out->error = FUNCTIONS[t->stage](&t->in);
    t->in.out->seconds += (double)(clock_ns() - start) * 1e-9;
    t->in.out->done = true;
}

/* The name that the stages use: "NCCL 2.28.9 with NCCL_ALGO=Ring NCCL_PROTO=LL". */
static void name_library(const StageInput *in, char *out, size_t n) {
    char version[VERSION];
    load_alone(in->config.nccl_library, version);
    snprintf(out, n, "NCCL%s%s%s%s", *version ? " " : "", version, in->variant ? " with " : "",
             in->variant ? in->variant : "");
}

/* The process of the stage has ended with a fault, or had to be killed. */
static void note_crash(const Turn *t, const Isolated *i, double limit) {
    Outcome *out = t->in.out;
    const Blame b = isolated_blame(i);
    char suspect[96] = "not known";
    out->seconds += i->seconds;
    if (t->in.variant && strstr(i->said.s ? i->said.s : "", "invalid usage")) {
        outcome_limit(out, "collectives: %s, which NCCL rejects here", t->in.variant);
        return;
    }
    if (b.of_library || t->in.variant) name_library(&t->in, suspect, sizeof suspect);
    if (b.rank >= 0) snprintf(suspect, sizeof suspect, "rank %d", b.rank);
    if (i->end == JOB_LATE)
        outcome_add(out, ACCEPT_FAIL, suspect, "the stage did not end within %.0f s, during: %s%s%s", limit,
                    out->doing, *b.line ? "; output: " : "", b.line);
    else
        outcome_add(out, ACCEPT_FAIL, suspect, "its process ended during: %s; output: %s", out->doing,
                    *b.line ? b.line : "none");
}

static void end_kept(Runner *x) {
    isolation_free(x->kept);
    x->kept = NULL;
}

/* A process that has ended since the previous stage is not a fault of this stage. */
static Isolated run_kept(Runner *x, double limit) {
    if (!x->kept) x->kept = isolation_new(take_turn, x->turn);
    Isolated i = isolation_run(x->kept, limit);
    if (i.end != JOB_CRASHED || *x->turn->out.doing) return i;
    str_free(&i.said);
    return isolation_run(x->kept, limit);
}

/* The seconds after which a stage is killed. Drills of `hang` have separate limits. The stage judges them, so its own
 * limit must be longer. */
static double limit_of(const Turn *t) {
    const StageInput *in = &t->in;
    const double most = t->stage == STAGE_hang ? hang_most_seconds(in->exclusive)
                                               : 2 * in->seconds + in->config.distributed_timeout_seconds;
    return most + SLACK_S;
}

/* Opening GPUs and NCCL takes seconds, so stages share a process. A new environment, a new library, or a stage
 * that forks needs a new process. */
static void run_turn(Runner *x, bool in_new) {
    Turn *t = x->turn;
    const double limit = limit_of(t);
    if (comm_processes() > 1) {
        take_turn(t);
        return;
    }
    Isolated i = in_new ? isolated_run(take_turn, t, limit) : run_kept(x, limit);
    if (!t->out.done) note_crash(t, &i, limit);
    x->exclusive |= t->out.exclusive;
    if (!in_new && (t->out.error.code || x->exclusive || outcome_verdict(&t->out) >= ACCEPT_FAIL))
        end_kept(x);
    str_free(&i.said);
}

/* GEMM tuning is off by default, because measuring the algorithms of a GEMM takes seconds, too long for a
 * stage. */
static Turn *next_turn(Runner *x, int stage, const char *library, double seconds) {
    const AcceptOptions *o = x->options;
    Turn *t = x->turn;
    memset(t, 0, sizeof *t);
    t->in = (StageInput){
        .options = o, .config = *o->config, .seconds = seconds, .exclusive = x->exclusive, .out = &t->out};
    t->stage = stage;
    Config *c = &t->in.config;
    c->nccl_library = library;
    if (!config_given(c, gemm_tuning)) c->gemm_tuning = TUNING_OFF;
    if (!config_given(c, distributed_timeout_seconds) && !config_given(c, distributed_timeout_minutes))
        c->distributed_timeout_seconds = DEADLINE_S;
    else if (!config_given(c, distributed_timeout_seconds))
        c->distributed_timeout_seconds = 60 * (double)c->distributed_timeout_minutes;
    return t;
}

/* The NCCL environment of a further turn of the stage `collectives`. NCCL reads it once in a process. */
typedef struct Variant {
    const char *algorithm, *protocol; /* NULL: NCCL's choice */
} Variant;

static void set_or_clear(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* A stage that cannot run has failed, because an earlier stage could open the devices and the libraries. */
static void note_error(const Turn *t) {
    Outcome *out = t->in.out;
    if (t->in.variant)
        outcome_limit(out, "collectives: %s, because %s", t->in.variant, out->error.msg);
    else
        outcome_add(out, ACCEPT_FAIL, "not known", "it could not run: %s", out->error.msg);
}

/* Cells of parity share a process on GPUs. */
static bool needs_new_process(const AcceptOptions *o, int stage) {
    return ROWS[stage].starts_processes && !(stage == STAGE_parity && o->config->device == ON_CUDA);
}

static bool compares_libraries(const AcceptOptions *o, int stage) {
    return o->nccl_b && ROWS[stage].on_library;
}

/* Runs one turn, and adds its result to the row. `v` NULL: the environment is not changed. Returns whether it ended. */
static bool add_turn(Runner *x, int stage, const char *library, double seconds, const Variant *v,
                     Outcome *to) {
    Turn *t = next_turn(x, stage, library, seconds);
    t->in.variant = v ? mem_printf("NCCL_ALGO=%s NCCL_PROTO=%s", v->algorithm, v->protocol) : NULL;
    if (v) set_or_clear("NCCL_ALGO", v->algorithm), set_or_clear("NCCL_PROTO", v->protocol);
    /* if two libraries are compared, neither starts in a warm process */
    run_turn(x, v || needs_new_process(x->options, stage) || compares_libraries(x->options, stage));
    if (v) set_or_clear("NCCL_ALGO", NULL), set_or_clear("NCCL_PROTO", NULL);
    if (t->out.error.code) note_error(t);
    outcome_merge(to, &t->out);
    free((char *)t->in.variant);
    return t->out.done;
}

/* NCCL's combinations of algorithm and protocol for which there is time, at least one if `seconds` is not 0.
 * Each needs a new process, whose start counts. */
static void sweep_variants(Runner *x, int stage, const char *library, double seconds, Outcome *to) {
    static const Variant VARIANTS[] = {{"Ring", "LL"},     {"Ring", "LL128"},     {"Tree", "Simple"},
                                       {"Ring", "Simple"}, {"Tree", "LL"},        {"Tree", "LL128"},
                                       {"NVLS", "Simple"}, {"NVLSTree", "Simple"}};
    enum { N = sizeof VARIANTS / sizeof *VARIANTS };
    const int64_t start = clock_ns();
    double left = seconds, starting = 0; /* what a turn takes in addition to its own time */
    int i = 0;
    for (; i < N && (i ? left > starting + LEAST_VARIANT_S : seconds > 0); i++) {
        const double own = left / (N - i) - starting, turn = own > LEAST_VARIANT_S ? own : LEAST_VARIANT_S;
        add_turn(x, stage, library, turn, &VARIANTS[i], to);
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

/* Variants do not run if the user has chosen one, nor in the processes of a launcher. */
static bool sweeps_variants(int stage, const Outcome *out) {
    return stage == STAGE_collectives && stage_is_nccl(out->transport) && !getenv("NCCL_ALGO") &&
           !getenv("NCCL_PROTO") && comm_processes() == 1 && outcome_verdict(out) < ACCEPT_FAIL;
}

/* Part of the time of a turn, unless it is too short to start a process. */
static double variants_seconds(const AcceptOptions *o, int stage, double seconds) {
    const double least = o->config->device == ON_CUDA ? LEAST_GPU_SWEEP_S : LEAST_SWEEP_S;
    return stage == STAGE_collectives && seconds / 2 >= least ? seconds / 2 : 0;
}

static int turns_of(const AcceptOptions *o, int stage) { return compares_libraries(o, stage) ? 4 : 1; }

/* If a turn did not end, further turns on the same library are left out: they would only reach the time limit again. */
static void run_stage(Runner *x, AcceptRow *row, int stage, double all_seconds) {
    const AcceptOptions *o = x->options;
    static const char ORDER[] = "abba";
    const int turns = turns_of(o, stage);
    const double seconds = all_seconds / turns, for_variants = variants_seconds(o, stage, seconds);
    bool ended[] = {true, true};
    for (int i = 0; i < turns; i++) {
        const bool is_b = ORDER[i] == 'b';
        if (!ended[is_b]) continue;
        const char *library = is_b ? o->nccl_b : o->config->nccl_library;
        Outcome *out = is_b ? row->b : row->a;
        ended[is_b] = add_turn(x, stage, library, seconds - for_variants, NULL, out);
        if (i < 2 && sweeps_variants(stage, out)) sweep_variants(x, stage, library, for_variants, out);
    }
}

/* ---- the table ---- */

static Err check_names(const AcceptOptions *o) {
    const char *names[STAGES];
    for (int i = 0; i < STAGES; i++) names[i] = ROWS[i].name;
    return text_list_check(&o->only, "only", names, STAGES);
}

/* Why a stage cannot run here; NULL: it can. */
static const char *obstacle(const AcceptOptions *o, const AcceptRow *row) {
    if (config_ranks(o->config) < row->least_ranks) return "it needs 2 ranks, and there is 1";
    if (comm_processes() > 1 && row->starts_processes)
        return "it starts processes itself: run it without a launcher, with --ranks";
    return NULL;
}

static bool any_ran(const Acceptance *a) {
    bool any = false;
    for (int i = 0; i < STAGES; i++) {
        const Outcome *r = a->row[i].a;
        any |= r && r->seconds > 0 && !r->error.code;
    }
    return any;
}

/* Processes of a launcher have different clocks and need equal budgets, so they ignore `gone`, the seconds until
 * now, and count all stages as remaining. */
static double budget(const AcceptOptions *o, const Acceptance *a, int stage, double gone) {
    const bool by_clock = comm_processes() == 1, gpu = o->config->device == ON_CUDA;
    StageTime times[STAGES];
    int n = 0;
    for (int k = 0; k < STAGES; k++) {
        const int i = (stage + k) % STAGES;
        const AcceptRow *row = &a->row[i];
        if ((by_clock && i < stage) || !row->selected || obstacle(o, row)) continue;
        const double opening = i == STAGE_hang && gpu ? DRILL_OPENING_S : 0;
        times[n++] = (StageTime){row->share, turns_of(o, i) * (row->least_seconds + opening)};
    }
    return stage_budget(times, n, o->seconds, by_clock ? gone : 0, gpu ? OPENING_S : 0);
}

static Err run_row(Runner *x, Acceptance *a, int stage) {
    const AcceptOptions *o = x->options;
    AcceptRow *row = &a->row[stage];
    const char *why = obstacle(o, row);
    row->a = isolated_memory(sizeof *row->a);
    if (compares_libraries(o, stage) && !why) row->b = isolated_memory(sizeof *row->b);
    if (why) {
        outcome_limit(row->a, "%s: %s", row->name, why);
        outcome_add(row->a, ACCEPT_INCONCLUSIVE, "", "%s", why);
        row->a->done = true;
    } else {
        run_stage(x, row, stage, budget(o, a, stage, a->seconds));
        if (row->a->error.code && !any_ran(a)) return row->a->error; /* probably an error in the options */
        compare_with_good(a, row);
        if (row->b) compare_libraries(a, row);
    }
    if (!a->is_heard) return ERR_OK;
    Str line = {0};
    accept_print_row(a, row, &line);
    terminal_report(stdout, line.s);
    fflush(stdout);
    str_free(&line);
    return ERR_OK;
}

/* Finds out whether processes can share a GPU. With --device cuda and no --ranks, also counts the GPUs: each gets a
 * rank. */
static Err look_at_devices(Runner *x, Config *c) {
    if (c->device != ON_CUDA || comm_processes() > 1) return ERR_OK;
    Turn *t = next_turn(x, STAGE_inventory, c->nccl_library, 1);
    t->in.config.ranks = 1;
    world_ask_for_queues();
    run_turn(x, false);
    if (!t->out.done)
        return err_user("the process that opened the first GPU ended: %s. Check the GPU with nvidia-smi.",
                        t->out.n_evidence ? t->out.evidence[0].text : "no output");
    if (!config_given(c, ranks) && !t->out.error.code && t->out.devices > 1) c->ranks = t->out.devices;
    return t->out.error;
}

/* ---- checks before the first stage ---- */

static Err check_library(const char *file) {
    char version[VERSION];
    return file ? load_alone(file, version) : ERR_OK;
}

static Err check_options(const AcceptOptions *o) {
    ERR_RETURN(check_library(o->config->nccl_library));
    ERR_RETURN(check_library(o->nccl_b));
    if (config_ranks(o->config) > EXACT_RANKS)
        return err_user("%lld ranks: validate runs on at most %d", (long long)config_ranks(o->config),
                        (int)EXACT_RANKS);
    return ERR_OK;
}

static Err run_rows(Runner *x, Config *config, Acceptance *a) {
    const AcceptOptions *o = x->options;
    const int64_t start = clock_ns();
    ERR_RETURN(look_at_devices(x, config));
    ERR_RETURN(check_options(o));
    a->ranks = (int)config_ranks(config);
    for (int i = 0; i < STAGES; i++) a->row[i].selected = text_list_selects(&o->only, a->row[i].name);
    for (int i = 0; i < STAGES; i++) {
        if (!a->row[i].selected) continue;
        ERR_RETURN(run_row(x, a, i));
        a->seconds = (double)(clock_ns() - start) * 1e-9;
    }
    return ERR_OK;
}

/* Golden cases are checked if they are named, or if parity will run. */
static Err find_golden(const AcceptOptions *o, char **out) {
    const bool runs = text_list_selects(&o->only, ROWS[STAGE_parity].name) && comm_processes() == 1;
    return o->golden || runs ? parity_find_golden(o->golden, out) : ERR_OK;
}

Err accept_run(const AcceptOptions *given, Acceptance *a) {
    *a = (Acceptance){.options = given, .is_heard = comm_process() <= 0};
    memcpy(a->row, ROWS, sizeof a->row);
    ERR_RETURN(check_names(given));
    if (given->good) ERR_RETURN(compare_open_good(given->good, &a->good));
    Config config = *given->config;
    AcceptOptions options = *given;
    options.config = &config;
    char *golden = NULL;
    Err e = find_golden(given, &golden);
    options.golden = golden;
    Runner x = {.options = &options, .turn = isolated_memory(sizeof *x.turn)};
    if (!e.code) e = run_rows(&x, &config, a);
    end_kept(&x);
    isolated_free(x.turn, sizeof *x.turn);
    free(golden);
    return e;
}

void accept_free(Acceptance *a) {
    for (int i = 0; i < STAGES; i++) {
        isolated_free(a->row[i].a, sizeof *a->row[i].a);
        isolated_free(a->row[i].b, sizeof *a->row[i].b);
    }
    json_decref(a->good);
}
