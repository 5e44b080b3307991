/* Cases x cells: runs golden cases in the lanes and layouts of a list and judges each (cell.h). A list is
 * text: one cell a line, `[case] lane options...`; the case (the last component of its folder) may be left
 * out, the cell is then for all cases; # starts a comment. The runs on one rank that cells are compared with
 * are run once for a case and lane. Runs are in other processes (jobs.h).
 *
 * A cell whose options break a rule is skipped, with the rule's sentence; it is no pass. An option that does
 * not exist is a user error. */
#ifndef ISOTRON_VALIDATE_SWEEP_H
#define ISOTRON_VALIDATE_SWEEP_H

#include "config/args.h"
#include "validate/cell.h"
#include "validate/jobs.h"

typedef enum Verdict { VERDICT_PASS, VERDICT_FAIL, VERDICT_SKIPPED } Verdict;

typedef struct SweepCase {
    const char *dir;
    Golden *golden;
    Case run;
    Shared shared; /* memory for the runs that cells need */
    Job *alone[LANES], *noisy[LANES][PARITY_DRAWS], *exact, *precision[LANES];
} SweepCase;

typedef struct Cell {
    SweepCase *of;
    int64_t line;
    const char *words;  /* of the list, without the case */
    const char *layout; /* cell_layout; of a skipped cell the words */
    Lane lane;
    Config config;
    Derived derived;
    const char *skipped; /* the rule's sentences, one a line; NULL: it runs */
    Trace *trace;
    CellResult *result; /* the sweep's */
    Job *job;
} Cell;

typedef struct Sweep {
    SweepCase *cases;
    int64_t n_cases;
    Cell *cells;
    CellResult *results; /* [n_cells], shared with the jobs; NULL: nothing has run */
    int64_t n_cells, n_jobs;
    Job *jobs;
    double seconds;
    Arena *arena;
} Sweep;

typedef struct SweepOptions {
    const char *const *dirs; /* folders of cases */
    int64_t n_dirs;
    const char *list; /* path */
    char **words;     /* options for all cells, between run.conf and the cell's own */
    int n_words;
    ArgTable own;      /* options among the words that are the caller's */
    int at_once;       /* 0: one for each core, on a GPU one */
    double deadline_s; /* of a cell */
} SweepOptions;

/* Reads cases and list. After an error, too, release with sweep_free. */
Err sweep_open(const SweepOptions *, Sweep *);
/* Runs what is not skipped. */
void sweep_run(const SweepOptions *, Sweep *);
void sweep_free(Sweep *);

Verdict cell_verdict(const Cell *);
/* Why a cell failed or was skipped, in one line; empty: it passed. */
void cell_reason(const Cell *, Str *out);
typedef struct SweepCounts {
    int64_t passed, failed, skipped, layouts; /* layouts: distinct ones that ran */
} SweepCounts;
SweepCounts sweep_counts(const Sweep *);

/* Reports: a table, JSON, JUnit XML, a page that needs nothing else. */
void sweep_print(const Sweep *, Str *out);
void sweep_json(const Sweep *, Str *out);
void sweep_junit(const Sweep *, Str *out);
void sweep_html(const Sweep *, Str *out);
/* Text between tags or in quotes. */
void sweep_xml_text(Str *out, const char *);

#endif
