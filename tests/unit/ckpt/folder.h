/* Shared by the tests of this folder: a scratch folder, and small registries on the CPU device. */
#ifndef ISOTRON_TESTS_UNIT_CKPT_FOLDER_H
#define ISOTRON_TESTS_UNIT_CKPT_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "param/param.h"

/* An empty folder of this process; the caller removes it with scratch_remove. */
static inline char *scratch_new(void) {
    char *dir = mem_strdup("/tmp/isotron-ckpt-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

/* In memory if the machine offers that: for tests of the content that is stored, not of its durability. */
static inline char *scratch_new_in_memory(void) {
    if (access("/dev/shm", W_OK | X_OK)) return scratch_new();
    char *dir = mem_strdup("/dev/shm/isotron-ckpt-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static inline void scratch_remove(char *dir) {
    assert_int_equal(file_remove_tree(dir).code, 0);
    free(dir);
}

#define assert_ok(expr)                                                                                      \
    do {                                                                                                     \
        Err err_ = (expr);                                                                                   \
        if (err_.code) fail_msg("%s", err_.msg);                                                             \
    } while (0)

/* The error must contain every given text; the list ends with NULL. */
#define assert_err(expr, ...) check_err((expr), #expr, __LINE__, (const char *[]){__VA_ARGS__, NULL})
static inline void check_err(Err e, const char *expr, int line, const char *const *texts) {
    if (!e.code) fail_msg("line %d: %s succeeded", line, expr);
    if (!strchr(e.msg, ' ')) fail_msg("line %d: '%s' is no sentence", line, e.msg);
    for (; *texts; texts++)
        if (!strstr(e.msg, *texts)) fail_msg("line %d: '%s' does not say '%s'", line, e.msg, *texts);
}

#endif
