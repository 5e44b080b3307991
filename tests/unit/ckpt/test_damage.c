/* Tests that a damaged file in a checkpoint is detected and named, and that nothing is then loaded. */
#include "unit/cmocka_all.h"

#include "base/hash.h"
#include "ckpt/manifest.h"
#include "unit/ckpt/fixture.h"

TEST(every_flipped_manifest_byte_is_found) {
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
        assert_err(load(&f, -1), "manifest.json' is damaged", "no other intact checkpoint");
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

TEST(every_flipped_shard_byte_is_named) {
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
            assert_err(load(&f, -1), title, "iter_0000007/shard_00000.bin' is damaged",
                       "other intact checkpoint is '", "iter_0000006'");
            good.s[places[i]] ^= 1;
        }
        free(title);
    }
    assert_true(holds(&f, 90)); /* nothing was loaded partially */
    spew(path, good.s, good.len - 1);
    assert_err(load(&f, -1), "shard_00000.bin' is damaged", "bytes, but the manifest states",
               "other intact checkpoint is '", "iter_0000006'");
    unlink(path);
    assert_err(load(&f, -1), "shard_00000.bin", "No such file", "other intact checkpoint is '",
               "iter_0000006'");
    assert_ok(load(&f, 6));
    assert_true(holds(&f, 1));
    ckpt_close(c);
    str_free(&good);
    free(path);
    teardown(&f);
}

TEST(swapped_files_are_found) {
    Fixture f = setup();
    assert_ok(save(&f, 6));
    refill(&f, 20);
    assert_ok(save(&f, 7));
    char *a = path_of(&f, "iter_0000006/shard_00000.bin"), *b = path_of(&f, "iter_0000007/shard_00000.bin");
    char *other = path_of(&f, "x"), *folder = path_of(&f, "iter_0000007"),
         *elsewhere = path_of(&f, "iter_0000009");
    assert_int_equal(rename(a, other) + rename(b, a) + rename(other, b), 0);
    assert_err(load(&f, 6), "is damaged: the bytes of tensor 'embedding.word_embeddings.weight' ('whole')",
               "no other intact");
    assert_err(load(&f, 7), "is damaged", "no other intact");
    assert_int_equal(rename(folder, elsewhere), 0);
    assert_err(load(&f, 9), "belongs to a checkpoint of step 7");
    free(a), free(b), free(other), free(folder), free(elsewhere);
    teardown(&f);
}

/* Replaces the first occurrence of `from`, and updates the hash of the manifest. */
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

TEST(contradictions_are_found) {
    Fixture f = setup();
    assert_ok(save(&f, 7));
    char *path = path_of(&f, "iter_0000007/manifest.json");
    Str good = slurp(path);
    refill(&f, 90);
    static const char *const edits[][3] = {
        {"\"schema\": 1", "\"schema\": 2", "has schema 2, but this program reads schema 1"},
        {"\"schema\": 1", "\"schema\": []", "no schema number"},
        {"\"iteration\": 7", "\"iteration\": -7", "iteration or state"},
        {"\"state\": {", "\"status\": {", "iteration or state"},
        {"\"files\": [", "\"fils\": [", "list of files"},
        {"\"name\":\"shard_00000.bin\"", "\"name\":\"../shard_00000.bin\"", "is not a file of this folder"},
        {"\"name\":\"shard_00000.bin\"", "\"name\":\"shard_00001.bin\"", "shard_00001.bin"},
        {"\"bytes\":", "\"bytes\":1", "bytes, but the manifest states 1"},
        {"\"name\":\"embedding.word", "\"nome\":\"embedding.word", "lacks a name"},
        {"\"global_shape\":[11,5]", "\"global_shape\":[12,5]", "is incomplete"},
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
        {"\"byte_offset\":0", "\"byte_offset\":64", "do not match its hash"},
        {"\"part\":\"whole\"", "\"part\":\"hole\"", "has no tensor"},
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

TEST(tracker_is_not_trusted) {
    Fixture f = setup();
    int64_t latest;
    assert_ok(ckpt_latest(f.dir, &latest));
    assert_int_equal(latest, -1);
    assert_err(load(&f, -1), "contains no checkpoint");
    assert_ok(save(&f, 6));
    char *path = path_of(&f, "latest_checkpointed_iteration.txt");
    Str text = slurp(path);
    assert_string_equal(text.s, "6");
    static const char *const garbage[] = {"", "six", "6 7", "-6", "99999999999999999999"};
    for (int i = 0; i < 5; i++) {
        spew(path, garbage[i], strlen(garbage[i]));
        assert_err(load(&f, -1), "not a checkpoint's iteration", "specify one checkpoint's folder");
    }
    spew(path, "8\n", 2);
    assert_err(load(&f, -1), "iter_0000008", "other intact checkpoint is '", "iter_0000006'");
    unlink(path);
    assert_ok(load(&f, -1));
    str_free(&text);
    free(path);
    teardown(&f);
}
