#include "ckpt/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

static const char PREFIX[] = "iter_", TEMPORARY[] = ".tmp", ASIDE[] = ".old",
                  TRACKER[] = "latest_checkpointed_iteration.txt";
enum { DIGITS = 7 };

char *folder_path(const char *dir, int64_t iteration, const char *suffix) {
    return mem_printf("%s/%s%0*lld%s", dir, PREFIX, DIGITS, (long long)iteration, suffix);
}

/* Returns N if the folder's name is iter_N followed by this suffix, and -1 otherwise. */
static int64_t iteration_of(const char *name, const char *suffix) {
    char *end, again[64];
    if (strncmp(name, PREFIX, sizeof PREFIX - 1)) return -1;
    errno = 0;
    int64_t n = strtoll(name + sizeof PREFIX - 1, &end, 10);
    snprintf(again, sizeof again, "%s%0*lld%s", PREFIX, DIGITS, (long long)n, suffix);
    return !errno && n >= 0 && !strcmp(name, again) ? n : -1;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static Err list(const char *dir, const char *suffix, int64_t **out, int64_t *n) {
    *out = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d) return errno == ENOENT ? ERR_OK : file_failed("open the folder", dir);
    for (struct dirent *entry; (entry = readdir(d));) {
        int64_t iteration = iteration_of(entry->d_name, suffix);
        if (iteration < 0) continue;
        *out = mem_grow(*out, (size_t)*n + 1, sizeof **out);
        (*out)[(*n)++] = iteration;
    }
    closedir(d);
    if (*n) qsort(*out, (size_t)*n, sizeof **out, ascending);
    return ERR_OK;
}

Err ckpt_list(const char *dir, int64_t **iterations, int64_t *n) { return list(dir, "", iterations, n); }

Err ckpt_missing(const char *dir) {
    char *config = mem_printf("%s/config.json", dir);
    const bool is_hf = file_exists(config);
    free(config);
    return err_user("'%s' contains no checkpoint; %s", dir,
                    is_hf ? "it contains a Hugging Face model, which isotron convert --from-hf converts"
                          : "check the path");
}

Err folder_of_megatron(const char *folder) {
    return err_user("'%s' is a checkpoint of Megatron-LM, which cannot be read: convert it to Hugging Face's "
                    "format, and then use isotron convert --from-hf",
                    folder);
}

/* Parses a tracker file. Megatron-LM writes "release", without an iteration, if the model was converted. */
static Err parse_tracker(const char *dir, const char *path, const Str *text, int64_t *iteration) {
    char *end;
    const size_t word = strcspn(text->s, " \r\n");
    if (word == strlen("release") && !strncmp(text->s, "release", word)) {
        char *folder = mem_printf("%s/release", dir);
        const Err e = folder_of_megatron(folder);
        free(folder);
        return e;
    }
    errno = 0;
    *iteration = strtoll(text->s, &end, 10);
    if (!errno && end != text->s && *iteration >= 0 && end + strspn(end, " \r\n") == text->s + text->len)
        return ERR_OK;
    return err_user("'%s' contains %s, not a checkpoint's iteration; write an iteration to the file, or "
                    "specify one checkpoint's folder",
                    path, quote(text->s).s);
}

Err ckpt_latest(const char *dir, int64_t *iteration) {
    *iteration = -1;
    char *path = mem_printf("%s/%s", dir, TRACKER);
    Err e = ERR_OK;
    if (file_exists(path)) {
        Str text = {0};
        e = file_read(path, &text);
        if (!e.code) e = parse_tracker(dir, path, &text, iteration);
        str_free(&text);
    } else {
        int64_t *all, n;
        e = ckpt_list(dir, &all, &n);
        if (n) *iteration = all[n - 1];
        free(all);
    }
    free(path);
    return e;
}

