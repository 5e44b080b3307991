/* A scratch folder and small registries on the CPU device, for the tests in this folder. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/err.h"

#include "base/file.h"
#include "base/mem.h"
#include "param/param.h"

/* Creates an empty folder for this process; the caller must remove it with scratch_remove. */
static inline char *scratch_new(void) {
    char *dir = mem_strdup("/tmp/isotron-ckpt-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

/* Creates the folder in memory if the machine has a file system for that. Use it to test stored content, not
 * durability. */
static inline char *scratch_new_in_memory(void) {
    if (access("/dev/shm", W_OK | X_OK)) return scratch_new();
    char *dir = mem_strdup("/dev/shm/isotron-ckpt-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static inline void scratch_remove(char *dir) {
    assert_ok(file_remove_tree(dir));
    free(dir);
}
