#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/durable_file.h"
#include "base/fault.h"
#include "base/file.h"
#include "ckpt/ckpt.h"
#include "ckpt/folder.h"
#include "ckpt/shard_boxes.h"
#include "comm/agree.h"
#include "param/bucket.h"

/* The source of a box's data. */
typedef struct Source {
    const Param *param;
    int part;
    const CkptItem *item;
} Source;

struct CkptSaving {
    char *dir;
    CkptSaveOptions options;
    Comm *comm;
    Device *device;  /* the device on which the items are stored */
    Manifest mine;   /* the boxes of this rank's shard, and the state */
    Source *sources; /* [mine.count]; valid until ckpt_save_start returns */
    int64_t bytes;   /* the shard's size in bytes, or 0 if this rank has no shard */
    /* a copy of the shard for ckpt_save_start, or NULL if the shard is written directly from the sources */
    char *image;
    pthread_t writer;
    bool in_thread;
    atomic_bool is_written;
    Err error; /* the writer's error */
};

static int rank_of(const CkptSaving *s) { return s->comm ? comm_rank(s->comm) : 0; }

/* ---- selection ---- */

static void add_box(CkptSaving *s, Source from, Box b) {
    const Param *p = from.param;
    const ParamPart *part = &p->spec.parts[from.part];
    CkptTensor *t = manifest_add(&s->mine);
    *t = (CkptTensor){
        .name = p->spec.name,
        .suffix = from.item->suffix,
        .part = part->name,
        .ndim = p->spec.ndim,
        .global = {param_part_rows(p, from.part), p->spec.ndim == 2 ? p->spec.dim[1] : 1},
        .box = b,
        .dtype = from.item->dtype,
        .byte_offset = (s->bytes + CKPT_ALIGN - 1) / CKPT_ALIGN * CKPT_ALIGN,
        .bytes = b.shape[0] * b.shape[1] * (int64_t)dtype_size(from.item->dtype),
    };
    s->bytes = t->byte_offset + t->bytes;
    s->sources = mem_grow(s->sources, (size_t)s->mine.count, sizeof *s->sources);
    s->sources[s->mine.count - 1] = from;
}

static void plan(CkptSaving *s, const Registry *r, const CkptItem *items, int n_items) {
    for (int k = 0; k < n_items; k++) {
        for (int i = 1; i < items[k].n_ranges; i++)
            CHECK(items[k].ranges[i].begin >= items[k].ranges[i - 1].end, "ranges of '%s' do not ascend",
                  items[k].suffix);
        for (int i = 0; i < r->n; i++) {
            const Param *p = r->params[i];
            if (!held_is_stored(p, &items[k]) || !param_is_primary_for(r, p, items[k].sharded)) continue;
            for (int part = 0; part < p->spec.n_parts; part++) {
                Box *boxes;
                const int64_t n = held_boxes(p, part, &items[k], &boxes);
                for (int64_t b = 0; b < n; b++) add_box(s, (Source){p, part, &items[k]}, boxes[b]);
                free(boxes);
            }
        }
    }
}

/* ---- writing ---- */

/* Receives a tensor's bytes, piece by piece. */
typedef Err PieceFn(void *arg, const void *bytes, size_t n);

static Err each_piece(const CkptSaving *s, int64_t i, PieceFn *fn, void *arg) {
    const CkptTensor *t = &s->mine.tensors[i];
    if (s->image) return fn(arg, s->image + t->byte_offset, (size_t)t->bytes);
    const Source *f = &s->sources[i];
    const Box *b = &t->box;
    const size_t size = dtype_size(t->dtype);
    for (int64_t row = 0, n; row < b->shape[0]; row += n) {
        const char *at = held_at(f->param, f->part, f->item, b->offset[0] + row, b->offset[1]);
        n = held_run(f->param, f->part, f->item, b, row);
        DeviceView v = device_view(s->device, at, (size_t)(n * b->shape[1]) * size, VIEW_READ);
        Err e = fn(arg, v.data, v.bytes);
        device_view_end(&v);
        if (e.code) return e;
    }
    return ERR_OK;
}

typedef struct Writing {
    Sink sink;
    HashStream *hash; /* hash of the tensor being written */
} Writing;

static Err write_piece(void *arg, const void *bytes, size_t n) {
    Writing *w = arg;
    hash128_add(w->hash, bytes, n);
    return sink_add(&w->sink, bytes, n);
}

