#include "base/durable_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { BUFFER = 1 << 16 };

Err sink_open(Sink *s, const char *path) {
    *s = (Sink){.path = mem_strdup(path),
                .fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666),
                .buffer = mem_alloc(BUFFER)};
    return s->fd < 0 ? file_failed("create", path) : ERR_OK;
}

Err sink_flush(Sink *s) {
    const size_t n = s->held;
    s->held = 0;
    return file_write_all(s->fd, s->path, s->buffer, n);
}

Err sink_add(Sink *s, const void *bytes, size_t n) {
    s->size += (int64_t)n;
    if (n > BUFFER - s->held) ERR_RETURN(sink_flush(s));
    if (n > BUFFER) return file_write_all(s->fd, s->path, bytes, n);
    if (n) memcpy(s->buffer + s->held, bytes, n);
    s->held += n;
    return ERR_OK;
}

static void release(Sink *s) {
    free(s->path), free(s->buffer);
    *s = (Sink){.fd = -1};
}

/* Closes the file. After an error, removes the file, because its content on the disk is unknown after a
 * failed fsync. */
static Err finish(Sink *s, Err e) {
    if (s->fd < 0) return e;
    if (!e.code) e = sink_flush(s);
    if (!e.code && fsync(s->fd)) e = file_failed("sync", s->path);
    if (close(s->fd) && !e.code) e = file_failed("close", s->path);
    if (e.code) unlink(s->path);
    return e;
}

Err sink_close(Sink *s, Err e) {
    e = finish(s, e);
    release(s);
    return e;
}

Err sink_replace(Sink *s, Err e, const char *path) {
    e = finish(s, e);
    if (!e.code) {
        e = file_rename(s->path, path);
        if (e.code) unlink(s->path);
    }
    release(s);
    return e;
}

void sink_discard(Sink *s) {
    if (s->fd >= 0) {
        close(s->fd);
        unlink(s->path);
    }
    release(s);
}
