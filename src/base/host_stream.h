/* The CPU's counterpart of a CUDA stream. One thread runs tasks in the order in which they were added. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct HostStream HostStream;
struct HostStream {
    /* Adds a task. `add` is a function pointer so that a library loaded by dlopen can call it. */
    void (*add)(HostStream *, void (*task)(void *arg), void *arg);
};

HostStream *host_stream_new(void);
/* runs all remaining tasks first; does nothing if the argument is NULL */
void host_stream_free(HostStream *);
/* Returns the stream's current end: the number of tasks added so far. */
int64_t host_stream_end(HostStream *);
/* host_stream_passed returns whether the first `position` tasks have finished. host_stream_wait waits until the
 * first `position` tasks have finished. Any thread may call these functions. */
bool host_stream_passed(HostStream *, int64_t position);
void host_stream_wait(HostStream *, int64_t position);
