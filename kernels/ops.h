/* The table of ops, generated from ops.def: an enum, and one OpDef per op. OPS refers to the kernels by name,
 * so a missing kernel causes a link error that names the kernel. */
#pragma once

#include "tensor/call.h"

typedef enum OpNumber {
#define OP(name, ...) OP_##name,
#include "kernels/ops.def"
    OP_KERNELS, /* number of ops that have kernels; the numbers of the collectives follow */
    OP_LAST_KERNEL = OP_KERNELS - 1,
#define COLLECTIVE(name, ...) OP_##name,
#include "kernels/ops.def"
    OP_COUNT
} OpNumber;

typedef enum OpFamily {
#define FAMILY(constant, name) OP_FAMILY_##constant,
#include "kernels/ops.def"
    OP_FAMILIES /* number of families; also the family of every collective */
} OpFamily;

extern const OpDef OPS[OP_COUNT];
extern const char *const OP_FAMILY_NAMES[OP_FAMILIES];

static inline bool op_is_collective(const OpDef *op) { return op->number >= OP_KERNELS; }
