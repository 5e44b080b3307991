/* Writes the .bin file continuously, and keeps lengths and document entries in memory, as Megatron-LM's
 * IndexedDatasetBuilder does. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/durable_file.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/indexed.h"
#include "data/indexed_format.h"

struct IndexedBuilder {
    char *bin, *idx, *bin_tmp, *idx_tmp;
    IndexedDtype dtype;
    Sink out; /* the writer of bin_tmp */
    int32_t *lengths;
    int8_t *modes;
    int64_t sequences, cap;
    int64_t *starts;
    int64_t entries, starts_cap;
    bool has_modes;
};

static void push_start(IndexedBuilder *b) {
    if (b->entries == b->starts_cap) {
        b->starts_cap = b->starts_cap ? 2 * b->starts_cap : 1024;
        b->starts = mem_grow(b->starts, (size_t)b->starts_cap, sizeof *b->starts);
    }
    b->starts[b->entries++] = b->sequences;
}

static void push_length(IndexedBuilder *b, int32_t length) {
    if (b->sequences == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 1024;
        b->lengths = mem_grow(b->lengths, (size_t)b->cap, sizeof *b->lengths);
        b->modes = mem_grow(b->modes, (size_t)b->cap, 1);
    }
    b->lengths[b->sequences] = length;
    b->modes[b->sequences++] = 0;
}

static void release(IndexedBuilder *b) {
    free(b->bin), free(b->idx), free(b->bin_tmp), free(b->idx_tmp);
    free(b->lengths), free(b->modes), free(b->starts), free(b);
}

Err indexed_builder_open(const char *prefix, IndexedDtype dtype, IndexedBuilder **out) {
    CHECK(indexed_dtype_size(dtype), "dtype code %d", (int)dtype);
    IndexedBuilder *b = mem_zero(1, sizeof *b);
    b->dtype = dtype;
    b->bin = mem_printf("%s.bin", prefix), b->idx = mem_printf("%s.idx", prefix);
    b->bin_tmp = mem_printf("%s.tmp.%ld", b->bin, (long)getpid());
    b->idx_tmp = mem_printf("%s.tmp.%ld", b->idx, (long)getpid());
    push_start(b);
    *out = b;
    Err e = sink_open(&b->out, b->bin_tmp);
    if (!e.code) return ERR_OK;
    indexed_builder_abort(b);
    *out = NULL;
    return e;
}

static Err write_items(Sink *to, const void *items, size_t size, int64_t count) {
    return sink_add(to, items, size * (size_t)count);
}

static Err check_length(const IndexedBuilder *b, int64_t count) {
    CHECK(count >= 0, "a sequence of %" PRId64 " items", count);
    if (count <= INT32_MAX) return ERR_OK;
    return err_user("a sequence of %" PRId64
                    " tokens for '%s' is longer than the format's limit of 2147483647; split the document",
                    count, b->bin);
}

Err indexed_builder_add(IndexedBuilder *b, const void *items, int64_t count) {
    ERR_RETURN(check_length(b, count));
    ERR_RETURN(write_items(&b->out, items, indexed_dtype_size(b->dtype), count));
    push_length(b, (int32_t)count);
    return ERR_OK;
}

/* Returns whether an integer dtype can represent the id. */
static bool fits(IndexedDtype dtype, int32_t id) {
    switch (dtype) {
    case INDEXED_U8:
        return id >= 0 && id <= UINT8_MAX;
    case INDEXED_I8:
        return id >= INT8_MIN && id <= INT8_MAX;
    case INDEXED_I16:
        return id >= INT16_MIN && id <= INT16_MAX;
    case INDEXED_U16:
        return id >= 0 && id <= UINT16_MAX;
    default:
        return true;
    }
}

Err indexed_builder_add_tokens(IndexedBuilder *b, const int32_t *tokens, int64_t count) {
    CHECK(!indexed_dtype_is_float(b->dtype), "a dataset of %s values cannot store tokens",
          indexed_dtype_name(b->dtype));
    ERR_RETURN(check_length(b, count));
    enum { BLOCK = 4096 };
    int64_t wide[BLOCK];
    unsigned char narrow[BLOCK * 8];
    size_t size = indexed_dtype_size(b->dtype);
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t n = count - done < BLOCK ? count - done : BLOCK;
        for (int64_t i = 0; i < n; i++) {
            wide[i] = tokens[done + i];
            if (!fits(b->dtype, tokens[done + i]))
                return err_user("token id %d does not fit into the dtype %s of '%s'; the tokenizer's "
                                "vocabulary size is too small for its ids",
                                tokens[done + i], indexed_dtype_name(b->dtype), b->bin);
            /* on a little-endian machine, the low bytes come first */
            memcpy(narrow + (size_t)i * size, &wide[i], size);
        }
        ERR_RETURN(write_items(&b->out, narrow, size, n));
    }
    push_length(b, (int32_t)count);
    return ERR_OK;
}

void indexed_builder_set_mode(IndexedBuilder *b, int8_t mode) {
    CHECK(b->sequences > 0, "the mode %d has no sequence", mode);
    b->modes[b->sequences - 1] = mode;
    b->has_modes = true;
}

