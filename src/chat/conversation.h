/* Creates a chat template's variables: tools, special tokens, and messages in the form that transformers passes to
 * templates. */
#pragma once

#include "chat/chat.h"

/* Renders a request with a template. `special` is an object that maps names such as "bos_token" to the special tokens'
 * text. */
Err conversation_render(const Template *, const json_t *special, const ChatRequest *, const struct tm *now,
                        TemplateLimits, Str *out);
