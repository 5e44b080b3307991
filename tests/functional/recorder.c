/* A build of the program that records, in order, all calls that change files below the folder RECORDER_ROOT, and can
 * make one of them fail. These calls are replaced with ld --wrap, which works even where debuggers may not attach.
 * Calls from inside libc (stdio) are not recorded; crash.py detects them, because it compares the replayed state with
 * the disk. To save time, fsync is recorded but not executed.
 *
 * The trace has a line for each call; a write's bytes follow its line. "saved N" means that the program has
 * reported the checkpoint of step N as saved. "failed" precedes a call that the recorder made fail.
 *
 *   RECORDER_TRACE  file to which the trace is appended
 *   RECORDER_FAIL   number, from 1, of the call that must fail: with ENOSPC if it needs space, otherwise with EIO
 *   RECORDER_SHORT  if set, each write writes only half of its bytes
 *   RECORDER_PLAIN  if set, names cannot be exchanged (renameat2), as on NFS
 *   RECORDER_DELAY  delay of the opening of a shard, in milliseconds */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "ckpt/ckpt.h"
#include "mutants/mutants.h"
#include "train/checkpoint.h"

enum { MOST_FILES = 1024 };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* the trace has the calls in their order */
static bool is_recorded[MOST_FILES];                     /* by descriptor */
static long calls;
static bool is_failing; /* whether the current call must fail */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *bytes, size_t n);

static bool is_below_root(const char *path) {
    const char *root = getenv("RECORDER_ROOT");
    return root && !strncmp(path, root, strlen(root));
}

static void record(const void *bytes, size_t n) {
    static int trace = -1;
    if (trace < 0)
        trace = __real_open(getenv("RECORDER_TRACE"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    CHECK(__real_write(trace, bytes, n) == (ssize_t)n, "the record cannot be written: %s", strerror(errno));
}

/* Locks `turn`, sets errno to `code`, and returns whether this call must fail. */
static bool begin(int code) {
    const char *nth = getenv("RECORDER_FAIL");
    pthread_mutex_lock(&turn);
    errno = code;
    is_failing = nth && ++calls == atol(nth);
    return is_failing;
}

/* Records a call that has succeeded or was made to fail, and unlocks `turn`. */
static int end(int result, const char *format, ...) {
    const int code = errno;
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (is_failing) record("failed ", 7);
    if (is_failing || result >= 0) record(line, (size_t)n);
    is_failing = false;
    pthread_mutex_unlock(&turn);
    errno = code;
    return result;
}

int __wrap_open(const char *path, int flags, ...) {
    mode_t mode = 0;
    va_list arguments;
    va_start(arguments, flags);
    if (flags & O_CREAT) mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (!is_below_root(path) || !(flags & (O_WRONLY | O_RDWR | O_DIRECTORY)))
        return __real_open(path, flags, mode);
    const char *delay = getenv("RECORDER_DELAY");
    if (delay && strstr(path, "shard_")) usleep((useconds_t)atol(delay) * 1000);
    const int fd = begin(ENOSPC) ? -1 : __real_open(path, flags, mode);
    CHECK(fd < MOST_FILES, "%d files are open", fd);
    if (fd >= 0) is_recorded[fd] = true;
    return end(fd, "open %d %s%s%s %s\n", fd, flags & O_CREAT ? "c" : "-", flags & O_TRUNC ? "t" : "-",
               flags & O_APPEND ? "a" : "-", path);
}

HOOK(ssize_t, write, int fd, const void *bytes, size_t n) {
    if (fd < 0 || !is_recorded[fd]) return __real_write(fd, bytes, n);
    const bool fails = begin(ENOSPC);
    const ssize_t done = fails ? -1 : __real_write(fd, bytes, getenv("RECORDER_SHORT") ? (n + 1) / 2 : n);
    char line[64];
    if (done >= 0) record(line, (size_t)snprintf(line, sizeof line, "write %d %zd\n", fd, done));
    if (done >= 0) record(bytes, (size_t)done);
    end(-1, "write %d\n", fd);
    return done;
}

HOOK(int, fsync, int fd) {
    if (fd < 0 || !is_recorded[fd]) return __real_fsync(fd);
    return end(begin(EIO) ? -1 : 0, "fsync %d\n", fd);
}

HOOK(int, close, int fd) {
    if (fd < 0 || !is_recorded[fd]) return __real_close(fd);
    const bool fails = begin(EIO);
    is_recorded[fd] = false;
    __real_close(fd);
    if (fails) errno = EIO;
    return end(fails ? -1 : 0, "close %d\n", fd);
}

HOOK(int, mkdir, const char *path, mode_t mode) {
    if (!is_below_root(path)) return __real_mkdir(path, mode);
    return end(begin(ENOSPC) ? -1 : __real_mkdir(path, mode), "mkdir %s\n", path);
}

HOOK(int, rename, const char *from, const char *to) {
    if (!is_below_root(to)) return __real_rename(from, to);
    return end(begin(ENOSPC) ? -1 : __real_rename(from, to), "rename %s %s\n", from, to);
}

HOOK(int, renameat2, int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    if (!is_below_root(to)) return __real_renameat2(from_dir, from, to_dir, to, flags);
    bool fails = begin(EIO);
    if (!fails && getenv("RECORDER_PLAIN")) fails = true, errno = EINVAL;
    return end(fails ? -1 : __real_renameat2(from_dir, from, to_dir, to, flags), "exchange %s %s\n", from,
               to);
}

HOOK(int, unlink, const char *path) {
    if (!is_below_root(path)) return __real_unlink(path);
    return end(begin(EIO) ? -1 : __real_unlink(path), "remove %s\n", path);
}

HOOK(int, remove, const char *path) {
    if (!is_below_root(path)) return __real_remove(path);
    return end(begin(EIO) ? -1 : __real_remove(path), "remove %s\n", path);
}

/* ---- reports of saved checkpoints ---- */

static void saved(int64_t iteration) {
    pthread_mutex_lock(&turn);
    end(0, "saved %lld\n", (long long)iteration);
}

HOOK(Err, ckpt_save, const char *dir, const CkptSaveOptions *o, Comm *comm, const Registry *r,
     const CkptItem *items, int n, const json_t *state) {
    const Err e = __real_ckpt_save(dir, o, comm, r, items, n, state);
    if (!e.code) saved(o->iteration);
    return e;
}

HOOK(Err, trainer_finish_save, Trainer *r, bool wait, int64_t *iteration) {
    const Err e = __real_trainer_finish_save(r, wait, iteration);
    if (!e.code && *iteration >= 0) saved(*iteration);
    return e;
}
