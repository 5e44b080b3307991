#include "ckpt/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

Err io_failed(const char *verb, const char *path) {
    int code = errno;
    if (code == ENOENT || code == EACCES || code == ENOTDIR)
        return err_user("cannot %s '%s': %s; check the path and its permissions", verb, path, strerror(code));
    return err_infra("cannot %s '%s': %s", verb, path, strerror(code));
}

Err sink_open(Sink *s, const char *path) {
    *s = (Sink){.path = mem_strdup(path), .fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    return s->fd < 0 ? io_failed("create", path) : ERR_OK;
}

Err sink_add(Sink *s, const void *bytes, size_t n) {
    s->size += (int64_t)n;
    return file_write_all(s->fd, s->path, bytes, n);
}

static Err finish(Sink *s, Err e) {
    if (s->fd < 0) return e;
    if (!e.code && fsync(s->fd)) e = io_failed("sync", s->path);
    if (close(s->fd) && !e.code) e = io_failed("close", s->path);
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
        e = io_failed("rename", s->path);
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
