/* The safetensors format of Hugging Face: 8 bytes length of the header (little-endian); the header (a JSON
 * object: name -> dtype, shape, data_offsets; "__metadata__" -> texts); the bytes of all tensors without a
 * gap. Source: the format section of github.com/huggingface/safetensors. Files are untrusted. */
#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "tensor/tensor.h"

typedef struct SafeTensor {
    const char *name;
    Tensor tensor; /* contiguous; read-only in an opened file. A scalar has the shape [1] */
    /* NULL, or the name of a dtype that is not supported; `tensor` then has the raw bytes. */
    const char *unread;
} SafeTensor;

typedef struct MetaText {
    const char *key, *value;
} MetaText;

typedef struct Safetensors {
    const char *path;    /* as given */
    SafeTensor *tensors; /* sorted by name */
    int64_t count;
    MetaText *metadata; /* metadata of all files */
    int64_t num_metadata;
    struct SafeFile *files;
    int64_t num_files;
    Arena *arena;
} Safetensors;

/* Opens a .safetensors file, a .safetensors.index.json with its files in the same folder, or a folder that
 * holds either under the names model.safetensors and model.safetensors.index.json. The files stay mapped:
 * they must not change until safetensors_close. On an error *out is NULL. */
Err safetensors_open(const char *path, Safetensors **out);
void safetensors_close(Safetensors *);
/* NULL if there is none. */
const Tensor *safetensors_find(const Safetensors *, const char *name);
/* The dtype of a tensor that safetensors_find returned, as the file names it. */
const char *safetensors_dtype(const Tensor *);

/* Returns the bytes of tensors[i], valid until the next call: for tensors too large to hold all at once. */
typedef const void *SafeBytesFn(void *arg, int64_t i);
/* Replaces `path` atomically. Tensors are contiguous. With `bytes` their data is not read; the function is
 * called instead, in file order (widest dtype first, then by name, as the safetensors library writes). Equal
 * input gives equal bytes. */
Err safetensors_write(const char *path, const SafeTensor *tensors, int64_t count, const MetaText *metadata,
                      int64_t num_metadata, SafeBytesFn *bytes, void *arg);
