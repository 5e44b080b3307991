#include "unit/cmocka_all.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/hash.h"
#include "base/philox.h"
#include "ckpt/ckpt.h"
#include "ckpt/manifest.h"
#include "unit/ckpt/folder.h"

/* A registry with every kind of parameter: padded rows, a vector, interleaved parts, parts one after the
 * other. */
enum { HEADS = 4, GROUPS = 2, HEAD_DIM = 3, HIDDEN = 5, FFN = 7, VOCAB = 11, PADDED = 16 };

static Registry *registry_make(DType storage) {
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

static void fill(void *bytes, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) ((unsigned char *)bytes)[i] = (unsigned char)philox_u32(seed, 0, i);
}

static void refill(Fixture *f, uint64_t seed) {
    fill(f->items[0].flat, (size_t)f->r->elements * 4, seed); /* any bit pattern, NaNs included */
    fill(f->items[1].flat, (size_t)f->r->elements * 4, seed + 1);
}

static Fixture setup_in(char *dir) {
    Fixture f = {
        .dir = dir, .r = registry_make(F32), .state = json_pack("{s:i, s:f}", "consumed", 17, "lr", 0.1)};
    f.moment = mem_zero((size_t)f.r->elements, 4);
    f.items[0] = (CkptItem){.suffix = "", .flat = f.r->masters, .dtype = F32};
    f.items[1] = (CkptItem){.suffix = ".exp_avg", .flat = f.moment, .dtype = F32};
    refill(&f, 1);
    return f;
}

static Fixture setup(void) { return setup_in(scratch_new()); }

static void release(Fixture *f) {
    registry_free(f->r);
    free(f->moment);
    json_decref(f->state);
}

static void teardown(Fixture *f) {
    release(f);
    scratch_remove(f->dir);
}

static Err save(Fixture *f, int64_t iteration) {
    return ckpt_save(f->dir, &(CkptSaveOptions){.iteration = iteration}, NULL, f->r, f->items, 2, f->state);
}

static Err load(Fixture *f, int64_t iteration) {
    Ckpt *c;
    ERR_RETURN(ckpt_open(f->dir, iteration, NULL, &c));
    Err e = ckpt_load(c, f->r, f->items, 2);
    ckpt_close(c);
    return e;
}

/* Whether all logical elements of both items are those of `seed`. */
static bool holds(const Fixture *f, uint64_t seed) {
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

static char *path_of(const Fixture *f, const char *rest) { return mem_printf("%s/%s", f->dir, rest); }

static Str slurp(const char *path) {
    Str s = {0};
    assert_ok(file_read(path, &s));
    return s;
}

static void spew(const char *path, const void *bytes, size_t n) {
    assert_ok(file_write_atomic(path, bytes, n));
}

/* ---- round trip ---- */

static void round_trip_is_bitwise(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 12));
    refill(&f, 50);
    const int64_t at = f.r->params[0]->offset + VOCAB * HIDDEN;
    float padding = ((float *)f.items[0].flat)[at];
    Ckpt *c;
    assert_ok(ckpt_open(f.dir, -1, NULL, &c));
    assert_ok(ckpt_verify(c));
    assert_ok(ckpt_load(c, f.r, f.items, 2));
    assert_true(holds(&f, 1));
    assert_memory_equal(&padding, (float *)f.items[0].flat + at, 4);
    const Manifest *m = ckpt_manifest(c);
    assert_int_equal(m->iteration, 12);
    assert_true(json_equal(m->state, f.state));
    assert_true(ckpt_has(c, ".exp_avg"));
    assert_false(ckpt_has(c, ".exp_avg_sq"));
    assert_int_equal(m->count, 2 * (1 + 1 + 3 + 2));
    ckpt_close(c);
    teardown(&f);
}

static void saving_again_replaces(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 4));
    refill(&f, 40);
    assert_ok(save(&f, 4));
    refill(&f, 90);
    assert_ok(load(&f, 4));
    assert_true(holds(&f, 40));
    char *temporary = path_of(&f, "iter_0000004.tmp");
    assert_false(file_exists(temporary));
    free(temporary);
    teardown(&f);
}

/* Part k of group-major [q q | k | v] rows: head h of group g is row (g * (2 + 2) + h) * HEAD_DIM for q, + 2
 * for k, + 3 for v. */
