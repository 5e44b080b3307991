/* Describes attention as operations that cuDNN maps to its fused kernels. Names and order follow NVIDIA's
 * cudnn-frontend (node/scaled_dot_product_flash_attention.h). cuDNN accepts graphs that deviate slightly, but
 * computes wrong results for them.
 *   y = softmax(scale * q k^T + mask) v,  lse = log sum exp of the scaled and masked scores
 *   delta = sum(dy * y),  p = exp(scale * q k^T - lse),  dv = p^T dy,  ds = scale * p * (dy v^T - delta)
 *   dq = ds k,  dk = ds^T q;  with several heads, dk and dv of each head are stored in 16 bits, then summed.
 *
 * The backward pass is deterministic if dq is the output of one GEMM over all keys. cuDNN then stores all of
 * ds. The backward pass is nondeterministic if dq is a copy of F32 sums, because blocks of keys add to the sums
 * in the order in which the blocks finish. */
#include "kernels/cuda/attention/attention_graph.cuh"

#include <math.h>
#include <string.h>

/* A graph under construction. `score` is [batch, heads, s, t]; `row` has one number for each row of the scores. */
typedef struct Builder {
    const AttentionShape *a;
    Graph *g;
    Dims score, row;
    cudnnDataType_t half;
    Descriptor q, k_transposed, scale;
    Descriptor queries, keys; /* lengths; NULL if there is no padding */
} Builder;

static const cudnnDataType_t REAL = CUDNN_DATA_FLOAT;

static Dims heads_of(const Builder *b, int64_t heads, int64_t rows, int64_t columns, HeadStrides at) {
    const Dims x = {{b->a->batch, heads, rows, columns}, {at.batch, at.head, at.row, 1}};
    return x;
}
static Dims query_dims(const Builder *b, int64_t columns, HeadStrides at) {
    return heads_of(b, b->a->heads, b->a->s, columns, at);
}
static Dims key_dims(const Builder *b, int64_t columns, HeadStrides at) {
    return heads_of(b, 1, b->a->t, columns, at);
}

static Descriptor half_tensor(const Builder *b, AttentionTensor id, Dims x) {
    return graph_tensor(b->g, id, b->half, x);
}
static Descriptor number(const Builder *b, AttentionTensor id) { return graph_scalar(b->g, id, REAL); }
static Descriptor score(const Builder *b) { return graph_virtual(b->g, REAL, b->score); }
static Descriptor row(const Builder *b) { return graph_virtual(b->g, REAL, b->row); }

/* ---- arithmetic: results are stored in a given tensor, or in a new tensor of scores ---- */

static Descriptor combine(const Builder *b, cudnnPointwiseMode_t mode, Descriptor x, Descriptor y,
                          Descriptor out) {
    graph_pointwise(b->g, mode, REAL, x, y, NULL, out);
    return out;
}
/* SCORES: the result is [queries,keys]; TO_QUERIES: a sum over keys; TO_KEYS: a sum over queries. */
typedef enum GemmKind { SCORES, TO_QUERIES, TO_KEYS } GemmKind;
static Descriptor gemm(const Builder *b, GemmKind kind, Descriptor x, Descriptor y, Descriptor out) {
    const GraphSizes sizes[] = {
        {b->queries, b->keys, NULL}, {b->queries, NULL, b->keys}, {b->keys, NULL, b->queries}};
    graph_matmul(b->g, x, y, out, sizes[kind]);
    return out;
}
static Descriptor reduced(const Builder *b, cudnnReduceTensorOp_t by, Descriptor x, Descriptor out) {
    graph_reduce(b->g, by, x, out);
    return out;
}

/* ---- the mask ---- */

static Descriptor index_of(const Builder *b, int64_t axis, cudnnDataType_t precision, Descriptor x) {
    Descriptor i = graph_virtual(b->g, CUDNN_DATA_INT32, b->score);
    graph_index(b->g, axis, precision, x, i);
    return i;
}

/* Returns the index plus or minus a number, as a tensor of the number's type. */
static Descriptor shifted(const Builder *b, cudnnPointwiseMode_t mode, Descriptor index, AttentionTensor by,
                          cudnnDataType_t type) {
    Descriptor n = graph_scalar(b->g, by, type), y = graph_virtual(b->g, type, b->score);
    graph_pointwise(b->g, mode, type, index, n, NULL, y);
    return y;
}

