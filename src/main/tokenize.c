#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "data/input.h"
#include "main/command.h"

typedef struct Options {
    TextList text, input;
    const char *input_encoding;
    bool add_special_tokens;
    Config config;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, text, "text", ARG_TEXTS, "none", "Texts to tokenize."),
    ARG_ROW(Options, input, "input", ARG_TEXTS, "none",
            "Files with one text per line, plain or compressed; - = standard input."),
    ARG_ROW(Options, input_encoding, "input-encoding", ARG_TEXT, "utf-8", COMMAND_INPUT_ENCODING),
    ARG_ROW(Options, add_special_tokens, "add-special-tokens", ARG_FLAG, "off",
            "Add the tokens of the post-processor, such as [CLS] and [SEP]."),
};

/* Returns the text of a token. Bytes that are not valid UTF-8, such as parts of a character, become
 * U+FFFD. */
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

static Err print_tokens(const Tokenizer *t, const Options *o, const char *text, size_t n) {
    int32_t *ids;
    TokenSpan *spans;
    size_t count;
    ERR_RETURN(tokenizer_encode_spans(t, o->add_special_tokens ? TOKENIZER_ADD_SPECIAL : 0, text, n, &ids,
                                      &spans, &count));
    json_t *id = json_array(), *token = json_array(), *span = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(id, json_integer(ids[i]));
        json_array_append_new(token, spelling(t, ids[i]));
        json_array_append_new(span, json_pack("[I,I]", (json_int_t)spans[i].begin, (json_int_t)spans[i].end));
    }
    json_t *line = json_pack("{s:o,s:o,s:o}", "ids", id, "tokens", token, "spans", span);
    json_dumpf(line, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(line);
    free(ids), free(spans);
    return ferror(stdout) ? err_infra("cannot write the tokens to standard output") : ERR_OK;
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

static Err run(void *options) {
    const Options *o = options;
    Tokenizer *t;
    ERR_RETURN(setup_tokenizer_alone(&o->config, &t));
    Err e = ERR_OK;
    for (int64_t i = 0; i < o->text.count && !e.code; i++)
        e = print_tokens(t, o, o->text.at[i], strlen(o->text.at[i]));
    for (int64_t i = 0; i < o->input.count && !e.code; i++) e = print_lines(t, o, o->input.at[i]);
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
              "span is the first character of the text that a token stands for, and the last one + 1.\n\n"
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
    if (!o.text.count && !o.input.count) args_problem(&args, "There is no text: set --text or --input.");
    const int status = command_finish(&args, args_end(&args), run, &o);
    arena_free(arena);
    return status;
}
