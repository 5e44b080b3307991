#include "ckpt/safetensors.h"

#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_text.h"
#include "base/str.h"
#include "base/text.h"

enum { LENGTH_BYTES = 8, HEADER_LIMIT = 100000000 /* the format's limit */ };

typedef struct SafeFile {
    char *name; /* file name in the index's folder, or NULL if there is only one file */
    FileMap map;
} SafeFile;

typedef struct Entry {
    SafeTensor tensor;
    int64_t begin, end;
} Entry;

static Err bad(const char *path, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static Err bad(const char *path, const char *fmt, ...) {
    char what[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return err_user("'%s' is not a valid safetensors file: %s; copy or export it again", path, what);
}

/* ---- header ---- */

static Err read_integers(const json_t *list, int64_t *out, size_t *n, size_t most) {
    if (!json_is_array(list)) return err_user("is not a list");
    *n = json_array_size(list);
    if (*n > most) return err_user("has %zu entries; at most %zu are supported", *n, most);
    for (size_t i = 0; i < *n; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return err_user("has an element that is not a size");
        out[i] = json_integer_value(item);
    }
    return ERR_OK;
}

/* Computes the number of elements in a shape. Returns false if a stride or the number of elements would overflow. */
static bool count_elements(const int64_t *dim, size_t ndim, int64_t *out) {
    int64_t product = 1; /* product of the nonzero dimensions, to ensure that no stride overflows */
    *out = 1;
    for (size_t i = 0; i < ndim; i++) {
        if (__builtin_mul_overflow(product, dim[i] ? dim[i] : 1, &product)) return false;
        if (!dim[i]) *out = 0;
    }
    if (*out) *out = product;
    return true;
}

static Err read_entry(const char *path, const char *name, const json_t *json, Arena *arena, Entry *out) {
    const char *dtype_text = json_string_value(json_object_get(json, "dtype"));
    int64_t dim[TENSOR_DIMS] = {1}, offset[2], count, bytes;
    size_t ndim, offsets;
    DType dtype = U8;
    if (json_object_size(json) != 3 || !dtype_text)
        return bad(path, "tensor %s must have exactly dtype, shape and data_offsets", quote(name).s);
    const bool unread = !dtype_parse(dtype_text, &dtype) || dtype == F8E5M2 || dtype == I8;
    Err e = read_integers(json_object_get(json, "shape"), dim, &ndim, TENSOR_DIMS);
    if (e.code) return bad(path, "the shape of tensor %s %s", quote(name).s, e.msg);
    e = read_integers(json_object_get(json, "data_offsets"), offset, &offsets, 2);
    if (e.code || offsets != 2) return bad(path, "tensor %s does not have two data_offsets", quote(name).s);
    if (!count_elements(dim, ndim, &count) ||
        __builtin_mul_overflow(count, (int64_t)dtype_size(dtype), &bytes))
        return bad(path, "the shape of tensor %s is larger than any memory", quote(name).s);
    if (unread && offset[1] >= offset[0]) {
        bytes = dim[0] = offset[1] - offset[0];
        ndim = 1, dtype = U8;
        out->tensor.unread = arena_printf(arena, "%s", dtype_text);
    }
    if (offset[1] < offset[0] || offset[1] - offset[0] != bytes)
        return bad(path, "tensor %s needs %lld bytes, but its data_offsets are %lld and %lld", quote(name).s,
                   (long long)bytes, (long long)offset[0], (long long)offset[1]);
    out->tensor.name = arena_printf(arena, "%s", name);
    out->tensor.tensor = tensor_make(NULL, dtype, ndim ? (int)ndim : 1, dim);
    out->tensor.scalar = !ndim;
    out->begin = offset[0];
    out->end = offset[1];
    return ERR_OK;
}

static Err read_metadata(const char *path, json_t *json, Safetensors *s) {
    if (!json_is_object(json)) return bad(path, "__metadata__ is not an object");
    s->metadata =
        mem_grow(s->metadata, (size_t)s->num_metadata + json_object_size(json) + 1, sizeof *s->metadata);
    const char *key;
    json_t *value;
    json_object_foreach(json, key, value) {
        if (!json_is_string(value)) return bad(path, "__metadata__ entry %s is not a string", quote(key).s);
        s->metadata[s->num_metadata++] = (MetaText){arena_printf(s->arena, "%s", key),
                                                    arena_printf(s->arena, "%s", json_string_value(value))};
    }
    return ERR_OK;
}

static int by_place(const void *a, const void *b) {
    const Entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Sets the tensors' data, which must cover the `size` bytes after the header without gaps or overlaps. */
static Err place(const char *path, Safetensors *s, Entry *entries, size_t n, const unsigned char *base,
                 int64_t size) {
    qsort(entries, n, sizeof *entries, by_place);
    int64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        Entry *e = &entries[i];
        if (e->begin != end || e->end > size)
            return bad(path,
                       "tensor %s occupies bytes %lld to %lld, but it must begin at byte %lld, and the file "
                       "has %lld bytes of tensor data",
                       quote(e->tensor.name).s, (long long)e->begin, (long long)e->end, (long long)end,
                       (long long)size);
        end = e->end;
        Tensor *t = &e->tensor.tensor;
        t->data = (void *)(base + e->begin);
        /* the format allows unaligned tensors, but C does not */
        if ((uintptr_t)t->data % dtype_size((DType)t->dtype))
            t->data = memcpy(arena_alloc(s->arena, (size_t)(e->end - e->begin)), t->data,
                             (size_t)(e->end - e->begin));
    }
    if (end != size)
        return bad(path, "the tensors need %lld bytes, but the file has %lld bytes of tensor data",
                   (long long)end, (long long)size);
    s->tensors = mem_grow(s->tensors, (size_t)s->count + n + 1, sizeof *s->tensors);
    for (size_t i = 0; i < n; i++) s->tensors[s->count++] = entries[i].tensor;
    return ERR_OK;
}

static Err read_header(const char *path, Safetensors *s, json_t *root, const unsigned char *base,
                       int64_t size) {
    Entry *entries = mem_zero(json_object_size(root) + 1, sizeof *entries);
    size_t n = 0;
    Err e = ERR_OK;
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        e = strcmp(key, "__metadata__") ? read_entry(path, key, value, s->arena, &entries[n++])
                                        : read_metadata(path, value, s);
        if (e.code) break;
    }
    if (!e.code) e = place(path, s, entries, n, base, size);
    free(entries);
    return e;
}

static Err add_file(Safetensors *s, const char *path, FileMap map) {
    if (map.size < LENGTH_BYTES) return bad(path, "the file has only %zu bytes", map.size);
    ERR_RETURN(text_check_pointer(path, (const char *)map.bytes, map.size));
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | map.bytes[i];
    if (length > HEADER_LIMIT)
        return bad(path, "the header would have %llu bytes, but the format allows %d",
                   (unsigned long long)length, HEADER_LIMIT);
    if (length > map.size - LENGTH_BYTES)
        return bad(path, "the header of %llu bytes does not fit into the file's %zu bytes",
                   (unsigned long long)length, map.size);
    const char *header = (const char *)map.bytes + LENGTH_BYTES;
    json_error_t where;
    json_t *root = json_loadb(header, (size_t)length, JSON_REJECT_DUPLICATES, &where);
    if (!root) return bad(path, "the header is not JSON with unique names (%s)", quote(where.text).s);
    Err e = json_is_object(root) && *header == '{'
                ? read_header(path, s, root, map.bytes + LENGTH_BYTES + length,
                              (int64_t)(map.size - LENGTH_BYTES - length))
                : bad(path, "the header is not a JSON object");
    json_decref(root);
    return e;
}

/* ---- files ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

static Err open_one(Safetensors *s, const char *path, const char *name) {
    s->files = mem_grow(s->files, (size_t)s->num_files + 1, sizeof *s->files);
    SafeFile *file = &s->files[s->num_files];
    ERR_RETURN(file_map(path, &file->map));
    file->name = name ? arena_printf(s->arena, "%s", name) : NULL;
    s->num_files++;
    return add_file(s, path, file->map);
}

static bool is_open(const Safetensors *s, const char *name) {
    for (int64_t i = 0; i < s->num_files; i++)
        if (!strcmp(s->files[i].name, name)) return true;
    return false;
}

void safetensors_sort(Safetensors *s) {
    if (s->count) qsort(s->tensors, (size_t)s->count, sizeof *s->tensors, by_name);
}

/* Opens the files that the index {"weight_map": {tensor: file}} lists. They must contain exactly the tensors in the
 * index. */
static Err open_mapped(Safetensors *s, const char *path, const json_t *map) {
    if (!json_object_size(map)) return err_user("'%s' has no weight_map; download it again", path);
    const char *slash = strrchr(path, '/'), *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        const char *file = json_string_value(value);
        if (!file || !*file || strchr(file, '/'))
            return err_user(
                "'%s': weight_map must map tensor %s to a file in the same folder; download it again", path,
                quote(tensor).s);
        if (is_open(s, file)) continue;
        ERR_RETURN(open_one(
            s, arena_printf(s->arena, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, file), file));
    }
    safetensors_sort(s);
    json_object_foreach((json_t *)map, tensor, value) {
        if (!safetensors_find(s, tensor))
            return err_user("'%s' lists tensor %s, but no file contains it; download the folder again", path,
                            quote(tensor).s);
    }
    if ((int64_t)json_object_size(map) != s->count)
        return err_user("'%s' lists %zu tensors, but the files contain %lld; download the folder again", path,
                        json_object_size(map), (long long)s->count);
    return ERR_OK;
}

