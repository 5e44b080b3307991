/* Runs work in a separate process, so that a crash or a hang ends only that process. The stderr output of the separate
 * process is captured. Call these functions while this process has only one thread and has not used a GPU. */
#pragma once

#include "base/jobs.h"
#include "base/str.h"

typedef struct Isolated {
    JobEnd end;
    double seconds;
    /* up to 64 KiB of the process's stderr, from the start of its fault report if there is one; the caller
     * frees the text */
    Str said;
} Isolated;

/* An Isolation runs fn(arg) in a separate process. The next isolation_run reuses this process if it still exists. `arg`
 * must be in shared memory if fn writes to it, or if the caller writes to it between two runs. */
typedef struct Isolation Isolation;
Isolation *isolation_new(void (*fn)(void *arg), void *arg);
/* Runs the function. `watch` has the same meaning as in job_pool_run. */
Isolated isolation_run(Isolation *, double deadline_s, const JobWatch *watch);
void isolation_free(Isolation *); /* NULL is allowed */
/* Runs fn(arg) once, in a new process. */
Isolated isolated_run(void (*fn)(void *arg), void *arg, double deadline_s, const JobWatch *watch);
/* Runs fn(args[i]) for all i at the same time, each in a separate process. */
void isolated_run_all(void (*fn)(void *arg), void *const *args, Isolated *results, int n, double deadline_s,
                      const JobWatch *watch);
/* Returns zeroed memory shared with processes that are forked later. */
void *isolated_memory(size_t bytes);
void isolated_free(void *, size_t bytes);
/* A parsed fault report. */
typedef struct Blame {
    char line[300]; /* the first line of the report */
    int rank;       /* the missing or failed rank, or -1 if the report names no rank or several ranks */
    /* whether NCCL reported the fault, or did not finish an operation that all ranks had started */
    bool of_library;
} Blame;
Blame isolated_blame(const Isolated *);