static void parts_are_stored_apart(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 0));
    char *path = path_of(&f, "iter_0000000/shard_00000.bin");
    Str shard = slurp(path);
    Ckpt *c;
    assert_ok(ckpt_open(f.dir, 0, NULL, &c));
    const Manifest *m = ckpt_manifest(c);
    const Param *qkv = registry_find(f.r, "decoder.layers.0.self_attention.linear_qkv.weight");
    int found = 0;
    for (int64_t i = 0; i < m->count; i++) {
        const CkptTensor *t = &m->tensors[i];
        if (strcmp(t->name, qkv->spec.name) || *t->suffix) continue;
        int heads = *t->part == 'q' ? 2 : 1, first = *t->part == 'q' ? 0 : *t->part == 'k' ? 2 : 3, row = 0;
        for (int g = 0; g < GROUPS; g++)
            for (int h = 0; h < heads; h++)
                for (int d = 0; d < HEAD_DIM; d++, row++)
                    assert_memory_equal(shard.s + t->byte_offset + row * HIDDEN * 4,
                                        (float *)qkv->master.data +
                                            ((g * 4 + first + h) * HEAD_DIM + d) * HIDDEN,
                                        HIDDEN * 4);
        assert_int_equal(t->box.shape[0], row);
        found++;
    }
    assert_int_equal(found, 3);
    ckpt_close(c);
    str_free(&shard);
    free(path);
    teardown(&f);
}

static void print_manifest(const Manifest *m, Str *out) {
    Str entries = {0};
    manifest_print_tensors(m, &entries);
    str_clear(out);
    manifest_print(m, entries.s, entries.len, out);
    str_free(&entries);
}

/* A checkpoint as four ranks would write it: fc1's gate in three row shards over two files, up in two column
 * shards. */
static void shards_of_any_cut_load(void **unused) {
    (void)unused;
    Fixture f = setup();
    const Param *fc1 = registry_find(f.r, "decoder.layers.0.mlp.linear_fc1.weight");
    assert_ok(save(&f, 5));
    char *paths[] = {path_of(&f, "iter_0000005/shard_00000.bin"),
                     path_of(&f, "iter_0000005/shard_00001.bin")};
    char *manifest_path = path_of(&f, "iter_0000005/manifest.json");
    Str text = slurp(manifest_path), old = slurp(paths[0]), extra = {0};
    Manifest m, cut;
    assert_ok(manifest_parse(&m, "m", text.s, text.len));
    manifest_init(&cut, 5);
    cut.state = json_incref(m.state);
    cut.files = mem_zero(2, sizeof *cut.files);
    cut.num_files = 2;
    for (int64_t i = 0; i < m.count; i++)
        if (strcmp(m.tensors[i].name, fc1->spec.name) || *m.tensors[i].suffix)
            *manifest_add(&cut) = m.tensors[i];
    const struct {
        const char *part;
        Box box;
    } cuts[] = {{"gate", {{4, 0}, {3, HIDDEN}}},
                {"gate", {{0, 0}, {3, HIDDEN}}},
                {"gate", {{3, 0}, {1, HIDDEN}}},
                {"up", {{0, 2}, {FFN, 3}}},
                {"up", {{0, 0}, {FFN, 2}}}};
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        const Box *b = &cuts[k].box;
        CkptTensor *t = manifest_add(&cut);
        *t = (CkptTensor){fc1->spec.name,     "", cuts[k].part, 2, {FFN, HIDDEN}, *b, F32, 1,
                          (int64_t)extra.len, 0,  {0, 0}};
        for (int64_t i = 0; i < b->shape[0]; i++) {
            int64_t row = (*cuts[k].part == 'u' ? FFN : 0) + b->offset[0] + i;
            str_add(&extra, (float *)fc1->master.data + row * HIDDEN + b->offset[1], (size_t)b->shape[1] * 4);
        }
        t->bytes = (int64_t)extra.len - t->byte_offset;
        t->hash = hash128(extra.s + t->byte_offset, (size_t)t->bytes);
        while (extra.len % CKPT_ALIGN) str_add(&extra, "", 1);
    }
    cut.files[0] = (CkptFile){"shard_00000.bin", (int64_t)old.len};
    cut.files[1] = (CkptFile){"shard_00001.bin", (int64_t)extra.len};
    print_manifest(&cut, &text);
    spew(manifest_path, text.s, text.len);
    spew(paths[1], extra.s, extra.len);
    refill(&f, 70);
    assert_ok(load(&f, 5));
    assert_true(holds(&f, 1));
    cut.tensors[cut.count - 2].box.offset[1] = 1; /* over the other column shard */
    print_manifest(&cut, &text);
    spew(manifest_path, text.s, text.len);
    assert_err(load(&f, 5), "two shards of tensor 'decoder.layers.0.mlp.linear_fc1.weight' ('up') overlap");
    manifest_free(&m), manifest_free(&cut);
    str_free(&text), str_free(&old), str_free(&extra);
    free(paths[0]), free(paths[1]), free(manifest_path);
    teardown(&f);
}

