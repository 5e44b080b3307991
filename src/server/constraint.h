/* Restricts generated text to what a request's fields response_format and tool_choice allow. */
#pragma once

#include "server/request.h"

/* For the engine, returns the bytes that each token adds to a text. */
Vocabulary *constraint_vocabulary(const Tokenizer *);
/* Reads response_format from a request body. */
Refusal constraint_format(const json_t *body, Ask *);
/* Restricts the text to one call or, with `several`, to one or more calls, in the format a->tools. Each call is to the
 * function `name` in a->functions or, if `name` is NULL, to any function there. */
Refusal constraint_call(const Served *, const char *name, bool several, Ask *);
