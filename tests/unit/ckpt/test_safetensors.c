#include "unit/cmocka_all.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "ckpt/safetensors.h"
#include "unit/ckpt/folder.h"

/* Files that the safetensors library wrote (tools/oracle/safetensors_files.py). Element i is i - 3, or i if
 * the type is unsigned. */
static const char EVERY[] = "tests/data/safetensors/every_dtype.safetensors";

static double element(const Tensor *t, int64_t i) {
    double x;
    switch (t->dtype) {
    case I64:
        return (double)((const int64_t *)t->data)[i];
    case I32:
        return ((const int32_t *)t->data)[i];
    case U8:
        return ((const uint8_t *)t->data)[i] - 3;
    default:
        dtype_convert(&x, F64, (const char *)t->data + (size_t)i * dtype_size((DType)t->dtype),
                      (DType)t->dtype, 1);
        return x;
    }
}

TEST(reads_every_dtype) {
    static const struct {
        const char *name, *shape;
    } want[] = {
        {"bf16", "BF16 [2, 3]"}, {"empty", "F32 [0, 4]"}, {"f16", "F16 [2, 3]"},
        {"f32", "F32 [2, 3]"},   {"f64", "F64 [2, 3]"},   {"five", "F32 [2, 1, 3, 1, 2]"},
        {"i32", "I32 [2, 3]"},   {"i64", "I64 [2, 3]"},   {"name with \"quotes\" and \xc3\xa9", "F32 [1]"},
        {"u8", "U8 [2, 3]"},
    };
    Safetensors *s;
    assert_ok(safetensors_open(EVERY, &s));
    assert_int_equal(s->count, sizeof want / sizeof *want);
    for (int64_t k = 0; k < s->count; k++) {
        char text[80];
        const Tensor *t = safetensors_find(s, want[k].name);
        assert_ptr_equal(t, &s->tensors[k].tensor);
        assert_string_equal(tensor_describe(t, text, sizeof text), want[k].shape);
        for (int64_t i = 0; i < tensor_count(t); i++) assert_true(element(t, i) == (double)(i - 3));
    }
    assert_null(safetensors_find(s, "nothing"));
    assert_int_equal(s->num_metadata, 1);
    assert_string_equal(s->metadata[0].key, "format");
    assert_string_equal(s->metadata[0].value, "pt");
    safetensors_close(s);
}

TEST(reads_scalars_and_unaligned_data) {
    Safetensors *s;
    assert_ok(safetensors_open("tests/data/safetensors/scalar.safetensors", &s));
    assert_int_equal(s->tensors[0].tensor.ndim, 1);
    assert_true(element(&s->tensors[0].tensor, 0) == -3);
    safetensors_close(s);
    assert_ok(safetensors_open("tests/data/safetensors/unaligned.safetensors", &s));
    const double *b = safetensors_find(s, "b")->data;
    assert_int_equal((uintptr_t)b % sizeof *b, 0);
    assert_true(b[0] == 0.5 && b[1] == -2);
    safetensors_close(s);
    assert_ok(safetensors_open("tests/data/safetensors/bool.safetensors", &s));
    assert_string_equal(safetensors_dtype(safetensors_find(s, "flag")), "BOOL");
    assert_int_equal(tensor_bytes(safetensors_find(s, "flag")), 1);
    safetensors_close(s);
}

TEST(writes_the_bytes_of_the_library) {
    char *dir = scratch_new(), *path = mem_printf("%s/x.safetensors", dir);
    Safetensors *s;
    assert_ok(safetensors_open(EVERY, &s));
    assert_ok(safetensors_write(path, s->tensors, s->count, s->metadata, s->num_metadata, NULL, NULL));
    Str want = {0}, got = {0};
    assert_ok(file_read(EVERY, &want));
    assert_ok(file_read(path, &got));
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.s, want.s, want.len);
    safetensors_close(s);
    str_free(&want), str_free(&got);
    free(path);
    scratch_remove(dir);
}

TEST(a_failed_write_keeps_the_old_file) {
    char *dir = scratch_new(), *path = mem_printf("%s/x.safetensors", dir),
         *part = mem_printf("%s.tmp", path);
    float values[100] = {0};
    SafeTensor t = {"t", .tensor = tensor_make(values, F32, 1, &(int64_t){100})};
    assert_ok(file_write_atomic(path, "old", 3));
    for (int64_t limit = 0; limit < 400; limit += 99) {
        pid_t child = fork();
        if (!child) {
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)limit, (rlim_t)limit});
            _exit(safetensors_write(path, &t, 1, NULL, 0, NULL, NULL).code);
        }
        int status;
        waitpid(child, &status, 0);
        assert_int_equal(WEXITSTATUS(status), ERR_INFRA);
        assert_int_equal(file_size(path), 3);
        assert_false(file_exists(part));
    }
    char *nowhere = mem_printf("%s/none/x.safetensors", dir);
    assert_err(safetensors_write(nowhere, &t, 1, NULL, 0, NULL, NULL), "none/x.safetensors", "No such file");
    free(path), free(part), free(nowhere);
    scratch_remove(dir);
}

/* ---- damage ---- */

static Err open_file_of(const char *path, const void *bytes, size_t n) {
    Safetensors *s;
    unlink(path); /* truncating an existing file would wait for the disk */
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    Err e = safetensors_open(path, &s);
    if (!e.code) {
        double sum = 0;
        for (int64_t k = 0; k < s->count; k++)
            for (int64_t i = 0; i < tensor_count(&s->tensors[k].tensor); i++)
                sum += element(&s->tensors[k].tensor, i);
        (void)sum;
        safetensors_close(s);
    } else {
        assert_null(s);
        assert_non_null(strstr(e.msg, path));
    }
    return e;
}

