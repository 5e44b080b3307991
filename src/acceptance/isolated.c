#include "acceptance/isolated.h"

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
    int said; /* descriptor of a file in memory */
} Work;

static void run(void *arg) {
    const Work *w = arg;
    dup2(w->said, STDERR_FILENO);
    w->fn(w->arg);
}

struct Isolation {
    Work work;
    Job job;
    JobPool *pool;
};

Isolation *isolation_new(void (*fn)(void *arg), void *arg) {
    Isolation *x = mem_zero(1, sizeof *x);
    x->work = (Work){fn, arg, memfd_create("stderr", 0)};
    CHECK(x->work.said >= 0, "no memory for what a stage says");
    x->job = (Job){.run = run, .arg = &x->work};
    x->pool = job_pool_new(&x->job, 1, 1);
    return x;
}

void isolation_free(Isolation *x) {
    if (!x) return;
    job_pool_free(x->pool);
    close(x->work.said);
    free(x);
}

Isolated isolation_run(Isolation *x, double deadline_s) {
    CHECK(!ftruncate(x->work.said, 0) && lseek(x->work.said, 0, SEEK_SET) == 0,
          "cannot reset what a stage says");
    x->job.end = JOB_WAITING;
    job_pool_run(x->pool, deadline_s);
    Isolated i = {.end = x->job.end, .seconds = x->job.seconds};
    char *text = malloc(MOST_SAID);
    const ssize_t n = text ? pread(x->work.said, text, MOST_SAID, 0) : 0;
    if (n > 0) str_add(&i.said, text, (size_t)n);
    free(text);
    return i;
}

Isolated isolated_run(void (*fn)(void *arg), void *arg, double deadline_s) {
    Isolation *x = isolation_new(fn, arg);
    const Isolated i = isolation_run(x, deadline_s);
    isolation_free(x);
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

/* The rank of "rank 3 has returned"; -1: the line has no such words. */
static int rank_before(const char *line, const char *words) {
    const char *at = strstr(line, words);
    int rank = -1;
    for (const char *p = line; at && p < at; p++) sscanf(p, "rank %d", &rank);
    return rank;
}

Blame isolated_blame(const Isolated *i) {
    static const char ABSENT[] = "ranks that did not: ", CHECKED[] = ": [rank ";
    const char *said = i->said.s ? i->said.s : "", *fault = strstr(said, "COMM FAULT");
    const char *begin = fault ? fault : said;
    Blame b = {.rank = -1};
    snprintf(b.line, sizeof b.line, "%.*s", (int)strcspn(begin, "\n"), begin);
    b.of_library = strstr(b.line, "NCCL") != NULL;
    const char *absent = strstr(begin, ABSENT), *checked = strstr(begin, CHECKED);
    b.rank = rank_before(b.line, "has returned");
    if (b.rank < 0 && absent) sscanf(absent + sizeof ABSENT - 1, "%d", &b.rank);
    if (b.rank < 0 && checked) sscanf(checked + sizeof CHECKED - 1, "%d", &b.rank);
    return b;
}
