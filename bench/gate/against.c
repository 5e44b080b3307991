/* Compares this program with a second one: runs the programs in pairs, and alternates which program runs
 * first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/gate/gate.h"

/* The gate's options. */
static const char *const OWN[] = {"baseline=", "against=", "pairs=", "allow=", "junit=", "json=", NULL};

static bool is_on_the_line(char **argv) {
    static const char NAME[] = "--against";
    for (; *argv; argv++)
        if (!strcmp(*argv, NAME) || !strncmp(*argv, "--against=", sizeof NAME)) return true;
    return false;
}

/* ---- pairs ---- */

/* Checks that both programs did the same work, and that all pairs have the same rows. */
static Err check_rows(const Gate *g, const Result *ours, const Result *theirs) {
    ERR_RETURN(gate_check_work(g, false));
    for (int64_t i = 0; i < theirs->n; i++)
        if (!result_find(ours, theirs->rows[i].name))
            return err_user("row %s exists in '%s', but not in this program: select rows that both programs "
                            "have with --filter",
                            theirs->rows[i].name, theirs->path);
    if (g->n && ours->n != g->n) return err_user("two runs of '%s' measured different rows", ours->path);
    return ERR_OK;
}

static Err begin_rows(Gate *g, const Result *ours) {
    g->error = INTERVAL_ERROR / (double)ours->n;
    const int64_t least = interval_least(g->error);
    if (g->options->pairs < least)
        return err_user(
            "--pairs %lld is too small to judge %lld rows with a probability of %g %%: give at least %lld",
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
        if (!x) return err_user("two runs of '%s' measured different rows", ours->path);
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

/* Runs a pair. The gate keeps the results of the last pair for their provenance. */
static Err run_pair(Gate *g, const Measurer *ours, const Measurer *theirs, const char *more, int64_t pair) {
    char *const words[] = {(char *)more, NULL};
    /* the order A B, B A, A B: a drift of the machine's speed favours neither program */
    const bool ours_first = pair % 2 == 0;
    Result first = {0}, second = {0};
    Err e = result_measure(ours_first ? ours : theirs, words, &first);
    if (!e.code) e = result_measure(ours_first ? theirs : ours, words, &second);
    result_free(&g->ours), result_free(&g->theirs);
    g->ours = ours_first ? first : second, g->theirs = ours_first ? second : first;
    if (!e.code) e = add_pair(g, &g->ours, &g->theirs);
    if (!e.code) print_pair(g, pair, ours_first);
    return e;
}

static Err run_pairs(Gate *g, const Measurer *ours, const Measurer *theirs, const char *more) {
    for (int64_t pair = 0; pair < g->options->pairs; pair++)
        ERR_RETURN(run_pair(g, ours, theirs, more, pair));
    for (int64_t i = 0; i < g->n; i++) {
        GateRow *row = &g->rows[i];
        interval_of_median(row->ratios, row->samples, g->error, &row->ratio);
        row->verdict = gate_judge(row->ratio, g->options->allow);
    }
    return ERR_OK;
}

Err gate_run_against(Gate *g, char **argv, const char *more) {
    const char *other = g->options->against;
    if (!is_on_the_line(argv)) /* otherwise, each started process would start two more */
        return err_user("--against must be given on the command line, not in a file");
    const Measurer ours = {"/proc/self/exe", "isotron", g->bench, argv, OWN},
                   theirs = {other, other, g->bench, argv, OWN};
    return run_pairs(g, &ours, &theirs, more);
}
