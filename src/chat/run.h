/* Evaluates expressions and runs statements. */
#pragma once

#include "chat/call.h"

/* ---- evaluate.c ---- */

Value chat_evaluate(Machine *, Scope *, const TreeNode *);
/* Evaluates a call's arguments. If `first` is not VALUE_MISSING, it becomes the first argument. */
CallArgs chat_evaluate_args(Machine *, Scope *, const TreeNodes *, Value first);
/* Applies NODE_FILTERs. The innermost filter is applied to `input` unless the template gives it an operand. */
Value chat_evaluate_filters(Machine *, Scope *, const TreeNode *, Value input);

/* ---- execute.c ---- */

void chat_execute(Machine *, Scope *, const TreeNodes *);
/* Calls a macro, or the body of a call block. `caller` is VALUE_MISSING if there is none. */
Value chat_execute_macro(Machine *, const Callable *, const CallArgs *);
/* Runs the body of a recursive loop for other items. */
Value chat_execute_loop_again(Machine *, const Loop *, Value items);
