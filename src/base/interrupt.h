/* Cleans up before SIGINT, SIGTERM or SIGHUP ends a command: removes unfinished files or writes a report immediately,
 * even while a thread waits for input. The signal then ends the process, so that a shell sees it. */
#pragma once

typedef struct Interrupt Interrupt;
#define INTERRUPT_REMOVED "the unfinished files are removed"

/* Starts the watch, held by the caller. While the caller does not hold it, a signal runs `undo` in a different
 * thread. `done` is then printed on stderr (NULL: no message). Call it before other threads start, which inherit the
 * blocked signals. If SIGHUP is ignored, as under nohup, it remains ignored. */
Interrupt *interrupt_watch(void (*undo)(void *arg), void *arg, const char *done);
/* Between hold and release a signal waits, so the caller may change the data that `undo` reads. */
void interrupt_hold(Interrupt *);
void interrupt_release(Interrupt *);
/* Ends the watch, which the caller must hold. A signal that waited ends the process here. */
void interrupt_end(Interrupt *);

/* For a command that starts processes and must therefore have one thread. From here on, signals wait for
 * interrupt_poll. */
void interrupt_block(void);
/* The number of the signal that has arrived; 0: none. After the first one a signal ends the process immediately. */
int interrupt_poll(void);
/* From here on, signals end this process again. For processes that a watching command has started. */
void interrupt_restore(void);
