/* The type checker: the types of an op's operands (tensor/spmd.h) must satisfy the op's rule. */
#pragma once

#include "param/param.h"
#include "tensor/call.h"

/* Derives the types of the outputs from the types of the operands. An op that violates its rule is a fault. The
 * message names the op, the axis, the type of each operand and the missing collective. Axes of size 1 are
 * ignored. */
void types_infer(const OpDef *, const Call *, const Layout *);
