#include "ckpt/hf/folder.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "ckpt/hf/config.h"

static const char CONFIG[] = "config.json", WEIGHTS[] = "model.safetensors",
                  GENERATION[] = "generation_config.json", PARTIAL[] = ".partial-";

/* ---- earlier content of the folder ---- */

static bool is_written(const char *name, const HfExtras *x) {
    for (int i = 0; i < x->num_files; i++)
        if (!strcmp(name, x->files[i].name)) return true;
    return !strcmp(name, CONFIG) || !strcmp(name, WEIGHTS) || !strcmp(name, GENERATION);
}

static bool is_like(const char *name, const char *const *patterns) {
    for (; *patterns; patterns++)
        if (!fnmatch(*patterns, name, 0)) return true;
    return false;
}

/* Returns whether a program might read weights from a file with this name. */
static bool is_weights(const char *name) {
    static const char *const PATTERNS[] = {"model*.safetensors*", "pytorch_model*", NULL};
    return is_like(name, PATTERNS);
}

static bool is_tokenizer(const char *name) {
    static const char *const PATTERNS[] = {
        "tokenizer*",          "tekken.json",       "vocab.*",        "merges.txt",
        "special_tokens_map*", "added_tokens.json", "chat_template*", NULL};
    return is_like(name, PATTERNS);
}

/* Returns whether this is the temporary folder of an export that is still running or was killed. */
static bool is_partial(const char *name) { return !strncmp(name, PARTIAL, sizeof PARTIAL - 1); }

/* Returns an error for an entry that prevents the export. If an old tokenizer file remained, it would be read together
 * with the new files. A file cannot replace a folder. */
static Err check_entry(const char *dir, const char *name, const HfExtras *x) {
    if (!strcmp(name, ".") || !strcmp(name, "..") || is_partial(name)) return ERR_OK;
    if (!x->overwrite)
        return err_user("'%s' is not empty, because it contains %s: use another folder, or add --overwrite "
                        "to replace the model in it",
                        dir, quote(name).s);
    if (is_tokenizer(name) && !is_written(name, x))
        return err_user(
            "'%s' contains %s, which this export does not replace, so programs would read it with the new "
            "files: use an empty folder, or remove that file",
            dir, quote(name).s);
    if (!is_written(name, x) && !is_weights(name)) return ERR_OK;
    char *path = mem_printf("%s/%s", dir, name);
    const bool is_dir = file_is_dir(path);
    free(path);
    return is_dir ? err_user("'%s/%s' is a folder, but this export writes a file with this name: use an "
                             "empty folder, or remove that folder",
                             dir, name)
                  : ERR_OK;
}

static Err check_folder(const char *dir, const HfExtras *x) {
    DIR *d = opendir(dir);
    if (!d) return file_failed("open the folder", dir);
    Err e = ERR_OK;
    for (const struct dirent *entry; !e.code && (entry = readdir(d));) e = check_entry(dir, entry->d_name, x);
    closedir(d);
    return e;
}

/* ---- the files ---- */

/* Checks that an import finds every parameter in the file. The names may come from the family's base: an MoE model
 * whose layers are all dense uses a dense model's names. */
static Err read_weights_back(const char *path, const Registry *r, HfFamily family) {
    const HfSource source = {.family = family};
    Safetensors *file;
    ERR_RETURN(safetensors_open(path, &file));
    HfMap map;
    const Err e = hf_match(file, r, &source, &map);
    hf_map_free(&map);
    safetensors_close(file);
    return e;
}

static Err write_and_read_back(const char *config, const char *weights, const HfModel *m, DType dtype,
                               const json_t *tokens, Str *notes) {
    Str json = {0};
    HfFamily family;
    Err e = hf_config_export(m->config, dtype, tokens, &json, &family);
    if (!e.code) e = file_write_atomic(config, json.s, json.len);
    if (!e.code) e = hf_config_read_back(config, m->config, notes);
    if (!e.code) e = hf_export(m->registry, family, weights, dtype);
    if (!e.code) e = read_weights_back(weights, m->registry, family);
    str_free(&json);
    return e;
}

static Err write_model(const char *stage, const HfModel *m, DType dtype, const json_t *tokens, Str *notes) {
    char *config = mem_printf("%s/%s", stage, CONFIG), *weights = mem_printf("%s/%s", stage, WEIGHTS);
    const Err e = write_and_read_back(config, weights, m, dtype, tokens, notes);
    free(config), free(weights);
    return e;
}

