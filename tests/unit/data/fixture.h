/* Writes the three datasets of vectors.h to a temporary folder. The names of cache files depend on the paths, so this
 * folder becomes the working directory. */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/err.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/indexed.h"
#include "data/md5.h"

static inline int enter_folder(void **state) {
    char name[] = "/tmp/isotron-data-XXXXXX";
    if (!mkdtemp(name) || chdir(name)) return -1;
    *state = mem_strdup(name);
    return 0;
}

static inline int leave_folder(void **state) {
    int rc = chdir("/") || file_remove_tree(*state).code;
    free(*state);
    return rc;
}

static inline void file_md5(const char *path, char out[33]) {
    Str s = {0};
    assert_ok(file_read(path, &s));
    md5_hex(s.s, s.len, out);
    str_free(&s);
}

static inline void assert_md5(const char *path, const char *expected) {
    char md5[33];
    file_md5(path, md5);
    if (strcmp(md5, expected)) fail_msg("the MD5 of %s is %s, not %s", path, md5, expected);
}

static inline void write_text(const char *path, const char *text) {
    assert_ok(file_write_atomic(path, text, strlen(text)));
}

/* Sequence i consists of the tokens 10(i+1), 10(i+1)+1, ... and ends with the end-of-document token 0. */
static inline void write_dataset(const char *name, IndexedDtype dtype, int sequences, int step, int modulus,
                                 int least) {
    static const int TOY[] = {5, 7, 3, 11, 2, 8};
    IndexedBuilder *b;
    assert_ok(indexed_builder_open(name, dtype, &b));
    for (int i = 0; i < sequences; i++) {
        int32_t tokens[32], length = modulus ? i * step % modulus + least : TOY[i];
        for (int j = 0; j < length; j++) tokens[j] = j == length - 1 ? 0 : 10 * (i + 1) + j;
        assert_ok(indexed_builder_add_tokens(b, tokens, length));
        indexed_builder_end_document(b);
    }
    assert_ok(indexed_builder_finalize(b));
}

/* Document i has 3i % 7 sentences. Sentence j of the dataset has 5j % 23 + 1 tokens, except for one with 600.
 * Token k has the id 1 + 31k % 899. */
static inline void write_sentences(const char *name, int documents) {
    IndexedBuilder *b;
    assert_ok(indexed_builder_open(name, INDEXED_U16, &b));
    for (int i = 0, sentence = 0, token = 0; i < documents; i++) {
        for (int n = 3 * i % 7; n; n--, sentence++) {
            int32_t tokens[513], length = sentence == 40    ? 512
                                          : sentence == 150 ? 513
                                                            : 5 * sentence % 23 + 1;
            for (int k = 0; k < length; k++, token++) tokens[k] = 1 + 31 * token % 899;
            assert_ok(indexed_builder_add_tokens(b, tokens, length));
        }
        indexed_builder_end_document(b);
    }
    assert_ok(indexed_builder_finalize(b));
}

static inline int write_datasets(void **state) {
    if (enter_folder(state)) return -1;
    write_dataset("toy", INDEXED_U16, 6, 0, 0, 0);
    write_dataset("more", INDEXED_I32, 1000, 7, 13, 1);
    write_dataset("third", INDEXED_U16, 300, 5, 17, 2);
    return 0;
}

/* The number of files in the folder whose names contain `part`. */
static inline int count_files(const char *folder, const char *part) {
    DIR *dir = opendir(folder);
    int n = 0;
    if (!dir) return 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.' && strstr(entry->d_name, part);
    closedir(dir);
    return n;
}