static void dtypes_convert_only_when_asked(void **unused) {
    (void)unused;
    Fixture f = setup();
    for (int64_t i = 0; i < f.r->elements; i++)
        ((float *)f.items[0].flat)[i] = (float)philox_normal(3, 0, (uint64_t)i);
    assert_ok(save(&f, 1));
    Registry *wide = registry_make(F64);
    CkptItem item = {.suffix = "", .flat = wide->masters, .dtype = F64};
    Ckpt *c;
    assert_ok(ckpt_open(f.dir, 1, NULL, &c));
    assert_err(ckpt_load(c, wide, &item, 1), "is stored as F32, this run keeps it as F64", "--lane");
    item.convert = true;
    assert_ok(ckpt_load(c, wide, &item, 1));
    for (int i = 0; i < wide->n; i++)
        for (int64_t k = 0; k < param_logical_count(wide->params[i]); k++)
            assert_true(((double *)wide->params[i]->master.data)[k] ==
                        (double)((float *)f.r->params[i]->master.data)[k]);
    ckpt_close(c);
    registry_free(wide);
    teardown(&f);
}

static void another_model_is_refused(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 1));
    static const ParamSpec other[] = {
        {.name = "decoder.final_layernorm.weight", .ndim = 1, .dim = {HIDDEN + 1}},
        {.name = "decoder.final_layernorm.weight", .ndim = 1, .dim = {HIDDEN}},
        {.name = "decoder.final_layernorm.bias", .ndim = 1, .dim = {HIDDEN}},
    };
    static const char *const sentences[] = {"is stored as [5, 1], the model has [6, 1]",
                                            "which the model does not have",
                                            "holds no tensor 'decoder.final_layernorm.bias'"};
    Device *device = device_cpu(1);
    for (int i = 0; i < 3; i++) {
        Registry *r = registry_new(NULL);
        param_add(r, other[i]);
        registry_allocate(r, device, F32, true);
        CkptItem item = {.suffix = "", .flat = r->masters, .dtype = F32};
        Ckpt *c;
        assert_ok(ckpt_open(f.dir, 1, NULL, &c));
        assert_err(ckpt_load(c, r, &item, 1), sentences[i]);
        ckpt_close(c);
        registry_free(r);
    }
    device_free(device);
    teardown(&f);
}

enum { NO_SCALES, ONE_SCALE, TWO_SCALES, LONGER };

/* A weight of 7s, and FP8 scales of `value` with a history of 2 or 3 steps. */
static Registry *with_scales(Device *device, int kind, float value) {
    static const char *const NAME[] = {"decoder.layers.0.fc1.fp8_state", "decoder.layers.0.fc2.fp8_state"};
    Registry *r = registry_new(NULL);
    param_add(
        r, (ParamSpec){
               .name = "decoder.layers.0.fc1.weight", .ndim = 2, .dim = {4, 4}, .init = {INIT_CONSTANT, 7}});
    const int n[] = {0, 1, 2, 2};
    for (int i = 0; i < n[kind]; i++)
        param_add(r, (ParamSpec){.name = NAME[i],
                                 .ndim = 2,
                                 .dim = {3, kind == LONGER ? 4 : 3},
                                 .init = {INIT_CONSTANT, value},
                                 .flags = PARAM_BUFFER});
    registry_allocate(r, device, F32, true);
    registry_init(r, 1);
    return r;
}

/* They are no part of the model: where one side has none the other's do not matter; but those of both are
 * all loaded, or none. */
