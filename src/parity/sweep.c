#include "parity/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "models/option_map.h"

/* ---- reading ---- */

static void begin_args(Args *args, Arena *arena, Config *c, const SweepOptions *o, const SweepCase *of) {
    args_init(args, arena, "a sweep", NULL);
    args_use(args, o->own);
    args_use(args, config_table(c, USE_PARITY));
    args_file(args, arena_printf(arena, "%s/run.conf", of->dir));
    args_line(args, o->n_words, o->words);
}

/* Checks the options for all cells. The options must be valid for a single-rank run in at least one lane,
 * because an option may apply to only one lane. */
static Err check_case(const SweepOptions *o, Sweep *s, SweepCase *of, Config *c) {
    Err first = ERR_OK;
    for (int lane = -1; lane < LANES; lane++) {
        Args args;
        begin_args(&args, s->arena, c, o, of);
        config_complete(c, &args);
        golden_complete(of->golden, c);
        if (lane >= 0) c->lane = (Lane)lane;
        config_check(c, CHECK_MODEL | CHECK_TRAIN, &args);
        const Err e = args_end(&args);
        args_free(&args);
        if (!e.code) return e;
        if (!first.code) first = e;
    }
    return first;
}

static Err open_case(const SweepOptions *o, Sweep *s, SweepCase *of) {
    ERR_RETURN(golden_open(of->dir, &of->golden));
    Config c;
    ERR_RETURN(check_case(o, s, of, &c));
    config_finish(&c, s->arena, 0);
    return case_open(of->golden, &c, &of->run);
}

/* Returns a user error with a prefix such as "list:12: " and the first line of the message. */
static Err at_line(const SweepOptions *o, int64_t line, const char *message) {
    return err_user("%s:%lld: %.*s", o->list, (long long)line, (int)strcspn(message, "\n"), message);
}

/* Returns whether a cell's options also break a rule on one rank. If so, the layout is not the reason. */
static bool is_wrong_on_one_rank(Sweep *s, const Cell *cell, Args *args) {
    Config c = cell->config;
    config_on_one_rank(&c, s->arena);
    args_init(args, s->arena, "a cell", NULL);
    config_check(&c, CHECK_MODEL | CHECK_TRAIN, args);
    return args->num_problems > 0;
}

/* Reports options that cells must not set. */
static void check_words(const SweepOptions *o, const Config *c, Args *args) {
    args_refuse_all(args, o->own.target, "in a cell, because it is an option of the command");
    args_refuse(args, "lane", "in a cell, because its first word is the precision");
    args_refuse(args, "fp8-format", "in a cell, because all cells are compared with the same runs");
    golden_refuse(args);
    if (args->help) args_problem(args, "--help has no effect in a cell: remove it.");
    config_check_ranges(c, args);
}

/* Reads a cell's options. A cell whose layout breaks a rule is skipped. Other mistakes are errors, as in a single
 * run. */
static Err read_options(const SweepOptions *o, Sweep *s, Cell *cell, int n, char **words) {
    Args args;
    begin_args(&args, s->arena, &cell->config, o, cell->of);
    args_line(&args, n, words);
    config_complete(&cell->config, &args);
    golden_complete(cell->of->golden, &cell->config);
    cell->config.lane = cell->lane;
    check_words(o, &cell->config, &args);
    Err e = args.num_problems ? at_line(o, cell->line, args.problems.s) : ERR_OK;
    if (!e.code) config_check(&cell->config, CHECK_MODEL | CHECK_TRAIN, &args);
    if (!e.code && args.num_problems) {
        cell->skipped = arena_printf(s->arena, "%s", args.problems.s);
        Args alone;
        if (is_wrong_on_one_rank(s, cell, &alone)) e = at_line(o, cell->line, alone.problems.s);
        args_free(&alone);
    }
    args_free(&args);
    if (e.code || cell->skipped) return e;
    config_finish(&cell->config, s->arena, 0);
    Case unused;
    e = case_open(cell->of->golden, &cell->config, &unused);
    case_close(&unused);
    if (e.code) return at_line(o, cell->line, e.msg);
    e = trainer_check(&cell->config);
    if (e.code) cell->skipped = arena_printf(s->arena, "%s", e.msg);
    return ERR_OK;
}

static SweepCase *find_case(const Sweep *s, const char *name, size_t n) {
    for (int64_t i = 0; i < s->n_cases; i++)
        if (strlen(s->cases[i].golden->name) == n && !strncmp(s->cases[i].golden->name, name, n))
            return &s->cases[i];
    return NULL;
}