void indexed_builder_end_document(IndexedBuilder *b) { push_start(b); }

Err indexed_builder_add_index(IndexedBuilder *b, const char *prefix) {
    IndexedDataset d;
    ERR_RETURN(indexed_open(prefix, &d));
    Err e = ERR_OK;
    if (d.dtype != b->dtype)
        e = err_user("'%s' has the dtype %s, but the previous datasets have %s; only datasets with the same "
                     "dtype can be merged",
                     prefix, indexed_dtype_name(d.dtype), indexed_dtype_name(b->dtype));
    int64_t document = 1;
    for (int64_t i = 0; !e.code && i <= d.sequences; i++) {
        for (; document <= d.documents && indexed_document(&d, document) == i; document++)
            indexed_builder_end_document(b);
        if (i == d.sequences) break;
        int32_t length = indexed_length(&d, i);
        e = indexed_builder_add(b, indexed_items(&d, i, 0, length), length);
        if (d.modes) indexed_builder_set_mode(b, d.modes[i]);
    }
    indexed_close(&d);
    return e;
}

Err indexed_builder_take(IndexedBuilder *b, IndexedBuilder *from) {
    CHECK(b->dtype == from->dtype && !from->has_modes, "%s of %s", indexed_dtype_name(from->dtype),
          indexed_dtype_name(b->dtype));
    FileMap items = {0};
    Err e = sink_flush(&from->out);
    if (!e.code) e = file_map(from->bin_tmp, &items);
    if (!e.code) e = write_items(&b->out, items.bytes, 1, (int64_t)items.size);
    for (int64_t i = 0, entry = 1; i <= from->sequences && !e.code; i++) {
        for (; entry < from->entries && from->starts[entry] == i; entry++) push_start(b);
        if (i < from->sequences) push_length(b, from->lengths[i]);
    }
    file_unmap(&items);
    indexed_builder_abort(from);
    return e;
}

static Err write_index(const IndexedBuilder *b, Sink *to) {
    unsigned char header[INDEXED_HEADER];
    uint64_t version = 1, sequences = (uint64_t)b->sequences, entries = (uint64_t)b->entries;
    memcpy(header, INDEXED_MAGIC, sizeof INDEXED_MAGIC);
    memcpy(header + 9, &version, 8);
    header[17] = (unsigned char)b->dtype;
    memcpy(header + 18, &sequences, 8);
    memcpy(header + 26, &entries, 8);
    ERR_RETURN(write_items(to, header, 1, sizeof header));
    ERR_RETURN(write_items(to, b->lengths, 4, b->sequences));
    int64_t offset = 0;
    for (int64_t i = 0; i < b->sequences; i++) {
        ERR_RETURN(write_items(to, &offset, 8, 1));
        offset += b->lengths[i] * (int64_t)indexed_dtype_size(b->dtype);
    }
    ERR_RETURN(write_items(to, b->starts, 8, b->entries));
    return b->has_modes ? write_items(to, b->modes, 1, b->sequences) : ERR_OK;
}

/* Removes an old .idx first and renames the new .idx last. Each step is durable before the next step begins, so an
 * index never belongs to another dataset's .bin. */
static Err publish(const IndexedBuilder *b) {
    ERR_RETURN(file_remove(b->idx));
    ERR_RETURN(file_rename(b->bin_tmp, b->bin));
    return file_rename(b->idx_tmp, b->idx);
}

Err indexed_builder_finalize(IndexedBuilder *b) {
    Sink idx;
    Err e = sink_open(&idx, b->idx_tmp);
    if (!e.code) e = write_index(b, &idx);
    e = sink_close(&idx, e);
    e = sink_close(&b->out, e);
    if (!e.code) e = publish(b);
    if (e.code)
        indexed_builder_abort(b);
    else
        release(b);
    return e;
}

void indexed_builder_unlink(const IndexedBuilder *b) {
    if (!b) return;
    unlink(b->bin_tmp);
    unlink(b->idx_tmp);
}

void indexed_builder_abort(IndexedBuilder *b) {
    if (!b) return;
    sink_discard(&b->out);
    indexed_builder_unlink(b);
    release(b);
}

bool indexed_is_part(const char *prefix, const char *path) {
    char *bin = mem_printf("%s.bin", prefix), *idx = mem_printf("%s.idx", prefix);
    const bool is_part = file_is_same(bin, path) || file_is_same(idx, path);
    free(bin), free(idx);
    return is_part;
}

Err indexed_check_target(const char *prefix, bool overwrite) {
    char *bin = mem_printf("%s.bin", prefix), *idx = mem_printf("%s.idx", prefix);
    const char *there = file_exists(bin) ? bin : file_exists(idx) ? idx : NULL;
    Err e = ERR_OK;
    if (there && !overwrite)
        e = err_user("'%s' exists: use another --output-prefix, or add --overwrite to replace it", there);
    if (!e.code) e = file_check_target(bin);
    free(bin), free(idx);
    return e;
}