static void fp8_scales_of_one_side_alone_are_no_other_model(void **unused) {
    (void)unused;
    static const struct {
        int stored, held;
        const char *sentence;
        float scale; /* held then */
    } CASES[] = {{NO_SCALES, TWO_SCALES, NULL, 5},
                 {TWO_SCALES, NO_SCALES, NULL, 0},
                 {TWO_SCALES, TWO_SCALES, NULL, 3},
                 {ONE_SCALE, TWO_SCALES, "holds no tensor 'decoder.layers.0.fc2.fp8_state'", 5},
                 {TWO_SCALES, ONE_SCALE, "'decoder.layers.0.fc2.fp8_state' ('whole'), which the model", 5},
                 {TWO_SCALES, LONGER, "set --fp8-amax-history-len 2", 5}};
    Device *device = device_cpu(1);
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        char *dir = scratch_new();
        Registry *from = with_scales(device, CASES[k].stored, 3), *to = with_scales(device, CASES[k].held, 5);
        const CkptItem saved = {.flat = from->masters, .suffix = "", .dtype = F32},
                       loaded = {.flat = to->masters, .suffix = "", .dtype = F32};
        json_t *state = json_object();
        assert_ok(ckpt_save(dir, &(CkptSaveOptions){.iteration = 1}, NULL, from, &saved, 1, state));
        Ckpt *c;
        assert_ok(ckpt_open(dir, 1, NULL, &c));
        assert_int_equal(ckpt_has_fp8_state(c), CASES[k].stored != NO_SCALES);
        ((float *)to->params[0]->master.data)[0] = 0;
        if (CASES[k].sentence)
            assert_err(ckpt_load(c, to, &loaded, 1), CASES[k].sentence);
        else
            assert_ok(ckpt_load(c, to, &loaded, 1));
        assert_true(((float *)to->params[0]->master.data)[0] == (CASES[k].sentence ? 0 : 7));
        for (int i = 1; i < to->n; i++)
            for (int e = 0; e < 9; e++)
                assert_true(((float *)to->params[i]->master.data)[e] == CASES[k].scale);
        ckpt_close(c);
        json_decref(state);
        registry_free(from);
        registry_free(to);
        scratch_remove(dir);
    }
    device_free(device);
}

/* ---- damage ---- */

static void every_flipped_manifest_byte_is_found(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 7));
    char *path = path_of(&f, "iter_0000007/manifest.json");
    Str good = slurp(path);
    refill(&f, 90);
    for (size_t i = 0; i < good.len; i += 1 + i / 200) {
        good.s[i] ^= 4;
        unlink(path);
        FILE *file = fopen(path, "wb");
        fwrite(good.s, 1, good.len, file), fclose(file);
        assert_err(load(&f, -1), "manifest.json' is damaged", "no other sound checkpoint");
        good.s[i] ^= 4;
    }
    for (size_t n = 0; n < good.len; n += 97) {
        spew(path, good.s, n);
        assert_err(load(&f, -1), "manifest.json' is damaged");
    }
    assert_true(holds(&f, 90));
    str_free(&good);
    free(path);
    teardown(&f);
}

static void every_flipped_shard_byte_is_named(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 6));
    assert_ok(save(&f, 7));
    char *path = path_of(&f, "iter_0000007/shard_00000.bin");
    Str good = slurp(path);
    Ckpt *c;
    assert_ok(ckpt_open(f.dir, -1, NULL, &c));
    const Manifest *m = ckpt_manifest(c);
    refill(&f, 90);
    for (int64_t k = 0; k < m->count; k++) {
        const CkptTensor *t = &m->tensors[k];
        const int64_t places[] = {t->byte_offset, t->byte_offset + t->bytes / 2,
                                  t->byte_offset + t->bytes - 1};
        char *title = mem_printf("tensor '%s%s' ('%s')", t->name, t->suffix, t->part);
        for (int i = 0; i < 3; i++) {
            good.s[places[i]] ^= 1;
            spew(path, good.s, good.len);
            assert_err(load(&f, -1), title, "iter_0000007/shard_00000.bin' is damaged", "--ckpt-step 6");
            good.s[places[i]] ^= 1;
        }
        free(title);
    }
    assert_true(holds(&f, 90)); /* nothing was loaded by halves */
    spew(path, good.s, good.len - 1);
    assert_err(load(&f, -1), "shard_00000.bin' is damaged", "bytes, the manifest says", "--ckpt-step 6");
    unlink(path);
    assert_err(load(&f, -1), "shard_00000.bin", "No such file", "--ckpt-step 6");
    assert_ok(load(&f, 6));
    assert_true(holds(&f, 1));
    ckpt_close(c);
    str_free(&good);
    free(path);
    teardown(&f);
}