static Cell *new_cell(Sweep *s) {
    if (s->n_cells % 64 == 0) s->cells = mem_grow(s->cells, (size_t)s->n_cells + 64, sizeof *s->cells);
    Cell *c = &s->cells[s->n_cells++];
    *c = (Cell){0};
    return c;
}

static bool is_like(const Cell *a, const Cell *b) { return a->of == b->of && a->lane == b->lane; }

static const char *values_of(Sweep *s, Config *c) {
    const ArgTable t = config_table(c, USE_PARITY);
    Str text = {0};
    for (int64_t i = 0; i < t.count; i++) {
        if (t.rows[i].type == ARG_GROUP) continue;
        arg_print(&t.rows[i], (const char *)t.target + t.rows[i].offset, &text);
        str_puts(&text, "\n");
    }
    const char *values = arena_printf(s->arena, "%s", text.s);
    str_free(&text);
    return values;
}

/* Returns an earlier cell with equal options, or NULL if there is none. */
static const Cell *find_same(const Sweep *s, const Cell *cell) {
    for (const Cell *c = s->cells; c < cell; c++)
        if (is_like(c, cell) && !strcmp(c->values, cell->values)) return c;
    return NULL;
}

/* Sets each cell's name, which is its layout. If several cells in a lane have the same layout, their names also
 * contain the cells' words. */
static void name_cells(Sweep *s) {
    for (int64_t i = 0; i < s->n_cells; i++) {
        Cell *c = &s->cells[i];
        c->name = c->layout;
        for (int64_t k = 0; k < s->n_cells; k++)
            if (k != i && is_like(&s->cells[k], c) && !strcmp(s->cells[k].layout, c->layout))
                c->name = arena_printf(s->arena, "%s [%s]", c->layout, c->words);
    }
}

static Err add_cell(const SweepOptions *o, Sweep *s, SweepCase *of, int64_t line, int n, char **words) {
    const int lane = enum_find(Lane_spellings, words[0]);
    if (lane < 0)
        return err_user("%s:%lld: %s is not a precision: use fp64, fp32, bf16, fp16 or exact", o->list,
                        (long long)line, quote(words[0]).s);
    Cell *cell = new_cell(s);
    *cell = (Cell){.of = of, .line = line, .lane = (Lane)lane};
    Str text = {0};
    for (int i = 1; i < n; i++) str_printf(&text, "%s%s", i > 1 ? " " : "", words[i]);
    cell->words = arena_printf(s->arena, "%s", text.len ? text.s : "");
    Err e = read_options(o, s, cell, n - 1, words + 1);
    cell->values = values_of(s, &cell->config);
    const Cell *other = e.code ? NULL : find_same(s, cell);
    if (other)
        e = err_user("%s:%lld: line %lld already has this cell of %s", o->list, (long long)line,
                     (long long)other->line, of->golden->name);
    if (e.code) {
        str_free(&text);
        return e;
    }
    str_clear(&text);
    if (cell->skipped)
        str_puts(&text, cell->words);
    else
        cell_layout(&cell->config, &text);
    cell->layout = arena_printf(s->arena, "%s", text.s ? text.s : "");
    str_free(&text);
    return ERR_OK;
}

/* Returns whether the folder of a given case has a sibling folder with this name. */
static bool is_beside(const Sweep *s, const char *name) {
    bool found = false;
    for (int64_t i = 0; i < s->n_cases && !found && !strchr(name, '/'); i++) {
        char *conf = mem_printf("%s/../%s/run.conf", s->cases[i].dir, name);
        found = file_exists(conf);
        free(conf);
    }
    return found;
}

static Err unknown_case(const SweepOptions *o, const Sweep *s, const char *name, int64_t line) {
    Str known = {0};
    for (int64_t i = 0; i < s->n_cases; i++)
        str_printf(&known, "%s%s", i ? ", " : "", s->cases[i].golden->name);
    Err e = err_user("%s:%lld: %s is neither a precision nor a golden case; the cases are %.600s", o->list,
                     (long long)line, quote(name).s, known.s);
    str_free(&known);
    return e;
}

enum { WORDS = 64 };

