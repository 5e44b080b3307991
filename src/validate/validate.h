/* An acceptance test for a machine, a driver or an NCCL library. Stages (stages.def) run one after the other.
 * Each stage has a verdict, evidence, and a suspect for each fault. Stages share a child process, so that a
 * crash or a hang of a library ends only the current stage. After a failed stage, the next stage gets a new
 * process. Variants of NCCL, and stages that start processes, always get a new process; the exception is parity
 * on GPUs. A second NCCL library runs in a second child process. If a launcher has started several processes,
 * all stages run in these processes.
 *
 *   PASS          means that everything that was tested is correct.
 *   INCONCLUSIVE  means that nothing could be tested, or that the results vary too much for a verdict.
 *   INTERRUPTED   means that SIGINT, SIGTERM or SIGHUP ended the run before the stage finished.
 *   DEGRADED      means that the results are correct, but slower than they should be, or changed since the last good
 *                 run.
 *   FAIL          means that results are wrong.
 *
 * The overall verdict is the worst verdict of all stages. The verdict INCONCLUSIVE counts only if no stage
 * passed. The report lists everything that could not be tested as not certified. */
#pragma once

#include "base/interrupt.h"
#include "config/config.h"
#include "validate/outcome.h"

struct json_t; /* defined in jansson.h */

enum {
#define STAGE(name, share, least, ranks, on_library, starts_processes, what) STAGE_##name,
#include "validate/stages.def"
    STAGES
};

struct Validation;

typedef struct ValidateOptions {
    const Config *config; /* ranks, device, transport and deadlines */
    TextList only;        /* names of the stages that run; if empty, all stages run */
    double seconds;       /* time for all stages */
    /* the NCCL library to compare with config->nccl_library, or NULL if there is none */
    const char *nccl_b;
    const char *good; /* the report (--json) of the last good run, or NULL if there is none */
    /* folder of golden cases; NULL for the folder of the installation or the source tree */
    const char *golden;
    double memory_share; /* share of a device's free memory that is tested */
    /* fraction by which a rate may be lower without being degraded, such as 0.05 for 5 % */
    double allow;
    bool allow_changes; /* whether versions may differ from those of the good run */
    int argc;           /* the command line, from which commands that repeat a stage are built */
    char **argv;
    /* called if a signal ends a run under a launcher */
    void (*report)(const struct Validation *, void *arg);
    void *arg;
} ValidateOptions;

typedef struct ValidateRow {
    const char *name, *what;
    double share, least_seconds;
    int least_ranks;
    bool on_library, starts_processes, selected;
    Outcome *a, *b; /* b is NULL unless nccl_b is set; both are NULL if the stage was not run */
    bool once;      /* whether there was only enough time to measure rates once with each library */
} ValidateRow;

typedef struct Validation {
    const ValidateOptions *options;
    ValidateRow row[STAGES];
    /* the names of the compared libraries, such as "NCCL 2.28.9"; empty if only one library is tested */
    char nccl_name[2][64];
    struct json_t *good; /* the report of the good run, or NULL if there is none */
    bool is_heard;       /* whether this process prints; false in MPI processes other than rank 0 */
    int ranks;
    double seconds;
    int signal;         /* the signal that ended the run, or 0 if there is none */
    int stage;          /* the current stage, or STAGES if the run has ended */
    const Outcome *now; /* the outcome of the current turn */
    int64_t start_ns, stage_ns;
    Interrupt *interrupt; /* used only under a launcher */
} Validation;

/* Returns an error if an option or a file is invalid, or if the first stage could not run. All other faults are
 * reported as evidence. The caller must call validate_free even after an error. The first SIGINT, SIGTERM or SIGHUP
 * ends the current stage, skips the later stages and sets `signal`. A second signal ends the process. Under a
 * launcher, the first signal calls `report` and ends the process. Signals that arrive after the last stage are
 * deferred until all reports are written. */
Err validate_run(const ValidateOptions *, Validation *);
void validate_free(Validation *);
StageVerdict validate_verdict(const Validation *);

/* Reports: text (printed after the progress lines), JSON, JUnit XML, and a self-contained HTML page. */
void validate_print(const Validation *, Str *out);
/* Formats "7 of 9 stages; speed, hang: not run because it needs 2 ranks, and there is 1". */
void validate_count(const Validation *, Str *out);
void validate_json(const Validation *, Str *out);
enum { VALIDATE_SCHEMA = 1 }; /* version of the JSON report */
void validate_junit(const Validation *, Str *out);
void validate_html(const Validation *, Str *out);
/* Formats the line about a stage that has run. */
void validate_print_row(const Validation *, const ValidateRow *, Str *out);
/* Formats the command that repeats a stage. */
void validate_command(const Validation *, const ValidateRow *, Str *out);