static void swapped_files_are_found(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 6));
    refill(&f, 20);
    assert_ok(save(&f, 7));
    char *a = path_of(&f, "iter_0000006/shard_00000.bin"), *b = path_of(&f, "iter_0000007/shard_00000.bin");
    char *other = path_of(&f, "x"), *folder = path_of(&f, "iter_0000007"),
         *elsewhere = path_of(&f, "iter_0000009");
    assert_int_equal(rename(a, other) + rename(b, a) + rename(other, b), 0);
    assert_err(load(&f, 6), "is damaged: tensor 'embedding.word_embeddings.weight' ('whole')",
               "no other sound");
    assert_err(load(&f, 7), "is damaged", "no other sound");
    assert_int_equal(rename(folder, elsewhere), 0);
    assert_err(load(&f, 9), "says it is of step 7");
    free(a), free(b), free(other), free(folder), free(elsewhere);
    teardown(&f);
}

/* Replaces the first `from` and makes the manifest's own hash right again. */
static Err load_edited(Fixture *f, const char *path, Str original, const char *from, const char *to) {
    char *at = strstr(original.s, from), hex[33];
    assert_non_null(at);
    Str text = {0};
    str_add(&text, original.s, (size_t)(at - original.s));
    str_puts(&text, to);
    str_puts(&text, at + strlen(from));
    text.len -= strlen("\"xxh3_128\": \"\"}\n") + 32;
    text.s[text.len] = 0;
    hash_hex(hash128(text.s, text.len), hex);
    str_printf(&text, "\"xxh3_128\": \"%s\"}\n", hex);
    spew(path, text.s, text.len);
    str_free(&text);
    return load(f, -1);
}