static Err read_line(const SweepOptions *o, Sweep *s, const char *text, int64_t line) {
    char *words[WORDS];
    int n = 0;
    char *rest = arena_printf(s->arena, "%s", text); /* options keep pointers into this text */
    for (char *word; (word = strtok_r(rest, " \t\r", &rest)) && *word != '#';) {
        if (n == WORDS) return err_user("%s:%lld: more than %d words", o->list, (long long)line, WORDS);
        words[n++] = word;
    }
    if (!n) return ERR_OK;
    if (enum_find(Lane_spellings, words[0]) >= 0) {
        for (int64_t i = 0; i < s->n_cases; i++) ERR_RETURN(add_cell(o, s, &s->cases[i], line, n, words));
        return ERR_OK;
    }
    SweepCase *of = find_case(s, words[0], strlen(words[0]));
    if (!of && !is_beside(s, words[0])) return unknown_case(o, s, words[0], line);
    if (n == 1) return err_user("%s:%lld: a cell needs a lane and options", o->list, (long long)line);
    if (of) return add_cell(o, s, of, line, n - 1, words + 1);
    s->left_out++;
    return ERR_OK;
}

static Err read_list(const SweepOptions *o, Sweep *s) {
    Str bytes = {0};
    ERR_RETURN(file_read_stream(o->list, &bytes));
    Err e = ERR_OK;
    int64_t line = 0;
    for (char *at = bytes.s, *next; at && *at && !e.code; at = next) {
        char *end = strchr(at, '\n');
        next = end ? end + 1 : at + strlen(at);
        if (end) *end = 0;
        e = read_line(o, s, at, ++line);
    }
    str_free(&bytes);
    if (!e.code && !s->n_cells) e = err_user("%s has no cell for the given cases", o->list);
    return e;
}

Err sweep_open(const SweepOptions *o, Sweep *s) {
    *s = (Sweep){.options = o, .arena = arena_new(), .n_cases = o->n_dirs};
    s->cases = mem_zero((size_t)o->n_dirs, sizeof *s->cases);
    for (int64_t i = 0; i < o->n_dirs; i++) {
        s->cases[i].dir = o->dirs[i];
        ERR_RETURN(open_case(o, s, &s->cases[i]));
        if (find_case(s, s->cases[i].golden->name, strlen(s->cases[i].golden->name)) != &s->cases[i])
            return err_user("two cases have the name '%s'", s->cases[i].golden->name);
    }
    ERR_RETURN(read_list(o, s));
    name_cells(s);
    return ERR_OK;
}

/* ---- running ---- */

static void must(Err);

static void open_device(void *arg) {
    const Cell *c = arg;
    const DeviceSpec spec = map_device_spec(&c->config, 0);
    Device *device;
    must(device_open(&spec, &device));
    device_free(device);
}

Err sweep_check_device(const Sweep *s) {
    for (int64_t i = 0; i < s->n_cells; i++) {
        if (s->cells[i].skipped || s->cells[i].config.device != ON_CUDA) continue;
        Job job = {.run = open_device, .arg = &s->cells[i]}; /* a process that has used a GPU cannot fork */
        jobs_run(&job, 1, 1, s->options->deadline_s);
        if (job.end == JOB_DONE) return ERR_OK;
        return err_user("%.*s", (int)strcspn(job.output, "\n"), job.output);
    }
    return ERR_OK;
}

typedef struct AloneArg {
    const Case *of;
    Lane lane;
    Noise noise;
    Trace *trace;
} AloneArg;

static void must(Err e) {
    if (!e.code) return;
    fprintf(stderr, "%s\n", e.msg);
    exit(e.code);
}

static void run_alone(void *arg) {
    const AloneArg *a = arg;
    must(case_run_alone(a->of, a->lane, a->noise, NULL, a->trace));
}

/* Localises a cell's fault. A layout's fault does not depend on the precision, so it is localised in a lane
 * with little rounding. */
static void localise_cell(Cell *cell) {
    const Case *of = &cell->of->run;
    const bool exact = cell->lane == LANE_EXACT;
    Config c = cell->config;
    Trace *ours = cell->trace;
    if (!exact) c.lane = LANE_FP64;
    if (c.lane != cell->lane) {
        ours = trace_new(of);
        must(case_run(of, &c, (Noise){.draw = NO_NOISE}, NULL, ours));
    }
    Trace *const *alone = cell->of->shared.alone;
    localise(of, &c, ours, alone[c.lane], alone[LANE_FP64], &cell->result->finding);
    if (ours != cell->trace) trace_free(ours);
}

