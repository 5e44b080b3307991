#include "data/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

static const struct {
    const char *descr;
    size_t size;
} TYPES[] = {[NPY_I16] = {"<i2", 2}, [NPY_I32] = {"<i4", 4}, [NPY_U32] = {"<u4", 4}, [NPY_I64] = {"<i8", 8}};

enum {
    TYPE_COUNT = sizeof TYPES / sizeof *TYPES,
    PREFIX = 10,
    ALIGN = 64,
    HEADER_MAX = 256,
    GROWTH_DIGITS = 21
};

/* Writes the header as numpy does. numpy reserves 21 digits for the first dimension, so that the array can
 * grow in place, and then pads the header with spaces and '\n'. */
static size_t make_header(char out[HEADER_MAX], NpyType type, int64_t rows, int64_t columns) {
    char shape[64], count[32];
    int digits = snprintf(count, sizeof count, "%" PRId64, rows);
    if (columns)
        snprintf(shape, sizeof shape, "%s, %" PRId64, count, columns);
    else
        snprintf(shape, sizeof shape, "%s,", count);
    int used = snprintf(out + PREFIX, HEADER_MAX - PREFIX,
                        "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }%*s", TYPES[type].descr,
                        shape, GROWTH_DIGITS - digits, "");
    size_t total = (PREFIX + (size_t)used + 1 + ALIGN - 1) / ALIGN * ALIGN, length = total - PREFIX;
    CHECK(total <= HEADER_MAX, "a .npy header of %zu bytes is too long", total);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (char)(length & 255), out[9] = (char)(length >> 8);
    memset(out + PREFIX + used, ' ', length - (size_t)used);
    out[total - 1] = '\n';
    return total;
}

NpyArray npy_new(NpyType type, int64_t rows, int64_t columns) {
    CHECK(rows >= 0 && columns >= 0, "an array cannot have the size %" PRId64 " x %" PRId64, rows, columns);
    char header[HEADER_MAX];
    size_t start = make_header(header, type, rows, columns), bytes;
    bool overflow = __builtin_mul_overflow((size_t)rows, (size_t)(columns ? columns : 1), &bytes) ||
                    __builtin_mul_overflow(bytes, TYPES[type].size, &bytes) || bytes > SIZE_MAX / 2;
    CHECK(!overflow, "size overflow: an array of %" PRId64 " x %" PRId64, rows, columns);
    NpyArray a = {.type = type, .rows = rows, .columns = columns, .image_size = start + bytes};
    a.image = mem_aligned(a.image_size);
    memcpy(a.image, header, start);
    a.data = a.image + start;
    return a;
}

/* The dict as numpy writes it, with numpy's order of keys. The shape "(3,)" has one dimension, and "(3, 2)" has two. */
#define DICT "{'descr': '%3[<iu0-9]', 'fortran_order': False, 'shape': (%18" SCNd64 ","
static bool parse_header(const char *text, NpyArray *out) {
    char descr[4] = "";
    int64_t rows = -1, columns = 0;
    int end = 0;
    sscanf(text, DICT "), }%n", descr, &rows, &end);
    if (!end) sscanf(text, DICT " %18" SCNd64 "), }%n", descr, &rows, &columns, &end);
    if (!end || rows < 0 || columns < 0) return false;
    for (int t = 0; t < TYPE_COUNT; t++)
        if (!strcmp(descr, TYPES[t].descr)) {
            out->type = (NpyType)t, out->rows = rows, out->columns = columns;
            return true;
        }
    return false;
}

static Err read_header(const char *path, NpyArray *a) {
    const unsigned char *p = a->map.bytes;
    size_t size = a->map.size;
    if (size < PREFIX || memcmp(p, "\x93NUMPY\x01\x00", 8))
        return err_user("'%s' is not a version 1.0 .npy file; delete it", path);
    size_t length = p[8] | (size_t)p[9] << 8, start = PREFIX + length, bytes;
    char header[HEADER_MAX] = "";
    if (size < start || length >= sizeof header)
        return err_user("the header of '%s' is truncated; delete it", path);
    memcpy(header, p + PREFIX, length);
    if (!parse_header(header, a))
        return err_user(
            "'%s' does not contain an array of int16, int32, uint32 or int64 in row order; delete it", path);
    if (__builtin_mul_overflow((size_t)a->rows, (size_t)(a->columns ? a->columns : 1), &bytes) ||
        __builtin_mul_overflow(bytes, TYPES[a->type].size, &bytes) || bytes != size - start || start % 8)
        return err_user("'%s' is damaged: its header claims %" PRId64
                        " rows, but the file has %zu bytes; delete it",
                        path, a->rows, size);
    a->data = (void *)(p + start);
    return ERR_OK;
}

Err npy_open(const char *path, NpyArray *out) {
    *out = (NpyArray){0};
    ERR_RETURN(file_map(path, &out->map));
    Err e = read_header(path, out);
    if (e.code) npy_free(out);
    return e;
}

Err npy_save(const char *path, const NpyArray *a) {
    CHECK(a->image, "'%s': an array that npy_open has mapped cannot be saved", path);
    return file_write_atomic(path, a->image, a->image_size);
}

void npy_free(NpyArray *a) {
    free(a->image);
    file_unmap(&a->map);
    *a = (NpyArray){0};
}

int64_t npy_at(const NpyArray *a, int64_t i) {
    CHECK(i >= 0 && i < a->rows, "element %" PRId64 " of %" PRId64, i, a->rows);
    switch (a->type) {
    case NPY_I16:
        return ((const int16_t *)a->data)[i];
    case NPY_I32:
        return ((const int32_t *)a->data)[i];
    case NPY_U32:
        return ((const uint32_t *)a->data)[i];
    default:
        return ((const int64_t *)a->data)[i];
    }
}
