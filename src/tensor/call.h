/* One invocation of a kernel. All kernels share this signature, so that the null device, profiling, tracing,
 * 16-bit emulation and the generic op tests are written once. */
#pragma once

#include "tensor/device.h"
#include "tensor/tensor.h"

enum { CALL_IN = 9, CALL_OUT = 5 };

typedef struct Call {
    Tensor *in[CALL_IN], *out[CALL_OUT]; /* an optional operand may be NULL; an output that is NULL is not
                                            computed */
    const void *attr;                    /* the op's attribute struct (kernels/attr.h), or NULL if it has
                                            none */
    Device *device;
    /* For CPU kernels, set by call_run: the type of out[0] in memory, before widening. */
    DType stored;
} Call;

typedef void KernelFn(const Call *);
/* Creates everything that a kernel creates at its first run (plans, chosen algorithms). Returns the bytes of memory
 * that the kernel needs in addition to its operands. The operands have no data. */
typedef size_t PrepareFn(const Call *);
/* Describes the implementation that computes a call, and why: "cuDNN ..." or "own kernels: ...". The text is
 * valid until the next query. */
typedef const char *PathFn(const Call *);

/* How closely the results of a GPU's kernel match the CPU's; tests/unit/ops/vs_cpu.h derives the bounds. */
typedef enum OpMatch {
    MATCH_NEAR,     /* each element within a rounding bound; integers are equal */
    MATCH_BITS,     /* bitwise equal */
    MATCH_NEAR_F64, /* near, with double arithmetic for any operand type */
    MATCH_SOFTMAX,  /* near, after a softmax whose probabilities may be rounded to the storage's type */
    MATCH_FP8_SUM,  /* near, for sums of FP8 values in a tensor core */
} OpMatch;

/* An operand of an op, as kernels/ops.def lists it. */
typedef struct OpOperand {
    const char *text; /* name and shape, or NULL if the op has no such operand */
    bool optional;    /* may be NULL */
    bool adds;        /* an output that honours TENSOR_ACCUM */
    bool updated;     /* an output that is also read, because it is changed in place */
    bool precise;     /* stored in F32 if activations have 16 bits */
    bool stored;      /* CPU kernels read and write it in its type in memory, also if that has 16 bits */
} OpOperand;

/* A row of the op table (kernels/ops.def). An op that is a collective has only a name, a number and a
 * family. */
typedef struct OpDef {
    const char *name;
    int number; /* index in OPS */
    int family; /* OpFamily */
    SpmdRule rule;
    OpMatch match;
    OpOperand in[CALL_IN], out[CALL_OUT];
    KernelFn *cpu_f32, *cpu_f64;
    KernelFn *cuda;        /* NULL in a build without CUDA */
    PrepareFn *cuda_plans; /* NULL if the op needs no memory except its operands */
    PathFn *cuda_path;     /* NULL if the op has only our own kernels */
} OpDef;

/* Runs the op on call->device. The null device does nothing. The CPU runs the double kernel if the first float
 * operand is F64, or if there is no float operand, and otherwise the float kernel. BF16 and F16 operands, except
 * `stored` ones, are converted to float before the kernel, and rounded after it. CUDA kernels take all types and
 * are asynchronous: they may still run when this returns. */
void call_run(const OpDef *, const Call *);
/* Describes the implementation of the call (PathFn) on call->device or, for a null device, on its target.
 * Returns NULL if the device has only one implementation. */
const char *call_path(const OpDef *, const Call *);
