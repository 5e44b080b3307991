/* This file and durable_file.c call each other: file_write_atomic replaces a file through a Sink, and the Sink writes
 * and renames with functions in this file. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable_file.h"
#include "base/mem.h"

Err file_failed(const char *verb, const char *path) {
    int code = errno;
    if (code == ENOENT || code == EACCES || code == EISDIR || code == ENOTDIR || code == ELOOP ||
        code == ENAMETOOLONG)
        return err_user("cannot %s '%s': %s; check the path and its permissions", verb, path, strerror(code));
    return err_infra("cannot %s '%s': %s", verb, path, strerror(code));
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int64_t file_size(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

/* Opens a regular file. A FIFO is refused immediately, even if it has no writer. */
static Err open_regular(const char *path, int *fd, struct stat *st) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return file_failed("open", path);
    Err e = ERR_OK;
    if (fstat(*fd, st))
        e = file_failed("stat", path);
    else if (!S_ISREG(st->st_mode))
        e = err_user("'%s' is %s, not a regular file; check the path", path,
                     S_ISDIR(st->st_mode)    ? "a folder"
                     : S_ISFIFO(st->st_mode) ? "a FIFO"
                                             : "a device");
    if (e.code) close(*fd);
    return e;
}

/* Appends all bytes to `out`, and closes the descriptor. */
static Err read_all(int fd, const char *path, Str *out) {
    char block[1 << 16];
    ssize_t n;
    Err e = ERR_OK;
    while (!e.code && (n = read(fd, block, sizeof block)) != 0) {
        if (n > 0)
            str_add(out, block, (size_t)n);
        else if (errno != EINTR)
            e = file_failed("read", path);
    }
    close(fd);
    if (!e.code && !out->s) str_puts(out, "");
    return e;
}

Err file_read(const char *path, Str *out) {
    int fd;
    struct stat st;
    ERR_RETURN(open_regular(path, &fd, &st));
    return read_all(fd, path, out);
}

Err file_read_stream(const char *path, Str *out) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? file_failed("open", path) : read_all(fd, path, out);
}

Err file_write_all(int fd, const char *path, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n) {
        ssize_t done = write(fd, p, n > 1 << 30 ? 1 << 30 : n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return file_failed("write", path);
        p += done;
        n -= (size_t)done;
    }
    return ERR_OK;
}

Err file_sync_dir(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_failed("open", dir);
    /* EINVAL means that the file system cannot sync folders, which is not an error. */
    Err e = fsync(fd) && errno != EINVAL ? file_failed("sync", dir) : ERR_OK;
    close(fd);
    return e;
}

static Err sync_parent(const char *path) {
    char *copy = mem_strdup(path);
    Err e = file_sync_dir(dirname(copy));
    free(copy);
    return e;
}

Err file_rename(const char *from, const char *to) {
    return rename(from, to) ? file_failed("rename", from) : sync_parent(to);
}

Err file_remove(const char *path) {
    if (unlink(path)) return errno == ENOENT ? ERR_OK : file_failed("remove", path);
    return sync_parent(path);
}

/* ---- writing files ---- */

/* The destination of bytes written to a path. */
typedef struct Target {
    /* file to replace or create, not a symlink; NULL if bytes are written to the existing file */
    char *file;
    int own; /* this program's stdout or stderr if the path leads to it, otherwise -1 */
} Target;

/* Sets *out to the path at which a chain of symlinks ends. A file at this path need not exist. */
static Err follow(const char *path, char **out) {
    enum { MOST_LINKS = 40 }; /* Linux's limit */
    char *at = mem_strdup(path), to[PATH_MAX];
    ssize_t n = 0;
    for (int links = 0; links <= MOST_LINKS && (n = readlink(at, to, sizeof to - 1)) >= 0; links++) {
        to[n] = 0;
        char *next = *to == '/' ? mem_strdup(to) : mem_printf("%s/%s", dirname(at), to);
        free(at);
        at = next;
    }
    *out = at;
    if (n < 0) return ERR_OK; /* the path is not a symlink, or does not exist */
    free(at);
    errno = ELOOP;
    return file_failed("open", path);
}

/* Returns the descriptor of stdout or stderr if one of them is redirected to the file, and -1 otherwise. */
static int own_output(const struct stat *file) {
    struct stat own;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (!fstat(fd, &own) && own.st_dev == file->st_dev && own.st_ino == file->st_ino) return fd;
    return -1;
}

static Err find_target(const char *path, Target *out) {
    *out = (Target){.own = -1};
    struct stat st;
    if (stat(path, &st)) return errno == ENOENT ? follow(path, &out->file) : file_failed("open", path);
    if (S_ISDIR(st.st_mode)) return err_user("'%s' is a folder; specify a file", path);
    out->own = own_output(&st);
    return S_ISREG(st.st_mode) && out->own < 0 ? follow(path, &out->file) : ERR_OK;
}

