/* One invocation of a kernel. All kernels share one signature, so that the null device, profiling, tracing,
 * 16-bit emulation and the generic op tests each need only one implementation. */
#pragma once

#include "tensor/device.h"
#include "tensor/tensor.h"

enum { CALL_IN = 9, CALL_OUT = 5 };

typedef struct Call {
    /* an optional operand may be NULL; an output that is NULL is not computed */
    Tensor *in[CALL_IN], *out[CALL_OUT];
    const void *attr; /* the op's attributes (kernels/attr.h); NULL if the op has none */
    Device *device;
    /* The type of out[0] or, if out[0] is NULL, of the first float input, before widening. call_run sets it for CPU
     * kernels. */
    DType stored;
} Call;

typedef void KernelFn(const Call *);
/* Creates everything that a kernel would create at its first run (plans, choices of algorithms). Returns the
 * number of bytes of memory that the kernel needs in addition to its operands. The call's operands need not
 * have data. */
typedef size_t PrepareFn(const Call *);
/* Describes the implementation that computes a call, and states why this implementation is used: "cuDNN ..." or
 * "own kernels: ...". The text is valid until the next query. */
typedef const char *PathFn(const Call *);

/* Specifies how closely the results of a GPU kernel match those of the CPU kernel. tests/unit/ops/vs_cpu.h
 * derives the bounds. */
typedef enum OpMatch {
    MATCH_NEAR,     /* each element is within a rounding bound; integers are equal */
    MATCH_BITS,     /* bitwise equal */
    MATCH_NEAR_F64, /* like MATCH_NEAR, but double arithmetic is used for all operand types */
    /* like MATCH_NEAR, after a softmax whose probabilities may be rounded to the storage type */
    MATCH_SOFTMAX,
    MATCH_FP8_SUM,   /* like MATCH_NEAR, for sums of FP8 values in a tensor core */
    MATCH_QUANTIZED, /* like MATCH_NEAR, for sums with an I8 or FP8 weight */
} OpMatch;

/* An operand of an op, as kernels/ops.def lists it. */
typedef struct OpOperand {
    const char *text; /* name and shape; NULL if the op has no such operand */
    bool optional;    /* the operand may be NULL */
    bool adds;        /* an output that supports TENSOR_ACCUM */
    bool updated;     /* an output that is also read, because the op changes the operand in place */
    bool precise;     /* the operand is stored in F32 if activations are 16-bit */
    bool stored;      /* CPU kernels access the operand in its storage type, even if that is 16-bit */
} OpOperand;

/* A row of the op table (kernels/ops.def). An op that is a collective has only a name, a number and a family. */
typedef struct OpDef {
    const char *name;
    int number; /* index in OPS */
    int family; /* an OpFamily */
    SpmdRule rule;
    OpMatch match;
    OpOperand in[CALL_IN], out[CALL_OUT];
    KernelFn *cpu_f32, *cpu_f64;
    KernelFn *cuda;        /* NULL in a build without CUDA */
    PrepareFn *cuda_plans; /* NULL if the op needs no memory except for its operands */
    PathFn *cuda_path;     /* NULL if the op has no implementation apart from Isotron's kernels */
} OpDef;

/* Runs the op on call->device. The null device does nothing. The CPU runs the double kernel if the first float
 * operand is F64, or if there is no float operand; otherwise, it runs the float kernel. BF16 and F16 operands,
 * except `stored` ones, are converted to float before the kernel, and rounded after it. CUDA kernels support
 * all types and are asynchronous: they may still be running when this function returns. */
void call_run(const OpDef *, const Call *);
/* Describes the implementation of the call (PathFn) on call->device or, for a null device, on its target.
 * Returns NULL if the device has only one implementation. */
const char *call_path(const OpDef *, const Call *);
