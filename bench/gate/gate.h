/* The speed gate: whether this program is slower than it may be, with a stated probability of error.
 *
 *   ratio       its time over that of the other measurement; above 1 is slower
 *   limit       1 + allow
 *   PASS        the whole interval of the ratio is at most the limit
 *   REGRESS     the whole interval is above the limit
 *   INCONCLUSIVE the interval contains the limit, or there are too few samples
 *
 * The interval (statistics.h) misses the true median with a probability of at most 5 %, for all rows of a bench
 * together (Bonferroni), so a wrong PASS and a wrong REGRESS have at most 2.5 % each. There is no
 * second measurement after a verdict.
 *
 * --against PROGRAM runs both programs alternately, in the order A B B A, as processes. A sample is the ratio
 * of the medians of a pair of neighbours. Slow changes of the machine thus affect both equally. --baseline
 * FILE compares the samples of an earlier result. Changes of the machine since then are not detected.
 *
 * There is no verdict unless both results state the same machine, device and work (work.c). */
#pragma once

#include "base/statistics.h"
#include "bench/gate/result.h"

typedef struct GateOptions {
    const char *baseline, *against; /* a file, or a program; at most one of them */
    int64_t pairs;                  /* pairs of processes */
    double allow;                   /* 0.03: 3 % more time is not a regression */
    const char *junit;              /* file that gets the verdicts as JUnit XML; NULL: none */
} GateOptions;

typedef enum GateVerdict { GATE_PASS, GATE_REGRESS, GATE_INCONCLUSIVE } GateVerdict;

typedef struct GateRow {
    char name[96];
    double ours, theirs; /* median times */
    int64_t samples, least;
    double *ratios; /* [samples] of pairs; NULL with a baseline */
    Interval ratio;
    GateVerdict verdict;
} GateRow;

typedef struct Gate {
    const GateOptions *options;
    const char *bench; /* "train" or "ops" */
    Result ours, theirs;
    GateRow *rows;
    int64_t n;
    double error; /* error of each row's interval */
} Gate;

/* "3%" as 0.03. False: it is not a percentage from 0 % to 1000 %. */
bool gate_parse_percentage(const char *text, double *out);
GateVerdict gate_judge(Interval ratio, double allow);
/* The verdict of all rows: REGRESS if one regresses, else INCONCLUSIVE if one is that. */
GateVerdict gate_verdict(const Gate *);
void gate_free(Gate *);

/* A new gate has options, the name of its bench, and zeros. Reads and checks the file of the baseline. */
Err gate_open_baseline(Gate *);
/* Whether the machine and the work of an open baseline are those of a bench that is about to measure, as far as the
 * facts, a part of its result, show it. */
Err gate_check_facts(Gate *, const json_t *facts);
/* Judges a result (taken over), or says what differs from the baseline's machine or work. Appends notes. */
Err gate_judge_baseline(Gate *, json_t *result, Str *notes);
/* Runs `bench <bench> argv...` of this program and of the other alternately. Options of the gate among these
 * are left out, and `more` (NULL: none) is added. Prints each pair. */
Err gate_run_against(Gate *, char **argv, const char *more);

/* Whether both results are of the same machine and work; the error names the first difference. `early`: ours is
 * not complete yet. */
Err gate_check_work(const Gate *, bool early);
/* Notes on what may differ: compilers, and facts that the other does not state. */
void gate_note_differences(const Gate *, Str *notes);

void gate_print(const Gate *, Str *out);
void gate_junit(const Gate *, Str *out);
/* For a gate that ran pairs: both provenances, all ratios, intervals and verdicts. */
json_t *gate_json(const Gate *);