static Err open_index(Safetensors *s, const char *path) {
    Str text = {0};
    json_error_t where;
    Err e = file_read(path, &text);
    json_text_numbers(&text);
    if (!e.code) {
        json_t *root = json_loadb(text.s, text.len, JSON_REJECT_DUPLICATES, &where);
        e = root ? open_mapped(s, path, json_object_get(root, "weight_map"))
                 : err_user("'%s' is not JSON (line %d: %s); download it again", path, where.line,
                            quote(where.text).s);
        json_decref(root);
    }
    str_free(&text);
    return e;
}

static Err open_path(Safetensors *s, const char *path) {
    if (file_is_dir(path)) {
        const char *single = arena_printf(s->arena, "%s/model.safetensors", path);
        const char *index = arena_printf(s->arena, "%s/model.safetensors.index.json", path);
        if (file_exists(single))
            path = single;
        else if (file_exists(index))
            path = index;
        else
            return err_user("'%s' contains neither model.safetensors nor model.safetensors.index.json", path);
    }
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".json") ? open_index(s, path) : open_one(s, path, NULL);
}

Err safetensors_open(const char *path, Safetensors **out) {
    *out = NULL;
    Safetensors *s = mem_zero(1, sizeof *s);
    s->arena = arena_new();
    s->path = arena_printf(s->arena, "%s", path);
    Err e = open_path(s, path);
    safetensors_sort(s);
    for (int64_t i = 1; i < s->count && !e.code; i++)
        if (!by_name(&s->tensors[i - 1], &s->tensors[i]))
            e = err_user("'%s': two files contain tensor %s; download the folder again", path,
                         quote(s->tensors[i].name).s);
    if (e.code)
        safetensors_close(s);
    else
        *out = s;
    return e;
}

void safetensors_close(Safetensors *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->num_files; i++) file_unmap(&s->files[i].map);
    free(s->files);
    free(s->tensors);
    free(s->metadata);
    arena_free(s->arena);
    free(s);
}

const Tensor *safetensors_find(const Safetensors *s, const char *name) {
    SafeTensor key = {.name = name};
    SafeTensor *found = s->count ? bsearch(&key, s->tensors, (size_t)s->count, sizeof key, by_name) : NULL;
    return found ? &found->tensor : NULL;
}

const char *safetensors_dtype(const Tensor *t) {
    const SafeTensor *of = (const void *)((const char *)t - offsetof(SafeTensor, tensor));
    return of->unread ? of->unread : dtype_name((DType)t->dtype);
}
