/* Saves and loads a checkpoint of a small registry on one rank in a scratch folder, and compares the content
 * bitwise. */
#pragma once

#include "base/philox.h"
#include "ckpt/ckpt.h"
#include "unit/ckpt/folder.h"

/* The registry has every kind of parameter: a vector, and matrices with padded rows, interleaved parts or consecutive
 * parts. */
enum { HEADS = 4, GROUPS = 2, HEAD_DIM = 3, HIDDEN = 5, FFN = 7, VOCAB = 11, PADDED = 16 };

static inline Registry *registry_make(DType storage) {
    Registry *r = registry_new(NULL);
    param_add(r, (ParamSpec){.name = "embedding.word_embeddings.weight",
                             .ndim = 2,
                             .dim = {VOCAB, HIDDEN},
                             .padded = PADDED});
    param_add(r, (ParamSpec){.name = "decoder.final_layernorm.weight", .ndim = 1, .dim = {HIDDEN}});
    param_add(r, (ParamSpec){.name = "decoder.layers.0.self_attention.linear_qkv.weight",
                             .ndim = 2,
                             .dim = {(HEADS + 2 * GROUPS) * HEAD_DIM, HIDDEN},
                             .groups = GROUPS,
                             .n_parts = 3,
                             .parts = {{"q", HEADS / GROUPS * HEAD_DIM}, {"k", HEAD_DIM}, {"v", HEAD_DIM}}});
    param_add(r, (ParamSpec){.name = "decoder.layers.0.mlp.linear_fc1.weight",
                             .ndim = 2,
                             .dim = {2 * FFN, HIDDEN},
                             .groups = 1,
                             .n_parts = 2,
                             .parts = {{"gate", FFN}, {"up", FFN}}});
    static Device *device;
    if (!device) device = device_cpu(1);
    registry_allocate(r, device, storage, true);
    return r;
}

typedef struct Fixture {
    char *dir;
    Registry *r;
    void *moment;
    CkptItem items[2];
    json_t *state;
} Fixture;

static inline void fill(void *bytes, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) ((unsigned char *)bytes)[i] = (unsigned char)philox_u32(seed, 0, i);
}

static inline void refill(Fixture *f, uint64_t seed) {
    fill(f->items[0].flat, (size_t)f->r->elements * 4, seed); /* any bit patterns, including NaN */
    fill(f->items[1].flat, (size_t)f->r->elements * 4, seed + 1);
}

static inline Fixture setup_in(char *dir) {
    Fixture f = {
        .dir = dir, .r = registry_make(F32), .state = json_pack("{s:i, s:f}", "consumed", 17, "lr", 0.1)};
    f.moment = mem_zero((size_t)f.r->elements, 4);
    f.items[0] = (CkptItem){.suffix = "", .flat = f.r->masters, .dtype = F32};
    f.items[1] = (CkptItem){.suffix = ".exp_avg", .flat = f.moment, .dtype = F32};
    refill(&f, 1);
    return f;
}

static inline Fixture setup(void) { return setup_in(scratch_new()); }

static inline void release(Fixture *f) {
    registry_free(f->r);
    free(f->moment);
    json_decref(f->state);
}

static inline void teardown(Fixture *f) {
    release(f);
    scratch_remove(f->dir);
}

static inline Err save(Fixture *f, int64_t iteration) {
    return ckpt_save(f->dir, &(CkptSaveOptions){.iteration = iteration}, NULL, f->r, f->items, 2, f->state);
}

static inline Err load(Fixture *f, int64_t iteration) {
    Ckpt *c;
    ERR_RETURN(ckpt_open(f->dir, iteration, NULL, &c));
    Err e = ckpt_load(c, f->r, f->items, 2);
    ckpt_close(c);
    return e;
}

/* Whether all elements of both items, except padding, have the values of `seed`. */
static inline bool holds(const Fixture *f, uint64_t seed) {
    size_t n = (size_t)f->r->elements * 4;
    unsigned char *want = mem_alloc(n);
    bool same = true;
    for (int k = 0; k < 2; k++) {
        fill(want, n, seed + (uint64_t)k);
        for (int i = 0; i < f->r->n; i++) {
            const Param *p = f->r->params[i];
            size_t at = (size_t)p->offset * 4;
            same &= !memcmp((char *)f->items[k].flat + at, want + at, (size_t)param_logical_count(p) * 4);
        }
    }
    free(want);
    return same;
}

static inline char *path_of(const Fixture *f, const char *rest) { return mem_printf("%s/%s", f->dir, rest); }

static inline Str slurp(const char *path) {
    Str s = {0};
    assert_ok(file_read(path, &s));
    return s;
}

static inline void spew(const char *path, const void *bytes, size_t n) {
    assert_ok(file_write_atomic(path, bytes, n));
}