/* Returns the temporary name that a file has until it is complete. */
static char *new_name(const char *path) { return mem_printf("%s.tmp.%ld", path, (long)gettid()); }

static Err replace(const char *path, const void *bytes, size_t n) {
    char *tmp = new_name(path);
    Sink s;
    Err e = sink_open(&s, tmp);
    if (!e.code) e = sink_add(&s, bytes, n);
    free(tmp);
    return sink_replace(&s, e, path);
}

static Err write_to(const char *path, int own, const void *bytes, size_t n) {
    fflush(stdout); /* earlier output on stdout must precede these bytes */
    int fd = own < 0 ? open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC) : fcntl(own, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return file_failed("open", path);
    Err e = file_write_all(fd, path, bytes, n);
    if (close(fd) && !e.code) e = file_failed("close", path);
    return e;
}

Err file_write_atomic(const char *path, const void *bytes, size_t n) {
    Target to;
    ERR_RETURN(find_target(path, &to));
    Err e = to.file ? replace(to.file, bytes, n) : write_to(path, to.own, bytes, n);
    free(to.file);
    return e;
}

static bool is_same_node(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Returns whether two paths would name the same file. Neither file exists yet, and their folders may also be
 * missing. */
static bool is_same_place(const char *a, const char *b) {
    char *of_a[2], *of_b[2]; /* copies of the path, because basename and dirname may change their argument */
    if (follow(a, &of_a[0]).code) return false;
    if (follow(b, &of_b[0]).code) return free(of_a[0]), false;
    of_a[1] = mem_strdup(of_a[0]), of_b[1] = mem_strdup(of_b[0]);
    const bool same =
        !strcmp(basename(of_a[0]), basename(of_b[0])) && file_is_same(dirname(of_a[1]), dirname(of_b[1]));
    for (int i = 0; i < 2; i++) free(of_a[i]), free(of_b[i]);
    return same;
}

bool file_is_same(const char *a, const char *b) {
    return file_exists(a) || file_exists(b) ? is_same_node(a, b) : is_same_place(a, b);
}

bool file_is_stream(const char *path) {
    Target to;
    if (find_target(path, &to).code) return false;
    const bool is_stream = !to.file;
    free(to.file);
    return is_stream;
}

/* Checks that files can be created in the folder of `path`, by creating one. access() is not sufficient, because file
 * systems such as /proc pass this check although no file can be created in them. The file has no name (O_TMPFILE), so
 * the folder does not change. If the file system (such as NFS) or the kernel does not support unnamed files, creates a
 * named file and unlinks it. */
static Err check_creation(char *path) {
    char *tmp = new_name(path), *folder = dirname(path);
    int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    const bool named = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL);
    if (named) fd = open(tmp, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    Err e = fd < 0 ? file_failed("create a file in", folder) : ERR_OK;
    if (fd >= 0 && close(fd)) e = file_failed("close a file in", folder);
    if (fd >= 0 && named) unlink(tmp);
    free(tmp);
    return e;
}

Err file_check_target(const char *path) {
    Target to;
    ERR_RETURN(find_target(path, &to));
    Err e = ERR_OK;
    if (to.file) {
        e = check_creation(to.file);
    } else if (to.own < 0 && access(path, W_OK)) {
        e = file_failed("write to", path);
    }
    free(to.file);
    return e;
}

Err file_check_folder(const char *path) {
    char *at = mem_strdup(path);
    while (!file_exists(at)) {
        char *parent = mem_strdup(dirname(at));
        free(at);
        at = parent;
    }
    char *file = mem_printf("%s/x", at);
    const Err e = file_is_dir(at) ? check_creation(file)
                                  : err_user("'%s' exists and is not a folder; choose another path", at);
    free(file), free(at);
    return e;
}

Err file_mkdirs(const char *path) {
    char *copy = mem_strdup(path);
    Err e = ERR_OK;
    for (char *p = copy + 1; !e.code && *copy; p++) {
        if (*p != '/' && *p) continue;
        char end = *p;
        *p = 0;
        if (!mkdir(copy, 0777))
            e = sync_parent(copy);
        else if (errno != EEXIST)
            e = file_failed("create the folder", copy);
        *p = end;
        if (!end) break;
    }
    if (!e.code && !file_is_dir(path))
        e = err_user("'%s' exists and is not a folder; choose another path", path);
    free(copy);
    return e;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

Err file_remove_tree(const char *path) {
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) ? file_failed("remove", path) : ERR_OK;
}

Err file_map(const char *path, FileMap *out) {
    *out = (FileMap){0};
    int fd;
    struct stat st;
    ERR_RETURN(open_regular(path, &fd, &st));
    Err e = ERR_OK;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            e = file_failed("map", path);
        else
            *out = (FileMap){p, (size_t)st.st_size};
    }
    close(fd);
    return e;
}

void file_unmap(FileMap *m) {
    if (m->bytes) munmap((void *)m->bytes, m->size);
    *m = (FileMap){0};
}
