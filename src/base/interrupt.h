/* Cleans up before SIGINT, SIGTERM or SIGHUP ends a command. A watch removes unfinished files or writes a report
 * immediately, even if a thread is waiting for input. The signal then ends the process, so that the exit status
 * reflects the signal. */
#pragma once

typedef struct Interrupt Interrupt;
#define INTERRUPT_REMOVED "the unfinished files are removed"

/* Starts the watch, which the caller then holds. If a signal arrives while the caller does not hold the watch, another
 * thread runs `undo` and, unless `done` is NULL, prints `done` on stderr. Call this function before other threads
 * start, so that all threads inherit the blocked signals. If SIGHUP is ignored, as under nohup, it remains ignored. */
Interrupt *interrupt_watch(void (*undo)(void *arg), void *arg, const char *done);
/* Holds or releases the watch. While the watch is held, signals are delayed, so the caller may change the data that
 * `undo` reads. */
void interrupt_hold(Interrupt *);
void interrupt_release(Interrupt *);
/* Ends the watch, which the caller must hold. A delayed signal ends the process in interrupt_end. */
void interrupt_end(Interrupt *);

/* Blocks the signals until interrupt_poll reads them. Commands that start processes use interrupt_block; such a
 * command must have a single thread. */
void interrupt_block(void);
/* Returns the number of the signal that has arrived, or 0 if none has. After the first signal, another signal ends the
 * process immediately. */
int interrupt_poll(void);
/* Restores the signals' default action, which is to end the process. Call this function in processes that a
 * command has started while watching signals. */
void interrupt_restore(void);
