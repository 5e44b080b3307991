/* Evaluates expressions and runs statements. */
#pragma once

#include "chat/call.h"

/* ---- evaluate.c ---- */

Value chat_evaluate(Machine *, Scope *, const TreeNode *);
/* Evaluates a call's arguments. Unless `first` is VALUE_MISSING, it is the first argument. */
CallArgs chat_evaluate_args(Machine *, Scope *, const TreeNodes *, Value first);
/* Applies NODE_FILTERs. The innermost filter is applied to its operand in the template or, if it has none, to
 * `input`. */
Value chat_evaluate_filters(Machine *, Scope *, const TreeNode *, Value input);

/* ---- execute.c ---- */

void chat_execute(Machine *, Scope *, const TreeNodes *);
/* Calls a macro, or the body of a call block. Returns the text that the macro or the body prints. */
Value chat_execute_macro(Machine *, const Callable *, const CallArgs *);
/* Runs the body of a recursive loop for the given items. */
Value chat_execute_loop_again(Machine *, const Loop *, Value items);
