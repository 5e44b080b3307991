#include "ckpt/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/durable_file.h"
#include "base/fault.h"
#include "base/str.h"

enum { HEADER_ALIGN = 8 };

typedef struct Place {
    const SafeTensor *tensor;
    int64_t index;
} Place;

/* The order of dtypes in a file. The widest dtype is first, so that all tensors are aligned. Types of equal width are
 * in the safetensors library's order. */
static const unsigned char RANK[DTYPES] = {
    [I64] = 0, [F64] = 1, [F32] = 2, [I32] = 3, [BF16] = 4, [F16] = 5, [U8] = 6};

static int in_file_order(const void *a, const void *b) {
    const SafeTensor *x = ((const Place *)a)->tensor, *y = ((const Place *)b)->tensor;
    int order = RANK[x->tensor.dtype] - RANK[y->tensor.dtype];
    return order ? order : strcmp(x->name, y->name);
}

/* Returns the header's text, which the caller must free. */
static char *header_text(const Place *places, int64_t count, const MetaText *metadata, int64_t num_metadata) {
    json_t *header = json_object(), *meta = json_object();
    int refused = 0;
    for (int64_t i = 0; i < num_metadata; i++)
        refused |= json_object_set_new(meta, metadata[i].key, json_string(metadata[i].value));
    if (num_metadata) json_object_set(header, "__metadata__", meta);
    for (int64_t i = 0, begin = 0, end; i < count; i++, begin = end) {
        const Tensor *t = &places[i].tensor->tensor;
        json_t *shape = json_array();
        for (int d = 0; d < t->ndim && !places[i].tensor->scalar; d++)
            json_array_append_new(shape, json_integer(t->dim[d]));
        end = begin + (int64_t)tensor_bytes(t);
        refused |= json_object_set_new(header, places[i].tensor->name,
                                       json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name((DType)t->dtype),
                                                 "shape", shape, "data_offsets", (json_int_t)begin,
                                                 (json_int_t)end));
    }
    CHECK(!refused && json_object_size(header) == (size_t)(count + (num_metadata > 0)),
          "a name is not UTF-8, or two tensors have the same name");
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header), json_decref(meta);
    return text;
}

Err safetensors_write(const char *path, const SafeTensor *tensors, int64_t count, const MetaText *metadata,
                      int64_t num_metadata, SafeBytesFn *bytes, void *arg) {
    Place *places = mem_zero((size_t)count + 1, sizeof *places);
    for (int64_t i = 0; i < count; i++) places[i] = (Place){&tensors[i], i};
    qsort(places, (size_t)count, sizeof *places, in_file_order);
    Str header = {0};
    char *text = header_text(places, count, metadata, num_metadata);
    str_puts(&header, text);
    free(text);
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
