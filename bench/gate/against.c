/* The gate against another program: pairs of processes, alternately. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/child.h"
#include "bench/gate/gate.h"

/* Options of the gate. */
static const ChildOption OWN[] = {{"baseline", true}, {"against", true}, {"pairs", true},
                                  {"allow", true},    {"junit", true},   {"json", true}};
enum { N_OWN = sizeof OWN / sizeof *OWN };

static bool is_on_the_line(int argc, char **argv) {
    static const char NAME[] = "--against";
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], NAME) || !strncmp(argv[i], "--against=", sizeof NAME)) return true;
    return false;
}

/* ---- pairs ---- */

/* Both did the same work, and each pair has the same rows. */
static Err check_rows(const Gate *g, const Result *ours, const Result *theirs) {
    ERR_RETURN(gate_check_work(g, false));
    for (int64_t i = 0; i < theirs->n; i++)
        if (!result_find(ours, theirs->rows[i].name))
            return err_user("this program has no row %s, which '%s' has; choose what both have with --filter",
                            theirs->rows[i].name, theirs->path);
    if (g->n && ours->n != g->n) return err_user("the rows of '%s' change from run to run", ours->path);
    return ERR_OK;
}

static Err begin_rows(Gate *g, const Result *ours) {
    g->error = INTERVAL_ERROR / (double)ours->n;
    const int64_t least = interval_least(g->error);
    if (g->options->pairs < least)
        return err_user(
            "--pairs %lld are too few to judge %lld rows with a probability of %g %%: give at least %lld",
            (long long)g->options->pairs, (long long)ours->n, 100 * (1 - INTERVAL_ERROR), (long long)least);
    g->n = ours->n;
    g->rows = mem_zero((size_t)g->n, sizeof *g->rows);
    for (int64_t i = 0; i < g->n; i++) {
        GateRow *row = &g->rows[i];
        memcpy(row->name, ours->rows[i].name, sizeof row->name);
        row->least = least;
        row->ratios = mem_alloc((size_t)g->options->pairs * sizeof *row->ratios);
    }
    return ERR_OK;
}

static Err add_pair(Gate *g, const Result *ours, const Result *theirs) {
    ERR_RETURN(check_rows(g, ours, theirs));
    if (!g->n) ERR_RETURN(begin_rows(g, ours));
    for (int64_t i = 0; i < g->n; i++) {
        GateRow *row = &g->rows[i];
        const ResultRow *x = result_find(ours, row->name);
        if (!x) return err_user("the rows of '%s' change from run to run", ours->path);
        const double b = result_find(theirs, row->name)->time;
        row->ours += x->time / (double)g->options->pairs;
        row->theirs += b / (double)g->options->pairs;
        row->ratios[row->samples++] = x->time / b;
    }
    return ERR_OK;
}

static void print_pair(const Gate *g, int64_t pair, bool ours_first) {
    printf("pair %lld of %lld, %s first", (long long)pair + 1, (long long)g->options->pairs,
           ours_first ? "this program" : g->options->against);
    if (g->n == 1) printf(": ratio %.4f", g->rows->ratios[pair]);
    printf("\n");
    fflush(stdout);
}

/* Keeps the last results, for their provenance. */
static Err run_pair(Gate *g, const Child *ours, const Child *theirs, int64_t pair) {
    const bool ours_first = pair % 2 == 0; /* A B, B A, A B: a drift favours neither */
    Result first = {0}, second = {0};
    Err e = child_run(ours_first ? ours : theirs, NULL, &first);
    if (!e.code) e = child_run(ours_first ? theirs : ours, NULL, &second);
    result_free(&g->ours), result_free(&g->theirs);
    g->ours = ours_first ? first : second, g->theirs = ours_first ? second : first;
    if (!e.code) e = add_pair(g, &g->ours, &g->theirs);
    if (!e.code) print_pair(g, pair, ours_first);
    return e;
}

static Err run_pairs(Gate *g, const Child *ours, const Child *theirs) {
    for (int64_t pair = 0; pair < g->options->pairs; pair++) ERR_RETURN(run_pair(g, ours, theirs, pair));
    for (int64_t i = 0; i < g->n; i++) {
        GateRow *row = &g->rows[i];
        interval_of_median(row->ratios, row->samples, g->error, &row->ratio);
        row->verdict = gate_judge(row->ratio, g->options->allow);
    }
    return ERR_OK;
}

Err gate_run_against(Gate *g, int argc, char **argv, const char *more) {
    const char *other = g->options->against;
    if (!is_on_the_line(argc, argv)) /* else each process would read it again, and start others */
        return err_user("--against belongs on the command line, not in a file");
    char **words = child_words(argc, argv, OWN, N_OWN, more);
    const Child ours = {"/proc/self/exe", "isotron", g->bench, words},
                theirs = {other, other, g->bench, words};
    const Err e = run_pairs(g, &ours, &theirs);
    free(words);
    return e;
}
