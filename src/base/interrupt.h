/* Cleans up before SIGINT, SIGTERM or SIGHUP ends a command: removes unfinished files immediately, also while a
 * thread waits for input. The process then ends by the signal, so that a shell sees it. */
#ifndef ISOTRON_BASE_INTERRUPT_H
#define ISOTRON_BASE_INTERRUPT_H

typedef struct Interrupt Interrupt;

/* Starts the watch, held. `undo` runs in another thread while the caller does not hold it. Call it before other
 * threads start, which inherit the blocked signals. */
Interrupt *interrupt_watch(void (*undo)(void *arg), void *arg);
/* Between hold and release a signal waits: what `undo` reads may change. */
void interrupt_hold(Interrupt *);
void interrupt_release(Interrupt *);
/* Ends the watch, which is held; a signal that waited ends the process here. */
void interrupt_end(Interrupt *);

#endif
