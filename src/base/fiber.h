/* A fiber is a function that can pause, because it has a separate stack. A fiber runs on the thread that
 * resumes it, so the fiber uses that thread's per-thread state (the CUDA device, OpenMP's threads,
 * FaultScope). */
#pragma once

#include <stdbool.h>

typedef struct Fiber Fiber;
typedef void FiberFn(void *arg);

Fiber *fiber_new(void);
/* Frees a fiber, which must not be paused inside its function. NULL is allowed. */
void fiber_free(Fiber *);
/* Prepares to run fn(arg). The fiber must be new, or its function must have ended. */
void fiber_begin(Fiber *, FiberFn *, void *arg);
/* Runs the fiber's function until it pauses or returns. Returns true if the function has paused. */
bool fiber_resume(Fiber *);
/* Pauses the calling fiber: fiber_resume returns to its caller, and the next fiber_resume continues here. */
void fiber_pause(Fiber *);
