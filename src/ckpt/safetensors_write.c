#include "ckpt/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/durable_file.h"
#include "base/str.h"

enum { HEADER_ALIGN = 8 };

typedef struct Place {
    const SafeTensor *tensor;
    int64_t index;
} Place;

/* Widest first, so that everything is aligned; types of equal width in the library's order. */
static const unsigned char RANK[DTYPES] = {
    [I64] = 0, [F64] = 1, [F32] = 2, [I32] = 3, [BF16] = 4, [F16] = 5, [U8] = 6};

static int in_file_order(const void *a, const void *b) {
    const SafeTensor *x = ((const Place *)a)->tensor, *y = ((const Place *)b)->tensor;
    int order = RANK[x->tensor.dtype] - RANK[y->tensor.dtype];
    return order ? order : strcmp(x->name, y->name);
}

static void add_text(Str *out, const char *text) {
    json_t *json = json_string(text);
    CHECK(json, "a name is not UTF-8");
    char *quoted = json_dumps(json, JSON_ENCODE_ANY);
    str_puts(out, quoted);
    free(quoted);
    json_decref(json);
}

static void add_metadata(Str *out, const MetaText *metadata, int64_t n) {
    str_puts(out, "\"__metadata__\":{");
    for (int64_t i = 0; i < n; i++) {
        if (i) str_puts(out, ",");
        add_text(out, metadata[i].key);
        str_puts(out, ":");
        add_text(out, metadata[i].value);
    }
    str_puts(out, "}");
}

static int64_t add_tensor(Str *out, const SafeTensor *t, int64_t begin) {
    const Tensor *view = &t->tensor;
    int64_t end = begin + (int64_t)tensor_bytes(view);
    add_text(out, t->name);
    str_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name((DType)view->dtype));
    for (int d = 0; d < view->ndim; d++) str_printf(out, d ? ",%lld" : "%lld", (long long)view->dim[d]);
    str_printf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)end);
    return end;
}

Err safetensors_write(const char *path, const SafeTensor *tensors, int64_t count, const MetaText *metadata,
                      int64_t num_metadata, SafeBytesFn *bytes, void *arg) {
    Place *places = mem_zero((size_t)count + 1, sizeof *places);
    for (int64_t i = 0; i < count; i++) places[i] = (Place){&tensors[i], i};
    qsort(places, (size_t)count, sizeof *places, in_file_order);
    Str header = {0};
    str_puts(&header, "{");
    if (num_metadata) add_metadata(&header, metadata, num_metadata);
    int64_t end = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i || num_metadata) str_puts(&header, ",");
        end = add_tensor(&header, places[i].tensor, end);
    }
    str_puts(&header, "}");
    while (header.len % HEADER_ALIGN) str_puts(&header, " ");
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)header.len >> 8 * i);

    Sink sink;
    char *part = mem_printf("%s.tmp", path);
    Err e = sink_open(&sink, part);
    if (!e.code) e = sink_add(&sink, length, sizeof length);
    if (!e.code) e = sink_add(&sink, header.s, header.len);
    for (int64_t i = 0; i < count && !e.code; i++) {
        const Tensor *view = &places[i].tensor->tensor;
        e = sink_add(&sink, bytes ? bytes(arg, places[i].index) : view->data, tensor_bytes(view));
    }
    e = sink_replace(&sink, e, path);
    free(part);
    str_free(&header);
    free(places);
    return e;
}
