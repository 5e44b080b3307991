#include "data/indexed.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/indexed_format.h"

static const struct {
    const char *name;
    uint8_t size;
    bool is_float;
} DTYPES[] = {[INDEXED_U8] = {"uint8", 1, false},   [INDEXED_I8] = {"int8", 1, false},
              [INDEXED_I16] = {"int16", 2, false},  [INDEXED_I32] = {"int32", 4, false},
              [INDEXED_I64] = {"int64", 8, false},  [INDEXED_F64] = {"float64", 8, true},
              [INDEXED_F32] = {"float32", 4, true}, [INDEXED_U16] = {"uint16", 2, false}};

static bool known(IndexedDtype d) { return d >= INDEXED_U8 && d <= INDEXED_U16; }
size_t indexed_dtype_size(IndexedDtype d) { return known(d) ? DTYPES[d].size : 0; }
const char *indexed_dtype_name(IndexedDtype d) { return known(d) ? DTYPES[d].name : "unknown"; }
bool indexed_dtype_is_float(IndexedDtype d) { return known(d) && DTYPES[d].is_float; }

IndexedDtype indexed_dtype_for_vocab(int64_t vocab_size) {
    return vocab_size > 0 && vocab_size < 65500 ? INDEXED_U16 : INDEXED_I32;
}

static int64_t i64_at(const unsigned char *array, int64_t i) {
    int64_t v;
    memcpy(&v, array + 8 * i, sizeof v);
    return v;
}

static int32_t i32_at(const unsigned char *array, int64_t i) {
    int32_t v;
    memcpy(&v, array + 4 * i, sizeof v);
    return v;
}

/* Locates the arrays. Sizes are checked before they are multiplied, so that no product overflows. */
static Err read_header(IndexedDataset *d) {
    const unsigned char *p = d->idx.bytes;
    uint64_t size = d->idx.size;
    if (size < INDEXED_HEADER)
        return err_user("'%s.idx' is truncated: %" PRIu64
                        " bytes cannot hold the header; make the dataset again",
                        d->prefix, size);
    if (memcmp(p, INDEXED_MAGIC, sizeof INDEXED_MAGIC))
        return err_user(
            "'%s.idx' is not an index of an IndexedDataset (its magic number is wrong); check the path",
            d->prefix);
    uint64_t version = (uint64_t)i64_at(p + 9, 0), s = (uint64_t)i64_at(p + 18, 0),
             n = (uint64_t)i64_at(p + 26, 0);
    if (version != 1)
        return err_user("'%s.idx' has version %" PRIu64
                        ", but only version 1 is supported; make the dataset again",
                        d->prefix, version);
    d->dtype = (IndexedDtype)p[17];
    if (!known(d->dtype))
        return err_user(
            "'%s.idx' has the unknown dtype code %d (valid codes are 1 to 8); make the dataset again",
            d->prefix, p[17]);
    uint64_t rest = size - INDEXED_HEADER;
    if (n < 1 || s > rest / 12 || n > (rest - 12 * s) / 8)
        return err_user("'%s.idx' claims to have %" PRIu64 " sequences and %" PRIu64
                        " document entries, which do not match its size of %" PRIu64
                        " bytes; make the dataset again",
                        d->prefix, s, n, size);
    uint64_t modes = rest - 12 * s - 8 * n;
    if (modes && modes != s)
        return err_user("'%s.idx' has %" PRIu64 " bytes after its arrays, but the modes would need %" PRIu64
                        " bytes; make the dataset again",
                        d->prefix, modes, s);
    d->sequences = (int64_t)s, d->documents = (int64_t)n - 1;
    d->lengths = p + INDEXED_HEADER;
    d->offsets = d->lengths + 4 * s;
    d->starts = d->offsets + 8 * s;
    d->modes = modes ? (const int8_t *)(d->starts + 8 * n) : NULL;
    return ERR_OK;
}

