#include "base/isolated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"

enum { MOST_SAID = 1 << 16 };

typedef struct Work {
    void (*fn)(void *arg);
    void *arg;
    int said; /* descriptor of the in-memory file that receives stderr */
} Work;

static void run(void *arg) {
    const Work *w = arg;
    dup2(w->said, STDERR_FILENO);
    w->fn(w->arg);
}

struct Isolation {
    int n;
    Work *work; /* [n] */
    Job *job;   /* [n] */
    JobPool *pool;
};

static Isolation *isolation_of(void (*fn)(void *arg), void *const *args, int n) {
    Isolation *x = mem_zero(1, sizeof *x);
    x->n = n, x->work = mem_zero((size_t)n, sizeof *x->work), x->job = mem_zero((size_t)n, sizeof *x->job);
    for (int i = 0; i < n; i++) {
        x->work[i] = (Work){fn, args[i], memfd_create("stderr", 0)};
        CHECK(x->work[i].said >= 0, "cannot create the file for a stage's output");
        x->job[i] = (Job){.run = run, .arg = &x->work[i]};
    }
    x->pool = job_pool_new(x->job, n, n);
    return x;
}

static void start_again(Isolation *x) {
    for (int i = 0; i < x->n; i++) {
        const int said = x->work[i].said;
        CHECK(!ftruncate(said, 0) && lseek(said, 0, SEEK_SET) == 0,
              "cannot reset the file for a stage's output");
        x->job[i].end = JOB_WAITING;
    }
}

/* Returns the start of the fault report in the text. A library may have printed output before the report. */
static const char *fault_in(const char *text, size_t n) {
    static const char OF_RANKS[] = "COMM FAULT ", CHECKED[] = "\nFAULT ";
    const char *at = memmem(text, n, OF_RANKS, sizeof OF_RANKS - 1);
    if (at) return at;
    at = memmem(text, n, CHECKED, sizeof CHECKED - 1);
    return at ? at + 1 : text;
}

static Isolated result(const Isolation *x, int i) {
    Isolated r = {.end = x->job[i].end, .seconds = x->job[i].seconds};
    const int said = x->work[i].said;
    const off_t size = lseek(said, 0, SEEK_END);
    const size_t n = size > 0 ? (size_t)size : 0;
    const char *text = n ? mmap(NULL, n, PROT_READ, MAP_SHARED, said, 0) : MAP_FAILED;
    if (text == MAP_FAILED) return r;
    const char *begin = fault_in(text, n);
    const size_t left = n - (size_t)(begin - text);
    str_add(&r.said, begin, left < MOST_SAID ? left : MOST_SAID);
    munmap((void *)text, n);
    return r;
}

Isolation *isolation_new(void (*fn)(void *arg), void *arg) { return isolation_of(fn, &arg, 1); }

void isolation_free(Isolation *x) {
    if (!x) return;
    job_pool_free(x->pool);
    for (int i = 0; i < x->n; i++) close(x->work[i].said);
    free(x->work), free(x->job), free(x);
}

Isolated isolation_run(Isolation *x, double deadline_s, const JobWatch *watch) {
    start_again(x);
    job_pool_run(x->pool, deadline_s, watch);
    return result(x, 0);
}

void isolated_run_all(void (*fn)(void *arg), void *const *args, Isolated *results, int n, double deadline_s,
                      const JobWatch *watch) {
    Isolation *x = isolation_of(fn, args, n);
    job_pool_run(x->pool, deadline_s, watch);
    for (int i = 0; i < n; i++) results[i] = result(x, i);
    isolation_free(x);
}

Isolated isolated_run(void (*fn)(void *arg), void *arg, double deadline_s, const JobWatch *watch) {
    Isolated i;
    isolated_run_all(fn, &arg, &i, 1, deadline_s, watch);
    return i;
}

void *isolated_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "cannot map %zu bytes of shared memory", bytes);
    return p;
}

void isolated_free(void *p, size_t bytes) {
    if (p) munmap(p, bytes);
}

/* Returns the rank that precedes the words in a line such as "rank 3 has returned", or -1 if the line does not contain
 * the words. */
static int rank_before(const char *line, const char *words) {
    const char *at = strstr(line, words);
    int rank = -1;
    for (const char *p = line; at && p < at; p++) sscanf(p, "rank %d", &rank);
    return rank;
}

Blame isolated_blame(const Isolated *i) {
    static const char ABSENT[] = "ranks that did not: ", CHECKED[] = ": [rank ";
    const char *said = i->said.s ? i->said.s : "";
    Blame b = {.rank = -1};
    snprintf(b.line, sizeof b.line, "%.*s", (int)strcspn(said, "\n"), said);
    /* If NCCL reported the fault, an absent rank is not necessarily the cause, because that rank may not have
     * started the operation yet. */
    const bool refused = strstr(b.line, "COMM FAULT nccl") != NULL;
    b.of_library = refused || strstr(b.line, "NCCL");
    const char *absent = refused ? NULL : strstr(said, ABSENT), *checked = strstr(said, CHECKED);
    b.rank = rank_before(b.line, "has returned");
    int rank, other;
    if (b.rank < 0 && absent && sscanf(absent + sizeof ABSENT - 1, "%d%*[ ]%d", &rank, &other) == 1)
        b.rank = rank;
    if (b.rank < 0 && checked) sscanf(checked + sizeof CHECKED - 1, "%d", &b.rank);
    return b;
}