static void run_cell(void *arg) {
    Cell *cell = arg;
    must(case_run(&cell->of->run, &cell->config, (Noise){.draw = NO_NOISE}, NULL, cell->trace));
    must(cell_judge(&cell->of->run, &cell->config, cell->trace, &cell->of->shared, cell->result));
    if (!cell->result->pass) localise_cell(cell);
}

static Job *add_job(Sweep *s, void (*run)(void *), void *arg) {
    Job *j = &s->jobs[s->n_jobs++];
    *j = (Job){.run = run, .arg = arg};
    return j;
}

static Job *add_alone(Sweep *s, SweepCase *of, Lane lane, Noise noise, Trace **out) {
    *out = trace_new(&of->run);
    AloneArg *arg = arena_alloc(s->arena, sizeof *arg);
    *arg = (AloneArg){&of->run, lane, noise, *out};
    return add_job(s, run_alone, arg);
}

static void *shared_zero(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "no shared memory of %zu bytes", bytes);
    return p;
}

/* Judges the one-rank run in the exact lane against the oracle. All cells in the lane share the result. */
static void run_exact(void *arg) {
    const SweepCase *of = arg;
    Config c = of->run.config;
    c.lane = LANE_EXACT;
    Precision unused;
    must(precision_judge(&of->run, &c, NULL, of->shared.exact, &unused));
}

typedef struct ShareArg {
    const SweepCase *of;
    Lane lane;
} ShareArg;

static void run_shared(void *arg) {
    const ShareArg *a = arg;
    must(precision_share(&a->of->run, a->lane, &a->of->shared.precision[a->lane]));
}

/* Adds the fp64 runs that all cells with a low precision share. */
static void provide_shared(Sweep *s, SweepCase *of, Lane lane) {
    PrecisionShared *shared = &of->shared.precision[lane];
    if (of->precision[lane] || !precision_shares(&of->run)) return;
    for (int k = 0; k < PRECISION_SHARED; k++)
        shared->y[k] = trace_new(&of->run), shared->z[k] = trace_new(&of->run);
    ShareArg *arg = arena_alloc(s->arena, sizeof *arg);
    *arg = (ShareArg){of, lane};
    of->precision[lane] = add_job(s, run_shared, arg);
}

/* Returns the lane that determines the bounds against the oracle. For a low precision, this is fp64. */
static Lane lane_of_bounds(const Cell *c) { return precision_is_low(&c->config) ? LANE_FP64 : c->lane; }

/* Adds the one-rank runs that a cell needs, unless an earlier cell has already added them. */
static void provide(Sweep *s, const Cell *cell) {
    SweepCase *of = cell->of;
    const Lane lanes[] = {LANE_FP64, cell->lane}, bounds = lane_of_bounds(cell);
    for (int i = 0; i < 2; i++)
        if (!of->alone[lanes[i]])
            of->alone[lanes[i]] =
                add_alone(s, of, lanes[i], (Noise){.draw = NO_NOISE}, &of->shared.alone[lanes[i]]);
    if (cell->lane == LANE_EXACT) {
        if (of->exact) return;
        of->shared.exact = shared_zero(sizeof *of->shared.exact);
        of->exact = add_job(s, run_exact, of);
        return;
    }
    if (precision_is_low(&cell->config)) provide_shared(s, of, cell->lane);
    const ParityReport report = parity_report(&of->run, bounds);
    for (int k = 0; k < PARITY_DRAWS; k++)
        if (!of->noisy[bounds][k])
            of->noisy[bounds][k] =
                add_alone(s, of, LANE_FP64, parity_noise(&report, k), &of->shared.noisy[bounds][k]);
}

static void add_cell_job(Sweep *s, Cell *cell, CellResult *result) {
    SweepCase *of = cell->of;
    provide(s, cell);
    cell->trace = trace_new(&of->run);
    cell->result = result;
    cell->job = add_job(s, run_cell, cell);
    job_needs(cell->job, of->alone[LANE_FP64]);
    job_needs(cell->job, of->alone[cell->lane]);
    if (cell->lane == LANE_EXACT) job_needs(cell->job, of->exact);
    if (of->precision[cell->lane]) job_needs(cell->job, of->precision[cell->lane]);
    for (int k = 0; k < PARITY_DRAWS && cell->lane != LANE_EXACT; k++)
        job_needs(cell->job, of->noisy[lane_of_bounds(cell)][k]);
}

