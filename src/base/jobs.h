/* Runs jobs in worker processes. Each process runs its jobs sequentially. If a job faults, crashes or hangs, only that
 * job and its process end; another process runs the remaining jobs. Jobs pass results to each other in shared memory
 * (mmap MAP_SHARED) that is mapped before the first job starts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef enum JobEnd {
    JOB_WAITING,
    JOB_RUNNING,
    JOB_DONE,
    JOB_CRASHED, /* a signal killed the job, or its exit status is not zero */
    JOB_LATE,    /* killed after the deadline */
    JOB_STOPPED, /* killed, or not started, because the watch stopped the pool */
    JOB_BLOCKED, /* not started, because a job that it needs failed */
} JobEnd;

enum { JOB_NEEDS = 8, JOB_OUTPUT = 3000 };

typedef struct Job {
    void (*run)(void *arg);
    void *arg;
    const struct Job *needs[JOB_NEEDS]; /* jobs that must finish first; they precede this job in the array */
    int n_needs;
    /* The following members are results. */
    JobEnd end;
    int status; /* waitpid's status if the job crashed */
    double seconds;
    char output[JOB_OUTPUT]; /* the end of a failed job's output; empty if the job succeeded */
} Job;

void job_needs(Job *, const Job *other);
/* Runs all jobs, at most `at_once` at a time. Jobs run in array order, as far as dependencies allow. A job that exceeds
 * deadline_s is killed together with all its processes. Call this function only in a process that has a single thread
 * and has not used a GPU. */
void jobs_run(Job *, int64_t n, int at_once, double deadline_s);

/* Runs all jobs in this process, in order. A fault ends the process. */
void jobs_run_here(Job *, int64_t n);

/* A function that the waiting thread calls about every millisecond while jobs run. */
typedef struct JobWatch {
    bool (*stops)(void *arg); /* if `stops` returns true, all unfinished jobs end with JOB_STOPPED */
    void *arg;
} JobWatch;

/* A pool keeps its worker processes between calls. job_pool_run runs all jobs whose `end` is JOB_WAITING, and reuses
 * the processes of earlier jobs where possible. `watch` may be NULL. */
typedef struct JobPool JobPool;
JobPool *job_pool_new(Job *, int64_t n, int at_once);
void job_pool_run(JobPool *, double deadline_s, const JobWatch *watch);
void job_pool_free(JobPool *); /* ends the processes; NULL is allowed */

/* Runs the program words[0], searching PATH as a shell does. The program's arguments are words[1], ... up to NULL. The
 * program inherits all file descriptors that are not close-on-exec, and ends when this process ends. Messages refer to
 * the program as `name`. If the program fails, returns a user error that contains the last line of the program's
 * output. */
Err jobs_run_program(char *const *words, const char *name, const JobWatch *watch);

/* When a process is killed, the processes that it started end soon afterwards. After a call to jobs_adopt,
 * such orphaned processes become children of this process, which can then wait for them.
 * jobs_wait_for_adopted waits up to 5 s for all children to end. */
void jobs_adopt(void);
void jobs_wait_for_adopted(void);