static Err write_file(const char *stage, const char *name, const char *text, size_t n) {
    char *path = mem_printf("%s/%s", stage, name);
    const Err e = file_write_atomic(path, text, n);
    free(path);
    return e;
}

static Err write_generation(const char *stage, const json_t *tokens) {
    char *text = tokens ? json_dumps(tokens, JSON_INDENT(2) | JSON_SORT_KEYS) : mem_strdup("{}");
    char *line = mem_printf("%s\n", text);
    const Err e = write_file(stage, GENERATION, line, strlen(line));
    free(text), free(line);
    return e;
}

static Err copy_file(const char *stage, const HfFile *f) {
    if (!f->from) return write_file(stage, f->name, f->content, strlen(f->content));
    Str bytes = {0};
    Err e = file_read(f->from, &bytes);
    if (!e.code) e = write_file(stage, f->name, bytes.s ? bytes.s : "", bytes.len);
    str_free(&bytes);
    return e;
}

static Err move(const char *stage, const char *dir, const char *name) {
    char *from = mem_printf("%s/%s", stage, name), *to = mem_printf("%s/%s", dir, name);
    const Err e = file_rename(from, to);
    free(from), free(to);
    return e;
}

/* Removes weight files with other names, such as shards and their index. */
static Err remove_weights(const char *dir, const HfExtras *x) {
    DIR *d = opendir(dir);
    if (!d) return file_failed("open the folder", dir);
    Err e = ERR_OK;
    for (const struct dirent *entry; !e.code && (entry = readdir(d));) {
        if (!is_weights(entry->d_name) || is_written(entry->d_name, x)) continue;
        char *path = mem_printf("%s/%s", dir, entry->d_name);
        e = file_remove(path);
        free(path);
    }
    closedir(d);
    return e;
}

/* Moves the files from `stage` to `dir`. The old config.json is removed first and the new config.json is moved last,
 * so that a crash never leaves the old configuration with new weights. */
static Err move_all(const char *stage, const char *dir, const HfExtras *x) {
    char *config = mem_printf("%s/%s", dir, CONFIG);
    Err e = file_remove(config);
    if (!e.code) e = remove_weights(dir, x);
    if (!e.code) e = move(stage, dir, WEIGHTS);
    if (!e.code) e = move(stage, dir, GENERATION);
    for (int i = 0; i < x->num_files && !e.code; i++) e = move(stage, dir, x->files[i].name);
    if (!e.code) e = move(stage, dir, CONFIG);
    free(config);
    return e;
}

static Err remove_partial(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return file_failed("open the folder", dir);
    Err e = ERR_OK;
    for (const struct dirent *entry; !e.code && (entry = readdir(d));) {
        if (!is_partial(entry->d_name)) continue;
        char *path = mem_printf("%s/%s", dir, entry->d_name);
        e = file_remove_tree(path);
        free(path);
    }
    closedir(d);
    return e;
}

typedef struct Place {
    const char *dir;
    bool existed;
} Place;

static void undo(void *arg) {
    const Place *p = arg;
    remove_partial(p->dir);
    if (!p->existed) rmdir(p->dir); /* rmdir fails if the folder contains files */
}

Err hf_folder_write(const char *dir, const HfModel *m, DType dtype, const HfExtras *x, Str *notes) {
    Place place = {dir, file_is_dir(dir)};
    char *stage = mem_printf("%s/%s%d", dir, PARTIAL, (int)getpid());
    Err e = place.existed ? check_folder(dir, x) : ERR_OK;
    Interrupt *interrupt = interrupt_watch(undo, &place, INTERRUPT_REMOVED);
    if (!e.code && place.existed) e = remove_partial(dir);
    if (!e.code) e = file_mkdirs(stage);
    interrupt_release(interrupt);
    if (!e.code) e = write_model(stage, m, dtype, x->tokens, notes);
    interrupt_hold(interrupt);
    if (!e.code) e = write_generation(stage, x->tokens);
    for (int i = 0; i < x->num_files && !e.code; i++) e = copy_file(stage, &x->files[i]);
    if (!e.code) e = move_all(stage, dir, x);
    if (file_is_dir(stage)) {
        const Err cleaned = file_remove_tree(stage);
        if (!e.code) e = cleaned;
    }
    if (e.code && !place.existed) rmdir(dir);
    interrupt_end(interrupt);
    free(stage);
    return e;
}
