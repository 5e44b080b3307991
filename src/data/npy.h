/* Arrays in numpy's .npy format, version 1.0 (numpy/lib/format.py): "\x93NUMPY", the version, a 16-bit header
 * length and a Python dict of descr, fortran_order and shape, padded so that the data starts at a multiple of
 * 64 bytes. Only what Megatron-LM's index caches need: little-endian int16, int32, uint32 and int64 in one or
 * two dimensions. */
#ifndef ISOTRON_DATA_NPY_H
#define ISOTRON_DATA_NPY_H

#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

typedef enum NpyType { NPY_I16, NPY_I32, NPY_U32, NPY_I64 } NpyType;

/* An array is the image of its file, in memory that it owns (npy_new) or in a map (npy_open): saving is one
 * write. */
typedef struct NpyArray {
    void *data; /* row-major; read-only if it came from npy_open */
    NpyType type;
    int64_t rows, columns; /* columns 0: one dimension of `rows` */
    unsigned char *image;  /* owned, NULL if mapped */
    size_t image_size;
    FileMap map;
} NpyArray;

/* Data uninitialised. */
NpyArray npy_new(NpyType, int64_t rows, int64_t columns);
/* Maps a file; a user error says what is wrong with it if it is not exactly such an array (magic, header,
 * type, size). */
Err npy_open(const char *path, NpyArray *out);
/* Writes an array of npy_new, atomically. */
Err npy_save(const char *path, const NpyArray *);
void npy_free(NpyArray *);
/* Element i of a one-dimensional integer array, whatever its type. */
int64_t npy_at(const NpyArray *, int64_t i);

#endif
