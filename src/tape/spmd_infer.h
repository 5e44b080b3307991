/* The type checker: the types of an op's operands (tensor/spmd.h) must satisfy the op's rule. */
#pragma once

#include "param/param.h"
#include "tensor/call.h"

/* Sets the types of the outputs from those of the operands. Operands that do not fit are a fault, which names
 * the op, the axis, each operand's type and the missing collective. Axes of size 1 are ignored. */
void types_infer(const OpDef *, const Call *, const Layout *);
