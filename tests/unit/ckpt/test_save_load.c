/* Tests the content of a checkpoint, and which registries can load it. */
#include "unit/cmocka_all.h"

#include "ckpt/manifest.h"
#include "unit/ckpt/fixture.h"

TEST(round_trip_is_bitwise) {
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

TEST(saving_again_replaces) {
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

/* The rows of QKV are ordered by group, [q q | k | v]. So head h of group g begins at row (g * 4 + h) *
 * HEAD_DIM, where h is 2 for k and 3 for v. */
TEST(parts_are_stored_apart) {
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

/* Writes a checkpoint whose shards differ from those that Isotron would write: the gate of fc1 in three row shards in
 * two files, its up projection in two column shards. */
TEST(shards_of_any_cut_load) {
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
    cut.tensors[cut.count - 2].box.offset[1] = 1; /* overlaps the other column shard */
    print_manifest(&cut, &text);
    spew(manifest_path, text.s, text.len);
    assert_err(load(&f, 5), "two shards of tensor 'decoder.layers.0.mlp.linear_fc1.weight' ('up') overlap");
    manifest_free(&m), manifest_free(&cut);
    str_free(&text), str_free(&old), str_free(&extra);
    free(paths[0]), free(paths[1]), free(manifest_path);
    teardown(&f);
}

TEST(dtypes_convert_only_when_asked) {
    Fixture f = setup();
    for (int64_t i = 0; i < f.r->elements; i++)
        ((float *)f.items[0].flat)[i] = (float)philox_normal(3, 0, (uint64_t)i);
    assert_ok(save(&f, 1));
    Registry *wide = registry_make(F64);
    CkptItem item = {.suffix = "", .flat = wide->masters, .dtype = F64};
    Ckpt *c;
    assert_ok(ckpt_open(f.dir, 1, NULL, &c));
    assert_err(ckpt_load(c, wide, &item, 1), "is stored as F32, but this run stores it as F64", "--lane");
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

TEST(another_model_is_refused) {
    Fixture f = setup();
    assert_ok(save(&f, 1));
    static const ParamSpec other[] = {
        {.name = "decoder.final_layernorm.weight", .ndim = 1, .dim = {HIDDEN + 1}},
        {.name = "decoder.final_layernorm.weight", .ndim = 1, .dim = {HIDDEN}},
        {.name = "decoder.final_layernorm.bias", .ndim = 1, .dim = {HIDDEN}},
    };
    static const char *const sentences[] = {"has the shape [5, 1], but in this model it has the shape [6, 1]",
                                            "which the model does not have",
                                            "has no tensor 'decoder.final_layernorm.bias'"};
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

/* Creates a registry with a weight of 7s, and FP8 scales of `value` with an amax history of 2 or 3 steps. */
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

/* FP8 scales are not part of the model. If only the checkpoint or only the registry has scales, these are
 * ignored. If both have scales, either all of them are loaded or none. */
TEST(fp8_scales_of_one_side_alone_are_no_other_model) {
    static const struct {
        int stored, held;
        const char *sentence;
        float scale; /* the expected scale after loading */
    } CASES[] = {{NO_SCALES, TWO_SCALES, NULL, 5},
                 {TWO_SCALES, NO_SCALES, NULL, 0},
                 {TWO_SCALES, TWO_SCALES, NULL, 3},
                 {ONE_SCALE, TWO_SCALES, "has no tensor 'decoder.layers.0.fc2.fp8_state'", 5},
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

TEST(shards_are_ordered_by_offset) {
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