static Err keep_piece(void *arg, const void *bytes, size_t n) {
    char **to = arg;
    memcpy(*to, bytes, n);
    *to += n;
    return ERR_OK;
}

static char *shard_name(Arena *arena, int rank) { return arena_printf(arena, "shard_%05d.bin", rank); }

static Err write_shard(CkptSaving *s) {
    static const char zeros[CKPT_ALIGN] = {0};
    if (!s->bytes) return ERR_OK;
    char *folder = folder_path(s->dir, s->options.iteration, ".tmp");
    char *path = mem_printf("%s/%s", folder, shard_name(s->mine.arena, rank_of(s)));
    Writing w;
    Err e = sink_open(&w.sink, path);
    for (int64_t i = 0; i < s->mine.count && !e.code; i++) {
        CkptTensor *t = &s->mine.tensors[i];
        w.hash = hash128_begin();
        e = sink_add(&w.sink, zeros, (size_t)(t->byte_offset - w.sink.size));
        if (!e.code) e = each_piece(s, i, write_piece, &w);
        t->hash = hash128_end(w.hash);
    }
    free(path), free(folder);
    return sink_close(&w.sink, e);
}

static void *run_writer(void *arg) {
    CkptSaving *s = arg;
    s->error = write_shard(s);
    atomic_store(&s->is_written, true);
    return NULL;
}

/* ---- the manifest ---- */

/* Gathers one number from each rank, in rank order. */
static int64_t *numbers_of_all(Comm *comm, int64_t mine) {
    int64_t *all = mem_zero(comm ? (size_t)comm_world(comm) : 1, sizeof *all);
    all[0] = mine;
    if (comm)
        comm_run(comm, &(CommCall){.kind = COMM_ALL_GATHER,
                                   .dtype = I64,
                                   .group = comm_everyone(comm),
                                   .site = "ckpt_save",
                                   .in = &mine,
                                   .out = all,
                                   .n = 1});
    return all;
}

/* Concatenates all ranks' text on rank 0, and returns an empty string on other ranks. */
static Str texts_of_all(Comm *comm, Str mine) {
    if (!comm) return mine;
    const int world = comm_world(comm);
    int64_t *lengths = numbers_of_all(comm, (int64_t)mine.len), *sends = mem_zero((size_t)world, 8), sum = 0;
    sends[0] = (int64_t)mine.len;
    for (int i = 0; i < world; i++) {
        if (comm_rank(comm)) lengths[i] = 0;
        sum += lengths[i];
    }
    Str all = {mem_zero((size_t)sum + 1, 1), (size_t)sum, (size_t)sum + 1};
    comm_run(comm, &(CommCall){.kind = COMM_ALL_TO_ALL,
                               .dtype = U8,
                               .group = comm_everyone(comm),
                               .site = "ckpt_save",
                               .in = mine.s,
                               .out = all.s,
                               .in_counts = sends,
                               .out_counts = lengths});
    free(lengths), free(sends), str_free(&mine);
    return all;
}

/* Adds all ranks' files to the manifest. Returns all ranks' entries on rank 0, and an empty string on other
 * ranks. */
static Str collect(CkptSaving *s) {
    Manifest *m = &s->mine;
    const int world = s->comm ? comm_world(s->comm) : 1;
    int64_t *bytes = numbers_of_all(s->comm, s->bytes);
    m->files = mem_zero((size_t)world, sizeof *m->files);
    int own = 0;
    for (int i = 0; i < world; i++) {
        if (i == rank_of(s)) own = (int)m->num_files;
        if (bytes[i]) m->files[m->num_files++] = (CkptFile){shard_name(m->arena, i), bytes[i]};
    }
    free(bytes);
    for (int64_t i = 0; i < m->count; i++) m->tensors[i].file = own;
    Str entries = {0};
    manifest_print_tensors(m, &entries);
    return texts_of_all(s->comm, entries);
}

static Err write_manifest(const Manifest *m, const Str *entries, const char *folder) {
    Str text = {0};
    Sink sink;
    char *path = mem_printf("%s/manifest.json", folder);
    manifest_print(m, entries->s, entries->len, &text);
    Err e = sink_open(&sink, path);
    if (!e.code) e = sink_add(&sink, text.s, text.len);
    str_free(&text);
    free(path);
    return sink_close(&sink, e);
}

/* ---- start and finish ---- */

static Err not_saved(Err e, int64_t iteration) {
    Err longer = e;
    snprintf(longer.msg, sizeof longer.msg,
             "%.800s; the checkpoint of step %lld was not saved; earlier checkpoints are unchanged", e.msg,
             (long long)iteration);
    return longer;
}

