/* The texts that a request allows: response_format, and tool_choice. */
#pragma once

#include "server/request.h"

/* The bytes that each token adds to a text, for the engine. */
Vocabulary *constraint_vocabulary(const Tokenizer *);
/* Reads response_format of a body. */
Refusal constraint_format(const json_t *body, Ask *);
/* Makes the text one call of the function `name` of `tools` or, if it is NULL, of any of them, in the format a->tools. */
Refusal constraint_call(const Served *, const json_t *tools, const char *name, Ask *);
