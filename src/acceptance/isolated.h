/* Work in separate processes: a crash or a hang ends only that process, and what it said on stderr stays.
 * Call it while the process has one thread, and before it uses a GPU. */
#ifndef ISOTRON_ACCEPTANCE_ISOLATED_H
#define ISOTRON_ACCEPTANCE_ISOLATED_H

#include "base/str.h"
#include "validate/jobs.h"

typedef struct Isolated {
    JobEnd end;
    double seconds;
    Str said; /* the caller frees it */
} Isolated;

/* Runs fn once with each argument, each in its own process, all at the same time. The processes stay for
 * the next isolation_run, unless they have ended. The arguments must be in shared memory if fn writes to
 * them, or if they are written here between runs. */
typedef struct Isolation Isolation;
Isolation *isolation_new(void (*fn)(void *arg), void *const *args, int n);
void isolation_run(Isolation *, double deadline_s, Isolated *out); /* out: [n] */
void isolation_free(Isolation *);                                  /* NULL: nothing */
/* One argument, once. */
Isolated isolated_run(void (*fn)(void *arg), void *arg, double deadline_s);
/* Zeroed memory that is shared with processes forked later. */
void *isolated_memory(size_t bytes);
void isolated_free(void *, size_t bytes);
/* The content of the report of a fault. */
typedef struct Blame {
    char line[300];  /* its first line */
    int rank;        /* that is missing, or failed; -1: it names none */
    bool of_library; /* NCCL reported the fault, or all ranks started an operation that it did not finish */
} Blame;
Blame isolated_blame(const Isolated *);

#endif
