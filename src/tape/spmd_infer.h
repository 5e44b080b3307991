/* The type checker: every op that is recorded has operands whose types (tensor/spmd.h) its rule allows. */
#ifndef ISOTRON_TAPE_SPMD_INFER_H
#define ISOTRON_TAPE_SPMD_INFER_H

#include "param/param.h"
#include "tensor/call.h"

const char *axis_name(Axis); /* "tp" */

/* Sets the type of the outputs from the operands'. Operands that do not fit are a fault that names the op,
 * the axis, what each operand is and what is missing. Axes of size 1 are not looked at. */
void types_infer(const OpDef *, const Call *, const Layout *);

#endif
