/* Converts a conversation to the text that a model reads. Applies the chat template from the tokenizer's folder, as
 * transformers 5.24's apply_chat_template does. */
#pragma once

#include "chat/template.h"
#include "chat/tools.h"
#include "tokenizer/tokenizer.h"

/* A tokenizer's templates and special tokens. A Chat never changes after chat_open, so any number of threads
 * can share a Chat. */
typedef struct Chat Chat;

/* Reads the templates in the folder of the tokenizer `model`: chat_template.jinja and the files in
 * additional_chat_templates/, or "chat_template" in tokenizer_config.json if there are no such files. Sets *out to NULL
 * if there is no template. Errors name local files. The tokenizer must outlive the result. */
Err chat_open(const char *model, const Tokenizer *, Chat **out);
void chat_free(Chat *); /* the argument may be NULL */

/* The input of a chat template. A request must not change while a template uses it. */
typedef struct ChatRequest {
    const json_t *messages;          /* a list of objects */
    const json_t *tools, *documents; /* lists of JSON objects, or NULL */
    const json_t *variables; /* other variables for the template, or NULL; they override special tokens */
    /* a template's name or text; NULL means the template for tools if the request has tools and such a
     * template exists, and otherwise the default template */
    const char *template;
    bool add_generation_prompt; /* whether the text ends with the beginning of a new answer */
    /* whether the text ends inside the last message, so that the model continues it */
    bool continue_final_message;
    bool local; /* whether a template's errors name its file; a server's clients must not see the name */
} ChatRequest;

/* Reads a request from a list of messages, or from an object that contains "messages" and any of "tools", "documents",
 * "chat_template", "chat_template_kwargs", "add_generation_prompt" and "continue_final_message". `out` borrows memory
 * from the JSON value. `where` names the source in error messages, such as "'file'". */
Err chat_request(const char *where, const json_t *, ChatRequest *out);
/* Returns the format in which a model writes tool calls for a request with tools, or NULL if the format is unknown.
 * `template` has the same meaning as in ChatRequest. */
const ToolFormat *chat_tool_format(const Chat *, const char *template);
/* Returns whether the template for a request contains the name of a variable. */
bool chat_has_variable(const Chat *, const ChatRequest *, const char *name);
/* Renders a request and appends the text to `out`. `now` is the local time. */
Err chat_render(const Chat *, const ChatRequest *, const struct tm *now, Str *out);
/* Tokenizes rendered text. Special tokens in the text are encoded as their ids, and no other special tokens are
 * added. See tokenizer_encode_spans. */
Err chat_encode(const Chat *, const Str *text, int32_t **ids, TokenSpan **spans, size_t *count);
