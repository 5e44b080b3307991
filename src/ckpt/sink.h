/* A new file that is written piece by piece and is on the disk when it is closed. */
#ifndef ISOTRON_CKPT_SINK_H
#define ISOTRON_CKPT_SINK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Sink {
    char *path; /* owned until sink_close */
    int fd;
    int64_t size; /* bytes so far */
} Sink;

/* Creates or truncates the file. Whatever it returns, sink_close must follow. */
Err sink_open(Sink *, const char *path);
Err sink_add(Sink *, const void *bytes, size_t n);
/* fsync and close; removes the file if `so_far` or anything here is an error. Returns the first error. */
Err sink_close(Sink *, Err so_far);
/* The same, and then the file takes the place of `path` atomically. */
Err sink_replace(Sink *, Err so_far, const char *path);

#endif
