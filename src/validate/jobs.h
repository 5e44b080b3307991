/* Jobs in other processes, one after the other in each: a fault, a crash or a hang of a job is its own end
 * and its process's, and another process does those that would have come after it. What a job leaves for the
 * others it writes to memory that is shared (mmap MAP_SHARED) before the first one starts. */
#ifndef ISOTRON_VALIDATE_JOBS_H
#define ISOTRON_VALIDATE_JOBS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum JobEnd {
    JOB_WAITING,
    JOB_RUNNING,
    JOB_DONE,
    JOB_CRASHED, /* ended by a signal or a status other than 0: a fault */
    JOB_LATE,    /* killed after the deadline */
    JOB_BLOCKED, /* a job that it needs did not end well */
} JobEnd;

enum { JOB_NEEDS = 8, JOB_OUTPUT = 3000 };

typedef struct Job {
    void (*run)(void *arg);
    void *arg;
    const struct Job *needs[JOB_NEEDS]; /* must be done before; they stand before this one */
    int n_needs;
    /* Results. */
    JobEnd end;
    double seconds;
    char output[JOB_OUTPUT]; /* the last it printed; empty for a job that is done */
} Job;

void job_needs(Job *, const Job *other);
/* Runs all, at most `at_once` at a time, in order as far as their needs allow; a job that takes more than
 * deadline_s is killed with all its processes. Call it while the process has one thread, and before it uses a
 * GPU. */
void jobs_run(Job *, int64_t n, int at_once, double deadline_s);

#endif
