/* An acceptance test for a machine, a driver or an NCCL library. Stages (stages.def) run one after the other;
 * each has a verdict, evidence, and a suspect for each fault. Stages run in a child process that they share,
 * so that a crash or a hang of a library ends only the current stage. After a stage that has failed, the next
 * one gets a new process. Variants of NCCL and stages that start processes always get a new process, except
 * parity on GPUs. A second NCCL library runs in a second child process. If a launcher has started several
 * processes, all stages run in these processes.
 *
 *   PASS          everything that was tested is correct
 *   INCONCLUSIVE  nothing could be tested, or the results vary too much for a verdict
 *   INTERRUPTED   SIGINT, SIGTERM or SIGHUP ended the run before the stage had ended
 *   DEGRADED      correct, but slower than it should be, or changed since the last good run
 *   FAIL          wrong
 *
 * The overall verdict is the worst verdict of all stages. INCONCLUSIVE counts only if no stage passed. The
 * report lists everything that could not be tested as not certified. */
#pragma once

#include "base/interrupt.h"
#include "config/config.h"
#include "validate/outcome.h"

struct json_t; /* jansson.h */

enum {
#define STAGE(name, share, least, ranks, on_library, starts_processes, what) STAGE_##name,
#include "validate/stages.def"
    STAGES
};

struct Validation;

typedef struct ValidateOptions {
    const Config *config; /* ranks, device, transport, deadlines */
    TextList only;        /* names of stages; if there are none, all stages run */
    double seconds;       /* for all stages */
    const char *nccl_b;   /* the NCCL library to compare with config->nccl_library, or NULL if there is
                             none */
    const char *good;     /* report file (--json) of the last good run, or NULL if there is none */
    const char *golden;   /* folder of golden cases; NULL means the folder of the installation or the source
                             tree */
    double memory_share;  /* share of the free memory of a device */
    double allow;         /* for example, 0.05 means that a rate that is up to 5 % lower is not degraded */
    bool allow_changes;   /* whether versions may differ from those of the good run */
    int argc;             /* the command line; commands that repeat a stage are built from it */
    char **argv;
    /* called when a signal ends a run under a launcher */
    void (*report)(const struct Validation *, void *arg);
    void *arg;
} ValidateOptions;

typedef struct ValidateRow {
    const char *name, *what;
    double share, least_seconds;
    int least_ranks;
    bool on_library, starts_processes, selected;
    Outcome *a, *b; /* b: with nccl_b; NULL if the stage was not run */
    bool once;      /* whether rates were measured only once with each library, because time was short */
} ValidateRow;

typedef struct Validation {
    const ValidateOptions *options;
    ValidateRow row[STAGES];
    char nccl_name[2][64]; /* names of the compared libraries: "NCCL 2.28.9"; empty if only one library is
                              tested */
    struct json_t *good;   /* the earlier report, or NULL if there is none */
    bool is_heard;         /* whether this process prints; false in MPI processes other than rank 0 */
    int ranks;
    double seconds;
    int signal;         /* the signal that ended the run, or 0 if there is none */
    int stage;          /* the current stage; STAGES if the run has ended */
    const Outcome *now; /* outcome of the current turn */
    int64_t start_ns, stage_ns;
    Interrupt *interrupt; /* used only under a launcher */
} Validation;

/* Returns an error if an option or a file is invalid, or if the first stage could not run. All other faults
 * are reported as evidence. Call validate_free even after an error. The first SIGINT, SIGTERM or SIGHUP ends
 * the current stage, skips the later ones and sets `signal`. A second signal ends the process. Under a
 * launcher, the first signal calls `report` and ends the process. Signals that arrive after the last stage
 * are deferred until all reports are written. */
Err validate_run(const ValidateOptions *, Validation *);
void validate_free(Validation *);
StageVerdict validate_verdict(const Validation *);

/* Write reports: text (which is printed after the progress lines), JSON, JUnit XML, and a self-contained HTML
 * page. */
void validate_print(const Validation *, Str *out);
/* "7 of 9 stages; speed, hang: not run because it needs 2 ranks, and there is 1" */
void validate_count(const Validation *, Str *out);
void validate_json(const Validation *, Str *out);
enum { VALIDATE_SCHEMA = 1 }; /* version of the JSON report */
void validate_junit(const Validation *, Str *out);
void validate_html(const Validation *, Str *out);
/* Formats the line about a stage that has run. */
void validate_print_row(const Validation *, const ValidateRow *, Str *out);
/* Formats the command that repeats a stage. */
void validate_command(const Validation *, const ValidateRow *, Str *out);
