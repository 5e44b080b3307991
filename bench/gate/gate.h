/* The speed gate: decides whether this program is slower than allowed, with a stated probability of error.
 *
 *   ratio       this program's time divided by the other measurement's time; above 1 means slower
 *   limit       1 + allow
 *   PASS        the ratio's entire confidence interval is at or below the limit
 *   REGRESS     the entire interval is above the limit
 *   INCONCLUSIVE the interval contains the limit, or there are too few samples
 *
 * The probability that the interval of any row (statistics.h) misses the true median is at most 5 %
 * (Bonferroni). A wrong PASS and a wrong REGRESS each have a probability of at most 2.5 %. The verdict never causes a
 * measurement to be repeated.
 *
 * --against PROGRAM runs both programs alternately as processes, in the order A B B A, so that a slow drift of the
 * machine's speed affects both programs equally. A sample is the ratio of the two processes' medians in a pair.
 * --baseline FILE compares this program's samples with those of an earlier result. Changes of the machine since that
 * measurement are not detected.
 *
 * Results are judged only if both state the same machine, device and work (work.c). */
#pragma once

#include "base/statistics.h"
#include "bench/gate/result.h"

typedef struct GateOptions {
    const char *baseline, *against; /* path of a result, and path of a program; at most one is set */
    int64_t pairs;                  /* number of pairs of processes */
    double allow;                   /* for example, 0.03 means that up to 3 % more time is not a regression */
    const char *junit;              /* JUnit XML file for the verdicts, or NULL */
} GateOptions;

typedef enum GateVerdict { GATE_PASS, GATE_REGRESS, GATE_INCONCLUSIVE } GateVerdict;

typedef struct GateRow {
    char name[96];
    double ours, theirs; /* the median times */
    int64_t samples, least;
    double *ratios; /* [samples]: one for each pair; NULL with --baseline */
    Interval ratio;
    GateVerdict verdict;
} GateRow;

typedef struct Gate {
    const GateOptions *options;
    const char *bench; /* "train" or "ops" */
    Result ours, theirs;
    GateRow *rows;
    int64_t n;
    double error; /* probability that a row's interval misses the true median */
} Gate;

/* Parses "3%" as 0.03. Returns false if the text is not a percentage from 0 % to 1000 %. */
bool gate_parse_percentage(const char *text, double *out);
GateVerdict gate_judge(Interval ratio, double allow);
/* Returns the verdict of all rows: REGRESS if any row regresses, otherwise INCONCLUSIVE if any row is
 * inconclusive. */
GateVerdict gate_verdict(const Gate *);
void gate_free(Gate *);

/* Reads and checks the baseline file. The fields `options` and `bench` must be set, and all other fields must
 * be 0. */
Err gate_open_baseline(Gate *);
/* Checks that the opened baseline was measured on this machine, and measures the same work as the benchmark that is
 * about to run. `facts` contains the members of the benchmark's result that are already known. */
Err gate_check_facts(Gate *, const json_t *facts);
/* Judges a result and takes ownership of it. If the result's machine or work differs from the baseline's, the
 * error names the difference. Appends notes. */
Err gate_judge_baseline(Gate *, json_t *result, Str *notes);
/* Runs `bench <bench> argv...` with both programs alternately. Removes the gate's own options from argv. If
 * `more` is not NULL, appends the options in `more`. Prints the result of each pair. */
Err gate_run_against(Gate *, char **argv, const char *more);

/* Checks that both results state the same machine and work; the error names the first difference. If `early` is
 * true, this program's result is still incomplete. */
Err gate_check_work(const Gate *, bool early);
/* Appends notes on permitted differences (compiler, flags, BLAS) and on facts that the other result lacks. */
void gate_note_differences(const Gate *, Str *notes);

void gate_print(const Gate *, Str *out);
void gate_junit(const Gate *, Str *out);
/* Returns the JSON of a gate that ran pairs: both provenances, and the ratios, interval and verdict of each
 * row. */
json_t *gate_json(const Gate *);
