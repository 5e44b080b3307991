#include "ckpt/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/folder.h"
#include "comm/agree.h"

void ckpt_close(Ckpt *c) {
    if (!c) return;
    for (int64_t i = 0; c->maps && i < c->manifest.num_files; i++) file_unmap(&c->maps[i]);
    manifest_free(&c->manifest);
    free(c->maps), free(c->dir), free(c->folder);
    free(c);
}

const Manifest *ckpt_manifest(const Ckpt *c) { return &c->manifest; }

/* ---- open ---- */

/* Returns whether the folder contains a file or folder that only Megatron-LM writes. */
static bool is_megatron(const char *folder) {
    static const char *const NAMES[] = {"mp_rank_00", "mp_rank_00_000", "metadata.json", ".metadata"};
    bool found = false;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !found; i++) {
        char *path = mem_printf("%s/%s", folder, NAMES[i]);
        found = file_exists(path);
        free(path);
    }
    return found;
}

static Err open_manifest(Ckpt *c) {
    char *path = mem_printf("%s/manifest.json", c->folder);
    Str text = {0};
    Err e =
        !file_exists(path) && is_megatron(c->folder) ? folder_of_megatron(c->folder) : file_read(path, &text);
    if (!e.code) e = manifest_parse(&c->manifest, path, text.s, text.len);
    if (!e.code && c->manifest.iteration != c->iteration)
        e = err_user("'%s' belongs to a checkpoint of step %lld, so its folder was renamed; restore the "
                     "name",
                     path, (long long)c->manifest.iteration);
    str_free(&text);
    free(path);
    return e;
}

static Err map_file(const Ckpt *c, int64_t file) {
    FileMap *map = &c->maps[file];
    const CkptFile *f = &c->manifest.files[file];
    if (map->bytes) return ERR_OK;
    char *path = mem_printf("%s/%s", c->folder, f->name);
    Err e = file_map(path, map);
    if (!e.code && (int64_t)map->size != f->bytes) {
        e = err_user("'%s' is damaged: it has %zu bytes, but the manifest states %lld", path, map->size,
                     (long long)f->bytes);
        file_unmap(map);
    }
    free(path);
    return e;
}

/* Maps this rank's share of the files, and checks their sizes. */
static Err look_at_files(const Ckpt *c) {
    const int world = c->comm ? comm_world(c->comm) : 1;
    for (int64_t i = c->comm ? comm_rank(c->comm) : 0; i < c->manifest.num_files; i += world)
        ERR_RETURN(map_file(c, i));
    return ERR_OK;
}

static Ckpt *ckpt_new(const char *dir, int64_t iteration, Comm *comm) {
    Ckpt *c = mem_zero(1, sizeof *c);
    *c = (Ckpt){.dir = mem_strdup(dir),
                .folder = folder_path(dir, iteration, ""),
                .iteration = iteration,
                .comm = comm};
    return c;
}

static Err open_folder(Ckpt *c) {
    ERR_RETURN(open_manifest(c));
    c->maps = mem_zero((size_t)c->manifest.num_files + 1, sizeof *c->maps);
    return look_at_files(c);
}

/* ---- verify ---- */

const unsigned char *ckpt_tensor_bytes(const Ckpt *c, const CkptTensor *t) {
    return c->maps[t->file].bytes + t->byte_offset;
}

Err open_check(const Ckpt *c, const CkptTensor *t) {
    ERR_RETURN(map_file(c, t->file));
    Hash128 h = hash128(ckpt_tensor_bytes(c, t), (size_t)t->bytes);
    if (h.hi == t->hash.hi && h.lo == t->hash.lo) return ERR_OK;
    return err_user("'%s/%s' is damaged: the bytes of tensor %s do not match its hash", c->folder,
                    c->manifest.files[t->file].name, ckpt_title(t).s);
}

static Err check_all_bytes(const Ckpt *c) {
    for (int64_t i = 0; i < c->manifest.count; i++) ERR_RETURN(open_check(c, &c->manifest.tensors[i]));
    return ERR_OK;
}

/* Extends an error about a damaged checkpoint with the name of the newest intact checkpoint. */
static Err advise(Err e, const char *dir, int64_t damaged) {
    int64_t *all, n, found = -1;
    ckpt_list(dir, &all, &n);
    for (int64_t i = n - 1; i >= 0 && found < 0; i--) {
        if (all[i] == damaged) continue;
        Ckpt *c = ckpt_new(dir, all[i], NULL);
        if (!open_folder(c).code && !check_all_bytes(c).code) found = all[i];
        ckpt_close(c);
    }
    free(all);
    char *folder = found < 0 ? mem_strdup(dir) : folder_path(dir, found, "");
    Err longer = e;
    snprintf(longer.msg, sizeof longer.msg,
             found < 0 ? "%.600s; '%.300s' contains no other intact checkpoint"
                       : "%.600s; the newest other intact checkpoint is '%.300s'",
             e.msg, folder);
    free(folder);
    return longer;
}

/* Only one rank adds the advice, because the search for an intact checkpoint reads all data in other checkpoints. */
Err ckpt_agree(const Ckpt *c, Err e) {
    e = comm_agree(c->comm, e);
    if (e.code && (!c->comm || comm_rank(c->comm) == 0)) e = advise(e, c->dir, c->iteration);
    return e.code ? comm_agree(c->comm, e) : e;
}

Err ckpt_open(const char *dir, int64_t iteration, Comm *comm, Ckpt **out) {
    *out = NULL;
    const bool latest = iteration < 0;
    Err e = latest ? ckpt_latest(dir, &iteration) : ERR_OK;
    if (!e.code && iteration < 0) e = ckpt_missing(dir);
    e = comm_agree(comm, e);
    if (e.code) return e;
    /* another run may have saved a checkpoint that only some ranks have found */
    if (latest && comm)
        comm_all_reduce(comm, comm_everyone(comm), "newest checkpoint", COMM_MIN, I64, &iteration, 1);
    Ckpt *c = ckpt_new(dir, iteration, comm);
    e = ckpt_agree(c, open_folder(c));
    if (e.code)
        ckpt_close(c);
    else
        *out = c;
    return e;
}

void ckpt_set_remedy(Ckpt *c, const char *remedy) { c->remedy = remedy; }

Err ckpt_verify(const Ckpt *c) { return ckpt_agree(c, check_all_bytes(c)); }

bool ckpt_has(const Ckpt *c, const char *suffix) {
    for (int64_t i = 0; i < c->manifest.count; i++)
        if (!strcmp(c->manifest.tensors[i].suffix, suffix)) return true;
    return false;
}

bool ckpt_has_fp8_state(const Ckpt *c) {
    for (int64_t i = 0; i < c->manifest.count; i++)
        if (param_is_fp8_state(c->manifest.tensors[i].name)) return true;
    return false;
}
