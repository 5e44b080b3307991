#include "ckpt/manifest.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEMA = 1, MOST_SHARDS = 1 << 16 /* maximum number of shards per part */ };

static const char TAIL[] = "\"xxh3_128\": \"", END[] = "\"}\n";
enum { TAIL_BYTES = sizeof TAIL - 1 + 32 + sizeof END - 1 };

bool box_intersect(const Box *a, const Box *b, Box *out) {
    for (int d = 0; d < 2; d++) {
        int64_t begin = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t end_a = a->offset[d] + a->shape[d], end_b = b->offset[d] + b->shape[d],
                end = end_a < end_b ? end_a : end_b;
        if (begin >= end) return false;
        out->offset[d] = begin;
        out->shape[d] = end - begin;
    }
    return true;
}

void manifest_init(Manifest *m, int64_t iteration) {
    *m = (Manifest){.iteration = iteration, .arena = arena_new()};
}

void manifest_free(Manifest *m) {
    free(m->tensors);
    free(m->files);
    json_decref(m->state);
    if (m->arena) arena_free(m->arena);
    *m = (Manifest){0};
}

CkptTensor *manifest_add(Manifest *m) {
    if (!(m->count & (m->count - 1))) /* the capacity doubles whenever the count reaches a power of two */
        m->tensors = mem_grow(m->tensors, (size_t)m->count * 2 + 1, sizeof *m->tensors);
    CkptTensor *t = &m->tensors[m->count++];
    *t = (CkptTensor){0};
    return t;
}

static int compare(const CkptTensor *a, const CkptTensor *b) {
    int c = strcmp(a->suffix, b->suffix);
    if (!c) c = strcmp(a->name, b->name);
    return c ? c : strcmp(a->part, b->part);
}

bool ckpt_same_part(const CkptTensor *a, const CkptTensor *b) { return !compare(a, b); }

int ckpt_tensor_order(const void *pa, const void *pb) {
    const CkptTensor *a = pa, *b = pb;
    int c = compare(a, b);
    for (int d = 0; d < 2 && !c; d++)
        c = a->box.offset[d] < b->box.offset[d] ? -1 : a->box.offset[d] > b->box.offset[d];
    return c;
}

TensorTitle ckpt_title(const CkptTensor *t) {
    TensorTitle title;
    char *name = mem_printf("%s%s", t->name, t->suffix);
    snprintf(title.s, sizeof title.s, "%s (%.60s)", quote(name).s, quote(t->part).s);
    free(name);
    return title;
}

/* ---- print ---- */

static void print_json(json_t *json, Str *out) {
    char *text = json_dumps(json, JSON_COMPACT);
    str_puts(out, text);
    free(text);
    json_decref(json);
}

static json_t *pair(const int64_t *v, int n) {
    return n == 2 ? json_pack("[I, I]", (json_int_t)v[0], (json_int_t)v[1])
                  : json_pack("[I]", (json_int_t)v[0]);
}

static void print_tensor(const CkptTensor *t, Str *out) {
    char hex[33];
    hash_hex(t->hash, hex);
    print_json(json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:s, s:i, s:I, s:I, s:s}", "name", t->name, "suffix",
                         t->suffix, "part", t->part, "global_shape", pair(t->global, t->ndim), "offset",
                         pair(t->box.offset, t->ndim), "shape", pair(t->box.shape, t->ndim), "dtype",
                         dtype_name(t->dtype), "file", t->file, "byte_offset", (json_int_t)t->byte_offset,
                         "bytes", (json_int_t)t->bytes, "xxh3_128", hex),
               out);
}

/* Prints the entries for this rank's tensors. Each entry ends with a comma, so that all ranks' entries can be
 * concatenated. */
void manifest_print_tensors(const Manifest *m, Str *out) {
    for (int64_t i = 0; i < m->count; i++) {
        str_puts(out, "\n ");
        print_tensor(&m->tensors[i], out);
        str_puts(out, ",");
    }
}

/* Assembles the manifest's text. `entries` contains all ranks' entries. The hash at the end covers all bytes
 * before the hash. */
