#include "train/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "comm/comm.h"

struct StopSignals {
    pthread_t thread;
    sigset_t set;
    /* two file descriptors: signals arrive at `arrivals`, and writing to `end` ends the thread */
    int arrivals, end;
    bool saves;
    atomic_bool deferred;
    atomic_int seen;
};

/* Handles a signal in a thread that has not inherited the mask because a library (BLAS) started the thread before main.
 * The thread blocks the signal for itself, and sends the signal to the process again, so that finally only the
 * descriptor can receive the signal. */
static void pass_on(int number, siginfo_t *info, void *context) {
    (void)info;
    sigaddset(&((ucontext_t *)context)->uc_sigmask, number);
    kill(getpid(), number);
}

int stop_signals_number(const Config *c) {
    static const int NUMBERS[] = {
        [EXIT_SIGTERM] = SIGTERM, [EXIT_SIGINT] = SIGINT, [EXIT_SIGUSR1] = SIGUSR1, [EXIT_SIGUSR2] = SIGUSR2};
    return NUMBERS[c->exit_signal];
}

/* Prints to standard error, replacing a status line. If there are several processes, only the first process
 * prints. */
static void say(int number, const char *what) {
    if (comm_process() > 0) return;
    if (terminal_is_live(stderr)) terminal_hide(stderr);
    fprintf(stderr, "SIG%s: %s\n", sigabbrev_np(number), what);
}

static void end_process(int number) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
}

static void take(StopSignals *s, int number) {
    if (!atomic_load(&s->deferred)) {
        say(number, "stopping; no step has begun");
        end_process(number);
    } else if (!atomic_load(&s->seen)) {
        const bool alone = comm_processes() == 1; /* a launcher may send a signal again */
        say(number,
            !s->saves ? "stopping after this step; nothing is saved without --save"
            : alone
                ? "stopping after this step, then saving; a second signal stops immediately, without saving"
                : "stopping after this step, then saving");
        atomic_store(&s->seen, number);
    } else if (comm_processes() == 1) {
        say(number, "stopping immediately; complete checkpoints are kept");
        end_process(number);
    }
}

static void *wait_for_signals(void *arg) {
    StopSignals *s = arg;
    struct pollfd from[] = {{.fd = s->arrivals, .events = POLLIN}, {.fd = s->end, .events = POLLIN}};
    struct signalfd_siginfo info;
    for (;;) {
        poll(from, 2, -1);
        if (from[1].revents) return NULL;
        if (read(s->arrivals, &info, sizeof info) == sizeof info) take(s, (int)info.ssi_signo);
    }
}

StopSignals *stop_signals_new(const Config *c) {
    StopSignals *s = mem_zero(1, sizeof *s);
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    s->saves = c->save != NULL;
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGINT);
    if (c->exit_signal_handler) sigaddset(&s->set, stop_signals_number(c));
    pthread_sigmask(SIG_BLOCK, &s->set, NULL);
    s->arrivals = signalfd(-1, &s->set, SFD_NONBLOCK | SFD_CLOEXEC);
    s->end = eventfd(0, EFD_CLOEXEC);
    CHECK(s->arrivals >= 0 && s->end >= 0, "no file descriptors are left for the signals");
    for (int i = 1; i < NSIG; i++)
        if (sigismember(&s->set, i) == 1) sigaction(i, &action, NULL);
    const int rc = pthread_create(&s->thread, NULL, wait_for_signals, s);
    CHECK(rc == 0, "cannot start the thread that waits for signals: error %d", rc);
    return s;
}

void stop_signals_defer(StopSignals *s) { atomic_store(&s->deferred, true); }

int stop_signals_seen(const StopSignals *s) { return atomic_load(&s->seen); }

/* Stops handling the signals. A launcher signals its processes one after the other, so more signals may arrive; they
 * are ignored. */
void stop_signals_free(StopSignals *s) {
    if (!s) return;
    CHECK(!eventfd_write(s->end, 1), "cannot stop the thread that waits for signals");
    pthread_join(s->thread, NULL);
    for (int i = 1; i < NSIG; i++)
        if (sigismember(&s->set, i) == 1) signal(i, comm_processes() > 1 ? SIG_IGN : SIG_DFL);
    close(s->arrivals);
    close(s->end);
    pthread_sigmask(SIG_UNBLOCK, &s->set, NULL);
    free(s);
}
