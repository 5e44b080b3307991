/* Runs golden cases in the lanes and layouts given by a list, and judges each cell (cell.h). A list is a text
 * file with one cell per line, `[case] lane options...`. A case's name is the last component of its folder's
 * path. A cell without a case applies to all cases. A line whose case was not given is ignored if a folder with the
 * case's name is next to the folder of a given case. A line with any other unknown case, or a repeated cell, is a user
 * error. # begins a comment. Each one-rank reference runs only once per case and lane. Each run uses a separate process
 * (jobs.h), unless `here` is set.
 *
 * A cell whose layout breaks a rule is skipped, with the rule's error message as the reason. A skipped cell does not
 * count as passed. Any other mistake in a cell's options, such as an unknown option, a number out of range, a second
 * precision, or one of the command's options, is a user error. */
#pragma once

#include "base/jobs.h"
#include "config/args.h"
#include "parity/cell.h"
#include "run/provenance.h"

/* VERDICT_PLANNED: the cell has not run, because the sweep is a dry run. */
typedef enum Verdict { VERDICT_PASS, VERDICT_FAIL, VERDICT_PLANNED, VERDICT_SKIPPED, VERDICTS } Verdict;

typedef struct SweepCase {
    const char *dir;
    Golden *golden;
    Case run;
    Shared shared; /* the runs that the case's cells share */
    Job *alone[LANES], *noisy[LANES][PARITY_DRAWS], *exact, *precision[LANES];
} SweepCase;

typedef struct Cell {
    SweepCase *of;
    int64_t line;
    const char *words;  /* the cell's words in the list, without the case */
    const char *values; /* values of all options, including options from the case and the sweep */
    const char *layout; /* the layout as cell_layout prints it; for a skipped cell, the cell's words */
    const char *name;   /* the layout, followed by the words if several cells in the lane have this layout */
    Lane lane;
    Config config;
    const char *skipped; /* error messages from rules, one per line; NULL if the cell is not skipped */
    Trace *trace;
    CellResult *result; /* owned by the sweep */
    Job *job;
} Cell;

typedef struct SweepOptions SweepOptions;

typedef struct Sweep {
    const SweepOptions *options;
    SweepCase *cases;
    int64_t n_cases;
    Cell *cells;
    CellResult *results; /* [n_cells], shared with the jobs; NULL before the run */
    int64_t n_cells, n_jobs;
    int64_t left_out; /* number of lines for cases that were not given */
    Job *jobs;
    double seconds;
    Arena *arena;
} Sweep;

struct SweepOptions {
    const char *const *dirs; /* the case folders */
    int64_t n_dirs;
    const char *list; /* path of the list */
    char **words;     /* options for all cells, applied after run.conf and before the cell's options */
    int n_words;
    ArgTable own;      /* the caller's options, some of which `words` may also contain */
    int at_once;       /* number of concurrent jobs; 0 means one per core, or one job on a GPU */
    double deadline_s; /* the time limit per cell in seconds */
    /* Whether cells run in this process. If so, a crash ends this process, and at_once and deadline_s are ignored. */
    bool here;
};

/* Reads the cases and the list. The options must outlive the sweep. The caller must call sweep_free, even after an
 * error. */
Err sweep_open(const SweepOptions *, Sweep *);
/* Returns a user error if the cells need a device that the program or the machine lacks. */
Err sweep_check_device(const Sweep *);
/* Runs all cells that are not skipped. */
void sweep_run(const SweepOptions *, Sweep *);
void sweep_free(Sweep *);

Verdict cell_verdict(const Cell *);
/* Appends one line with the reason why a cell failed or was skipped. Appends nothing if the cell passed. */
void cell_reason(const Cell *, Str *out);
typedef struct SweepCounts {
    int64_t of[VERDICTS], layouts; /* layouts: number of distinct layouts that are not skipped */
} SweepCounts;
SweepCounts sweep_counts(const Sweep *);

/* Formats the number of cells with each verdict as one line, without a newline. */
void sweep_summary(const Sweep *, Str *out);
/* Functions that write reports: a table, JSON, JUnit XML, and a self-contained HTML page. */
void sweep_print(const Sweep *, Str *out);
void sweep_json(const Sweep *, Str *out);
void sweep_junit(const Sweep *, Str *out);
void sweep_html(const Sweep *, Str *out);

/* Describes how the sweep was run: its provenance, threads per rank, list and command. */
enum { SWEEP_FACTS = FACTS + 3 };
typedef struct SweepFact {
    const char *name;
    char value[1000];
} SweepFact;
/* Writes the range of threads per rank over all cells that are not skipped, such as "1" or "1 to 8". */
void sweep_threads(const Sweep *, const Provenance *, char *out, size_t n);
void sweep_facts(const Sweep *, SweepFact out[SWEEP_FACTS]);

/* Appends the shell command that runs only this cell and leads to the same verdict. */
void sweep_command(const Sweep *, const Cell *, Str *out);
/* Returns a cell's worst row, or NULL if the cell did not run. */
const Row *sweep_worst(const Cell *);
/* Formats a cell's ratio of error to bound: "0.67" or, in the exact lane, "equal" or "differs". */
void sweep_fraction(const Cell *, double ratio, Str *out);
/* Appends the line "localised: ..." or "not localised: ..." for a failed cell, or nothing if there is no finding. */
void sweep_finding(const Finding *, const char *indent, Str *out);
