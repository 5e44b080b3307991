/* Compares .bin and .idx files with those that Megatron-LM's IndexedDatasetBuilder writes, and tests damaged
 * files. */
#include <inttypes.h>

#include "fixture.h"
#include "vectors.h"

#include "base/philox.h"

TEST(files_equal_megatron) {
    assert_md5("toy.bin", TOY_BIN);
    assert_md5("toy.idx", TOY_IDX);
    assert_md5("more.bin", MORE_BIN);
    assert_md5("more.idx", MORE_IDX);
    assert_md5("third.bin", THIRD_BIN);
    assert_md5("third.idx", THIRD_IDX);
    assert_int_equal(count_files(".", ".tmp"), 0);
}

TEST(merged_files_equal_megatron) {
    const char *const unsorted[] = {"toy", "third"};
    assert_ok(data_merge(unsorted, 2, "merged"));
    assert_md5("merged.bin", MERGED_BIN);
    assert_md5("merged.idx", MERGED_IDX);
    assert_ok(file_mkdirs("folder"));
    for (int i = 0; i < 2; i++) {
        char *out = mem_printf("folder/%s", unsorted[i]);
        assert_ok(data_merge(&unsorted[i], 1, out));
        free(out);
    }
    write_text("folder/readme.txt", "not a dataset");
    assert_ok(data_merge_folder("folder", "again"));
    assert_md5("again.bin", MERGED_BIN);
    assert_md5("again.idx", MERGED_IDX);

    const char *const mixed[] = {"toy", "more"};
    assert_err(data_merge(mixed, 2, "bad"), "only datasets with the same dtype");
    assert_err(data_merge(mixed, 2, "toy"), "both an input and the output");
    assert_err(data_merge(mixed, 0, "bad"), "nothing to merge");
    write_text("folder/lonely.bin", "");
    assert_err(data_merge_folder("folder", "bad"), "but not 'folder/lonely.idx'");
    assert_err(data_merge_folder("absent", "bad"), "cannot open the folder");
    assert_int_equal(count_files(".", "bad"), 0);
}

TEST(each_dtype_reads_back) {
    static const struct {
        IndexedDtype dtype;
        int32_t ids[3];
    } INTEGERS[] = {{INDEXED_U8, {0, 1, 255}},
                    {INDEXED_I8, {-128, -1, 127}},
                    {INDEXED_I16, {-32768, 0, 32767}},
                    {INDEXED_U16, {0, 40000, 65535}},
                    {INDEXED_I32, {INT32_MIN, -1, INT32_MAX}},
                    {INDEXED_I64, {INT32_MIN, -1, INT32_MAX}}};
    IndexedBuilder *b;
    IndexedDataset d;
    for (size_t i = 0; i < sizeof INTEGERS / sizeof *INTEGERS; i++) {
        int64_t back[2];
        assert_ok(indexed_builder_open("dtype", INTEGERS[i].dtype, &b));
        assert_ok(indexed_builder_add_tokens(b, INTEGERS[i].ids, 3));
        indexed_builder_end_document(b);
        indexed_builder_end_document(b); /* an empty document */
        assert_ok(indexed_builder_finalize(b));
        assert_ok(indexed_open("dtype", &d));
        assert_int_equal(d.dtype, INTEGERS[i].dtype);
        assert_int_equal(d.bin.size, 3 * indexed_dtype_size(d.dtype));
        assert_int_equal(d.documents, 2);
        assert_int_equal(indexed_document(&d, 1), 1);
        assert_int_equal(indexed_document(&d, 2), 1);
        indexed_tokens(&d, 0, 1, 2, back);
        assert_int_equal(back[0], INTEGERS[i].ids[1]);
        assert_int_equal(back[1], INTEGERS[i].ids[2]);
        indexed_close(&d);
    }
    const double wide[] = {0.5, -1e300};
    assert_ok(indexed_builder_open("dtype", INDEXED_F64, &b));
    assert_ok(indexed_builder_add(b, wide, 2));
    indexed_builder_set_mode(b, 3);
    assert_ok(indexed_builder_add(b, wide, 1));
    indexed_builder_end_document(b);
    assert_ok(indexed_builder_finalize(b));
    assert_ok(indexed_open("dtype", &d));
    assert_memory_equal(indexed_items(&d, 0, 0, 2), wide, sizeof wide);
    assert_int_equal(d.modes[0], 3);
    assert_int_equal(d.modes[1], 0);
    indexed_close(&d);
    assert_ok(data_merge((const char *const[]){"dtype"}, 1, "modes"));
    assert_ok(indexed_open("modes", &d));
    assert_int_equal(d.modes[0], 3);
    indexed_close(&d);
}

TEST(vocabulary_chooses_the_dtype) {
    assert_int_equal(indexed_dtype_for_vocab(65499), INDEXED_U16);
    assert_int_equal(indexed_dtype_for_vocab(65500), INDEXED_I32);
    assert_int_equal(indexed_dtype_for_vocab(0), INDEXED_I32);
}

