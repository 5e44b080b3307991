#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/interrupt.h"
#include "base/mem.h"
#include "data/indexed.h"

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void remove_unfinished(void *builder) { indexed_builder_unlink(*(IndexedBuilder **)builder); }

static Err merge_sorted(char **prefixes, int n, const char *output_prefix) {
    IndexedDataset first;
    ERR_RETURN(indexed_open(prefixes[0], &first));
    IndexedDtype dtype = first.dtype;
    indexed_close(&first);
    IndexedBuilder *b = NULL;
    Interrupt *interrupt = interrupt_watch(remove_unfinished, &b, INTERRUPT_REMOVED);
    Err e = indexed_builder_open(output_prefix, dtype, &b);
    interrupt_release(interrupt);
    for (int i = 0; i < n && !e.code; i++) e = indexed_builder_add_index(b, prefixes[i]);
    interrupt_hold(interrupt);
    if (!e.code)
        e = indexed_builder_finalize(b);
    else
        indexed_builder_abort(b);
    b = NULL;
    interrupt_end(interrupt);
    return e;
}

Err data_merge(const char *const *prefixes, int n, const char *output_prefix) {
    if (n < 1)
        return err_user("there is nothing to merge into '%s'; specify at least one dataset prefix",
                        output_prefix);
    for (int i = 0; i < n; i++) {
        char *bin = mem_printf("%s.bin", prefixes[i]);
        const bool is_output = indexed_is_part(output_prefix, bin);
        free(bin);
        if (is_output)
            return err_user("'%s' is both an input and the output of the merge; choose another output prefix",
                            prefixes[i]);
    }
    char **sorted = mem_zero((size_t)n, sizeof *sorted);
    memcpy(sorted, prefixes, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    Err e = merge_sorted(sorted, n, output_prefix);
    free(sorted);
    return e;
}

/* Adds the prefix of an .idx file to the list. Returns an error if only one of a dataset's two files exists. Skips
 * other files. */
static Err take_entry(const char *folder, const char *name, char ***prefixes, int *n) {
    const char *dot = strrchr(name, '.');
    bool idx = dot && !strcmp(dot, ".idx"), bin = dot && !strcmp(dot, ".bin");
    if (!idx && !bin) return ERR_OK;
    char *prefix = mem_printf("%s/%.*s", folder, (int)(dot - name), name);
    char *other = mem_printf("%s%s", prefix, idx ? ".bin" : ".idx");
    Err e = file_exists(other) ? ERR_OK
                               : err_user("found '%s%s' but not '%s'; a dataset needs both its .idx and its "
                                          ".bin file",
                                          prefix, dot, other);
    if (idx && !e.code) {
        *prefixes = mem_grow(*prefixes, (size_t)*n + 1, sizeof **prefixes);
        (*prefixes)[(*n)++] = prefix;
        prefix = NULL;
    }
    free(prefix), free(other);
    return e;
}

Err data_merge_folder(const char *folder, const char *output_prefix) {
    DIR *dir = opendir(folder);
    if (!dir) return err_user("cannot open the folder '%s': %s; check the path", folder, strerror(errno));
    char **prefixes = NULL;
    int n = 0;
    Err e = ERR_OK;
    for (struct dirent *entry; !e.code && (entry = readdir(dir));)
        e = take_entry(folder, entry->d_name, &prefixes, &n);
    closedir(dir);
    if (!e.code)
        e = n ? data_merge((const char *const *)prefixes, n, output_prefix)
              : err_user("the folder '%s' contains no .bin and .idx pair to merge", folder);
    for (int i = 0; i < n; i++) free(prefixes[i]);
    free(prefixes);
    return e;
}
