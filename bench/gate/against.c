/* The gate against another program: pairs of processes, alternately. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "bench/gate/gate.h"

extern char **environ;

/* ---- words ---- */

/* Whether the word names an option of the gate. Each has a value: the next word, unless there is a "=". */
static bool is_ours(const char *word, bool *has_value) {
    static const char *const OWN[] = {"baseline", "against", "pairs", "allow", "junit", "json"};
    *has_value = strchr(word, '=') != NULL;
    if (strncmp(word, "--", 2) != 0) return false;
    const size_t n = strcspn(word + 2, "=");
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++)
        if (strlen(OWN[i]) == n && !strncmp(word + 2, OWN[i], n)) return true;
    return false;
}

enum { EXTRA = 8 };

/* {program, "bench", bench, words..., more, "--json", path, NULL}; to release with free(). */
static char **words_of(const char *bench, int argc, char **argv, const char *more, char *path) {
    char **words = mem_zero((size_t)argc + EXTRA, sizeof *words);
    int n = 1; /* the program */
    words[n++] = "bench", words[n++] = (char *)bench;
    for (int i = 0; i < argc; i++) {
        bool has_value;
        if (!is_ours(argv[i], &has_value))
            words[n++] = argv[i];
        else if (!has_value)
            i++;
    }
    if (more) words[n++] = (char *)more;
    words[n++] = "--json", words[n++] = path;
    return words;
}

static bool is_on_the_line(int argc, char **argv) {
    bool has_value;
    for (int i = 0; i < argc; i++)
        if (is_ours(argv[i], &has_value) && !strncmp(argv[i], "--against", strlen("--against"))) return true;
    return false;
}

/* ---- one process ---- */

static Err read_all(int fd, Str *out) {
    char bytes[4096];
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_failed("read", "a program's result");
        str_add(out, bytes, (size_t)n);
    }
    return ERR_OK;
}

/* The last line that the program printed. */
static void last_line(FILE *f, char out[400]) {
    char line[400];
    *out = 0;
    rewind(f);
    while (fgets(line, sizeof line, f))
        if (strspn(line, " \t\n") < strlen(line)) snprintf(out, 400, "%.*s", (int)strcspn(line, "\n"), line);
}

static Err ended(const char *program, const char *bench, int status, FILE *said) {
    char line[400];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ERR_OK;
    if (WIFSIGNALED(status))
        return err_user("'%s bench %s' was ended by signal %d", program, bench, WTERMSIG(status));
    last_line(said, line);
    return err_user("'%s bench %s' ended with status %d: %s", program, bench, WEXITSTATUS(status),
                    *line ? line : "it printed nothing");
}

/* The program writes its result to a pipe, and what it prints to a file without a name. */
static Err start(const char *program, char **words, int to, FILE *said, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to, to); /* inherited, although it is closed on exec */
    posix_spawn_file_actions_adddup2(&actions, fileno(said), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(said), STDERR_FILENO);
    words[0] = (char *)program;
    const int error = posix_spawnp(pid, program, &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error ? err_user("cannot run '%s': %s", program, strerror(error)) : ERR_OK;
}

typedef struct Arm {
    const char *program, *name, *bench; /* name: of the program, for messages */
    int argc;
    char **argv;
    const char *more;
} Arm;

static Err run_in(const Arm *a, int from, int to, FILE *said, Str *text) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    char **words = words_of(a->bench, a->argc, a->argv, a->more, path);
    pid_t pid;
    int status;
    Err e = start(a->program, words, to, said, &pid);
    close(to); /* the program's end remains */
    free(words);
    if (e.code) return e;
    e = read_all(from, text);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return e.code ? e : ended(a->name, a->bench, status, said);
}

static Err run_arm(const Arm *a, Result *out) {
    int fd[2];
    Str text = {0};
    FILE *said = tmpfile();
    if (!said) return file_failed("make a temporary file in", P_tmpdir);
    Err e = pipe2(fd, O_CLOEXEC) ? file_failed("make", "a pipe") : ERR_OK;
    if (!e.code) {
        e = run_in(a, fd[0], fd[1], said, &text);
        close(fd[0]);
    }
    if (!e.code) e = result_parse(a->name, text.s ? text.s : "", text.len, out);
    str_free(&text);
    fclose(said);
    return e;
}

