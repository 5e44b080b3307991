/* The op table, generated from ops.def: an enum, and one OpDef per op whose kernels are bound at link time,
 * so that a missing kernel is a link error that names it. */
#ifndef ISOTRON_KERNELS_OPS_H
#define ISOTRON_KERNELS_OPS_H

#include "tensor/call.h"

typedef enum OpNumber {
#define OP(name, rule, operands) OP_##name,
#include "kernels/ops.def"
#undef OP
    OP_COUNT
} OpNumber;

extern const OpDef OPS[OP_COUNT];

#endif
