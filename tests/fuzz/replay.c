/* Runs one fuzz target on its seeds and on a fixed sequence of mutations of them, without libFuzzer:
 *   fuzz_replay_<what> COUNT [SEED [FIRST]]   runs mutations FIRST .. FIRST + COUNT - 1
 *   fuzz_replay_<what> --corpus FOLDER        writes the seeds, as a corpus for libFuzzer
 *
 * The inputs run in a child process with limited memory and time. A crash, a sanitizer report or a hang is reported
 * with the input's number and a copy of the input. The sequence then continues with the next input. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"

enum { SECONDS_PER_INPUT = 20, MAX_CRASHES = 5 };
enum { MEMORY_BYTES = 1 << 30 };

/* Memory that the child shares with the parent, which reads it after a crash. */
typedef struct Progress {
    uint64_t next; /* number of the current input */
    uint64_t accepted, refused;
} Progress;

/* AddressSanitizer reserves terabytes of addresses, so its own limits replace the limit of the process. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "max_allocation_size_mb=2304:hard_rss_limit_mb=2048:allocator_may_return_null=0";
}
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMIT_MEMORY 0
#elif defined(__has_feature)
#define LIMIT_MEMORY (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define LIMIT_MEMORY 1
#endif

static void run_one(const Str *input, Progress *p) {
    alarm(SECONDS_PER_INPUT);
    /* Copies the input to a block of its exact size, so that reading one byte past the end is detected. */
    uint8_t *bytes = mem_alloc(input->len + !input->len);
    memcpy(bytes, input->len ? input->s : "", input->len);
    if (fuzz_one(bytes, input->len))
        p->accepted++;
    else
        p->refused++;
    free(bytes);
}

/* Runs in the child. A wrong verdict on an unchanged seed also counts as a failure, because a target that
 * rejects its seeds tests nothing. */
static int run_range(const Corpus *c, uint64_t seed, uint64_t end, Progress *p) {
    if (LIMIT_MEMORY) setrlimit(RLIMIT_AS, &(struct rlimit){MEMORY_BYTES, MEMORY_BYTES});
    for (int i = 0; i < c->n; i++) {
        uint64_t refused = p->refused;
        run_one(&c->seeds[i], p);
        CHECK(p->refused == refused, "seed %d of the corpus is refused", i);
    }
    Str input = {0};
    for (; p->next < end; p->next++) {
        mutate(c->seeds, c->n, seed, p->next, &input);
        run_one(&input, p);
    }
    str_free(&input);
    return 0;
}

static void report(const Corpus *c, const char *what, uint64_t seed, uint64_t number, int status) {
    Str input = {0};
    mutate(c->seeds, c->n, seed, number, &input);
    char *name = mem_printf("/tmp/isotron-crash-%s-%llu", what, (unsigned long long)number);
    Err err = file_write_atomic(name, input.s ? input.s : "", input.len);
    fprintf(
        stderr, "%s: input %llu (seed %llu) ended by %s %d; it is kept in %s%s\n", what,
        (unsigned long long)number, (unsigned long long)seed, WIFSIGNALED(status) ? "signal" : "exit status",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), name, err.code ? " (not written)" : "");
    free(name), str_free(&input);
}

/* Returns the path of the scratch folder of process `pid`. */
static void remove_scratch(pid_t pid) {
    char *folder = mem_printf("/tmp/isotron-fuzz-%d", (int)pid);
    if (file_is_dir(folder)) file_remove_tree(folder);
    free(folder);
}

static int run_all(const Corpus *c, const char *what, uint64_t seed, uint64_t first, uint64_t count) {
    Progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "no shared memory");
    *p = (Progress){.next = first};
    int crashes = 0;
    while (p->next < first + count && crashes < MAX_CRASHES) {
        pid_t child = fork();
        CHECK(child >= 0, "cannot fork");
        if (child == 0) exit(run_range(c, seed, first + count, p));
        int status;
        CHECK(waitpid(child, &status, 0) == child, "lost the child process");
        remove_scratch(child);
        if (status == 0) continue;
        crashes++;
        if (p->next >= first + count)
            fprintf(stderr, "%s: a report at the end of the run (a leak?)\n", what);
        else
            report(c, what, seed, p->next++, status);
    }
    printf("%s: %d seeds, %llu inputs accepted, %llu refused with a sentence, %d crashes\n", what, c->n,
           (unsigned long long)p->accepted, (unsigned long long)p->refused, crashes);
    return crashes > 0;
}

static int write_corpus(const Corpus *c, const char *folder) {
    Err err = file_mkdirs(folder);
    for (int i = 0; i < c->n && !err.code; i++) {
        char *path = mem_printf("%s/seed-%d", folder, i);
        err = file_write_atomic(path, c->seeds[i].s ? c->seeds[i].s : "", c->seeds[i].len);
        free(path);
    }
    if (err.code) fprintf(stderr, "%s\n", err.msg);
    return err.code;
}

int main(int argc, char **argv) {
    Corpus corpus = {0};
    fuzz_seeds(&corpus);
    int status;
    if (argc == 3 && !strcmp(argv[1], "--corpus"))
        status = write_corpus(&corpus, argv[2]);
    else {
        uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
        uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1,
                 first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
        const char *what = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
        status = run_all(&corpus, what, seed, first, count);
    }
    for (int i = 0; i < corpus.n; i++) str_free(&corpus.seeds[i]);
    free(corpus.seeds);
    remove_scratch(getpid());
    return status;
}
