#include "validate/jobs.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"

static double seconds_now(void) { return (double)clock_ns() * 1e-9; }

void job_needs(Job *j, const Job *other) {
    CHECK(j->n_needs < JOB_NEEDS, "a job needs more than %d others", JOB_NEEDS);
    j->needs[j->n_needs++] = other;
}

static _Noreturn void in_child(const Job *j) {
    setpgid(0, 0);
    dup2(j->file, STDOUT_FILENO);
    dup2(j->file, STDERR_FILENO);
    j->run(j->arg);
    fflush(NULL);
    _exit(0);
}

static void start(Job *j) {
    fflush(NULL);
    j->file = memfd_create("job", MFD_CLOEXEC);
    j->seconds = seconds_now();
    j->pid = fork();
    CHECK(j->pid >= 0 && j->file >= 0, "no process for a job: %s", strerror(errno));
    if (j->pid == 0) in_child(j);
    setpgid(j->pid, j->pid); /* whoever comes first */
    j->end = JOB_RUNNING;
}

static void finish(Job *j, int status) {
    j->seconds = seconds_now() - j->seconds;
    if (j->end == JOB_RUNNING) j->end = status == 0 ? JOB_DONE : JOB_CRASHED;
    const off_t all = lseek(j->file, 0, SEEK_END), most = sizeof j->output - 1;
    const off_t from = all > most ? all - most : 0;
    const ssize_t n = j->end == JOB_DONE ? 0 : pread(j->file, j->output, (size_t)most, from);
    j->output[n > 0 ? n : 0] = 0;
    close(j->file);
}

/* Whether it can start; a need that ended badly ends it. */
static bool is_ready(Job *j) {
    bool ready = true;
    for (int i = 0; i < j->n_needs; i++) {
        if (j->needs[i]->end > JOB_DONE) j->end = JOB_BLOCKED;
        ready &= j->needs[i]->end == JOB_DONE;
    }
    return ready;
}

static void look_after(Job *j, double deadline_s) {
    int status;
    if (waitpid(j->pid, &status, WNOHANG) == j->pid) {
        kill(-j->pid, SIGKILL); /* what it has left behind */
        finish(j, status);
    } else if (seconds_now() - j->seconds > deadline_s && j->end == JOB_RUNNING) {
        j->end = JOB_LATE;
        kill(-j->pid, SIGKILL);
        waitpid(j->pid, &status, 0);
        finish(j, status);
    }
}

void jobs_run(Job *jobs, int64_t n, int at_once, double deadline_s) {
    for (int64_t left = n; left > 0;) {
        int running = 0;
        left = 0;
        for (int64_t i = 0; i < n; i++) {
            Job *j = &jobs[i];
            if (j->end == JOB_RUNNING) look_after(j, deadline_s);
            running += j->end == JOB_RUNNING;
        }
        for (int64_t i = 0; i < n; i++) {
            Job *j = &jobs[i];
            if (j->end == JOB_WAITING && running < at_once && is_ready(j)) start(j), running++;
            left += j->end <= JOB_RUNNING;
        }
        if (left) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}
