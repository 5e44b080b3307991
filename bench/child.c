#include "bench/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* ---- words ---- */

static const ChildOption *find(const char *word, const ChildOption *options, int n) {
    if (strncmp(word, "--", 2) != 0) return NULL;
    const size_t length = strcspn(word + 2, "=");
    for (int i = 0; i < n; i++)
        if (strlen(options[i].name) == length && !strncmp(word + 2, options[i].name, length))
            return &options[i];
    return NULL;
}

char **child_words(int argc, char **argv, const ChildOption *without, int n, const char *more) {
    char **words = mem_zero((size_t)argc + 2, sizeof *words);
    int count = 0;
    for (int i = 0; i < argc; i++) {
        const ChildOption *option = find(argv[i], without, n);
        if (!option)
            words[count++] = argv[i];
        else if (option->has_value && !strchr(argv[i], '='))
            i++;
    }
    if (more) words[count] = (char *)more;
    return words;
}

static int count_words(char **words) {
    int n = 0;
    while (words && words[n]) n++;
    return n;
}

/* {program, "bench", name, words..., more..., "--json", path, NULL}; to release with free(). */
static char **words_of(const Child *a, char **more, char *path) {
    enum { OTHERS = 6 };
    const int given = count_words(a->words), added = count_words(more);
    char **words = mem_zero((size_t)(given + added) + OTHERS, sizeof *words);
    int n = 1; /* the program */
    words[n++] = "bench", words[n++] = (char *)a->bench;
    for (int i = 0; i < given; i++) words[n++] = a->words[i];
    for (int i = 0; i < added; i++) words[n++] = more[i];
    words[n++] = "--json", words[n++] = path;
    return words;
}

/* ---- the process ---- */

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

/* In the child: becomes the program, or writes an error number. It does not outlive its parent. */
static _Noreturn void become(char **words, int to, int said, pid_t parent, int failed) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    fcntl(to, F_SETFD, 0); /* keeps the descriptor open in the program */
    dup2(said, STDOUT_FILENO), dup2(said, STDERR_FILENO);
    execvp(words[0], words);
    const int error = errno;
    const ssize_t written = write(failed, &error, sizeof error);
    _exit(written < 0);
}

/* The program writes its result to a pipe, and what it prints to a file without a name. */
static Err start(const char *program, char **words, int to, FILE *said, pid_t *pid) {
    int failed[2], error = 0;
    const pid_t parent = getpid();
    if (pipe2(failed, O_CLOEXEC)) return file_failed("make", "a pipe");
    words[0] = (char *)program;
    *pid = fork();
    if (*pid == 0) become(words, to, fileno(said), parent, failed[1]);
    if (*pid < 0) error = errno;
    close(failed[1]);
    if (*pid > 0 && read(failed[0], &error, sizeof error) == sizeof error) waitpid(*pid, NULL, 0);
    close(failed[0]);
    return error ? err_user("cannot run '%s': %s", program, strerror(error)) : ERR_OK;
}

static Err run_in(const Child *a, char **more, int from, int to, FILE *said, Str *text) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", to);
    char **words = words_of(a, more, path);
    pid_t pid = -1;
    int status;
    Err e = start(a->program, words, to, said, &pid);
    close(to); /* the program's end remains */
    free(words);
    if (e.code) return e;
    e = read_all(from, text);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return e.code ? e : ended(a->name, a->bench, status, said);
}

Err child_run(const Child *a, char **more, Result *out) {
    int fd[2];
    Str text = {0};
    FILE *said = tmpfile();
    if (!said) return file_failed("make a temporary file in", P_tmpdir);
    Err e = pipe2(fd, O_CLOEXEC) ? file_failed("make", "a pipe") : ERR_OK;
    if (!e.code) {
        e = run_in(a, more, fd[0], fd[1], said, &text);
        close(fd[0]);
    }
    if (!e.code) e = result_parse(a->name, text.s ? text.s : "", text.len, out);
    str_free(&text);
    fclose(said);
    return e;
}
