/* Arrays in numpy's .npy format, version 1.0 (numpy/lib/format.py): "\x93NUMPY", the version, a 16-bit header length,
 * and a Python dict with the keys descr, fortran_order and shape. Padding aligns the data to 64 bytes. This code
 * supports the arrays in Megatron-LM's index caches: little-endian int16, int32, uint32 and int64 in one or two
 * dimensions. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

typedef enum NpyType { NPY_I16, NPY_I32, NPY_U32, NPY_I64 } NpyType;

/* An array's memory is an image of its file, so saving needs only one write. The image is owned (npy_new) or mapped
 * (npy_open). */
typedef struct NpyArray {
    void *data; /* row-major; read-only if npy_open has mapped it */
    NpyType type;
    int64_t rows, columns; /* columns is 0 if the array has one dimension */
    unsigned char *image;  /* owned, NULL if mapped */
    size_t image_size;
    FileMap map;
} NpyArray;

/* Allocates an array without initializing its data. */
NpyArray npy_new(NpyType, int64_t rows, int64_t columns);
/* Maps a file. Returns a user error if the magic number, the header, the type or the size is invalid. */
Err npy_open(const char *path, NpyArray *out);
/* Writes an array from npy_new to a file atomically. */
Err npy_save(const char *path, const NpyArray *);
void npy_free(NpyArray *);
/* Returns element i of a one-dimensional array of any type. */
int64_t npy_at(const NpyArray *, int64_t i);
