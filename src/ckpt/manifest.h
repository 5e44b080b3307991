/* manifest.json lists the boxes of all tensors, and the checkpoint file that contains each box.
 *
 *     {"schema": 1, "iteration": 20, "state": {...},
 *      "files": [{"name": "shard_00000.bin", "bytes": 4096}],
 *      "tensors": [
 *       {"name": "decoder.layers.0.self_attention.linear_qkv.weight", "suffix": ".exp_avg", "part": "q",
 *        "global_shape": [36, 36], "offset": [0, 0], "shape": [36, 36], "dtype": "F32", "file": 0,
 *        "byte_offset": 0, "bytes": 5184, "xxh3_128": "..."}], "xxh3_128": "..."}
 *
 * The last hash covers all bytes in the manifest before that hash's line. The parts of a fused parameter, such as q, k
 * and v, are stored separately. Each part consists of the rows of all query groups in sequence, without padding rows. A
 * box within a part therefore has the same meaning in every parallel layout. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "param/param.h"

/* Computes the intersection of two boxes; returns false if the intersection is empty. */
bool box_intersect(const Box *, const Box *, Box *out);

typedef struct CkptTensor {
    /* the parameter's name; "" or, for optimizer state, ".exp_avg", ...; "whole", "q", ... */
    const char *name, *suffix, *part;
    int ndim;          /* 1 or 2 */
    int64_t global[2]; /* shape of the full part; the second size is 1 for a vector */
    Box box;           /* the stored box, row-major */
    DType dtype;       /* a floating-point type */
    int file;
    int64_t byte_offset, bytes;
    Hash128 hash; /* the hash of the bytes */
} CkptTensor;

typedef struct CkptFile {
    const char *name;
    int64_t bytes;
} CkptFile;

typedef struct Manifest {
    int64_t iteration;
    CkptTensor *tensors; /* [count]; manifest_add grows it; manifest_parse sorts it by ckpt_tensor_order */
    int64_t count;
    CkptFile *files;
    int64_t num_files;
    json_t *state; /* a JSON object (owned) */
    Arena *arena;  /* owns all strings */
} Manifest;

enum { CKPT_ALIGN = 64 };

void manifest_init(Manifest *, int64_t iteration);
void manifest_free(Manifest *);
CkptTensor *manifest_add(Manifest *);
/* Appends the list entries for all tensors in this manifest, which must contain only this rank's tensors. */
void manifest_print_tensors(const Manifest *, Str *out);
/* Appends the text of manifest.json. `entries` (n characters) is the concatenation of what manifest_print_tensors
 * appended on all ranks. */
void manifest_print(const Manifest *, const char *entries, size_t n, Str *out);
/* Parses untrusted text. On success, all strings, shapes, offsets and sizes are consistent, each part's boxes cover the
 * part exactly once, and no size overflows. `path` appears in error messages. Call manifest_free even after an
 * error. */
Err manifest_parse(Manifest *out, const char *path, const char *text, size_t n);

/* Compares two tensors by (suffix, name, part, offset). For use with qsort. */
int ckpt_tensor_order(const void *, const void *);
bool ckpt_same_part(const CkptTensor *, const CkptTensor *);
/* Describes a tensor in error messages: "'decoder.final_layernorm.weight.exp_avg' (whole)". */
typedef struct TensorTitle {
    char s[360];
} TensorTitle;
TensorTitle ckpt_title(const CkptTensor *);
