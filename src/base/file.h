/* Reads and maps files, and replaces files atomically (write, fsync, rename, and fsync the folder). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Returns the error for a failed system call: "cannot <verb> '<path>'" with errno's reason. The error is a
 * user error if the path is wrong or forbidden, and an infra error otherwise. */
Err file_failed(const char *verb, const char *path);
bool file_exists(const char *path);
bool file_is_dir(const char *path);
/* Returns the number of bytes in the file, or -1 if the file cannot be read. */
int64_t file_size(const char *path);
/* Appends the content of a regular file to `out`. Returns a user error if the path leads to anything else, because
 * reading a FIFO could block forever and a device may have no end. */
Err file_read(const char *path, Str *out);
/* Like file_read, but also reads FIFOs and devices. Use this function only for paths that the user gave directly. */
Err file_read_stream(const char *path, Str *out);
/* Replaces a file atomically: at any time, the file has either its old or its new content. Symlinks are
 * followed, even to a file that does not exist yet. The target of a symlink is replaced, and the symlink does
 * not change. If the path is not a regular file (for example, a device or a FIFO), bytes are written to the
 * path directly. Opening a FIFO blocks until the FIFO has a reader. If this program's stdout or stderr is
 * redirected to the file, bytes are also written to it directly, after earlier output is flushed. Returns a
 * user error if the path is a folder. */
Err file_write_atomic(const char *path, const void *bytes, size_t n);
/* Returns whether both paths lead to the same file. If the file or its folder does not exist yet, compares the names
 * after resolving symlinks. */
bool file_is_same(const char *a, const char *b);
/* Returns whether file_write_atomic writes to the existing file at the path instead of replacing it. */
bool file_is_stream(const char *path);
/* Checks, before a long computation and without changing any file, that file_write_atomic will be able to
 * write to `path`. Returns an error if the folder of `path` is missing, if no files can be created in it, or
 * if `path` is itself a folder. */
Err file_check_target(const char *path);
/* Checks, without changing any file, that file_mkdirs(path) could create the folder, and that files could be created
 * there. */
Err file_check_folder(const char *path);
/* Writes all bytes to an open descriptor. If the disk is full, returns an infra error that names `path`. */
Err file_write_all(int fd, const char *path, const void *bytes, size_t n);
/* Creates a folder and its parents, like mkdir -p. The new folders are durable. */
Err file_mkdirs(const char *path);
/* Calls fsync on the folder, so that created, renamed and removed names survive a power failure. */
Err file_sync_dir(const char *dir);
/* Renames a file within a folder durably. A file at `to` is replaced atomically. */
Err file_rename(const char *from, const char *to);
/* Removes a file durably. A missing file is not an error. */
Err file_remove(const char *path);
/* Removes a folder that this program wrote, and all files in it. */
Err file_remove_tree(const char *path);

/* A read-only memory map. An empty file maps to {NULL, 0}. */
typedef struct FileMap {
    const unsigned char *bytes;
    size_t size;
} FileMap;
Err file_map(const char *path, FileMap *out);
void file_unmap(FileMap *);
