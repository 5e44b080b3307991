/* cuDNN's graph interface for one graph at a time: tensors of four dimensions, operations on them, and the
 * plan that runs them. Whatever cuDNN refuses on the way stops the graph, which then has no plan but a reason
 * (`why`). */
#ifndef ISOTRON_KERNELS_CUDA_ATTENTION_CUDNN_GRAPH_CUH
#define ISOTRON_KERNELS_CUDA_ATTENTION_CUDNN_GRAPH_CUH

#include <cudnn_graph.h>
#include <stddef.h>
#include <stdint.h>

typedef cudnnBackendDescriptor_t Descriptor;

enum { GRAPH_OPS = 40, GRAPH_DESCRIPTORS = 200, GRAPH_IDS = 24 };
typedef struct Graph {
    /* all, freed together: whether cuDNN keeps what it was given is not said */
    Descriptor made[GRAPH_DESCRIPTORS];
    Descriptor op[GRAPH_OPS];
    Descriptor plan; /* NULL: there is none */
    int64_t bound[GRAPH_IDS],
        next; /* ids of the tensors that need memory, and of the next one that needs none */
    int n_made, n_ops, n_bound;
    size_t workspace; /* of the plan, in bytes */
    char why[160];    /* "" as long as all is well */
} Graph;

/* Sizes and strides in elements; the tensors of attention are [batch, heads, rows, columns]. */
typedef struct Dims {
    int64_t dim[4], stride[4];
} Dims;
Dims dims_dense(int64_t, int64_t, int64_t, int64_t);
Dims dims_transposed(Dims); /* of the last two */

/* A tensor in memory, whose address graph_run gets as number `id` < GRAPH_IDS, a multiple of 16 bytes. */
Descriptor graph_tensor(Graph *, int64_t id, cudnnDataType_t, Dims);
/* A number in the host's memory, read when the graph runs. */
Descriptor graph_scalar(Graph *, int64_t id, cudnnDataType_t);
/* What exists inside of the graph only. */
Descriptor graph_virtual(Graph *, cudnnDataType_t, Dims);

/* Arguments that an operation does not have are NULL. `precision` is the type of its arithmetic. */
void graph_pointwise(Graph *, cudnnPointwiseMode_t, cudnnDataType_t precision, Descriptor x, Descriptor b,
                     Descriptor t, Descriptor y);
void graph_index(Graph *, int64_t axis, Descriptor like, Descriptor y); /* y: the index along an axis */
void graph_matmul(Graph *, Descriptor a, Descriptor b, Descriptor c);
void graph_reduce(Graph *, cudnnReduceTensorOp_t, Descriptor x, Descriptor y);
void graph_reshape(Graph *, Descriptor x, Descriptor y);

/* The plan that cuDNN's heuristics put first, and no other: the fused kernels stand there, and only they have
 * been judged. Takes 0.3 to 0.9 s, less if the driver knows the kernel. */
void graph_plan(Graph *, cudnnHandle_t);
/* address[id] of each tensor and scalar. */
void graph_run(const Graph *, cudnnHandle_t, void *const *address, void *workspace);
void graph_free(Graph *);

#endif
