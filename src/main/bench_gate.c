#include "main/bench_gate.h"

#include <stdio.h>

#include "base/file.h"
#include "base/statistics.h"
#include "base/terminal.h"
#include "bench/head.h"
#include "main/command.h"

static const Arg GATE_ROWS[] = {
    ARG_ROW(GateWords, against, "against", ARG_TEXT, "none",
            "Another isotron program, such as an earlier release: both programs run alternately, and the "
            "ratio of their times is judged."),
    ARG_ROW(GateWords, baseline, "baseline", ARG_TEXT, "none",
            "File that an earlier run with --json wrote on this machine; the times in the file are compared "
            "with those of this run."),
    ARG_ROW(GateWords, pairs, "pairs", ARG_I64, "12",
            "With --against, the number of runs of each program, at least 6."),
    ARG_ROW(GateWords, allow, "allow", ARG_TEXT, "3%",
            "Largest relative increase in time that does not count as a regression."),
    ARG_ROW(GateWords, junit, "junit", ARG_TEXT, "none", "Write the verdicts to this file as JUnit XML."),
};
_Static_assert(sizeof GATE_ROWS / sizeof *GATE_ROWS == GATE_OPTIONS,
               "GateArgs.given has a member for each option");
enum { MOST_PAIRS = 10000 };

void bench_use_gate(GateArgs *g, Args *args) {
    *g = (GateArgs){.given = {0}};
    args_use(args, ARG_TABLE(GATE_ROWS, &g->words, .given = g->given));
}

void bench_check_gate(GateArgs *g, Args *args) {
    const GateWords *w = &g->words;
    g->options = (GateOptions){w->baseline, w->against, w->pairs, 0, w->junit};
    for (int i = 0; i < GATE_OPTIONS && !w->baseline && !w->against; i++)
        if (g->given[i]) args_problem(args, "--%s needs --against or --baseline", GATE_ROWS[i].names);
    if (w->baseline && w->against)
        args_problem(args, "--against and --baseline are mutually exclusive: choose one.");
    if (!gate_parse_percentage(w->allow, &g->options.allow))
        args_problem(args, "--allow expects a percentage, such as 3%%, not '%s'", w->allow);
    const int64_t least = interval_least(INTERVAL_ERROR);
    if (w->pairs < least || w->pairs > MOST_PAIRS)
        args_problem(args, "--pairs must be from %lld to %d.", (long long)least, (int)MOST_PAIRS);
}

void bench_refuse_same_files(Args *args, const char *json, const GateWords *w) {
    const NamedFile outputs[] = {{"--json", json}, {"--junit", w ? w->junit : NULL}},
                    inputs[] = {{"--baseline", w ? w->baseline : NULL}, {"--against", w ? w->against : NULL}};
    command_refuse_same_files(args, outputs, 2, inputs, 2);
}

/* Prints the verdict. Writes it to --junit and, with --against, also to --json. With --baseline, the benchmark has
 * already written its measurement to --json. */
static Err report_gate(const Gate *g, const char *json, ErrCode *status) {
    static const ErrCode STATUS[] = {
        [GATE_PASS] = ERR_NONE, [GATE_REGRESS] = ERR_FAILED, [GATE_INCONCLUSIVE] = ERR_INCONCLUSIVE};
    Str text = {0}, junit = {0};
    gate_print(g, &text);
    terminal_report(stdout, text.s);
    gate_junit(g, &junit);
    Err e = command_write_report(g->options->junit, &junit);
    if (!e.code && json && g->options->against) {
        json_t *all = gate_json(g);
        e = bench_write(json, all);
        if (e.code) e.code = ERR_INFRA; /* the verdict is valid even if its file cannot be written */
        json_decref(all);
    }
    str_free(&text), str_free(&junit);
    *status = STATUS[gate_verdict(g)];
    return e;
}

/* Reads the baseline, and compares the properties recorded in it with those of this run. Only rank 0 calls this
 * function. */
static Err check_facts(void *gate, const json_t *facts) {
    Gate *g = gate;
    ERR_RETURN(gate_open_baseline(g));
    return gate_check_facts(g, facts);
}

/* Runs the benchmark and judges its result. Sets *verdict to whether this process knows the verdict. Only rank 0's
 * process does. */
static Err run_gate(const Bench *b, Gate *g, bool *verdict) {
    json_t *result = NULL;
    Str notes = {0};
    const BenchGuard guard = {check_facts, g};
    Err e = g->options->against ? gate_run_against(g, b->argv, b->more) : b->measure(b->arg, &guard, &result);
    *verdict = g->options->against || result;
    if (!e.code && result) e = gate_judge_baseline(g, result, &notes);
    if (!e.code && *verdict) gate_note_differences(g, &notes);
    if (notes.s) fputs(notes.s, stderr);
    str_free(&notes);
    return e;
}

int bench_run(const Bench *b, const GateOptions *o) {
    Err e = ERR_OK;
    ErrCode status = ERR_NONE;
    if (!o->against && !o->baseline) {
        e = b->measure(b->arg, NULL, NULL);
    } else {
        Gate g = {.options = o, .bench = b->name};
        bool verdict = false;
        if (o->junit && comm_process() == 0) e = file_check_target(o->junit);
        if (!e.code && b->json && o->against) e = file_check_target(b->json);
        if (!e.code) e = run_gate(b, &g, &verdict);
        if (!e.code && verdict) e = report_gate(&g, b->json, &status);
        gate_free(&g);
    }
    return e.code ? command_fail(e) : (int)status;
}
