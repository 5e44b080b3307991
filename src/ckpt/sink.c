#include "ckpt/sink.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

Err sink_open(Sink *s, const char *path) {
    *s = (Sink){.path = mem_strdup(path), .fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    return s->fd < 0 ? file_failed("create", path) : ERR_OK;
}

Err sink_add(Sink *s, const void *bytes, size_t n) {
    s->size += (int64_t)n;
    return file_write_all(s->fd, s->path, bytes, n);
}

static Err finish(Sink *s, Err e) {
    if (s->fd < 0) return e;
    if (!e.code && fsync(s->fd)) e = file_failed("sync", s->path);
    if (close(s->fd) && !e.code) e = file_failed("close", s->path);
    if (e.code) unlink(s->path);
    return e;
}

Err sink_close(Sink *s, Err e) {
    e = finish(s, e);
    free(s->path);
    return e;
}

Err sink_replace(Sink *s, Err e, const char *path) {
    e = finish(s, e);
    if (!e.code && rename(s->path, path)) {
        e = file_failed("rename", s->path);
        unlink(s->path);
    }
    if (!e.code) {
        char *copy = mem_strdup(path);
        e = file_sync_dir(dirname(copy));
        free(copy);
    }
    free(s->path);
    return e;
}
