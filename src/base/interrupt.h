/* Cleans up before SIGINT, SIGTERM or SIGHUP ends a command. Unfinished files are removed or a report is written
 * immediately, even if a thread waits for input. The signal then ends the process, so that the exit status contains
 * the signal. */
#pragma once

typedef struct Interrupt Interrupt;
#define INTERRUPT_REMOVED "the unfinished files are removed"

/* Starts the watch, which the caller then holds. While the caller does not hold the watch, a signal runs `undo` in a
 * different thread, and then `done` is printed on stderr, unless it is NULL. Call this function before other threads
 * start, so that these threads inherit the blocked signals. If SIGHUP is ignored, as under nohup, it remains
 * ignored. */
Interrupt *interrupt_watch(void (*undo)(void *arg), void *arg, const char *done);
/* Holds or releases the watch. While the watch is held, signals are delayed, so the caller may change the data that
 * `undo` reads. */
void interrupt_hold(Interrupt *);
void interrupt_release(Interrupt *);
/* Ends the watch, which the caller must hold. A delayed signal ends the process in this call. */
void interrupt_end(Interrupt *);

/* Blocks the signals until interrupt_poll reads them. This function is for commands that start processes and must
 * therefore have only one thread. */
void interrupt_block(void);
/* Returns the number of the signal that has arrived, or 0 if there is none. After the first signal, another signal
 * ends the process immediately. */
int interrupt_poll(void);
/* Restores the default action of the signals, which is to end the process. Call this function in processes that a
 * command started while it watched signals. */
void interrupt_restore(void);
