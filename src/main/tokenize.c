#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "chat/chat.h"
#include "data/input.h"
#include "main/command.h"

typedef struct Options {
    TextList text, input;
    const char *input_encoding, *messages;
    bool add_special_tokens;
    Config config;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, text, "text", ARG_TEXTS, "none", "Texts to tokenize."),
    ARG_ROW(Options, input, "input", ARG_TEXTS, "none",
            "Files with one text per line, plain or compressed; - = standard input."),
    ARG_ROW(Options, input_encoding, "input-encoding", ARG_TEXT, "utf-8", COMMAND_INPUT_ENCODING),
    ARG_ROW(Options, messages, "messages", ARG_TEXT, "none",
            "JSON file with messages, to which the chat template of the tokenizer is applied."),
    ARG_ROW(Options, add_special_tokens, "add-special-tokens", ARG_FLAG, "off",
            "Add the tokens of the post-processor, such as [CLS] and [SEP]."),
};

/* Returns a token's text. Bytes that are not valid UTF-8, such as parts of a character, become U+FFFD. */
static json_t *spelling(const Tokenizer *t, int32_t id) {
    size_t n;
    const char *text = tokenizer_token_text(t, id, &n);
    if (!text) return json_null();
    Str valid = {0};
    utf8_repair(text, n, &valid);
    json_t *spelled = json_stringn(valid.s ? valid.s : "", valid.len);
    str_free(&valid);
    return spelled;
}

/* Prints a line of JSON. `chat` is the rendered text of messages, or NULL. */
static Err print_encoded(const Tokenizer *t, const Str *chat, const int32_t *ids, const TokenSpan *spans,
                         size_t count) {
    json_t *id = json_array(), *token = json_array(), *span = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(id, json_integer(ids[i]));
        json_array_append_new(token, spelling(t, ids[i]));
        json_array_append_new(span, json_pack("[I,I]", (json_int_t)spans[i].begin, (json_int_t)spans[i].end));
    }
    json_t *line = json_object();
    if (chat) json_object_set_new(line, "text", json_stringn(chat->s ? chat->s : "", chat->len));
    json_object_set_new(line, "ids", id);
    json_object_set_new(line, "tokens", token);
    json_object_set_new(line, "spans", span);
    json_dumpf(line, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(line);
    return ferror(stdout) ? err_infra("cannot write the tokens to standard output") : ERR_OK;
}

static Err print_tokens(const Tokenizer *t, const Options *o, const char *text, size_t n) {
    int32_t *ids;
    TokenSpan *spans;
    size_t count;
    ERR_RETURN(tokenizer_encode_spans(t, o->add_special_tokens ? TOKENIZER_ADD_SPECIAL : 0, text, n, &ids,
                                      &spans, &count));
    const Err e = print_encoded(t, NULL, ids, spans, count);
    free(ids), free(spans);
    return e;
}

static Err print_lines(const Tokenizer *t, const Options *o, const char *path) {
    Input *input;
    ERR_RETURN(input_open(path, (InputOptions){.encoding = o->input_encoding}, &input));
    Str line = {0};
    int64_t number = 0;
    bool more;
    Err e;
    while (!(e = input_line(input, false, &line, &more)).code && more) {
        number++;
        e = print_tokens(t, o, line.s ? line.s : "", line.len);
        if (e.code) e = err_user("'%s' line %lld: %.900s", path, (long long)number, e.msg);
        if (e.code) break;
        str_clear(&line);
    }
    str_free(&line);
    input_close(input);
    return e;
}

static Err print_chat(const Tokenizer *t, const Chat *chat, const ChatRequest *request) {
    const time_t seconds = time(NULL);
    struct tm now;
    Str text = {0};
    int32_t *ids;
    TokenSpan *spans;
    size_t count;
    Err e = chat_render(chat, request, localtime_r(&seconds, &now), &text);
    if (!e.code) e = chat_encode(chat, &text, &ids, &spans, &count);
    if (!e.code) {
        e = print_encoded(t, &text, ids, spans, count);
        free(ids), free(spans);
    }
    str_free(&text);
    return e;
}

static Err print_messages(const Tokenizer *t, const Options *o) {
    char where[300];
    Str file = {0};
    json_error_t problem;
    ChatRequest request;
    Chat *chat = NULL;
    snprintf(where, sizeof where, "'%.250s'", o->messages);
    Err e = file_read_stream(o->messages, &file);
    json_t *root = e.code ? NULL : json_loadb(file.s ? file.s : "", file.len, JSON_ALLOW_NUL, &problem);
    if (!e.code && !root) e = err_user("%s line %d is not valid JSON: %s", where, problem.line, problem.text);
    if (!e.code) e = chat_request(where, root, &request);
    request.local = true;
    if (!e.code) e = setup_chat(&o->config, t, &chat);
    if (!e.code) e = print_chat(t, chat, &request);
    chat_free(chat);
    json_decref(root);
    str_free(&file);
    return e;
}

static Err run(void *options) {
    const Options *o = options;
    Tokenizer *t;
    ERR_RETURN(setup_tokenizer_alone(&o->config, &t));
    Err e = ERR_OK;
    for (int64_t i = 0; i < o->text.count && !e.code; i++)
        e = print_tokens(t, o, o->text.at[i], strlen(o->text.at[i]));
    for (int64_t i = 0; i < o->input.count && !e.code; i++) e = print_lines(t, o, o->input.at[i]);
    if (o->messages && !e.code) e = print_messages(t, o);
    tokenizer_free(t);
    return e;
}

int command_tokenize(int argc, char **argv) {
    Arena *arena = arena_new();
    Options o = {0};
    Args args;
    args_init(&args, arena,
              "isotron tokenize --text TEXT... --tokenizer-type TYPE [options]\n\n"
              "Prints the tokens of texts: for each text a line of JSON with ids, spellings and spans. A "
              "span is the range [first, last + 1) of characters of the text that a token represents. For "
              "--messages, the line also contains the text that the chat template produces.\n\n"
              "example: isotron tokenize --text 'Hello world' --tokenizer-type HuggingFaceTokenizer \\\n"
              "             --tokenizer-model tokenizer.json",
              NULL);
    args_use(&args, ARG_TABLE(ROWS, &o));
    args_use(&args, config_table(&o.config, USE_PREPROCESS));
    args_line(&args, argc, argv);
    config_check(&o.config, CHECK_STRICT, &args);
    setup_check_tokenizer(&o.config, &args);
    command_check_encoding(&args, o.input_encoding);
    args_check_texts(&args, "text", &o.text);
    if (!o.text.count && !o.input.count && !o.messages)
        args_problem(&args, "There is no text: set --text, --input or --messages.");
    if (o.messages && o.add_special_tokens)
        args_problem(&args,
                     "--add-special-tokens contradicts --messages: the chat template adds these tokens.");
    const int status = command_finish(&args, args_end(&args), run, &o);
    arena_free(arena);
    return status;
}
