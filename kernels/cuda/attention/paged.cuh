/* Declarations for paged_attention: the operands, and the keys that a token attends to. */
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/relative_buckets.h"

enum { SPLIT = 128 /* keys */ };

struct Paged {
    int64_t tokens, g, r, d, e;       /* d, e: width of keys and of values */
    int64_t q_token, q_group, q_head; /* strides */
    int64_t k_row, k_group, v_row, v_group;
    int64_t width; /* number of pages per request in the table */
    int chunks;    /* number of blocks among which a group's heads are divided */
    int splits;    /* number of blocks among which the keys are divided; if 1, a block loops over all keys */
    const int64_t *table, *request, *position, *lengths;
    AttentionAttr attr;
    RelativeBuckets buckets;
    int64_t bias_heads; /* number of heads of the bias, or 0 if there is no bias */
    bool tiles;         /* paged_has_tiles */
};

/* The keys that a token attends to. */
struct Range {
    int64_t lo, hi;

    __device__ __forceinline__ Range(const Paged &p, int64_t token) {
        const AttentionAttr &a = p.attr;
        const int64_t at = p.position[token];
        lo = attention_begin(a.window_left, a.chunk_size, at, 0);
        lo = lo < 0 ? 0 : lo;
        hi = p.lengths ? p.lengths[p.request[token]] : at + 1;
        if (a.window_right != WINDOW_OFF && at + a.window_right + 1 < hi) hi = at + a.window_right + 1;
    }
};

/* The rotation of queries and new keys, and the rows that receive new keys and values. */
struct NewRows {
    const float *cos, *sin; /* [positions, pairs]; cos is NULL if rows are already rotated and stored */
    int64_t positions;
    int pairs;
    bool interleaved;
    const int64_t *row;
    void *pool[2];
    DeviceAssert *failure;
    const char *message; /* the error message for a position outside the table */
};

/* Returns true if paged_tiles.cu has a kernel for the operands. The result must not depend on the number of
 * tokens. */
bool paged_has_tiles(const Call *);
/* Returns the number of blocks that run if each block computes all splits. */
int64_t paged_tile_blocks(const Call *, const Paged &);
/* Computes attention on tensor cores. `part` is memory for e + 2 floats per token, head and split, or NULL.
 * If NewRows.cos is not NULL, every token must be a tile, and `part` must not be NULL. */
void paged_run_tiles(const Call *, const Paged &, const NewRows &, float *part);