/* Returns a tensor of booleans that are true where the comparison `p (mode) q` holds. */
static Descriptor condition(const Builder *b, cudnnPointwiseMode_t mode, Descriptor p, Descriptor q) {
    Descriptor seen = graph_virtual(b->g, CUDNN_DATA_BOOLEAN, b->score);
    graph_pointwise(b->g, mode, CUDNN_DATA_BOOLEAN, p, q, NULL, seen);
    return seen;
}
/* Returns x where `seen` is true, and `hidden` elsewhere. */
static Descriptor selected(const Builder *b, Descriptor x, Descriptor seen, AttentionTensor hidden) {
    Descriptor y = score(b);
    graph_pointwise(b->g, CUDNN_POINTWISE_BINARY_SELECT, REAL, x, number(b, hidden), seen, y);
    return y;
}
static Descriptor kept(const Builder *b, Descriptor x, cudnnPointwiseMode_t mode, Descriptor p, Descriptor q,
                       AttentionTensor hidden) {
    return selected(b, x, condition(b, mode, p, q), hidden);
}

static Descriptor padded(const Builder *b, Descriptor x) {
    if (!b->a->padded) return x;
    Descriptor query = index_of(b, 2, CUDNN_DATA_INT32, x), key = index_of(b, 3, CUDNN_DATA_INT32, x);
    Descriptor of_query = condition(b, CUDNN_POINTWISE_CMP_LT, query, b->queries),
               of_key = condition(b, CUDNN_POINTWISE_CMP_LT, key, b->keys);
    return selected(b, x, condition(b, CUDNN_POINTWISE_LOGICAL_AND, of_query, of_key), AT_HIDDEN_PADDING);
}

static Descriptor masked(const Builder *b, Descriptor x) {
    if (b->a->mask == MASK_NONE) return x;
    Descriptor query = index_of(b, 2, REAL, x), key = index_of(b, 3, REAL, x);
    if (b->a->mask == MASK_BOTTOM_RIGHT) {
        query = shifted(b, CUDNN_POINTWISE_ADD, query, AT_KEYS, CUDNN_DATA_INT32);
        query = shifted(b, CUDNN_POINTWISE_SUB, query, AT_QUERIES, CUDNN_DATA_INT32);
    }
    x = kept(b, x, CUDNN_POINTWISE_CMP_GE, query, key, AT_HIDDEN);
    if (!b->a->window) return x;
    query = index_of(b, 2, REAL, x), key = index_of(b, 3, REAL, x);
    key = shifted(b, CUDNN_POINTWISE_ADD, key, AT_WINDOW, REAL);
    return kept(b, x, CUDNN_POINTWISE_CMP_GT, key, query, AT_HIDDEN_BEFORE);
}

/* ---- forward ---- */

static Descriptor scaled_scores(const Builder *b) {
    Descriptor s = gemm(b, SCORES, b->q, b->k_transposed, score(b));
    return padded(b, combine(b, CUDNN_POINTWISE_MUL, s, b->scale, score(b)));
}

static void forward(const Builder *b) {
    const AttentionShape *a = b->a;
    Descriptor x = masked(b, scaled_scores(b));
    Descriptor max = reduced(b, CUDNN_REDUCE_TENSOR_MAX, x, row(b));
    Descriptor e = combine(b, CUDNN_POINTWISE_SUB, x, max, score(b));
    e = combine(b, CUDNN_POINTWISE_EXP, e, NULL, score(b));
    Descriptor sum = reduced(b, CUDNN_REDUCE_TENSOR_ADD, e, row(b));
    Descriptor log_sum = combine(b, CUDNN_POINTWISE_LOG, sum, NULL, row(b));
    combine(b, CUDNN_POINTWISE_ADD, max, log_sum, graph_tensor(b->g, AT_LSE, REAL, b->row));
    Descriptor p = combine(b, CUDNN_POINTWISE_DIV, e, sum, graph_virtual(b->g, b->half, b->score));
    Descriptor v = half_tensor(b, AT_V, key_dims(b, a->e, a->v));
    gemm(b, TO_QUERIES, p, v, half_tensor(b, AT_Y, query_dims(b, a->e, a->y)));
}

/* ---- backward ---- */

static void to_queries(const Builder *b, Descriptor ds) {
    const AttentionShape *a = b->a;
    Descriptor k = graph_virtual(b->g, b->half, key_dims(b, a->d, a->k));
    graph_reshape(b->g, b->k_transposed, k);
    Descriptor dq = half_tensor(b, AT_DQ, query_dims(b, a->d, a->dq));
    if (!a->any_order) {
        gemm(b, TO_QUERIES, ds, k, dq);
        return;
    }
    const Dims whole = dims_dense(a->batch, a->heads, a->s, a->d);
    Descriptor sums = gemm(b, TO_QUERIES, ds, k, graph_tensor(b->g, AT_DQ_SUMS, REAL, whole));
    combine(b, CUDNN_POINTWISE_IDENTITY, sums, NULL, dq);
}

