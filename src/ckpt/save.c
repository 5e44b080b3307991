#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/file.h"
#include "ckpt/folder.h"
#include "ckpt/sink.h"

static const char SHARD[] = "shard_00000.bin"; /* of rank 0 */

typedef struct Writer {
    Sink sink;
    Manifest manifest;
    char *scratch; /* rows of one part, when memory does not hold them one after the other */
} Writer;

static int64_t width(const Param *p) { return p->spec.ndim == 2 ? p->spec.dim[1] : 1; }

/* The bytes of a part, in the part's own row order. */
static const void *part_bytes(Writer *w, const Param *p, int part, const CkptItem *item) {
    const size_t row = (size_t)width(p) * dtype_size(item->dtype);
    const char *base = (const char *)item->flat + (size_t)p->offset * dtype_size(item->dtype);
    const int64_t rows = param_part_rows(p, part), first = param_memory_row(p, part, 0);
    if (param_memory_row(p, part, rows - 1) - first == rows - 1) return base + (size_t)first * row;
    w->scratch = mem_grow(w->scratch, (size_t)rows, row);
    for (int64_t i = 0; i < rows; i++)
        memcpy(w->scratch + (size_t)i * row, base + (size_t)param_memory_row(p, part, i) * row, row);
    return w->scratch;
}

static Err write_part(Writer *w, const Param *p, int part, const CkptItem *item) {
    static const char zeros[CKPT_ALIGN] = {0};
    CkptTensor *t = manifest_add(&w->manifest);
    const int64_t rows = param_part_rows(p, part);
    *t = (CkptTensor){
        .name = p->spec.name,
        .suffix = item->suffix,
        .part = p->spec.parts[part].name,
        .ndim = p->spec.ndim,
        .global = {rows, width(p)},
        .box = {{0, 0}, {rows, width(p)}},
        .dtype = item->dtype,
        .bytes = rows * width(p) * (int64_t)dtype_size(item->dtype),
    };
    const void *bytes = part_bytes(w, p, part, item);
    ERR_RETURN(sink_add(&w->sink, zeros, (size_t)(-w->sink.size & (CKPT_ALIGN - 1))));
    t->byte_offset = w->sink.size;
    t->hash = hash128(bytes, (size_t)t->bytes);
    return sink_add(&w->sink, bytes, (size_t)t->bytes);
}

static Err write_shard(Writer *w, const char *path, const Registry *r, const CkptItem *items, int n_items) {
    Err e = sink_open(&w->sink, path);
    for (int k = 0; k < n_items; k++)
        for (int i = 0; i < r->n; i++)
            for (int part = 0; part < r->params[i]->spec.n_parts && !e.code; part++)
                e = write_part(w, r->params[i], part, &items[k]);
    return sink_close(&w->sink, e);
}

static Err write_manifest(const Manifest *m, const char *path) {
    Str text = {0};
    Sink sink;
    manifest_print(m, &text);
    Err e = sink_open(&sink, path);
    if (!e.code) e = sink_add(&sink, text.s, text.len);
    str_free(&text);
    return sink_close(&sink, e);
}

static Err write_folder(const char *folder, int64_t iteration, const Registry *r, const CkptItem *items,
                        int n_items, const json_t *state) {
    Writer w = {0};
    char *shard = mem_printf("%s/%s", folder, SHARD), *manifest = mem_printf("%s/manifest.json", folder);
    manifest_init(&w.manifest, iteration);
    w.manifest.state = json_incref((json_t *)state);
    Err e = mkdir(folder, 0777) ? file_failed("create the folder", folder)
                                : write_shard(&w, shard, r, items, n_items);
    w.manifest.files = mem_zero(1, sizeof *w.manifest.files);
    w.manifest.files[w.manifest.num_files++] = (CkptFile){SHARD, w.sink.size};
    if (!e.code) e = write_manifest(&w.manifest, manifest);
    if (!e.code) e = file_sync_dir(folder);
    manifest_free(&w.manifest);
    free(w.scratch), free(shard), free(manifest);
    return e;
}

Err ckpt_save(const char *dir, const CkptSaveOptions *o, const Registry *r, const CkptItem *items,
              int n_items, const json_t *state) {
    CHECK(o->iteration >= 0 && json_is_object(state), "iteration %lld", (long long)o->iteration);
    char *folder = folder_path(dir, o->iteration, ".tmp");
    Err e = file_mkdirs(dir);
    if (!e.code) e = folder_clean(dir);
    if (!e.code) {
        e = write_folder(folder, o->iteration, r, items, n_items, state);
        if (!e.code) e = folder_publish(dir, o->iteration);
        if (e.code) folder_clean(dir);
    }
    free(folder);
    if (e.code) {
        Err longer = e;
        snprintf(longer.msg, sizeof longer.msg,
                 "%.800s; the checkpoint of step %lld was not saved, earlier ones are as they were", e.msg,
                 (long long)o->iteration);
        return longer;
    }
    return folder_retain(dir, o);
}
