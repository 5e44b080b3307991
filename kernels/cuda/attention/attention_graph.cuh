/* Attention as a graph of cuDNN's operations (attention_graph.cu). */
#pragma once

#include "kernels/cuda/attention/cudnn_graph.cuh"

/* A tensor [batch, heads, rows, columns]. Strides are in elements, and the stride of columns is 1. */
typedef struct HeadStrides {
    int64_t batch, head, row;
} HeadStrides;

typedef enum AttentionMask {
    MASK_NONE,
    MASK_TOP_LEFT,    /* query i attends to keys 0 to i */
    MASK_BOTTOM_RIGHT /* the last query attends to all keys */
} AttentionMask;

/* All values that a plan depends on. Each batch element has `heads` query heads and one key head. The struct has no
 * padding, because it is compared byte by byte. */
typedef struct AttentionShape {
    int64_t backward, type;           /* type: a 16-bit cudnnDataType_t */
    int64_t batch, heads, s, t, d, e; /* s queries, t keys, d columns of q and k, e columns of v and y */
    /* window: number of keys that a query attends to, including the key at the query's position; 0 if only
     * the mask limits the keys */
    int64_t mask, window;
    int64_t padded;    /* nonzero if batch elements have lengths */
    int64_t any_order; /* backward pass: nonzero if dq is summed in AT_DQ_SUMS, in a nondeterministic order */
    double scale;      /* factor of q.k */
    HeadStrides q, k, v, y;
    HeadStrides dy, dq, dk, dv; /* used only in the backward pass */
} AttentionShape;

/* The tensors and numbers whose addresses graph_run needs. */
typedef enum AttentionTensor {
    AT_Q,
    AT_K,
    AT_V,
    AT_Y,
    AT_LSE, /* F32 [batch, heads, s]; natural log */
    AT_DY,  /* AT_DY to AT_DQ_SUMS are used only in the backward pass */
    AT_DQ,
    AT_DK,
    AT_DV,
    AT_DELTA,         /* F32 [batch, heads, s]: scratch memory */
    AT_DQ_SUMS,       /* F32 [batch, heads, s, d]: scratch memory; only with any_order */
    AT_QUERY_LENGTHS, /* INT32 [batch], like AT_KEY_LENGTHS; only with padding */
    AT_KEY_LENGTHS,
    AT_SCALE, /* AT_SCALE to AT_QUERIES are numbers in host memory */
    AT_ONE,
    AT_HIDDEN,         /* -inf: the score of a key that the mask hides */
    AT_HIDDEN_BEFORE,  /* -inf: the score of a key before the window */
    AT_HIDDEN_PADDING, /* -inf: the score of a padding key */
    AT_WINDOW,
    AT_KEYS,   /* INT32: t */
    AT_QUERIES /* INT32: s */
} AttentionTensor;
/* The numbers that the graph reads, with the alignment that the graph declares for its tensors. */
typedef struct AttentionNumbers {
    alignas(16) float scale;
    alignas(16) float one;
    alignas(16) float hidden;
    alignas(16) float window;
    alignas(16) int32_t keys;
    alignas(16) int32_t queries;
} AttentionNumbers;
AttentionNumbers attention_numbers(const AttentionShape *);

void attention_graph(const AttentionShape *, Graph *);
