#include "base/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/interrupt.h"
#include "base/mem.h"

static double seconds_now(void) { return (double)clock_ns() * 1e-9; }

void job_needs(Job *j, const Job *other) {
    CHECK(j->n_needs < JOB_NEEDS, "a job depends on more than %d other jobs", JOB_NEEDS);
    j->needs[j->n_needs++] = other;
}

/* ---- processes ---- */

typedef struct Worker {
    int pid;    /* 0 if there is no process */
    int talk;   /* socket; the worker receives a job's number, runs the job and sends the number back */
    int output; /* descriptor that receives the output of the worker's job */
    Job *job;   /* NULL if the worker is idle */
} Worker;

/* Runs jobs until the socket is closed. */
static _Noreturn void serve(Job *jobs, int talk, int output, pid_t parent) {
    int64_t number;
    setpgid(0, 0);
    interrupt_restore();
    prctl(PR_SET_PDEATHSIG, SIGKILL);  /* this process must not outlive its parent */
    if (getppid() != parent) _exit(1); /* the parent may have ended before prctl */
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    fcntl(talk, F_SETFD, 0); /* keeps the socket open if the job executes another program */
    while (read(talk, &number, sizeof number) == sizeof number) {
        jobs[number].run(jobs[number].arg);
        fflush(NULL);
        if (write(talk, &number, sizeof number) != sizeof number) break;
    }
    _exit(0);
}

static void hire(Worker *w, Job *jobs) {
    int ends[2];
    const pid_t parent = getpid();
    fflush(NULL);
    w->output = memfd_create("job", MFD_CLOEXEC);
    CHECK(w->output >= 0 && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends),
          "cannot start a process for a job: %s", strerror(errno));
    w->pid = fork();
    CHECK(w->pid >= 0, "cannot start a process for a job: %s", strerror(errno));
    if (w->pid == 0) {
        close(ends[0]);
        serve(jobs, ends[1], w->output, parent);
    }
    close(ends[1]);
    w->talk = ends[0];
    /* the child process also makes this call, because either process may run first */
    setpgid(w->pid, w->pid);
}

/* Kills the worker and its process group. Returns waitpid's status. */
static int dismiss(Worker *w) {
    int status = 0;
    if (!w->pid) return status;
    kill(-w->pid, SIGKILL);
    waitpid(w->pid, &status, 0);
    close(w->talk);
    close(w->output);
    *w = (Worker){0};
    return status;
}

/* ---- jobs ---- */

static void start(Worker *w, Job *jobs, Job *j) {
    const int64_t number = j - jobs;
    if (!w->pid) hire(w, jobs);
    CHECK(!ftruncate(w->output, 0) && lseek(w->output, 0, SEEK_SET) == 0,
          "cannot reset the output of a job: %s", strerror(errno));
    w->job = j;
    j->seconds = seconds_now();
    j->end = JOB_RUNNING;
    /* If the worker has died, look_after detects the closed socket. */
    if (send(w->talk, &number, sizeof number, MSG_NOSIGNAL) < 0) return;
}

static void finish(Worker *w, JobEnd end) {
    Job *j = w->job;
    j->seconds = seconds_now() - j->seconds;
    j->end = end;
    const off_t all = lseek(w->output, 0, SEEK_END), most = sizeof j->output - 1;
    const off_t from = all > most ? all - most : 0;
    const ssize_t n = end == JOB_DONE ? 0 : pread(w->output, j->output, (size_t)most, from);
    j->output[n > 0 ? n : 0] = 0;
    w->job = NULL;
    if (end != JOB_DONE) j->status = dismiss(w);
}

static void look_after(Worker *w, double deadline_s) {
    int64_t number;
    const ssize_t n = recv(w->talk, &number, sizeof number, MSG_DONTWAIT);
    if (n == sizeof number)
        finish(w, JOB_DONE);
    else if (n >= 0 || (errno != EAGAIN && errno != EINTR))
        finish(w, JOB_CRASHED);
    else if (seconds_now() - w->job->seconds > deadline_s)
        finish(w, JOB_LATE);
}

