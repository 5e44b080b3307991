#include "base/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"

struct Interrupt {
    void (*undo)(void *arg);
    void *arg;
    const char *done;
    pthread_t thread;
    pthread_mutex_t held;
};

static const int SIGNALS[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS };

static sigset_t signals(void) {
    sigset_t set;
    struct sigaction hangup;
    sigemptyset(&set);
    for (int i = 0; i < N_SIGNALS; i++) sigaddset(&set, SIGNALS[i]);
    if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);
    return set;
}

static void set_actions(const struct sigaction *action) {
    const sigset_t set = signals();
    for (int i = 0; i < N_SIGNALS; i++)
        if (sigismember(&set, SIGNALS[i])) sigaction(SIGNALS[i], action, NULL);
}

/* Threads that libraries start before main do not inherit the signal mask. If such a thread receives the signal, this
 * handler blocks it in the thread and sends it to the process again. */
static void pass_on(int number, siginfo_t *info, void *context) {
    (void)info;
    sigaddset(&((ucontext_t *)context)->uc_sigmask, number);
    kill(getpid(), number);
}

void interrupt_restore(void) {
    const sigset_t set = signals();
    set_actions(&(struct sigaction){.sa_handler = SIG_DFL});
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void interrupt_block(void) {
    const sigset_t set = signals();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    set_actions(&(struct sigaction){.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART});
}

int interrupt_poll(void) {
    const sigset_t set = signals();
    const int number = sigtimedwait(&set, NULL, &(struct timespec){0});
    if (number <= 0) return 0;
    interrupt_restore();
    return number;
}

static void *watch(void *arg) {
    Interrupt *w = arg;
    const sigset_t set = signals();
    int number, state;
    if (sigwait(&set, &number)) return NULL;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_mutex_lock(&w->held);
    w->undo(w->arg);
    if (w->done) fprintf(stderr, "isotron: interrupted: %s\n", w->done);
    interrupt_restore();
    kill(getpid(), number);
    return NULL;
}

Interrupt *interrupt_watch(void (*undo)(void *arg), void *arg, const char *done) {
    Interrupt *w = mem_zero(1, sizeof *w);
    *w = (Interrupt){.undo = undo, .arg = arg, .done = done};
    pthread_mutex_init(&w->held, NULL);
    pthread_mutex_lock(&w->held);
    interrupt_block();
    CHECK(!pthread_create(&w->thread, NULL, watch, w), "cannot start the thread that waits for signals");
    return w;
}

void interrupt_hold(Interrupt *w) { pthread_mutex_lock(&w->held); }

void interrupt_release(Interrupt *w) { pthread_mutex_unlock(&w->held); }

void interrupt_end(Interrupt *w) {
    /* no effect if the thread has already received a signal, because the thread then ends the process */
    pthread_cancel(w->thread);
    pthread_mutex_unlock(&w->held);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->held);
    interrupt_restore();
    free(w);
}
