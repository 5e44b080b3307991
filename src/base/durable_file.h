/* Buffered writes to a new file that must survive a power failure. All code that makes file content durable uses these
 * functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Sink {
    char *path; /* the file's path, owned until sink_close */
    int fd;
    int64_t size; /* number of bytes written so far */
    char *buffer; /* the last `held` bytes that were added; they are not in the file yet */
    size_t held;
} Sink;

/* Creates or truncates the file. The caller must then call sink_close, sink_replace or sink_discard, even after an
 * error. */
Err sink_open(Sink *, const char *path);
Err sink_add(Sink *, const void *bytes, size_t n);
Err sink_flush(Sink *); /* writes the buffered bytes, which become readable but not durable */
/* Calls fsync and close. If `so_far` is an error or one of these calls fails, removes the file. Returns the first
 * error. On success, the content is durable. The name becomes durable once the folder is synced (file_rename,
 * file_sync_dir). */
Err sink_close(Sink *, Err so_far);
/* Closes the file as sink_close does, and then renames it to `path` atomically and durably. */
Err sink_replace(Sink *, Err so_far, const char *path);
/* Closes and removes the file. */
void sink_discard(Sink *);