static void contradictions_are_found(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 7));
    char *path = path_of(&f, "iter_0000007/manifest.json");
    Str good = slurp(path);
    refill(&f, 90);
    static const char *const edits[][3] = {
        {"\"schema\": 1", "\"schema\": 2", "has schema 2, this program reads 1"},
        {"\"schema\": 1", "\"schema\": []", "no schema number"},
        {"\"iteration\": 7", "\"iteration\": -7", "iteration or state"},
        {"\"state\": {", "\"status\": {", "iteration or state"},
        {"\"files\": [", "\"fils\": [", "list of files"},
        {"\"name\":\"shard_00000.bin\"", "\"name\":\"../shard_00000.bin\"", "no file of this folder"},
        {"\"name\":\"shard_00000.bin\"", "\"name\":\"shard_00001.bin\"", "shard_00001.bin"},
        {"\"bytes\":", "\"bytes\":1", "bytes, the manifest says 1"},
        {"\"name\":\"embedding.word", "\"nome\":\"embedding.word", "has no name"},
        {"\"global_shape\":[11,5]", "\"global_shape\":[12,5]", "not there completely"},
        {"\"global_shape\":[11,5]", "\"global_shape\":[10,5]", "contradict"},
        {"\"global_shape\":[11,5]", "\"global_shape\":[4611686018427387904,4611686018427387904]",
         "contradict"},
        {"\"global_shape\":[11,5]", "\"global_shape\":[99999999999999999999,5]", "is not JSON"},
        {"\"global_shape\":[11,5]", "\"global_shape\":[55]", "incomplete"},
        {"\"global_shape\":[11,5]", "\"global_shape\":[-11,5]", "incomplete"},
        {"\"shape\":[11,5]", "\"shape\":[5,11]", "contradict"},
        {"\"shape\":[11,5]", "\"shape\":[0,5]", "contradict"},
        {"\"offset\":[0,0]", "\"offset\":[9223372036854775807,0]", "contradict"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F64\"", "contradict"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"I32\"", "incomplete"},
        {"\"file\":0", "\"file\":1", "incomplete"},
        {"\"file\":0", "\"file\":4294967296", "incomplete"},
        {"\"byte_offset\":0", "\"byte_offset\":9223372036854775744", "contradict"},
        {"\"byte_offset\":0", "\"byte_offset\":1", "contradict"},
        {"\"byte_offset\":0", "\"byte_offset\":64", "does not have the bytes"},
        {"\"part\":\"whole\"", "\"part\":\"hole\"", "holds no tensor"},
        {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "overlap"},
        {"\"xxh3_128\":\"", "\"xxh3_128\":\"g", "incomplete"},
        {"\"suffix\":\"\"", "\"suffix\":\"\",\"suffix\":\"\"", "is not JSON"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        assert_err(load_edited(&f, path, good, edits[i][0], edits[i][1]), edits[i][2]);
    assert_true(holds(&f, 90));
    str_free(&good);
    free(path);
    teardown(&f);
}

static void tracker_is_not_trusted(void **unused) {
    (void)unused;
    Fixture f = setup();
    int64_t latest;
    assert_ok(ckpt_latest(f.dir, &latest));
    assert_int_equal(latest, -1);
    assert_err(load(&f, -1), "holds no checkpoint");
    assert_ok(save(&f, 6));
    char *path = path_of(&f, "latest_checkpointed_iteration.txt");
    Str text = slurp(path);
    assert_string_equal(text.s, "6");
    static const char *const garbage[] = {"", "six", "6 7", "-6", "99999999999999999999"};
    for (int i = 0; i < 5; i++) {
        spew(path, garbage[i], strlen(garbage[i]));
        assert_err(load(&f, -1), "not the number of a checkpoint", "--ckpt-step");
    }
    spew(path, "8\n", 2);
    assert_err(load(&f, -1), "iter_0000008", "--ckpt-step 6");
    unlink(path);
    assert_ok(load(&f, -1));
    str_free(&text);
    free(path);
    teardown(&f);
}

/* ---- interruption ---- */

static void save_forever(Fixture *f, int64_t first) {
    for (int64_t i = first;; i++) {
        refill(f, (uint64_t)i * 2);
        CkptSaveOptions o = {.iteration = i, .keep_newest = 2};
        if (i % 3 == 0) o.iteration = i - 1; /* also over an existing one */
        if (ckpt_save(f->dir, &o, NULL, f->r, f->items, 2, f->state).code) _exit(1);
    }
}

static void a_kill_leaves_a_sound_checkpoint(void **unused) {
    (void)unused;
    Fixture f = setup();
    int64_t latest = 1;
    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        if (!child) save_forever(&f, latest + 1);
        usleep(2000 + philox_u32(5, 0, (uint64_t)round) % 40000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        int64_t before = latest;
        assert_ok(ckpt_latest(f.dir, &latest));
        if (latest < 0) { /* killed before the first was complete */
            latest = before;
            continue;
        }
        assert_ok(load(&f, -1));
        assert_true(holds(&f, (uint64_t)latest * 2) || holds(&f, (uint64_t)(latest + 1) * 2));
        assert_true(latest >= before - 1);
    }
    assert_true(latest > 1);
    assert_ok(save(&f, latest + 1));
    teardown(&f);
}

/* A limit on the size of files fails writes the way a full disk does, at every place a save writes. */
static void a_full_disk_loses_nothing(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 3));
    char *shard = path_of(&f, "iter_0000003/shard_00000.bin"),
         *manifest = path_of(&f, "iter_0000003/manifest.json");
    char *temporary = path_of(&f, "iter_0000004.tmp");
    int64_t largest = file_size(shard) > file_size(manifest) ? file_size(shard) : file_size(manifest);
    for (int64_t limit = 0; limit < largest; limit += 333) {
        pid_t child = fork();
        if (!child) {
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)limit, (rlim_t)limit});
            refill(&f, 30);
            Err e = save(&f, 4);
            _exit(e.code == ERR_INFRA && strstr(e.msg, "was not saved") && strstr(e.msg, "File too large")
                      ? 0
                      : 1);
        }
        int status;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
        assert_false(file_exists(temporary));
        int64_t latest;
        assert_ok(ckpt_latest(f.dir, &latest));
        assert_int_equal(latest, 3);
    }
    refill(&f, 90);
    assert_ok(load(&f, -1));
    assert_true(holds(&f, 1));
    free(shard), free(manifest), free(temporary);
    teardown(&f);
}