static const char *const HEADERS[][2] = {
    {"", "not JSON"},
    {"[]", "not a JSON object"},
    {" {\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "not a JSON object"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", "not JSON"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}} x", "not JSON"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":"
     "[1],\"data_offsets\":[4,8]}}",
     "unique names"},
    {"{}", "the tensors need 0 bytes, but the file has 8 bytes of tensor data"},
    {"{\"__metadata__\":{\"a\":1}}", "entry 'a' is not a string"},
    {"{\"__metadata__\":[]}", "__metadata__ is not an object"},
    {"{\"a\":7}", "must have exactly dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "must have exactly dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"more\":1}}",
     "must have exactly dtype"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[8,0]}}", "needs 8 bytes"},
    {"{\"a\":{\"dtype\":\"?\",\"shape\":[8],\"data_offsets\":[0,16]}}", "the file has 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,2],\"data_offsets\":[0,8]}}",
     "has 6 entries; at most 5"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "is not a size"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "is not a size"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "is not a list"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "needs 12 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "does not have two data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "needs 8 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", "it must begin at byte 0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
     "16, but it must begin at byte 0, and the file has 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "the tensors need 4 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":"
     "[1],\"data_offsets\":[4,8]}}",
     "tensor 'b'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
     "larger than any memory"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4611686018427387904,4],\"data_offsets\":[0,0]}}",
     "larger than any memory"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
     "larger than any memory"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "not JSON"},
    {"{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "not JSON"},
};

TEST(headers_are_not_trusted) {
    char *dir = scratch_new(), *path = mem_printf("%s/x.safetensors", dir);
    for (size_t i = 0; i < sizeof HEADERS / sizeof *HEADERS; i++) {
        Str s = {0};
        uint64_t n = strlen(HEADERS[i][0]);
        str_add(&s, &n, 8); /* little-endian, like every supported machine */
        str_puts(&s, HEADERS[i][0]);
        str_add(&s, "\0\0\0\0\0\0\0\0", 8);
        assert_err(open_file_of(path, s.s, s.len), HEADERS[i][1]);
        str_free(&s);
    }
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    assert_err(open_file_of(path, pointer, sizeof pointer - 1), "git lfs pull");
    static const struct {
        uint64_t length;
        const char *what;
    } lengths[] = {
        {100000001, "the format allows 100000000"}, {UINT64_MAX, "the format allows"}, {9, "does not fit"}};
    for (int i = 0; i < 3; i++) {
        uint64_t bytes[2] = {lengths[i].length, 0};
        assert_err(open_file_of(path, bytes, sizeof bytes), lengths[i].what);
    }
    free(path);
    scratch_remove(dir);
}

TEST(truncated_and_flipped_files_do_no_harm) {
    char *dir = scratch_new(), *path = mem_printf("%s/x.safetensors", dir);
    Str good = {0};
    assert_ok(file_read(EVERY, &good));
    for (size_t n = 0; n < good.len; n++)
        assert_err(open_file_of(path, good.s, n), "is not a valid safetensors file");
    for (size_t i = 0; i < good.len; i++)
        for (int bit = 0; bit < 8; bit++) {
            good.s[i] ^= (char)(1 << bit);
            open_file_of(path, good.s,
                         good.len); /* returns an error, unless the changed file happens to be valid */
            good.s[i] ^= (char)(1 << bit);
        }
    str_free(&good);
    free(path);
    scratch_remove(dir);
}

/* ---- folders ---- */

TEST(reads_sharded_folders) {
    static const char folder[] = "tests/data/safetensors/sharded";
    Safetensors *s;
    assert_ok(safetensors_open(folder, &s));
    assert_int_equal(s->count, 3);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(s->tensors[k].tensor.dim[0], 2 + k);
        assert_true(element(&s->tensors[k].tensor, 1) == -2);
    }
    safetensors_close(s);
    assert_err(safetensors_open("tests/data", &s), "contains neither model.safetensors nor");
    assert_err(safetensors_open("tests/data/none", &s), "No such file");
}

TEST(indices_are_not_trusted) {
    char *dir = scratch_new(), *path = mem_printf("%s/model.safetensors.index.json", dir);
    static const char *const files[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    for (int i = 0; i < 2; i++) {
        Str bytes = {0};
        char *from = mem_printf("tests/data/safetensors/sharded/%s", files[i]),
             *to = mem_printf("%s/%s", dir, files[i]);
        assert_ok(file_read(from, &bytes));
        assert_ok(file_write_atomic(to, bytes.s, bytes.len));
        str_free(&bytes);
        free(from), free(to);
    }
#define ONE "model-00001-of-00002.safetensors"
#define TWO "model-00002-of-00002.safetensors"
    static const char *const indices[][2] = {
        {"{", "is not JSON"},
        {"{}", "no weight_map"},
        {"{\"metadata\":{\"total_size\":1e999},\"weight_map\":{}}", "no weight_map"},
        {"{\"weight_map\":{\"a\":1}}", "weight_map must map tensor 'a' to a file"},
        {"{\"weight_map\":{\"a\":\"../" ONE "\"}}", "weight_map must map tensor 'a' to a file"},
        {"{\"weight_map\":{\"a\":\"absent\"}}", "No such file"},
        {"{\"weight_map\":{\"a\":\"" ONE "\",\"b\":\"" ONE "\",\"d\":\"" TWO "\"}}",
         "lists tensor 'd', but no file contains it"},
        {"{\"weight_map\":{\"a\":\"" ONE "\"}}", "lists 1 tensors, but the files contain 2"},
    };
    Safetensors *s;
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
        assert_ok(file_write_atomic(path, indices[i][0], strlen(indices[i][0])));
        assert_err(safetensors_open(dir, &s), indices[i][1]);
    }
    free(path);
    scratch_remove(dir);
}