static int at_once(const SweepOptions *o, const Sweep *s) {
    if (o->at_once > 0) return o->at_once;
    for (int64_t i = 0; i < s->n_cells; i++)
        if (!s->cells[i].skipped && s->cells[i].config.device == ON_CUDA) return 1;
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

void sweep_run(const SweepOptions *o, Sweep *s) {
    const int64_t most = s->n_cells + s->n_cases * LANES * (3 + PARITY_DRAWS);
    const int64_t begin = clock_ns();
    s->jobs = mem_zero((size_t)most, sizeof *s->jobs);
    s->results = shared_zero((size_t)s->n_cells * sizeof *s->results);
    for (int64_t i = 0; i < s->n_cells; i++)
        if (!s->cells[i].skipped) add_cell_job(s, &s->cells[i], &s->results[i]);
    if (o->here)
        jobs_run_here(s->jobs, s->n_jobs);
    else
        jobs_run(s->jobs, s->n_jobs, at_once(o, s), o->deadline_s);
    s->seconds = (double)(clock_ns() - begin) * 1e-9;
}

void sweep_free(Sweep *s) {
    for (int64_t i = 0; i < s->n_cells; i++) trace_free(s->cells[i].trace);
    for (int64_t i = 0; i < s->n_cases; i++) {
        SweepCase *c = &s->cases[i];
        for (int lane = 0; lane < LANES; lane++) {
            trace_free(c->shared.alone[lane]);
            for (int k = 0; k < PARITY_DRAWS; k++) trace_free(c->shared.noisy[lane][k]);
            for (int k = 0; k < PRECISION_SHARED; k++)
                trace_free(c->shared.precision[lane].y[k]), trace_free(c->shared.precision[lane].z[k]);
        }
        if (c->shared.exact) munmap(c->shared.exact, sizeof *c->shared.exact);
        case_close(&c->run);
        golden_close(c->golden);
    }
    if (s->results) munmap(s->results, (size_t)s->n_cells * sizeof *s->results);
    free(s->cases), free(s->cells), free(s->jobs);
    arena_free(s->arena);
}

/* ---- verdicts ---- */

Verdict cell_verdict(const Cell *c) {
    if (c->skipped) return VERDICT_SKIPPED;
    if (!c->job) return VERDICT_PLANNED;
    return c->job->end == JOB_DONE && c->result->pass ? VERDICT_PASS : VERDICT_FAIL;
}

/* Appends the output line that reports the fault or, if there is none, the last line. */
static void put_fault(const char *output, Str *out) {
    const char *at = strstr(output, "FAULT");
    if (!at) {
        size_t n = strlen(output);
        while (n > 0 && output[n - 1] == '\n') n--;
        const char *end = output + n;
        for (at = end; at > output && at[-1] != '\n';) at--;
    }
    str_add(out, at, strcspn(at, "\n"));
}

/* Appends a description of a job's failure. */
static void put_failure(const Job *job, Str *out) {
    if (job->end == JOB_LATE) {
        str_printf(out, "timed out after %.0f s", job->seconds);
        return;
    }
    str_puts(out, "crashed: ");
    put_fault(job->output, out);
}

void cell_reason(const Cell *c, Str *out) {
    switch (cell_verdict(c)) {
    case VERDICT_SKIPPED:
        str_add(out, c->skipped, strcspn(c->skipped, "\n"));
        return;
    case VERDICT_FAIL:
        break;
    default:
        return;
    }
    switch (c->job->end) {
    case JOB_BLOCKED:
        str_puts(out, "the one-rank run ");
        for (int i = 0; i < c->job->n_needs; i++)
            if (c->job->needs[i]->end > JOB_DONE) {
                put_failure(c->job->needs[i], out);
                break;
            }
        return;
    case JOB_LATE:
    case JOB_CRASHED:
        put_failure(c->job, out);
        return;
    default:
        row_describe(cell_worst(c->result), out);
    }
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

SweepCounts sweep_counts(const Sweep *s) {
    SweepCounts n = {0};
    const char **layouts = mem_zero((size_t)s->n_cells, sizeof *layouts);
    int64_t ran = 0;
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Verdict v = cell_verdict(&s->cells[i]);
        n.of[v]++;
        if (v != VERDICT_SKIPPED) layouts[ran++] = s->cells[i].layout;
    }
    qsort(layouts, (size_t)ran, sizeof *layouts, by_text);
    for (int64_t i = 0; i < ran; i++) n.layouts += i == 0 || strcmp(layouts[i], layouts[i - 1]);
    free(layouts);
    return n;
}
