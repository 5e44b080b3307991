#include "kernels/cuda/attention/cudnn_graph.cuh"

#include <stdio.h>

#include "kernels/cuda/common.cuh"

enum { BYTE_ALIGNMENT = 16, FIRST_VIRTUAL = 1000 };

/* ---- the interface; after an error, all later calls do nothing ---- */

static bool fine(const Graph *g) { return !g->why[0]; }

static bool accept(Graph *g, cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) return true;
    char message[128] = "";
    cudnnGetLastErrorString(message, sizeof message);
    snprintf(g->why, sizeof g->why, "cuDNN, %s: %s %s", what, cudnnGetErrorString(status), message);
    return false;
}

static Descriptor make(Graph *g, cudnnBackendDescriptorType_t type) {
    Descriptor d = NULL;
    CHECK(g->n_made < GRAPH_DESCRIPTORS, "a cuDNN graph has more than %d descriptors", GRAPH_DESCRIPTORS);
    if (!fine(g) || !accept(g, cudnnBackendCreateDescriptor(type, &d), "descriptor")) return NULL;
    g->made[g->n_made++] = d;
    return d;
}

static void set(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *values) {
    char what[32];
    snprintf(what, sizeof what, "attribute %d", (int)name);
    if (fine(g)) accept(g, cudnnBackendSetAttribute(d, name, type, n, values), what);
}

static void set_integer(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, int64_t value) {
    set(g, d, name, CUDNN_TYPE_INT64, 1, &value);
}
static void set_type(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}
static void set_flag(Graph *g, Descriptor d, cudnnBackendAttributeName_t name) {
    const bool yes = true;
    set(g, d, name, CUDNN_TYPE_BOOLEAN, 1, &yes);
}
/* Sets an attribute of d to another descriptor. If the operand is missing, the attribute stays unset. */
static void set_descriptor(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, Descriptor value) {
    if (value) set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* Reads one value, and sets *n to the number of values. */
static void get(Graph *g, Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t *n, void *value) {
    if (fine(g)) accept(g, cudnnBackendGetAttribute(d, name, type, 1, n, value), "question");
}

static void finish(Graph *g, Descriptor d, const char *what) {
    if (fine(g)) accept(g, cudnnBackendFinalize(d), what);
}

/* ---- tensors ---- */

Dims dims_dense(int64_t a, int64_t b, int64_t c, int64_t d) {
    const Dims x = {{a, b, c, d}, {b * c * d, c * d, d, 1}};
    return x;
}

Dims dims_transposed(Dims x) {
    const Dims y = {{x.dim[0], x.dim[1], x.dim[3], x.dim[2]},
                    {x.stride[0], x.stride[1], x.stride[3], x.stride[2]}};
    return y;
}

static Descriptor tensor(Graph *g, int64_t id, cudnnDataType_t type, Dims x) {
    Descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, x.dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, x.stride);
    set_integer(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    set_integer(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, BYTE_ALIGNMENT);
    return d;
}

static void bind(Graph *g, int64_t id) {
    CHECK(id < GRAPH_IDS && g->n_bound < GRAPH_IDS,
          "a cuDNN graph has too many tensors in memory (tensor %lld)", (long long)id);
    g->bound[g->n_bound++] = id;
}

Descriptor graph_tensor(Graph *g, int64_t id, cudnnDataType_t type, Dims x) {
    Descriptor d = tensor(g, id, type, x);
    finish(g, d, "tensor");
    bind(g, id);
    return d;
}

/* Creates a scalar as a 4-D tensor, like the tensors with which the scalar is combined. */
Descriptor graph_scalar(Graph *g, int64_t id, cudnnDataType_t type) {
    Descriptor d = tensor(g, id, type, dims_dense(1, 1, 1, 1));
    set_flag(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    finish(g, d, "scalar");
    bind(g, id);
    return d;
}

Descriptor graph_virtual(Graph *g, cudnnDataType_t type, Dims x) {
    Descriptor d = tensor(g, FIRST_VIRTUAL + g->next++, type, x);
    set_flag(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    finish(g, d, "virtual tensor");
    return d;
}

/* ---- operations ---- */

static void add(Graph *g, Descriptor op) {
    finish(g, op, "operation");
    CHECK(g->n_ops < GRAPH_OPS, "a cuDNN graph has more than %d operations", GRAPH_OPS);
    g->op[g->n_ops++] = op;
}

static Descriptor pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision) {
    Descriptor d = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, precision);
    return d;
}

static void add_pointwise(Graph *g, Descriptor how, Descriptor x, Descriptor b, Descriptor t, Descriptor y) {
    Descriptor op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    finish(g, how, "pointwise");
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add(g, op);
}

void graph_pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, Descriptor x,
                     Descriptor b, Descriptor t, Descriptor y) {
    add_pointwise(g, pointwise(g, mode, precision), x, b, t, y);
}

void graph_index(Graph *g, int64_t axis, cudnnDataType_t precision, Descriptor like, Descriptor y) {
    Descriptor how = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, precision);
    set_integer(g, how, CUDNN_ATTR_POINTWISE_AXIS, axis);
    add_pointwise(g, how, like, NULL, NULL, y);
}

void graph_matmul(Graph *g, Descriptor a, Descriptor b, Descriptor c, GraphSizes sizes) {
    Descriptor how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(g, how, "matmul");
    Descriptor op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, sizes.m);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, sizes.n);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, sizes.k);
    add(g, op);
}

void graph_reduce(Graph *g, cudnnReduceTensorOp_t by, Descriptor x, Descriptor y) {
    Descriptor how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_type(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
    finish(g, how, "reduction");
    Descriptor op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add(g, op);
}

void graph_reshape(Graph *g, Descriptor x, Descriptor y) {
    Descriptor op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add(g, op);
}

/* ---- the plan ---- */

/* Returns the configuration that cuDNN's heuristics rank first. */
static Descriptor best_config(Graph *g, cudnnHandle_t handle) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t n = 0;
    Descriptor whole = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->op);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finish(g, whole, "graph");
    Descriptor heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, heuristics, "heuristics");
    Descriptor config = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    get(g, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, &n, &config);
    if (fine(g) && n < 1) snprintf(g->why, sizeof g->why, "cuDNN has no engine for this graph");
    return config;
}

void graph_plan(Graph *g, cudnnHandle_t handle) {
    int64_t n, bytes = 0;
    Descriptor config = best_config(g, handle), plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(g, plan, "plan");
    get(g, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &n, &bytes);
    if (!fine(g)) return;
    g->plan = plan;
    g->workspace = (size_t)bytes;
}

static void must(cudnnStatus_t status, const char *what) {
    Graph g;
    g.why[0] = 0;
    CHECK(accept(&g, status, what), "%s", g.why);
}

void graph_run(const Graph *g, cudnnHandle_t handle, void *const *address, void *workspace) {
    Descriptor pack;
    void *bound[GRAPH_IDS];
    for (int i = 0; i < g->n_bound; i++) bound[i] = address[g->bound[i]];
    must(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), "variant pack");
    must(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, g->n_bound,
                                  g->bound),
         "ids");
    must(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                  g->n_bound, bound),
         "addresses");
    must(
        cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace),
        "workspace");
    must(cudnnBackendFinalize(pack), "variant pack");
    must(cudnnBackendExecute(handle, g->plan, pack), "execution");
    cudnnBackendDestroyDescriptor(pack);
}

void graph_free(Graph *g) {
    while (g->n_made > 0) cudnnBackendDestroyDescriptor(g->made[--g->n_made]);
}
