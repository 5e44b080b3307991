/* A wrapper around cuDNN's graph API: 4-D tensors, operations on them, and the plan that runs the graph.
 * If cuDNN refuses an operation or the plan, the graph has no plan, and `why` contains the reason. */
#pragma once

#include <cudnn_graph.h>
#include <stddef.h>
#include <stdint.h>

typedef cudnnBackendDescriptor_t Descriptor;

enum { GRAPH_OPS = 40, GRAPH_DESCRIPTORS = 200, GRAPH_IDS = 24 };
typedef struct Graph {
    /* All descriptors of the graph. They are freed together, because cuDNN does not document whether
     * descriptors keep references to each other. */
    Descriptor made[GRAPH_DESCRIPTORS];
    Descriptor op[GRAPH_OPS];
    Descriptor plan; /* NULL if there is no plan */
    int64_t bound[GRAPH_IDS],
        next; /* bound: ids of the tensors that need memory; next: id of the next virtual tensor */
    int n_made, n_ops, n_bound;
    size_t workspace; /* size of the plan's workspace in bytes */
    char why[160];    /* "" if there is no error */
} Graph;

/* Sizes, and strides in elements. The tensors of attention are [batch, heads, rows, columns]. */
typedef struct Dims {
    int64_t dim[4], stride[4];
} Dims;
Dims dims_dense(int64_t, int64_t, int64_t, int64_t);
Dims dims_transposed(Dims); /* transposes the last two dimensions */

/* Returns a tensor in memory. graph_run receives its address, a multiple of 16, as element `id` of `address`;
 * `id` must be less than GRAPH_IDS. */
Descriptor graph_tensor(Graph *, int64_t id, cudnnDataType_t, Dims);
/* Returns a scalar in host memory. The scalar is read each time the graph runs. */
Descriptor graph_scalar(Graph *, int64_t id, cudnnDataType_t);
/* Returns a tensor that exists only inside the graph. */
Descriptor graph_virtual(Graph *, cudnnDataType_t, Dims);

/* Adds an elementwise operation. Arguments that the operation does not need are NULL. `precision` is the type
 * in which the operation computes. */
void graph_pointwise(Graph *, cudnnPointwiseMode_t, cudnnDataType_t precision, Descriptor x, Descriptor b,
                     Descriptor t, Descriptor y);
/* Adds an operation that sets y to the index along an axis. */
void graph_index(Graph *, int64_t axis, cudnnDataType_t precision, Descriptor like, Descriptor y);
/* The valid sizes of each batch element's GEMM, c [m,n] = a [m,k] b [k,n]. Rows and columns beyond these
 * sizes are ignored. A size is a tensor INT32 [batch,1,1,1], or NULL if there is no limit. */
typedef struct GraphSizes {
    Descriptor m, n, k;
} GraphSizes;
void graph_matmul(Graph *, Descriptor a, Descriptor b, Descriptor c, GraphSizes);
void graph_reduce(Graph *, cudnnReduceTensorOp_t, Descriptor x, Descriptor y);
void graph_reshape(Graph *, Descriptor x, Descriptor y);

/* Builds the plan that cuDNN's heuristics rank first. Only this plan is known to use the fused kernels, and
 * other kernels have not been tested. The call takes 0.3 to 0.9 s, or less if the driver's cache contains the
 * kernel. */
void graph_plan(Graph *, cudnnHandle_t);
/* Runs the plan. address[id] is the address of a tensor or scalar. */
void graph_run(const Graph *, cudnnHandle_t, void *const *address, void *workspace);
void graph_free(Graph *);