Err ckpt_locate(const char *path, char **dir, int64_t *iteration) {
    char *manifest = mem_printf("%s/manifest.json", path);
    const bool inner = file_exists(manifest);
    free(manifest);
    *dir = mem_strdup(path);
    *iteration = -1;
    if (!inner) return ERR_OK;
    size_t n = strlen(*dir);
    while (n > 1 && (*dir)[n - 1] == '/') (*dir)[--n] = 0;
    char *slash = strrchr(*dir, '/');
    *iteration = iteration_of(slash ? slash + 1 : *dir, "");
    if (*iteration < 0) {
        free(*dir);
        *dir = NULL;
        return err_user(
            "'%s' is a checkpoint, but its name is not %s followed by %d digits; rename it, and specify "
            "its parent folder",
            path, PREFIX, DIGITS);
    }
    if (slash)
        slash[slash == *dir] = 0;
    else
        strcpy(*dir, ".");
    return ERR_OK;
}

/* ---- changes ---- */

Err ckpt_lock(const char *dir, int *lock) {
    *lock = -1;
    ERR_RETURN(file_mkdirs(dir));
    if (access(dir, W_OK | X_OK)) return file_failed("write into the folder", dir);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_failed("open the folder", dir);
    /* Other flock errors are ignored, because the file system may not support locks. */
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(fd);
        return err_user("another run is saving to '%s'; end it or specify another folder", dir);
    }
    *lock = fd;
    return ERR_OK;
}

/* Removes all folders with this suffix. Makes renames durable first: otherwise, a power failure could undo a rename
 * after files were deleted, and a checkpoint would lack files. */
static Err remove_all(const char *dir, const char *suffix) {
    int64_t *all, n;
    Err e = list(dir, suffix, &all, &n);
    if (n && !e.code) e = file_sync_dir(dir);
    for (int64_t i = 0; i < n && !e.code; i++) {
        char *path = folder_path(dir, all[i], suffix);
        e = file_remove_tree(path);
        free(path);
    }
    free(all);
    return e;
}

Err folder_clean(const char *dir) {
    ERR_RETURN(remove_all(dir, TEMPORARY));
    return remove_all(dir, ASIDE);
}

/* Renames `from` to `to`. If `to` exists and the file system supports atomic exchanges, exchanges the two
 * folders atomically. If exchanges are not supported, first renames the old `to` to `aside`, which folder_clean
 * later deletes. */
static Err replace(const char *from, const char *to, const char *aside) {
    if (file_exists(to)) {
        if (!renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE)) return ERR_OK;
        if (errno != EINVAL && errno != ENOSYS) return file_failed("replace", to);
        if (rename(to, aside)) return file_failed("rename", to);
    }
    return rename(from, to) ? file_failed("rename", from) : ERR_OK;
}

Err folder_publish(const char *dir, int64_t iteration) {
    char *from = folder_path(dir, iteration, TEMPORARY), *to = folder_path(dir, iteration, ""), text[32];
    char *tracker = mem_printf("%s/%s", dir, TRACKER), *aside = folder_path(dir, iteration, ASIDE);
    Err e = replace(from, to, aside);
    if (!e.code) e = file_sync_dir(dir);
    snprintf(text, sizeof text, "%lld", (long long)iteration);
    if (!e.code) e = file_write_atomic(tracker, text, strlen(text));
    free(from), free(to), free(tracker), free(aside);
    return e;
}

/* Renames a checkpoint so that folder_clean deletes it. A partly deleted folder must not appear to be a
 * checkpoint. */
static Err discard(const char *dir, int64_t iteration) {
    char *from = folder_path(dir, iteration, ""), *to = folder_path(dir, iteration, TEMPORARY);
    Err e = rename(from, to) ? file_failed("rename", from) : ERR_OK;
    free(from), free(to);
    return e;
}

Err folder_retain(const char *dir, const CkptSaveOptions *o) {
    int64_t *all, n, keep = o->keep_newest > 0 ? o->keep_newest : 1, kept = 0;
    if (o->keep_newest <= 0 && o->retain_interval <= 0) return folder_clean(dir);
    Err e = ckpt_list(dir, &all, &n);
    for (int64_t i = n - 1; i >= 0 && !e.code; i--) {
        bool is_multiple = o->retain_interval > 0 && all[i] % o->retain_interval == 0;
        if (all[i] > o->iteration || kept++ < keep || is_multiple) continue;
        e = discard(dir, all[i]);
    }
    free(all);
    return e.code ? e : folder_clean(dir);
}