TEST(an_unfinished_dataset_leaves_nothing) {
    IndexedBuilder *b;
    assert_ok(indexed_builder_open("half", INDEXED_U16, &b));
    assert_err(indexed_builder_add_tokens(b, (const int32_t[]){1, 70000}, 2),
               "70000 does not fit into the dtype uint16");
    indexed_builder_abort(b);
    assert_int_equal(count_files(".", "half"), 0);
    assert_err(indexed_builder_open("no/such/folder", INDEXED_U16, &b), "check the path");
}

static void put(Str *s, size_t at, uint64_t value, size_t size) { memcpy(s->s + at, &value, size); }

TEST(damage_is_named) {
    static const struct {
        size_t at, size;
        uint64_t value;
        const char *sentence;
    } DAMAGE[] = {
        {0, 1, 'X', "not an index of an IndexedDataset"},
        {9, 8, 2, "version 2"},
        {17, 1, 9, "unknown dtype code 9"},
        {17, 1, 0, "unknown dtype code 0"},
        {18, 8, 7, "claims to have 7 sequences"},
        {18, 8, UINT64_MAX / 12 + 2, "which do not match"},
        {26, 8, 0, "0 document entries"},
        {26, 8, UINT64_MAX / 8 + 8, "which do not match"},
        {26, 8, 6, "8 bytes after its arrays"},
        {34, 4, (uint32_t)-5, "the invalid length -5"},
        {34, 4, INT32_MAX, "lies outside the .bin file"},
        {34 + 24, 8, (uint64_t)INT64_MAX, "lies outside the .bin file"},
        {34 + 24, 8, (uint64_t)-2, "lies outside the .bin file"},
        {34 + 24 + 48, 8, 1, "must increase from 0"},
        {34 + 24 + 48 + 8, 8, 5, "must increase from 0"},
        {34 + 24 + 48 + 48, 8, 5, "end at sequence 5 instead of 6"},
        {34 + 24 + 48 + 48, 8, 99, "must increase from 0"},
    };
    Str good = {0};
    IndexedDataset d;
    assert_ok(file_read("toy.idx", &good));
    assert_ok(data_merge((const char *const[]){"toy"}, 1, "copy"));
    for (size_t i = 0; i < sizeof DAMAGE / sizeof *DAMAGE; i++) {
        Str bad = {0};
        str_add(&bad, good.s, good.len);
        put(&bad, DAMAGE[i].at, DAMAGE[i].value, DAMAGE[i].size);
        assert_ok(file_write_atomic("copy.idx", bad.s, bad.len));
        assert_err(indexed_open("copy", &d), DAMAGE[i].sentence);
        str_free(&bad);
    }
    for (size_t n = 0; n < good.len; n++) { /* truncated anywhere */
        assert_ok(file_write_atomic("copy.idx", good.s, n));
        assert_int_equal(indexed_open("copy", &d).code, ERR_USER);
    }
    assert_ok(file_write_atomic("copy.idx", good.s, good.len));
    assert_ok(file_write_atomic("copy.bin", "12", 2));
    assert_err(indexed_open("copy", &d), "lies outside the .bin file, which has 2 bytes");
    unlink("copy.bin");
    assert_err(indexed_open("copy", &d), "copy.bin");
    str_free(&good);
}

/* For arbitrary bytes, opening must return an error, or a dataset in which every token can be read. */
TEST(mutations_never_leave_the_map) {
    Str good = {0};
    assert_ok(file_read("toy.idx", &good));
    assert_ok(data_merge((const char *const[]){"toy"}, 1, "fuzz"));
    for (uint64_t round = 0; round < 3000; round++) {
        Str bad = {0};
        str_add(&bad, good.s, good.len);
        for (uint64_t k = 0; k <= round % 3; k++) {
            uint64_t draw = philox_u32(1, round, 2 * k);
            bad.s[draw % bad.len] = (char)philox_u32(1, round, 2 * k + 1);
        }
        int fd_written = file_write_atomic("fuzz.idx", bad.s, bad.len).code;
        assert_int_equal(fd_written, ERR_NONE);
        IndexedDataset d;
        Err e = indexed_open("fuzz", &d);
        if (e.code) assert_true(strlen(e.msg) > 20);
        for (int64_t i = 0; !e.code && i < d.sequences; i++) {
            const unsigned char *p = indexed_items(&d, i, 0, indexed_length(&d, i));
            volatile unsigned char byte;
            for (size_t b = 0; b < (size_t)indexed_length(&d, i) * indexed_dtype_size(d.dtype); b++)
                byte = p[b];
            (void)byte;
        }
        if (!e.code) indexed_close(&d);
        str_free(&bad);
    }
    str_free(&good);
}

int main(void) { return run_all_tests(write_datasets, leave_folder); }
