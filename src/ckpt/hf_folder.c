#include "ckpt/hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/hf_config.h"

static const char CONFIG[] = "config.json", WEIGHTS[] = "model.safetensors";

/* The names and shapes in the file are those of the model, and lead back to the same family. */
static Err read_weights_back(const char *path, const Registry *r, HfFamily family) {
    Safetensors *file;
    ERR_RETURN(safetensors_open(path, &file));
    HfFamily found;
    HfMap map = {0};
    Err e = hf_detect(file, &found);
    if (!e.code && found != family)
        e = err_user("'%s' would be read as a model of another family; this model cannot be exported", path);
    if (!e.code) e = hf_map(r, family, &map);
    if (!e.code) e = hf_check(file, &map);
    hf_map_free(&map);
    safetensors_close(file);
    return e;
}

static Err write_and_read_back(const char *config, const char *weights, const Model *m, DType dtype,
                               Str *notes) {
    Str json = {0};
    HfFamily family;
    Err e = hf_config_export(m->config, m->derived, dtype, &json, &family);
    if (!e.code) e = file_write_atomic(config, json.s, json.len);
    if (!e.code) e = hf_config_read_back(config, m->config, m->derived, notes);
    if (!e.code) e = hf_export(m->registry, family, weights, dtype);
    if (!e.code) e = read_weights_back(weights, m->registry, family);
    str_free(&json);
    return e;
}

/* After a crash an older configuration must not lie beside the new weights. */
static Err remove_old(const char *dir) {
    char *config = mem_printf("%s/%s", dir, CONFIG);
    Err e = file_remove(config);
    free(config);
    return e;
}

static Err move(const char *from, const char *dir, const char *name) {
    char *to = mem_printf("%s/%s", dir, name);
    Err e = file_rename(from, to);
    free(to);
    return e;
}

Err hf_folder_write(const char *dir, const Model *m, DType dtype, Str *notes) {
    const bool existed = file_is_dir(dir);
    char *stage = mem_printf("%s/.partial-%d", dir, (int)getpid()),
         *config = mem_printf("%s/%s", stage, CONFIG), *weights = mem_printf("%s/%s", stage, WEIGHTS);
    Err e = file_mkdirs(stage);
    if (!e.code) e = write_and_read_back(config, weights, m, dtype, notes);
    if (!e.code) e = remove_old(dir);
    if (!e.code) e = move(weights, dir, WEIGHTS);
    if (!e.code) e = move(config, dir, CONFIG);
    if (file_is_dir(stage)) {
        const Err cleaned = file_remove_tree(stage);
        if (!e.code) e = cleaned;
    }
    if (e.code && !existed) rmdir(dir);
    free(stage), free(config), free(weights);
    return e;
}
