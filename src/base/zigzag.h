/* The sequence positions that are assigned to a context-parallel rank. The sequence is split into 2n chunks. Rank r of
 * n holds chunks r and 2n-1-r, in this order. With a causal mask, all ranks then do equal work (Megatron-LM
 * core/utils.py get_batch_on_this_cp_rank). */
#pragma once

#include <stdint.h>

#include "base/host_device.h"

/* Row i contains sequence position at[j / chunk] + j % chunk, where j = first + i. The slice consists of the two
 * chunks' rows in ascending order, except the first `first` rows. If `chunk` is 0, row i contains position first +
 * i. */
typedef struct SequenceSlice {
    int64_t first, chunk, at[2];
} SequenceSlice;

/* Returns the slice for rank `rank` out of `ranks` ranks. `total` must be a multiple of 2 * ranks. If ranks
 * is 1, the slice contains all positions. */
HOST_DEVICE static inline SequenceSlice slice_zigzag(int64_t total, int ranks, int rank) {
    const int64_t chunk = ranks == 1 ? 0 : total / (2 * ranks);
    const SequenceSlice s = {0, chunk, {rank * chunk, (2 * ranks - 1 - rank) * chunk}};
    return s;
}

HOST_DEVICE static inline int64_t slice_position(const SequenceSlice *s, int64_t row) {
    const int64_t j = s->first + row;
    return s->chunk ? s->at[j / s->chunk] + j % s->chunk : j;
}

/* Returns how many rows from `row` on, up to n, have consecutive positions. */
HOST_DEVICE static inline int64_t slice_run(const SequenceSlice *s, int64_t row, int64_t n) {
    const int64_t left = s->chunk ? s->chunk - (s->first + row) % s->chunk : n;
    return left < n ? left : n;
}

HOST_DEVICE static inline int64_t slice_clamp(int64_t x, int64_t high) {
    return x < 0 ? 0 : x < high ? x : high;
}

/* Returns how many of the first `rows` rows precede the position. */
HOST_DEVICE static inline int64_t slice_before(const SequenceSlice *s, int64_t rows, int64_t position) {
    int64_t before = position;
    if (s->chunk)
        before = slice_clamp(position - s->at[0], s->chunk) + slice_clamp(position - s->at[1], s->chunk);
    return slice_clamp(before - s->first, rows);
}