/* Writes the manifest and publishes the checkpoint. If folder_publish fails, no file is deleted, because the renames
 * may not have reached the disk. */
static Err publish(const CkptSaving *s, Err e, const Str *entries) {
    const int64_t iteration = s->options.iteration;
    char *folder = folder_path(s->dir, iteration, ".tmp");
    if (!e.code) e = write_manifest(&s->mine, entries, folder);
    if (!e.code) e = file_sync_dir(folder);
    free(folder);
    if (e.code)
        folder_clean(s->dir);
    else
        e = folder_publish(s->dir, iteration);
    return e.code ? not_saved(e, iteration) : folder_retain(s->dir, &s->options);
}

static void saving_free(CkptSaving *s) {
    manifest_free(&s->mine);
    free(s->image), free(s->sources), free(s->dir);
    free(s);
}

static Err make_folder(const char *dir, int64_t iteration) {
    char *folder = folder_path(dir, iteration, ".tmp");
    Err e = file_mkdirs(dir);
    if (!e.code) e = folder_clean(dir);
    if (!e.code && mkdir(folder, 0777)) e = file_failed("create the folder", folder);
    free(folder);
    return e.code ? not_saved(e, iteration) : e;
}

static Err begin(const char *dir, const CkptSaveOptions *o, Comm *comm, const Registry *r,
                 const CkptItem *items, int n_items, const json_t *state, CkptSaving **out) {
    CHECK(o->iteration >= 0 && json_is_object(state), "iteration %lld", (long long)o->iteration);
    CHECK(r->layout.mesh.world == (comm ? comm_world(comm) : 1),
          "the registry is for %d ranks, but the world has %d", r->layout.mesh.world,
          comm ? comm_world(comm) : 1);
    CkptSaving *s = mem_zero(1, sizeof *s);
    *s = (CkptSaving){.dir = mem_strdup(dir), .options = *o, .comm = comm, .device = r->device};
    manifest_init(&s->mine, o->iteration);
    s->mine.state = json_incref((json_t *)state);
    Err e = comm_agree(comm, rank_of(s) ? ERR_OK : make_folder(dir, o->iteration));
    *out = e.code ? NULL : s;
    if (e.code)
        saving_free(s);
    else
        plan(s, r, items, n_items);
    return e;
}

Err ckpt_save_start(const char *dir, const CkptSaveOptions *o, Comm *comm, const Registry *r,
                    const CkptItem *items, int n_items, const json_t *state, CkptSaving **out) {
    ERR_RETURN(begin(dir, o, comm, r, items, n_items, state, out));
    CkptSaving *s = *out;
    char *image = mem_alloc((size_t)s->bytes + 1);
    for (int64_t i = 0; i < s->mine.count; i++)
        each_piece(s, i, keep_piece, &(char *){image + s->mine.tensors[i].byte_offset});
    s->image = image;
    s->in_thread = !pthread_create(&s->writer, NULL, run_writer, s);
    if (!s->in_thread) run_writer(s);
    return ERR_OK;
}

bool ckpt_save_is_written(const CkptSaving *s) {
    int32_t by_all = atomic_load(&s->is_written);
    if (s->comm) comm_all_reduce(s->comm, comm_everyone(s->comm), "ckpt_save", COMM_MIN, I32, &by_all, 1);
    return by_all;
}

Err ckpt_save_finish(CkptSaving *s) {
    if (s->in_thread) pthread_join(s->writer, NULL);
    Err e = comm_agree(s->comm, s->error);
    Str entries = {0};
    if (!e.code) entries = collect(s);
    if (!rank_of(s)) e = publish(s, e, &entries);
    e = comm_agree(s->comm, e);
    str_free(&entries);
    saving_free(s);
    return e;
}

int64_t ckpt_save_bytes(const Registry *r, const CkptItem *items, int n_items) {
    CkptSaving s = {.bytes = 0};
    manifest_init(&s.mine, 0);
    plan(&s, r, items, n_items);
    manifest_free(&s.mine), free(s.sources);
    return s.bytes;
}

Err ckpt_save(const char *dir, const CkptSaveOptions *o, Comm *comm, const Registry *r, const CkptItem *items,
              int n_items, const json_t *state) {
    CkptSaving *s;
    ERR_RETURN(begin(dir, o, comm, r, items, n_items, state, &s));
    run_writer(s);
    return ckpt_save_finish(s);
}