/* Returns delta, multiplied by the factor that reverses dropout. cuDNN accepts a graph without this factor, but dq
 * and dk are then NaN. */
static Descriptor row_products(const Builder *b, Descriptor dy, Descriptor y) {
    const AttentionShape *a = b->a;
    const Dims whole = dims_dense(a->batch, a->heads, a->s, a->e);
    Descriptor x = combine(b, CUDNN_POINTWISE_MUL, dy, y, graph_virtual(b->g, REAL, whole));
    x = reduced(b, CUDNN_REDUCE_TENSOR_ADD, x, row(b));
    return combine(b, CUDNN_POINTWISE_MUL, x, number(b, AT_ONE), graph_tensor(b->g, AT_DELTA, REAL, b->row));
}

/* Writes x^T y to gradient `id` of the keys, where x is a score and y has the shape of the queries. */
static void to_keys(const Builder *b, Descriptor x, Descriptor y, AttentionTensor id, int64_t columns,
                    HeadStrides strides) {
    const AttentionShape *a = b->a;
    Dims turned = dims_transposed(b->score);
    Descriptor x_transposed = graph_virtual(b->g, b->half, turned);
    graph_reshape(b->g, x, x_transposed);
    Descriptor out = half_tensor(b, id, key_dims(b, columns, strides));
    if (a->heads == 1) {
        gemm(b, TO_KEYS, x_transposed, y, out);
        return;
    }
    Descriptor each = graph_virtual(b->g, b->half, dims_dense(a->batch, a->heads, a->t, columns));
    reduced(b, CUDNN_REDUCE_TENSOR_ADD, gemm(b, TO_KEYS, x_transposed, y, each), out);
}

static void backward(const Builder *b) {
    const AttentionShape *a = b->a;
    Descriptor dy = half_tensor(b, AT_DY, query_dims(b, a->e, a->dy));
    Descriptor delta = row_products(b, dy, half_tensor(b, AT_Y, query_dims(b, a->e, a->y)));
    Descriptor lse = graph_tensor(b->g, AT_LSE, REAL, b->row);
    Descriptor x = masked(b, combine(b, CUDNN_POINTWISE_SUB, scaled_scores(b), lse, score(b)));
    Descriptor p = combine(b, CUDNN_POINTWISE_EXP, x, NULL, score(b));
    to_keys(b, p, dy, AT_DV, a->e, a->dv);

    Descriptor v_transposed = half_tensor(b, AT_V, dims_transposed(key_dims(b, a->e, a->v)));
    Descriptor ds = gemm(b, SCORES, dy, v_transposed, score(b));
    ds = combine(b, CUDNN_POINTWISE_SUB, ds, delta, score(b));
    ds = combine(b, CUDNN_POINTWISE_MUL, ds, p, score(b));
    ds = combine(b, CUDNN_POINTWISE_MUL, ds, b->scale, score(b));
    to_keys(b, ds, b->q, AT_DK, a->d, a->dk);
    to_queries(b, ds);
}

/* ---- forward and backward ---- */

AttentionNumbers attention_numbers(const AttentionShape *a) {
    const AttentionNumbers n = {(float)a->scale, 1, -INFINITY, (float)a->window, (int32_t)a->t,
                                (int32_t)a->s};
    return n;
}

void attention_graph(const AttentionShape *a, Graph *g) {
    memset(g, 0, sizeof *g);
    Builder b = {a,
                 g,
                 dims_dense(a->batch, a->heads, a->s, a->t),
                 dims_dense(a->batch, a->heads, a->s, 1),
                 (cudnnDataType_t)a->type,
                 NULL,
                 NULL,
                 NULL,
                 NULL,
                 NULL};
    const Dims length = dims_dense(a->batch, 1, 1, 1);
    if (a->padded) {
        b.queries = graph_tensor(g, AT_QUERY_LENGTHS, CUDNN_DATA_INT32, length);
        b.keys = graph_tensor(g, AT_KEY_LENGTHS, CUDNN_DATA_INT32, length);
    }
    b.q = half_tensor(&b, AT_Q, query_dims(&b, a->d, a->q));
    b.k_transposed = half_tensor(&b, AT_K, dims_transposed(key_dims(&b, a->d, a->k)));
    b.scale = number(&b, AT_SCALE);
    if (a->backward)
        backward(&b);
    else
        forward(&b);
}
