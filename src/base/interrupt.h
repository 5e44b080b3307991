/* Cleans up before SIGINT, SIGTERM or SIGHUP ends a command: removes unfinished files or writes a report
 * immediately, even while a thread waits for input. The signal then ends the process, so that a shell sees it
 * in the exit status. */
#pragma once

typedef struct Interrupt Interrupt;
#define INTERRUPT_REMOVED "the unfinished files are removed"

/* Starts the watch, which the caller then holds. While the caller does not hold it, a signal runs `undo` in a
 * different thread. `done` is then printed on stderr, unless it is NULL. Call it before other threads start,
 * so that they inherit the blocked signals. If SIGHUP is ignored, as under nohup, it remains ignored. */
Interrupt *interrupt_watch(void (*undo)(void *arg), void *arg, const char *done);
/* Between hold and release, signals are delayed, so the caller may change the data that `undo` reads. */
void interrupt_hold(Interrupt *);
void interrupt_release(Interrupt *);
/* Ends the watch, which the caller must hold. A delayed signal ends the process here. */
void interrupt_end(Interrupt *);

/* Blocks the signals until interrupt_poll reads them. Use it in a command that starts processes and must therefore have
 * only one thread. */
void interrupt_block(void);
/* The number of the signal that has arrived, or 0 if there is none. After this first signal, another one ends
 * the process immediately. */
int interrupt_poll(void);
/* Restores the signals' default action, which ends the process. Call it in a process that was started by a command that
 * watches signals. */
void interrupt_restore(void);
