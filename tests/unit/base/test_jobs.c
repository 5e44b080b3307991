/* Jobs end in different ways. All jobs must run, except those that need a failed job. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/jobs.h"
#include "unit/cmocka_all.h"

static void add_one(void *arg) { ++*(int *)arg; }

static void crash(void *arg) {
    (void)arg;
    fprintf(stderr, "a last word\n");
    abort();
}

static void refuse(void *arg) {
    (void)arg;
    exit(2);
}

static void hang(void *arg) {
    (void)arg;
    if (fork() == 0) pause(); /* the job's children must be killed too */
    pause();
}

static int *shared_number(void) {
    return mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

TEST(every_end_is_told) {
    int *n = shared_number();
    Job jobs[6] = {{.run = add_one, .arg = n},
                   {.run = crash},
                   {.run = hang},
                   {.run = refuse},
                   {.run = add_one, .arg = n},
                   {.run = add_one, .arg = n}};
    job_needs(&jobs[4], &jobs[1]);
    job_needs(&jobs[5], &jobs[0]);
    jobs_run(jobs, 6, 3, 0.2);
    const JobEnd want[] = {JOB_DONE, JOB_CRASHED, JOB_LATE, JOB_CRASHED, JOB_BLOCKED, JOB_DONE};
    for (int i = 0; i < 6; i++) assert_int_equal(jobs[i].end, want[i]);
    assert_int_equal(*n, 2);
    assert_non_null(strstr(jobs[1].output, "a last word"));
    assert_string_equal(jobs[0].output, "");
    assert_true(jobs[2].seconds >= 0.2 && jobs[2].seconds < 5);
    munmap(n, sizeof *n);
}

TEST(needs_are_done_before) {
    int *n = shared_number();
    Job jobs[3] = {{.run = add_one, .arg = n}, {.run = add_one, .arg = n}, {.run = add_one, .arg = n}};
    job_needs(&jobs[1], &jobs[0]);
    job_needs(&jobs[2], &jobs[1]);
    jobs_run(jobs, 3, 3, 5); /* if they ran concurrently, a count could be lost */
    assert_int_equal(*n, 3);
    munmap(n, sizeof *n);
}

enum { MANY = 20 };

static void note_process(void *arg) { *(int *)arg = getpid(); }

TEST(a_process_does_several) {
    int *pid = mmap(NULL, MANY * sizeof *pid, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Job jobs[MANY + 1] = {{0}};
    for (int i = 0; i < MANY; i++) jobs[i] = (Job){.run = note_process, .arg = &pid[i]};
    jobs[MANY] = jobs[MANY / 2];
    jobs[MANY / 2] = (Job){.run = crash};
    jobs_run(jobs, MANY + 1, 1, 5);
    for (int i = 0; i < MANY; i++) assert_true(pid[i] > 0 && pid[i] != getpid());
    for (int i = 1; i < MANY / 2; i++) assert_int_equal(pid[i], pid[0]);
    assert_int_not_equal(pid[MANY / 2 + 1], pid[0]); /* after the crash */
    assert_int_equal(pid[MANY - 1], pid[MANY / 2 + 1]);
    munmap(pid, MANY * sizeof *pid);
}

static void crash_if(void *arg) {
    int *pid = arg;
    if (*pid < 0) crash(NULL);
    *pid = getpid();
}

TEST(a_process_stays_until_it_ends) {
    int *pid = shared_number(), first, second;
    Job job = {.run = crash_if, .arg = pid};
    JobPool *p = job_pool_new(&job, 1, 1);
    job_pool_run(p, 5, NULL);
    first = *pid;
    *pid = 0, job.end = JOB_WAITING;
    job_pool_run(p, 5, NULL);
    assert_int_equal(*pid, first);
    *pid = -1, job.end = JOB_WAITING;
    job_pool_run(p, 5, NULL);
    assert_int_equal(job.end, JOB_CRASHED);
    *pid = 0, job.end = JOB_WAITING;
    job_pool_run(p, 5, NULL);
    second = *pid;
    assert_int_equal(job.end, JOB_DONE);
    assert_int_not_equal(second, first);
    job_pool_free(p);
    assert_int_equal(kill(second, 0), -1); /* the worker process has ended */
    munmap(pid, sizeof *pid);
}

static void note_pid(void *arg) { *(pid_t *)arg = getpid(); }

TEST(jobs_can_run_in_this_process) {
    pid_t pid[2] = {0, 0};
    Job jobs[2] = {{.run = note_pid, .arg = &pid[0]}, {.run = note_pid, .arg = &pid[1]}};
    job_needs(&jobs[1], &jobs[0]);
    jobs_run_here(jobs, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pid[i], getpid());
        assert_int_equal(jobs[i].end, JOB_DONE);
    }
}

static void check_program(const char *script, const char *error) {
    char *const words[] = {"sh", "-c", (char *)script, NULL};
    const Err e = jobs_run_program(words, "a script", NULL);
    assert_int_equal(e.code, error ? ERR_USER : ERR_NONE);
    assert_string_equal(e.msg, error ? error : "");
}

TEST(a_program_ends) {
    check_program("echo heard", NULL);
    check_program("echo first; echo last >&2; echo; exit 3", "'a script' ended with status 3: last");
    check_program("exit 3", "'a script' ended with status 3: it printed nothing");
    check_program("kill -9 $$", "'a script' was ended by signal 9");
    char *const none[] = {"/nowhere/program", NULL};
    assert_non_null(
        strstr(jobs_run_program(none, "none", NULL).msg, "cannot run '/nowhere/program': No such"));
}