static Err check_arrays(const IndexedDataset *d) {
    int64_t item = (int64_t)indexed_dtype_size(d->dtype), bin = (int64_t)d->bin.size;
    for (int64_t i = 0; i < d->sequences; i++) {
        int64_t length = i32_at(d->lengths, i), offset = i64_at(d->offsets, i);
        if (length < 0)
            return err_user("'%s.idx' assigns sequence %" PRId64 " the invalid length %" PRId64
                            "; make the dataset again",
                            d->prefix, i, length);
        if (offset < 0 || offset > bin || length * item > bin - offset)
            return err_user("sequence %" PRId64 " of '%s' (%" PRId64 " items at byte %" PRId64
                            ") lies outside the .bin file, which has %" PRId64
                            " bytes: one of the two files is truncated or belongs to another dataset",
                            i, d->prefix, length, offset, bin);
    }
    int64_t before = 0;
    for (int64_t i = 0; i <= d->documents; i++) {
        int64_t start = i64_at(d->starts, i);
        if (start < before || start > d->sequences || (i == 0 && start))
            return err_user("document entry %" PRId64 " of '%s.idx' is %" PRId64
                            ", but the entries must increase from 0 to the number of sequences, %" PRId64
                            "; make the dataset again",
                            i, d->prefix, start, d->sequences);
        before = start;
    }
    if (before != d->sequences)
        return err_user("the documents in '%s.idx' end at sequence %" PRId64 " instead of %" PRId64
                        "; make the dataset again",
                        d->prefix, before, d->sequences);
    return ERR_OK;
}

/* Rejects a prefix that ends with .bin or .idx, because both files share the prefix. */
static Err without_suffix(const char *prefix) {
    const size_t n = strlen(prefix);
    if (n < 4 || (strcmp(prefix + n - 4, ".bin") && strcmp(prefix + n - 4, ".idx"))) return ERR_OK;
    return err_user("'%s' is one of a dataset's two files; remove the suffix %s to name the dataset", prefix,
                    prefix + n - 4);
}

/* Suggests <prefix>_text_document, a name that isotron preprocess chooses, if that dataset exists. */
static Err with_key(const char *prefix) {
    char *idx = mem_printf("%s_text_document.idx", prefix);
    const bool there = file_exists(idx);
    free(idx);
    return there ? err_user("there is no '%s.idx': did you mean '%s_text_document'?", prefix, prefix)
                 : ERR_OK;
}

static Err map_pair(IndexedDataset *d) {
    char *idx = mem_printf("%s.idx", d->prefix), *bin = mem_printf("%s.bin", d->prefix);
    Err e = file_exists(idx) ? ERR_OK : without_suffix(d->prefix);
    if (!e.code && !file_exists(idx)) e = with_key(d->prefix);
    if (!e.code) e = file_map(idx, &d->idx);
    if (!e.code) e = file_map(bin, &d->bin);
    free(idx), free(bin);
    return e;
}

Err indexed_open(const char *prefix, IndexedDataset *out) {
    *out = (IndexedDataset){.prefix = mem_strdup(prefix)};
    Err e = map_pair(out);
    if (!e.code) e = read_header(out);
    if (!e.code) e = check_arrays(out);
    if (e.code) indexed_close(out);
    return e;
}

void indexed_close(IndexedDataset *d) {
    file_unmap(&d->idx);
    file_unmap(&d->bin);
    free(d->prefix);
    *d = (IndexedDataset){0};
}

int32_t indexed_length(const IndexedDataset *d, int64_t i) {
    CHECK(i >= 0 && i < d->sequences, "sequence %" PRId64 " of %" PRId64, i, d->sequences);
    return i32_at(d->lengths, i);
}

int64_t indexed_document(const IndexedDataset *d, int64_t i) {
    CHECK(i >= 0 && i <= d->documents, "document %" PRId64 " of %" PRId64, i, d->documents);
    return i64_at(d->starts, i);
}

const void *indexed_items(const IndexedDataset *d, int64_t i, int64_t begin, int64_t count) {
    int64_t length = indexed_length(d, i);
    CHECK(begin >= 0 && count >= 0 && begin <= length && count <= length - begin,
          "%" PRId64 " + %" PRId64 " items are beyond the end of a sequence of %" PRId64, begin, count,
          length);
    if (!count) return "";
    return d->bin.bytes + i64_at(d->offsets, i) + begin * (int64_t)indexed_dtype_size(d->dtype);
}

void indexed_tokens(const IndexedDataset *d, int64_t i, int64_t begin, int64_t count, int64_t *out) {
    CHECK(!indexed_dtype_is_float(d->dtype), "a dataset of %s values contains no tokens",
          indexed_dtype_name(d->dtype));
    const unsigned char *p = indexed_items(d, i, begin, count);
    size_t size = indexed_dtype_size(d->dtype);
    bool is_signed = d->dtype != INDEXED_U8 && d->dtype != INDEXED_U16;
    for (int64_t t = 0; t < count; t++) {
        uint64_t bits = 0;
        memcpy(&bits, p + (size_t)t * size, size);
        unsigned unused = 64 - 8 * (unsigned)size;
        out[t] = is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    }
}
