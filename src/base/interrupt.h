/* Cleans up before SIGINT, SIGTERM or SIGHUP ends a command: removes unfinished files or writes a report immediately,
 * even while a thread waits for input. The signal then ends the process, so that a shell sees it. */
#pragma once

typedef struct Interrupt Interrupt;
#define INTERRUPT_REMOVED "the unfinished files are removed"

/* Starts the watch, held. `undo` runs in another thread while the caller does not hold it, and `done` says on stderr
 * what it did (NULL: nothing). Call it before other threads start, which inherit the blocked signals. If SIGHUP is
 * ignored, as under nohup, it remains ignored. */
Interrupt *interrupt_watch(void (*undo)(void *arg), void *arg, const char *done);
/* Between hold and release a signal waits: what `undo` reads may change. */
void interrupt_hold(Interrupt *);
void interrupt_release(Interrupt *);
/* Ends the watch, which is held; a signal that waited ends the process here. */
void interrupt_end(Interrupt *);

/* For a command that starts processes, and so may have no other thread: from here on the signals wait for
 * interrupt_poll. */
void interrupt_block(void);
/* The number of the signal that has arrived; 0: none. After the first one a signal ends the process immediately. */
int interrupt_poll(void);
/* From here on signals end this process, as one that was started by a command that watches them. */
void interrupt_restore(void);
