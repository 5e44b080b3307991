/* cuDNN's graph interface for one graph at a time: tensors of four dimensions, operations on them, and the
 * plan that runs them. If cuDNN refuses a step, the graph has no plan, and `why` is the reason. */
#pragma once

#include <cudnn_graph.h>
#include <stddef.h>
#include <stdint.h>

typedef cudnnBackendDescriptor_t Descriptor;

enum { GRAPH_OPS = 40, GRAPH_DESCRIPTORS = 200, GRAPH_IDS = 24 };
typedef struct Graph {
    /* all descriptors, freed together: cuDNN does not document whether it keeps references */
    Descriptor made[GRAPH_DESCRIPTORS];
    Descriptor op[GRAPH_OPS];
    Descriptor plan; /* NULL: none */
    int64_t bound[GRAPH_IDS],
        next; /* ids of the tensors that need memory, and the next id of a virtual tensor */
    int n_made, n_ops, n_bound;
    size_t workspace; /* workspace of the plan, in bytes */
    char why[160];    /* "" if there is no error */
} Graph;

/* Sizes and strides in elements; the tensors of attention are [batch, heads, rows, columns]. */
typedef struct Dims {
    int64_t dim[4], stride[4];
} Dims;
Dims dims_dense(int64_t, int64_t, int64_t, int64_t);
Dims dims_transposed(Dims); /* transposes the last two */

/* A tensor in memory. graph_run gets its address, a multiple of 16 bytes, as number `id` < GRAPH_IDS. */
Descriptor graph_tensor(Graph *, int64_t id, cudnnDataType_t, Dims);
/* A number in host memory, which is read when the graph runs. */
Descriptor graph_scalar(Graph *, int64_t id, cudnnDataType_t);
/* A tensor that exists only inside the graph. */
Descriptor graph_virtual(Graph *, cudnnDataType_t, Dims);

/* An argument that an operation does not need is NULL. `precision` is the type of its arithmetic. */
void graph_pointwise(Graph *, cudnnPointwiseMode_t, cudnnDataType_t precision, Descriptor x, Descriptor b,
                     Descriptor t, Descriptor y);
/* y: the index along an axis */
void graph_index(Graph *, int64_t axis, cudnnDataType_t precision, Descriptor like, Descriptor y);
/* c [m,n] = a [m,k] b [k,n]. Ignores rows and columns past the sizes of a batch element (INT32 [batch,1,1,1],
 * or NULL if there is no limit). */
typedef struct GraphSizes {
    Descriptor m, n, k;
} GraphSizes;
void graph_matmul(Graph *, Descriptor a, Descriptor b, Descriptor c, GraphSizes);
void graph_reduce(Graph *, cudnnReduceTensorOp_t, Descriptor x, Descriptor y);
void graph_reshape(Graph *, Descriptor x, Descriptor y);

/* Builds only the plan that cuDNN's heuristics rank first: that plan uses the fused kernels, and only fused
 * kernels have been tested. Building it takes 0.3 to 0.9 s, or less if the driver has the kernel in its
 * cache. */
void graph_plan(Graph *, cudnnHandle_t);
/* address[id] of each tensor and scalar. */
void graph_run(const Graph *, cudnnHandle_t, void *const *address, void *workspace);
void graph_free(Graph *);
