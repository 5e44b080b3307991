/* TreeLauncherSubreaper PROGRAM [ARGUMENT ...]: compute-sanitizer starts programs through a helper with this name,
 * which its Python wheel does not contain. The helper runs the program, adopts orphaned descendants and waits for
 * them, and exits with the program's status. */
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int status = 0, ended;
    if (argc < 2 || prctl(PR_SET_CHILD_SUBREAPER, 1)) return 127;
    const pid_t program = fork();
    if (program == 0) {
        execv(argv[1], argv + 1);
        perror(argv[1]);
        _exit(127);
    }
    if (program < 0) return 127;
    for (pid_t pid; (pid = wait(&ended)) > 0;)
        if (pid == program) status = ended;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
