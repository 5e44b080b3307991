/* The text that a model reads for a conversation: the chat template of a tokenizer's folder, applied as
 * apply_chat_template of transformers 5.24 applies it. */
#pragma once

#include "chat/template.h"
#include "chat/tools.h"
#include "tokenizer/tokenizer.h"

/* Templates and special tokens of a tokenizer. It never changes after chat_open, so any number of threads may use
 * it. */
typedef struct Chat Chat;

/* Reads chat_template.jinja with the files of additional_chat_templates/ or, if there are none, "chat_template" of
 * tokenizer_config.json, in the folder of the tokenizer `model`. Returns an error if there is no template. The
 * tokenizer must outlive the result. */
Err chat_open(const char *model, const Tokenizer *, Chat **out);
void chat_free(Chat *); /* NULL is fine */

/* The input of a chat template. The request must not change while it is in use. */
typedef struct ChatRequest {
    const json_t *messages;          /* a list of objects */
    const json_t *tools, *documents; /* lists of objects, or NULL */
    const json_t *variables; /* other variables of the template, or NULL; they replace special tokens */
    const char *template; /* the name of a template, or a template; NULL: the one for tools, or the default */
    bool add_generation_prompt;  /* end with the beginning of the answer */
    bool continue_final_message; /* end inside the last message, which the model continues */
} ChatRequest;

/* Reads a request from a list of messages, or from an object with "messages" and any of "tools", "documents",
 * "chat_template", "chat_template_kwargs", "add_generation_prompt" and "continue_final_message". `out` borrows from the
 * JSON value. `where` is the source, for messages: "'file'". */
Err chat_request(const char *where, const json_t *, ChatRequest *out);
/* The format in which a request with tools gets calls; template: as in ChatRequest. NULL if it is not known. */
const ToolFormat *chat_tool_format(const Chat *, const char *template);
/* Appends the text to `out`. `now` is the local time. */
Err chat_render(const Chat *, const ChatRequest *, const struct tm *now, Str *out);
/* Tokenizes a rendered text. Special tokens in it become their ids, and none are added. See tokenizer_encode_spans. */
Err chat_encode(const Chat *, const Str *text, int32_t **ids, TokenSpan **spans, size_t *count);
