#include "ckpt/hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/hf_config.h"

static const char CONFIG[] = "config.json", WEIGHTS[] = "model.safetensors";

/* An import finds every parameter in the file. Its names may be those of another family: a mixture whose
 * layers are all dense has the names of a dense model. */
static Err read_weights_back(const char *path, const Registry *r) {
    Safetensors *file;
    ERR_RETURN(safetensors_open(path, &file));
    HfMap map;
    const Err e = hf_match(file, r, &map);
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
    if (!e.code) e = read_weights_back(weights, m->registry);
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
