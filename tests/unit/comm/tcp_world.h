/* Runs worlds of processes on this host, connected by TCP, and records how they ended. */
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "unit/comm/processes.h"

enum { MOST = 4 };

typedef struct World {
    int ranks, output, port;
    pid_t process[MOST];
    int status[MOST]; /* the status from waitpid */
    bool gone[MOST], stopped[MOST];
    int64_t begin_ns;
    double begin_s;  /* file-system time */
    double seconds;  /* time until all processes, except stopped ones, had ended */
    double reported; /* time until the last output */
    char text[1 << 18];
} World;

static inline struct sockaddr_in at_port(int port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Finds a free port outside of the system's ephemeral range, so that no connection can take it before process
 * 0 listens. */
static inline int free_port(void) {
    enum { FIRST = 20000, PORTS = 12000 }; /* below ip_local_port_range */
    static int tried;
    bool is_free = false;
    struct sockaddr_in a = {0};
    while (!is_free) {
        a = at_port(FIRST + (getpid() * 97 + tried++) % PORTS);
        const int s = socket(AF_INET, SOCK_STREAM, 0);
        is_free = !bind(s, (void *)&a, sizeof a);
        close(s);
    }
    return ntohs(a.sin_port);
}

static inline CommLaunch launch_of(const World *w, int rank) {
    return (CommLaunch){.by = COMM_TCP,
                        .processes = w->ranks,
                        .process = rank,
                        .local = rank,
                        .host = "127.0.0.1",
                        .port = w->port};
}

typedef void Child(const World *, int rank, const void *arg);

static inline void begin_world(World *w, int ranks, Child *child, const void *arg) {
    *w = (World){.ranks = ranks, .port = free_port(), .begin_ns = clock_ns()};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    w->begin_s = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    char name[] = "/tmp/isotron-tcp-XXXXXX";
    assert_true((w->output = mkostemp(name, O_APPEND)) >= 0);
    unlink(name);
    fflush(NULL);
    for (int r = 0; r < ranks; r++)
        if (!(w->process[r] = fork())) {
            dup2(w->output, STDOUT_FILENO), dup2(w->output, STDERR_FILENO);
            child(w, r, arg);
            exit(0); /* not _exit, so that leaks are reported */
        }
}

/* Polls the processes. Returns false if all have ended or are stopped. */
static inline bool look(World *w) {
    bool runs = false;
    for (int r = 0; r < w->ranks; r++) {
        const pid_t found = w->gone[r] ? 0 : waitpid(w->process[r], &w->status[r], WNOHANG | WUNTRACED);
        assert_true(found >= 0);
        if (found > 0) {
            w->stopped[r] = WIFSTOPPED(w->status[r]);
            w->gone[r] = WIFEXITED(w->status[r]) || WIFSIGNALED(w->status[r]);
        }
        runs |= !w->gone[r] && !w->stopped[r];
    }
    return runs;
}

static inline void end_world(World *w) {
    while (look(w)) usleep(2000);
    w->seconds = (double)(clock_ns() - w->begin_ns) * 1e-9;
    for (int r = 0; r < w->ranks; r++)
        if (!w->gone[r]) kill(w->process[r], SIGKILL), waitpid(w->process[r], &w->status[r], 0);
    struct stat output;
    assert_int_equal(fstat(w->output, &output), 0);
    w->reported = (double)output.st_mtim.tv_sec + (double)output.st_mtim.tv_nsec * 1e-9 - w->begin_s;
    const ssize_t n = pread(w->output, w->text, sizeof w->text - 1, 0);
    w->text[n > 0 ? n : 0] = 0;
    close(w->output);
}

/* ---- tasks ---- */

typedef struct Task {
    CommMain *run;
    double deadline_s;
} Task;

static inline void run_task(const World *w, int rank, const void *arg) {
    const Task *t = arg;
    const CommLaunch l = launch_of(w, rank);
    Comm *c;
    const Err e = comm_tcp(&l, &(CommOptions){.deadline_s = t->deadline_s}, &c);
    if (e.code) {
        fprintf(stderr, "rank %d: %s\n", rank, e.msg);
        _exit(e.code);
    }
    t->run(NULL, c);
    comm_free(c);
}

static inline void run_world(World *w, int ranks, CommMain *run, double deadline_s) {
    begin_world(w, ranks, run_task, &(Task){run, deadline_s});
    end_world(w);
}

/* Asserts that rank `hit` ended with `of_hit`, and every other rank with `status`. Each is an exit status, or a
 * negated signal number. */
static inline void assert_statuses(const World *w, const char *name, int status, int hit, int of_hit) {
    for (int r = 0; r < w->ranks; r++) {
        const int s = w->status[r], got = WIFSIGNALED(s) ? -WTERMSIG(s) : WEXITSTATUS(s),
                  want = r == hit ? of_hit : status;
        if (got != want) fail_msg("%s: rank %d ended with %d, not %d:\n%s", name, r, got, want, w->text);
    }
}

static inline void assert_in_time(const World *w, const char *name, double seconds) {
    if (w->seconds >= seconds) fail_msg("%s took %.1f s:\n%s", name, w->seconds, w->text);
}

static const double SLACK_S = 4; /* extra time, because the machine may be busy */
