/* Converts a conversation to the text that a model reads. The chat template of the tokenizer's folder is applied as
 * by apply_chat_template of transformers 5.24. */
#pragma once

#include "chat/template.h"
#include "chat/tools.h"
#include "tokenizer/tokenizer.h"

/* The templates and the special tokens of a tokenizer. A Chat never changes after chat_open, so any number of threads
 * may use it. */
typedef struct Chat Chat;

/* Reads the templates in the folder of the tokenizer `model`: chat_template.jinja and the files of
 * additional_chat_templates/ or, if these do not exist, "chat_template" of tokenizer_config.json. Returns an error if
 * there is no template. The tokenizer must outlive the result. */
Err chat_open(const char *model, const Tokenizer *, Chat **out);
void chat_free(Chat *); /* NULL is fine */

/* The input of a chat template. The request must not change while it is in use. */
typedef struct ChatRequest {
    const json_t *messages;          /* a list of objects */
    const json_t *tools, *documents; /* lists of JSON objects, or NULL */
    const json_t *variables; /* other variables of the template, or NULL; they replace special tokens */
    /* the name or the text of a template; NULL means the template for tools, or the default */
    const char *template;
    bool add_generation_prompt; /* whether the text ends with the beginning of the answer */
    /* whether the text ends inside the last message, which the model continues */
    bool continue_final_message;
} ChatRequest;

/* Reads a request from a list of messages, or from an object with "messages" and any of "tools", "documents",
 * "chat_template", "chat_template_kwargs", "add_generation_prompt" and "continue_final_message". `out` borrows from
 * the JSON value. `where` is the source in messages, such as "'file'". */
Err chat_request(const char *where, const json_t *, ChatRequest *out);
/* Returns the format of the tool calls that a model writes for a request with tools, or NULL if the format is not
 * known. `template` is that of ChatRequest. */
const ToolFormat *chat_tool_format(const Chat *, const char *template);
/* Renders a request and appends the text to `out`. `now` is the local time. */
Err chat_render(const Chat *, const ChatRequest *, const struct tm *now, Str *out);
/* Tokenizes a rendered text. Special tokens in the text become their ids, and no special tokens are added. See
 * tokenizer_encode_spans. */
Err chat_encode(const Chat *, const Str *text, int32_t **ids, TokenSpan **spans, size_t *count);