static void unwritable_folders_are_sentences(void **unused) {
    (void)unused;
    Fixture f = setup();
    char *file = path_of(&f, "file"), *below = path_of(&f, "file/below");
    spew(file, "x", 1);
    assert_err(ckpt_save(file, &(CkptSaveOptions){.iteration = 1}, NULL, f.r, f.items, 2, f.state), "file",
               "not a folder");
    assert_err(ckpt_save(below, &(CkptSaveOptions){.iteration = 1}, NULL, f.r, f.items, 2, f.state),
               "file/below");
    free(file), free(below);
    teardown(&f);
}

/* ---- retention ---- */

static void expect_kept(int64_t newest, int64_t interval, const char *want) {
    Fixture f = setup();
    for (int64_t i = 1; i <= 7; i++) {
        CkptSaveOptions o = {.iteration = i * 10, .keep_newest = newest, .retain_interval = interval};
        assert_ok(ckpt_save(f.dir, &o, NULL, f.r, f.items, 2, f.state));
    }
    int64_t *all, n;
    assert_ok(ckpt_list(f.dir, &all, &n));
    Str kept = {0};
    for (int64_t i = 0; i < n; i++) str_printf(&kept, "%lld ", (long long)all[i]);
    assert_string_equal(kept.s, want);
    assert_ok(load(&f, -1));
    str_free(&kept);
    free(all);
    teardown(&f);
}

static void retention_keeps_what_it_says(void **unused) {
    (void)unused;
    expect_kept(-1, 0, "10 20 30 40 50 60 70 ");
    expect_kept(2, 0, "60 70 ");
    expect_kept(-1, 30, "30 60 70 ");
    expect_kept(3, 20, "20 40 50 60 70 ");
}

/* Going back to step 10 and saving 15 must delete neither 15 nor the later ones of the abandoned branch. */
static void later_checkpoints_are_left_alone(void **unused) {
    (void)unused;
    Fixture f = setup();
    assert_ok(save(&f, 10));
    assert_ok(save(&f, 20));
    CkptSaveOptions o = {.iteration = 15, .keep_newest = 1};
    assert_ok(ckpt_save(f.dir, &o, NULL, f.r, f.items, 2, f.state));
    int64_t *all, n, latest;
    assert_ok(ckpt_list(f.dir, &all, &n));
    assert_int_equal(n, 2);
    assert_int_equal(all[0], 15);
    assert_int_equal(all[1], 20);
    assert_ok(ckpt_latest(f.dir, &latest));
    assert_int_equal(latest, 15);
    free(all);
    teardown(&f);
}

static void shards_are_ordered_by_offset(void **state) {
    (void)state;
    const int64_t offset[][2] = {{0, 0}, {0, 3}, {2, 0}, {2, 3}};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            const CkptTensor
                a = {.name = "w", .suffix = "", .part = "", .box.offset = {offset[i][0], offset[i][1]}},
                b = {.name = "w", .suffix = "", .part = "", .box.offset = {offset[k][0], offset[k][1]}};
            const int order = ckpt_tensor_order(&a, &b);
            assert_int_equal((order > 0) - (order < 0), (i > k) - (i < k));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip_is_bitwise),
        cmocka_unit_test(saving_again_replaces),
        cmocka_unit_test(parts_are_stored_apart),
        cmocka_unit_test(shards_of_any_cut_load),
        cmocka_unit_test(shards_are_ordered_by_offset),
        cmocka_unit_test(dtypes_convert_only_when_asked),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(fp8_scales_of_one_side_alone_are_no_other_model),
        cmocka_unit_test(every_flipped_manifest_byte_is_found),
        cmocka_unit_test(every_flipped_shard_byte_is_named),
        cmocka_unit_test(swapped_files_are_found),
        cmocka_unit_test(contradictions_are_found),
        cmocka_unit_test(tracker_is_not_trusted),
        cmocka_unit_test(a_kill_leaves_a_sound_checkpoint),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(unwritable_folders_are_sentences),
        cmocka_unit_test(retention_keeps_what_it_says),
        cmocka_unit_test(later_checkpoints_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
