/* A new file that is written piece by piece, through a buffer. The one place that makes content durable:
 * whoever writes a file that must survive a power failure writes it through here. */
#ifndef ISOTRON_BASE_SINK_H
#define ISOTRON_BASE_SINK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Sink {
    char *path; /* owned until sink_close */
    int fd;
    int64_t size; /* bytes so far */
    char *buffer; /* the last `held` of them */
    size_t held;
} Sink;

/* Creates or truncates the file. Whatever it returns, sink_close, sink_replace or sink_discard must follow.
 */
Err sink_open(Sink *, const char *path);
Err sink_add(Sink *, const void *bytes, size_t n);
/* fsync and close; removes the file if `so_far` or anything here is an error. Returns the first error. The
 * content is durable then; the name is when the folder has been synced (file_rename, file_sync_dir). */
Err sink_close(Sink *, Err so_far);
/* The same, and then the file takes the place of `path`, atomically and durably. */
Err sink_replace(Sink *, Err so_far, const char *path);
/* Closes and removes the file. */
void sink_discard(Sink *);

#endif
