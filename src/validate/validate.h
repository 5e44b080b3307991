/* Accepts a machine, a driver or an NCCL library. Stages (stages.def) run one after the other; each has a
 * verdict, evidence, and a suspect for each fault. Stages share one separate process, so that a crash or a
 * hang of a library ends only the current stage. After a stage that has failed, the next one gets a new
 * process. These always get a new process: stages that start processes (parity only without GPUs), and variants of
 * NCCL. A second NCCL library has a second process. If a launcher has started several processes, all stages run in
 * these processes.
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
    TextList only;        /* names of stages; none: all */
    double seconds;       /* for all stages */
    const char *nccl_b;   /* another NCCL library to compare with config->nccl_library; NULL: none */
    const char *good;     /* report of the last good run, as written by --json; NULL: none */
    const char *golden;   /* folder of golden cases; NULL: that of the installation or the source tree */
    double memory_share;  /* share of the free memory of a device */
    double allow;         /* 0.05: a rate that is up to 5 % lower is not degraded */
    bool allow_changes;   /* versions may differ from those of the good run */
    int argc;             /* the command line, from which the command that repeats a stage is made */
    char **argv;
    void (*report)(const struct Validation *, void *arg); /* when a signal ends the processes of a launcher */
    void *arg;
} ValidateOptions;

typedef struct ValidateRow {
    const char *name, *what;
    double share, least_seconds;
    int least_ranks;
    bool on_library, starts_processes, selected;
    Outcome *a, *b; /* b: with the other NCCL library; NULL: not run */
    bool once;      /* rates were measured once with each library, for lack of time */
} ValidateRow;

typedef struct Validation {
    const ValidateOptions *options;
    ValidateRow row[STAGES];
    char nccl_name[2][64]; /* names of the compared libraries: "NCCL 2.28.9"; empty: there is one */
    struct json_t *good;   /* the earlier report; NULL: none */
    bool is_heard;         /* false in MPI processes other than rank 0 */
    int ranks;
    double seconds;
    int signal;         /* that has ended the run; 0: none */
    int stage;          /* the running one; STAGES: the run has ended */
    const Outcome *now; /* of the current turn */
    int64_t start_ns, stage_ns;
    Interrupt *interrupt; /* in processes of a launcher */
} Validation;

/* Returns an error if an option or a file is invalid, or if the first stage could not run. Everything else is evidence.
 * Call validate_free also after an error. The first SIGINT, SIGTERM or SIGHUP ends the stage that runs and leaves out
 * the later ones (`signal`); a second one ends the process. In processes of a launcher the first one calls `report` and
 * ends the process. After the last stage signals wait, so that all reports are written. */
Err validate_run(const ValidateOptions *, Validation *);
void validate_free(Validation *);
StageVerdict validate_verdict(const Validation *);

/* Reports: the text that is printed after the progress lines, JSON, JUnit XML, and a self-contained HTML
 * page. */
void validate_print(const Validation *, Str *out);
/* "7 of 9 stages; speed, hang: not run because it needs 2 ranks, and there is 1" */
void validate_count(const Validation *, Str *out);
void validate_json(const Validation *, Str *out);
enum { VALIDATE_SCHEMA = 1 }; /* of the JSON */
void validate_junit(const Validation *, Str *out);
void validate_html(const Validation *, Str *out);
/* The line about a stage that has run. */
void validate_print_row(const Validation *, const ValidateRow *, Str *out);
/* The command that repeats a stage. */
void validate_command(const Validation *, const ValidateRow *, Str *out);
