/* Evaluates expressions and runs statements. */
#pragma once

#include "chat/call.h"

/* ---- evaluate.c ---- */

Value evaluate(Machine *, Scope *, const Node *);
/* Evaluates the arguments of a call, behind `first` if it is not VALUE_MISSING. */
Args evaluate_args(Machine *, Scope *, const Nodes *, Value first);
/* Applies NODE_FILTERs. `input` replaces the operand of the innermost one if it has none. */
Value evaluate_filters(Machine *, Scope *, const Node *, Value input);

/* ---- execute.c ---- */

void execute(Machine *, Scope *, const Nodes *);
/* Calls a macro, or the body of a call block. `caller` is VALUE_MISSING if there is none. */
Value execute_macro(Machine *, const Callable *, const Args *);
/* Runs a recursive loop over other items. */
Value execute_loop_again(Machine *, const Loop *, Value items);
