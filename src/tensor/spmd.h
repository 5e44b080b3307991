/* The type of a tensor along each axis of the mesh (comm/mesh.h numbers the axes), and the type of its
 * gradient:
 *
 *   I, invariant:   All ranks have the same value, and the same gradient. The dual is I.
 *   R, replicated:  All ranks have the same value, and each rank holds a summand of the gradient. The dual is P.
 *   V, varying:     Each rank holds a different piece of the value and of the gradient. The dual is V.
 *   P, partial:     Each rank holds a summand of the value, and the gradient is replicated. The dual is R.
 *
 * Along an axis of size 1, every type is I. The rule of an op in kernels/ops.def computes the type of its
 * output from the types of its operands. If a rule does not allow an op's operands, a collective is missing or
 * repeated. JAX's shard_map has the same four types with different names ("varying manual axes"). */
#pragma once

#include <stdint.h>

typedef enum Spmd { SPMD_I, SPMD_R, SPMD_V, SPMD_P } Spmd;

enum { SPMD_AXES = 7 };
/* The type along each axis, in two bits. 0 means I on all axes. */
typedef uint16_t SpmdType;

static inline char spmd_letter(Spmd s) { return "IRVP"[s]; }

static inline Spmd spmd_on(SpmdType t, int axis) { return (Spmd)(t >> 2 * axis & 3); }

static inline SpmdType spmd_with(SpmdType t, int axis, Spmd s) {
    return (SpmdType)((t & ~(3u << 2 * axis)) | (unsigned)s << 2 * axis);
}

static inline Spmd spmd_dual(Spmd s) { return s == SPMD_R ? SPMD_P : s == SPMD_P ? SPMD_R : s; }

static inline SpmdType spmd_dual_type(SpmdType t) {
    for (int a = 0; a < SPMD_AXES; a++) t = spmd_with(t, a, spmd_dual(spmd_on(t, a)));
    return t;
}

/* Returns a mask of the axes on which type t has state s. */
static inline unsigned spmd_axes(SpmdType t, Spmd s) {
    unsigned mask = 0;
    for (int a = 0; a < SPMD_AXES; a++) mask |= (unsigned)(spmd_on(t, a) == s) << a;
    return mask;
}

/* Rules that compute an op's output type from its operand types, axis by axis. Operands that are equal on all
 * ranks and have no gradient (tables, ids) are compatible with every type. */
typedef enum SpmdRule {
    /* for ops that occur only in backward passes and updates, whose counterparts in the forward pass are
     * checked instead */
    SPMD_UNTYPED,
    SPMD_LOCAL,  /* all I -> I; all R -> R; V, or V and R -> V */
    SPMD_LINEAR, /* like LOCAL, and all P -> P: for sums and copies */
    SPMD_GEMM,   /* x w^T + bias (tape/spmd_infer.c): a sharded weight turns R into V, and V into P */
    SPMD_LOOKUP, /* lookup of a table's rows: the result is P if the table is sharded */
    /* like LOCAL, then summed over the tokens of a microbatch: V becomes P on the axes that shard the microbatch */
    SPMD_SUM,
} SpmdRule;
