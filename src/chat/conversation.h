/* Creates the variables of a chat template: messages in the form that transformers passes to templates, tools and
 * special tokens. */
#pragma once

#include "chat/chat.h"

/* Renders a request with a template. `special` is an object with the texts of special tokens, whose keys are names
 * such as "bos_token". */
Err conversation_render(const Template *, const json_t *special, const ChatRequest *, const struct tm *now,
                        TemplateLimits, Str *out);