/* ---- pairs ---- */

/* Both did the same work, and each pair has the same rows. */
static Err check_rows(const Gate *g, const Result *ours, const Result *theirs) {
    ERR_RETURN(gate_check_work(g, false));
    for (int64_t i = 0; i < theirs->n; i++)
        if (!result_find(ours, theirs->rows[i].name))
            return err_user("this program has no row %s, which '%s' has; choose what both have with --filter",
                            theirs->rows[i].name, theirs->path);
    if (g->n && ours->n != g->n) return err_user("the rows of '%s' change from run to run", ours->path);
    return ERR_OK;
}

static Err begin_rows(Gate *g, const Result *ours) {
    g->error = GATE_ERROR / (double)ours->n;
    const int64_t least = interval_least(g->error);
    if (g->options->pairs < least)
        return err_user(
            "--pairs %lld are too few to judge %lld rows with a probability of %g %%: give at least %lld",
            (long long)g->options->pairs, (long long)ours->n, 100 * (1 - GATE_ERROR), (long long)least);
    g->n = ours->n;
    g->rows = mem_zero((size_t)g->n, sizeof *g->rows);
    for (int64_t i = 0; i < g->n; i++) {
        GateRow *row = &g->rows[i];
        memcpy(row->name, ours->rows[i].name, sizeof row->name);
        row->least = least;
        row->ratios = mem_alloc((size_t)g->options->pairs * sizeof *row->ratios);
    }
    return ERR_OK;
}

static Err add_pair(Gate *g, const Result *ours, const Result *theirs) {
    ERR_RETURN(check_rows(g, ours, theirs));
    if (!g->n) ERR_RETURN(begin_rows(g, ours));
    for (int64_t i = 0; i < g->n; i++) {
        GateRow *row = &g->rows[i];
        const ResultRow *x = result_find(ours, row->name);
        if (!x) return err_user("the rows of '%s' change from run to run", ours->path);
        const double b = result_find(theirs, row->name)->time;
        row->ours += x->time / (double)g->options->pairs;
        row->theirs += b / (double)g->options->pairs;
        row->ratios[row->samples++] = x->time / b;
    }
    return ERR_OK;
}

static void print_pair(const Gate *g, int64_t pair, bool ours_first) {
    printf("pair %lld of %lld, %s first", (long long)pair + 1, (long long)g->options->pairs,
           ours_first ? "this program" : g->options->against);
    if (g->n == 1) printf(": ratio %.4f", g->rows->ratios[pair]);
    printf("\n");
    fflush(stdout);
}

/* Keeps the last results, for their provenance. */
static Err run_pair(Gate *g, const Arm *ours, const Arm *theirs, int64_t pair) {
    const bool ours_first = pair % 2 == 0; /* A B, B A, A B: a drift favours neither */
    Result first = {0}, second = {0};
    Err e = run_arm(ours_first ? ours : theirs, &first);
    if (!e.code) e = run_arm(ours_first ? theirs : ours, &second);
    result_free(&g->ours), result_free(&g->theirs);
    g->ours = ours_first ? first : second, g->theirs = ours_first ? second : first;
    if (!e.code) e = add_pair(g, &g->ours, &g->theirs);
    if (!e.code) print_pair(g, pair, ours_first);
    return e;
}

Err gate_run_against(Gate *g, int argc, char **argv, const char *more) {
    const GateOptions *o = g->options;
    const char *bench = g->bench;
    const Arm ours = {"/proc/self/exe", "isotron", bench, argc, argv, more},
              theirs = {o->against, o->against, bench, argc, argv, more};
    if (!is_on_the_line(argc, argv)) /* else each process would read it again, and start others */
        return err_user("--against belongs on the command line, not in a file");
    for (int64_t pair = 0; pair < o->pairs; pair++) ERR_RETURN(run_pair(g, &ours, &theirs, pair));
    for (int64_t i = 0; i < g->n; i++) {
        GateRow *row = &g->rows[i];
        interval_of_median(row->ratios, row->samples, g->error, &row->ratio);
        row->verdict = gate_judge(row->ratio, o->allow);
    }
    return ERR_OK;
}
