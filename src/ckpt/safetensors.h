/* Hugging Face's safetensors format. A file consists of the header's length (8 bytes, little-endian), the header (a
 * JSON object: name -> dtype, shape, data_offsets; "__metadata__" -> strings), and the bytes of all tensors without
 * gaps. Source: the format section of github.com/huggingface/safetensors. Files are untrusted. */
#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "tensor/tensor.h"

typedef struct SafeTensor {
    const char *name;
    Tensor tensor; /* contiguous; read-only after safetensors_open. A scalar has the shape [1] */
    bool scalar;   /* whether the tensor has no dimensions in the file */
    /* The name of an unsupported dtype; `tensor` then contains the raw bytes. NULL if the dtype is supported. */
    const char *unread;
} SafeTensor;

typedef struct MetaText {
    const char *key, *value;
} MetaText;

typedef struct Safetensors {
    const char *path;    /* the path that was opened */
    SafeTensor *tensors; /* the tensors, sorted by name */
    int64_t count;
    MetaText *metadata; /* the metadata of all files */
    int64_t num_metadata;
    struct SafeFile *files;
    int64_t num_files;
    Arena *arena;
} Safetensors;

/* Opens a .safetensors file, a .safetensors.index.json whose files are in the same folder, or a folder that contains
 * model.safetensors or model.safetensors.index.json. The files are mapped and must not change until safetensors_close.
 * After an error, *out is NULL. */
Err safetensors_open(const char *path, Safetensors **out);
void safetensors_close(Safetensors *);
/* Sorts the tensors by name. Call this function after you change `tensors`. */
void safetensors_sort(Safetensors *);
/* Returns the tensor with this name, or NULL if there is none. */
const Tensor *safetensors_find(const Safetensors *, const char *name);
/* Returns the name that the file uses for a tensor's dtype. safetensors_find must have returned the tensor. */
const char *safetensors_dtype(const Tensor *);

/* Returns the bytes of tensors[i], which are valid until the next call. Such a function makes it possible to write a
 * file whose tensors do not all fit in memory. */
typedef const void *SafeBytesFn(void *arg, int64_t i);
/* Writes a file and replaces `path` atomically. Tensors must be contiguous. If `bytes` is not NULL, it provides the
 * tensors' data. Tensors are written in the safetensors library's order: widest dtype first, then by name. The same
 * input always produces a byte-identical file. */
Err safetensors_write(const char *path, const SafeTensor *tensors, int64_t count, const MetaText *metadata,
                      int64_t num_metadata, SafeBytesFn *bytes, void *arg);