void manifest_print(const Manifest *m, const char *entries, size_t n, Str *out) {
    char hex[33];
    size_t begin = out->len;
    str_printf(out, "{\"schema\": %d, \"iteration\": %lld,\n\"state\": ", SCHEMA, (long long)m->iteration);
    print_json(json_incref(m->state), out);
    str_puts(out, ",\n\"files\": [");
    for (int64_t i = 0; i < m->num_files; i++) {
        str_puts(out, i ? ",\n " : "\n ");
        print_json(json_pack("{s:s, s:I}", "name", m->files[i].name, "bytes", (json_int_t)m->files[i].bytes),
                   out);
    }
    str_puts(out, "],\n\"tensors\": [");
    str_add(out, entries, n ? n - 1 : 0); /* omits the last comma */
    str_puts(out, "],\n");
    hash_hex(hash128(out->s + begin, out->len - begin), hex);
    str_printf(out, "%s%s%s", TAIL, hex, END);
}

/* ---- parse ---- */

static Err bad(const char *path, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static Err bad(const char *path, const char *fmt, ...) {
    char what[800];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return err_user("'%s' is damaged: %s", path, what);
}

static bool get_size(const json_t *json, const char *key, int64_t *out) {
    const json_t *v = json_object_get(json, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = json_integer_value(v);
    return true;
}

static bool get_text(const json_t *json, const char *key, Arena *arena, const char **out) {
    const char *text = json_string_value(json_object_get(json, key));
    if (text) *out = arena_printf(arena, "%s", text);
    return text != NULL;
}

/* Reads a list of *ndim sizes. If *ndim is 0, the list may contain 1 or 2 sizes, and *ndim is set to their number. */
static bool get_pair(const json_t *json, const char *key, int *ndim, int64_t *out) {
    const json_t *list = json_object_get(json, key);
    size_t n = json_array_size(list);
    if (n < 1 || n > 2 || (*ndim && n != (size_t)*ndim)) return false;
    *ndim = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
        out[i] = json_integer_value(v);
    }
    return true;
}

static bool get_hash(const json_t *json, Hash128 *out) {
    const char *hex = json_string_value(json_object_get(json, "xxh3_128"));
    if (!hex || strlen(hex) != 32 || strspn(hex, "0123456789abcdef") != 32) return false;
    char half[17] = {0};
    memcpy(half, hex, 16);
    out->hi = strtoull(half, NULL, 16);
    out->lo = strtoull(hex + 16, NULL, 16);
    return true;
}

/* Checks that the stored box lies within the part, and that its bytes lie within the file and are aligned. */
static bool is_consistent(const CkptTensor *t, const Manifest *m) {
    int64_t elements, bytes, end;
    if (t->file < 0 || t->file >= m->num_files) return false;
    if (__builtin_mul_overflow(t->global[0], t->global[1], &elements)) return false;
    for (int d = 0; d < 2; d++)
        if (t->box.shape[d] < 1 || t->box.offset[d] > t->global[d] ||
            t->box.shape[d] > t->global[d] - t->box.offset[d])
            return false;
    if (__builtin_mul_overflow(t->box.shape[0] * t->box.shape[1], (int64_t)dtype_size(t->dtype), &bytes))
        return false;
    return bytes == t->bytes && !__builtin_add_overflow(t->byte_offset, bytes, &end) &&
           end <= m->files[t->file].bytes && t->byte_offset % CKPT_ALIGN == 0;
}

static Err parse_tensor(Manifest *m, const char *path, const json_t *json) {
    CkptTensor *t = manifest_add(m);
    int64_t file;
    t->global[1] = t->box.shape[1] = 1;
    if (!get_text(json, "name", m->arena, &t->name) || !get_text(json, "suffix", m->arena, &t->suffix) ||
        !get_text(json, "part", m->arena, &t->part))
        return bad(path, "entry %lld of its tensors lacks a name, suffix or part", (long long)m->count);
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    if (!get_pair(json, "global_shape", &t->ndim, t->global) ||
        !get_pair(json, "offset", &t->ndim, t->box.offset) ||
        !get_pair(json, "shape", &t->ndim, t->box.shape) || !get_size(json, "file", &file) ||
        file >= m->num_files || !get_size(json, "byte_offset", &t->byte_offset) ||
        !get_size(json, "bytes", &t->bytes) || !dtype || !dtype_parse(dtype, &t->dtype) ||
        !dtype_is_float(t->dtype) || !get_hash(json, &t->hash))
        return bad(path, "the entry of tensor %s is incomplete", ckpt_title(t).s);
    t->file = (int)file;
    if (!is_consistent(t, m))
        return bad(path, "shape, offset and bytes of tensor %s contradict each other", ckpt_title(t).s);
    return ERR_OK;
}

static Err parse_file(Manifest *m, const char *path, const json_t *json) {
    CkptFile *f = &m->files[m->num_files++];
    if (!get_text(json, "name", m->arena, &f->name) || !get_size(json, "bytes", &f->bytes) || !*f->name ||
        strchr(f->name, '/') || !strcmp(f->name, "..") || !strcmp(f->name, "."))
        return bad(path, "entry %lld of its files is not a file of this folder", (long long)m->num_files);
    return ERR_OK;
}

/* Checks that the n boxes of one part, ordered by offset, are disjoint and together cover the part. */
static Err check_cover(const char *path, const CkptTensor *t, int64_t n) {
    int64_t stored = 0;
    if (n > MOST_SHARDS)
        return bad(path, "tensor %s is cut into more than %d shards", ckpt_title(t).s, MOST_SHARDS);
    for (int64_t i = 0; i < n; i++) {
        Box both;
        if (t[i].global[0] != t->global[0] || t[i].global[1] != t->global[1] || t[i].ndim != t->ndim ||
            t[i].dtype != t->dtype)
            return bad(path, "the shards of tensor %s have different shapes or dtypes", ckpt_title(t).s);
        for (int64_t k = i + 1; k < n && t[k].box.offset[0] < t[i].box.offset[0] + t[i].box.shape[0]; k++)
            if (box_intersect(&t[i].box, &t[k].box, &both))
                return bad(path, "two shards of tensor %s overlap", ckpt_title(t).s);
        /* the sum cannot overflow, because the boxes are disjoint */
        stored += t[i].box.shape[0] * t[i].box.shape[1];
    }
    if (stored != t->global[0] * t->global[1]) return bad(path, "tensor %s is incomplete", ckpt_title(t).s);
    return ERR_OK;
}

static Err parse_lists(Manifest *m, const char *path, const json_t *root) {
    const json_t *files = json_object_get(root, "files"), *tensors = json_object_get(root, "tensors");
    if (!json_is_array(files) || !json_is_array(tensors))
        return bad(path, "the list of files or tensors is missing");
    m->files = mem_zero(json_array_size(files) + 1, sizeof *m->files);
    for (size_t i = 0; i < json_array_size(files); i++)
        ERR_RETURN(parse_file(m, path, json_array_get(files, i)));
    for (size_t i = 0; i < json_array_size(tensors); i++)
        ERR_RETURN(parse_tensor(m, path, json_array_get(tensors, i)));
    if (m->count) qsort(m->tensors, (size_t)m->count, sizeof *m->tensors, ckpt_tensor_order);
    for (int64_t i = 0, n; i < m->count; i += n) {
        for (n = 1; i + n < m->count && ckpt_same_part(&m->tensors[i], &m->tensors[i + n]);) n++;
        ERR_RETURN(check_cover(path, &m->tensors[i], n));
    }
    return ERR_OK;
}

static Err parse_root(Manifest *m, const char *path, const json_t *root) {
    int64_t schema;
    if (!get_size(root, "schema", &schema)) return bad(path, "there is no schema number");
    if (schema != SCHEMA)
        return err_user("'%s' has schema %lld, but this program reads schema %d; use the version of Isotron "
                        "that wrote the checkpoint",
                        path, (long long)schema, SCHEMA);
    m->state = json_incref(json_object_get(root, "state"));
    if (!get_size(root, "iteration", &m->iteration) || !json_is_object(m->state))
        return bad(path, "the iteration or state is missing");
    return parse_lists(m, path, root);
}

Err manifest_parse(Manifest *m, const char *path, const char *text, size_t n) {
    char tail[TAIL_BYTES + 1], hex[33];
    manifest_init(m, 0);
    if (n < TAIL_BYTES) return bad(path, "it ends too early");
    hash_hex(hash128(text, n - TAIL_BYTES), hex);
    snprintf(tail, sizeof tail, "%s%s%s", TAIL, hex, END);
    if (memcmp(text + n - TAIL_BYTES, tail, TAIL_BYTES))
        return bad(path, "the bytes do not match the hash at the end");
    json_error_t where;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    if (!root) return bad(path, "it is not JSON (line %d: %s)", where.line, quote(where.text).s);
    Err e = parse_root(m, path, root);
    json_decref(root);
    return e;
}
