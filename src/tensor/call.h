/* One invocation of a kernel. All kernels share this signature, so that the null device, profiling, tracing,
 * 16-bit emulation and the generic op tests are written once. */
#ifndef ISOTRON_TENSOR_CALL_H
#define ISOTRON_TENSOR_CALL_H

#include "tensor/device.h"
#include "tensor/tensor.h"

enum { CALL_IN = 8, CALL_OUT = 4 };

typedef struct Call {
    Tensor *in[CALL_IN], *out[CALL_OUT]; /* optional operands are NULL; an out that is NULL is not computed */
    const void *attr;                    /* the op's attribute struct (kernels/attr.h), NULL if it has none */
    Device *device;
    /* call_run's, for kernels on the CPU: the type of out[0] in memory, before it was widened */
    DType stored;
} Call;

typedef void KernelFn(const Call *);
/* Makes what a kernel needs to be fast the first time (plans, chosen algorithms), and returns the bytes that
 * it takes besides its operands. The operands have no memory. */
typedef size_t PrepareFn(const Call *);
/* Who computes a call, and why: "cuDNN ..." or "own kernels: ...". Valid until the next question. */
typedef const char *PathFn(const Call *);

/* How the results of a GPU's kernel match those of the CPU's; tests/unit/ops/vs_cpu.h derives the bounds. */
typedef enum OpMatch {
    MATCH_NEAR,     /* each element within a bound of rounding; integers are equal */
    MATCH_BITS,     /* every bit */
    MATCH_NEAR_F64, /* near, for arithmetic in double whatever the operands' type */
    MATCH_SOFTMAX,  /* near, behind a softmax whose probabilities may be rounded to the storage's type */
    MATCH_FP8_SUM,  /* near, for sums of FP8 values in a tensor core */
} OpMatch;

/* An operand of an op, as kernels/ops.def lists it. */
typedef struct OpOperand {
    const char *text; /* name and shape; NULL: the op has no such operand */
    bool optional;    /* may be NULL */
    bool adds;        /* an output that honours TENSOR_ACCUM */
    bool updated;     /* an output that is read too, and changed in place */
    bool precise;     /* stored in F32 where activations have 16 bits */
} OpOperand;

/* A row of the op table (kernels/ops.def). Of a collective only name, number and family count. */
typedef struct OpDef {
    const char *name;
    int number; /* its place in OPS */
    int family; /* OpFamily */
    SpmdRule rule;
    OpMatch match;
    OpOperand in[CALL_IN], out[CALL_OUT];
    KernelFn *cpu_f32, *cpu_f64;
    KernelFn *cuda;        /* NULL in a build without CUDA */
    PrepareFn *cuda_plans; /* NULL: it needs nothing but its operands */
    PathFn *cuda_path;     /* NULL: it has no kernels but our own */
} OpDef;

/* Runs the op on call->device: nothing on the null device; on the CPU the double kernel if the first float
 * operand is F64 or there is none, else the float kernel. BF16 and F16 operands are converted to float before
 * and rounded after: 16-bit storage with fp32 arithmetic. CUDA kernels take all types, and have been started,
 * not finished, when this returns. */
void call_run(const OpDef *, const Call *);
/* Who computes the call on call->device, or on the device that this null device plans for (PathFn). NULL: the
 * device has no choice. */
const char *call_path(const OpDef *, const Call *);

#endif
