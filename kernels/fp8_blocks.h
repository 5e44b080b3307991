/* The layout of the scales for an FP8 matrix [rows, columns] that is a GEMM operand, with the columns as the
 * reduction dimension (NVIDIA cuBLAS documentation, 3.1.4.5: layouts for GEMMs on Hopper). `inverse` contains
 * 1 / scale, the factor by which an FP8 value is multiplied to restore the number that it represents. */
#pragma once

#include <stdint.h>

#include "base/host_device.h"

typedef enum Fp8Blocks {
    FP8_WHOLE, /* one scale for the entire matrix */
    FP8_ROWS,  /* one scale per 128 columns of a row: inverse [column / 128][row] */
    /* one scale per 128 x 128 elements: inverse [row / 128][column / 128]; rows of `inverse` are padded to multiples
     * of 4 */
    FP8_SQUARES,
} Fp8Blocks;

enum { FP8_BLOCK = 128 };

/* Returns the number of elements in a row of `inverse`, including padding. */
HOST_DEVICE static inline int64_t fp8_blocks_across(Fp8Blocks kind, int64_t columns) {
    const int64_t n = (columns + FP8_BLOCK - 1) / FP8_BLOCK;
    return kind == FP8_WHOLE ? 1 : kind == FP8_ROWS ? n : (n + 3) / 4 * 4;
}

/* Returns the number of elements in `inverse`. */
HOST_DEVICE static inline int64_t fp8_blocks_count(Fp8Blocks kind, int64_t rows, int64_t columns) {
    const int64_t high = kind == FP8_WHOLE ? 1 : kind == FP8_ROWS ? rows : (rows + FP8_BLOCK - 1) / FP8_BLOCK;
    return high * fp8_blocks_across(kind, columns);
}

/* Returns the index of an element's block in `inverse`. */
HOST_DEVICE static inline int64_t fp8_block_of(Fp8Blocks kind, int64_t rows, int64_t columns, int64_t row,
                                               int64_t column) {
    if (kind == FP8_WHOLE) return 0;
    if (kind == FP8_ROWS) return column / FP8_BLOCK * rows + row;
    return row / FP8_BLOCK * fp8_blocks_across(kind, columns) + column / FP8_BLOCK;
}

/* Returns the number of elements of `inverse` for one of several weights: one scale or squares each. */
HOST_DEVICE static inline int64_t fp8_blocks_step(Fp8Blocks kind, int64_t rows, int64_t columns) {
    return kind == FP8_ROWS ? 0 : fp8_blocks_count(kind, rows, columns);
}

/* Returns the index of an element's block in the inverses of several weights [rows, columns], which adjoin. */
HOST_DEVICE static inline int64_t fp8_block_of_each(Fp8Blocks kind, int64_t rows, int64_t columns,
                                                    int64_t row, int64_t column) {
    return row / rows * fp8_blocks_step(kind, rows, columns) +
           fp8_block_of(kind, rows, columns, row % rows, column);
}

/* Returns the number of columns of the transpose of experts' rows (kernels/ops.def, src/ops/grouped_gemm.c). */
HOST_DEVICE static inline int64_t fp8_padded_rows(int64_t rows, int64_t experts) {
    return ((rows + FP8_BLOCK - 1) / FP8_BLOCK + experts) * FP8_BLOCK;
}