/* Returns whether the job can start. Marks the job as blocked if a job that it needs has failed. */
static bool is_ready(Job *j) {
    bool ready = true;
    for (int i = 0; i < j->n_needs; i++) {
        if (j->needs[i]->end > JOB_DONE) j->end = JOB_BLOCKED;
        ready &= j->needs[i]->end == JOB_DONE;
    }
    return ready;
}

static Job *next(Job *jobs, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (jobs[i].end == JOB_WAITING && is_ready(&jobs[i])) return &jobs[i];
    return NULL;
}

static bool any(const Job *jobs, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (jobs[i].end <= JOB_RUNNING) return true;
    return false;
}

struct JobPool {
    Job *jobs;
    int64_t n;
    int at_once;
    Worker *workers; /* [at_once] */
};

JobPool *job_pool_new(Job *jobs, int64_t n, int at_once) {
    JobPool *p = mem_zero(1, sizeof *p);
    *p = (JobPool){jobs, n, at_once, mem_zero((size_t)at_once, sizeof *p->workers)};
    return p;
}

void job_pool_free(JobPool *p) {
    if (!p) return;
    for (int i = 0; i < p->at_once; i++) dismiss(&p->workers[i]);
    free(p->workers);
    free(p);
}

static void stop(JobPool *p) {
    for (int i = 0; i < p->at_once; i++)
        if (p->workers[i].job) finish(&p->workers[i], JOB_STOPPED);
    for (int64_t i = 0; i < p->n; i++)
        if (p->jobs[i].end == JOB_WAITING) p->jobs[i].end = JOB_STOPPED;
}

void job_pool_run(JobPool *p, double deadline_s, const JobWatch *watch) {
    while (any(p->jobs, p->n)) {
        if (watch && watch->stops(watch->arg)) stop(p);
        for (int i = 0; i < p->at_once; i++)
            if (p->workers[i].job) look_after(&p->workers[i], deadline_s);
        for (int i = 0; i < p->at_once; i++) {
            Job *j = p->workers[i].job ? NULL : next(p->jobs, p->n);
            if (j) start(&p->workers[i], p->jobs, j);
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

void jobs_adopt(void) { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void jobs_wait_for_adopted(void) {
    static const double MOST_S = 5;
    const double start = seconds_now();
    while (waitpid(-1, NULL, WNOHANG) >= 0 && seconds_now() - start < MOST_S)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void jobs_run(Job *jobs, int64_t n, int at_once, double deadline_s) {
    JobPool *p = job_pool_new(jobs, n, at_once);
    job_pool_run(p, deadline_s, NULL);
    job_pool_free(p);
}

/* ---- programs ---- */

static void become(void *arg) {
    char *const *words = arg;
    execvp(words[0], words);
    fprintf(stderr, "cannot run '%s': %s\n", words[0], strerror(errno));
    exit(127); /* the exit status with which a shell reports a program that cannot be run */
}

/* Returns a text's last non-blank line, or an empty string if there is none. */
static const char *last_line(char *text) {
    size_t n = strlen(text);
    while (n && strchr(" \t\n", text[n - 1])) text[--n] = 0;
    const char *end = strrchr(text, '\n');
    return end ? end + 1 : text;
}

Err jobs_run_program(char *const *words, const char *name, const JobWatch *watch) {
    Job job = {.run = become, .arg = (void *)words};
    JobPool *p = job_pool_new(&job, 1, 1);
    job_pool_run(p, INFINITY, watch);
    job_pool_free(p);
    if (WIFSIGNALED(job.status)) return err_user("'%s' was ended by signal %d", name, WTERMSIG(job.status));
    if (!WEXITSTATUS(job.status)) return ERR_OK;
    const char *line = last_line(job.output);
    return err_user("'%s' ended with status %d: %.400s", name, WEXITSTATUS(job.status),
                    *line ? line : "it printed nothing");
}

void jobs_run_here(Job *jobs, int64_t n) {
    for (Job *j = jobs; j < jobs + n; j++) {
        const double start = seconds_now();
        j->run(j->arg);
        j->seconds = seconds_now() - start;
        j->end = JOB_DONE;
    }
}
