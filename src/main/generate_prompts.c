#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/input.h"
#include "data/json_line.h"
#include "main/generate.h"

/* Adds a prompt. For a Hugging Face T5 model, the tokenizer appends </s>. `most` is the number of tokens to
 * generate. */
static Err add_prompt(GenerateJob *j, const char *text, size_t length, int64_t most) {
    const unsigned flags = generate_is_hf_t5(j) ? TOKENIZER_ADD_SPECIAL : 0;
    int32_t *ids;
    size_t n;
    ERR_RETURN(tokenizer_encode_with(j->setup.tokenizer, flags, text, length, &ids, &n));
    j->prompts = mem_grow(j->prompts, (size_t)j->n + 1, sizeof *j->prompts);
    j->texts = mem_grow(j->texts, (size_t)j->n + 1, sizeof *j->texts);
    j->texts[j->n] = mem_printf("%.*s", (int)length, text);
    j->lengths = mem_grow(j->lengths, (size_t)j->n + 1, sizeof *j->lengths);
    j->lengths[j->n] = most;
    j->prompts[j->n++] = (Prompt){ids, (int64_t)n};
    return ERR_OK;
}

/* Adds the entire input as one prompt, without the newline at its end. */
static Err add_all(GenerateJob *j, Input *in, const char *path) {
    (void)path;
    Str text = {0};
    Err e = ERR_OK;
    for (bool more = true; more && !e.code;) e = input_text(in, &text, &more);
    if (!e.code)
        e = add_prompt(j, text.len ? text.s : "", text.len - (text.len && text.s[text.len - 1] == '\n'),
                       j->setup.config.tokens_to_generate);
    str_free(&text);
    return e;
}

static Err add_line(GenerateJob *j, const Str *line) {
    return line->len ? add_prompt(j, line->s, line->len, j->setup.config.tokens_to_generate) : ERR_OK;
}

/* Reads the number of tokens to generate. With --num-tokens-from-file, the line contains it. */
static Err read_length(const GenerateJob *j, JsonText value, const char *key, int64_t *out) {
    *out = j->setup.config.tokens_to_generate;
    if (!j->setup.config.num_tokens_from_file) return ERR_OK;
    char *text = value.at ? mem_printf("%.*s", (int)value.n, value.at) : mem_strdup("");
    char *end;
    *out = strtoll(text, &end, 10);
    const bool valid = end != text && !*end && *out >= 1 && *out <= INT32_MAX;
    free(text);
    return valid ? ERR_OK
                 : err_user(
                       "\"%s\" must be a number of at least 1: correct it, or remove --num-tokens-from-file",
                       key);
}

/* Adds the prompt in a line of JSON Lines, unless the line is blank. */
static Err add_json_line(GenerateJob *j, const Str *line) {
    static const char *const KEYS[] = {"text", "prompt", "chatgpt_output_token_length"};
    JsonText found[3];
    int64_t length;
    json_t *text;
    if (!line->len || strspn(line->s, " \t\r\v\f") == line->len) return ERR_OK;
    Err e = json_line(line->s, line->len, false, KEYS, 3, found);
    if (e.code) return err_user("%.700s; for lines of plain text use --prompts-file", e.msg);
    const int key = !found[0].at;
    if (!found[key].at)
        return err_user("the line has neither \"text\" nor \"prompt\": store the prompt as \"text\"");
    if (!key && found[1].at) return err_user("the line has both \"text\" and \"prompt\": remove one of them");
    ERR_RETURN(read_length(j, found[2], KEYS[2], &length));
    ERR_RETURN(json_line_string(found[key], KEYS[key], &text));
    const size_t n = json_string_length(text);
    e = strlen(json_string_value(text)) < n
            ? err_user("\"%s\" contains \\u0000, which cannot be printed: remove it", KEYS[key])
            : add_prompt(j, json_string_value(text), n, length);
    json_decref(text);
    return e;
}

static Err add_lines(GenerateJob *j, Input *in, const char *path, Err (*add)(GenerateJob *, const Str *),
                     int64_t most) {
    Str line = {0};
    Err e = ERR_OK;
    bool more;
    for (int64_t n = 1; n <= most && !(e = input_line(in, true, &line, &more)).code && more; n++) {
        e = add(j, &line);
        if (e.code) e = err_user("'%s' line %lld: %.900s", path, (long long)n, e.msg);
        if (e.code) break;
        str_clear(&line);
    }
    str_free(&line);
    return e;
}

static Err add_text_lines(GenerateJob *j, Input *in, const char *path) {
    return add_lines(j, in, path, add_line, INT64_MAX);
}
static Err add_json_lines(GenerateJob *j, Input *in, const char *path) {
    return add_lines(j, in, path, add_json_line, i64_or(j->setup.config.prompt_file_num_truncate, INT64_MAX));
}

static Err read_file(GenerateJob *j, const char *path, Err (*add)(GenerateJob *, Input *, const char *path)) {
    Input *in;
    ERR_RETURN(input_open(path, (InputOptions){0}, &in));
    const Err e = add(j, in, path);
    input_close(in);
    return e;
}

Err generate_read_prompts(GenerateJob *j) {
    const Config *c = &j->setup.config;
    int inputs = 0;
    for (int64_t i = 0; i < c->prompt.count; i++) {
        const char *prompt = c->prompt.at[i];
        char where[40];
        inputs += !strcmp(prompt, "-");
        if (inputs > 1) return err_user("--prompt reads standard input (-) more than once: keep one -");
        snprintf(where, sizeof where, "prompt %lld", (long long)i + 1);
        ERR_RETURN(text_check(where, prompt, strlen(prompt)));
        ERR_RETURN(strcmp(prompt, "-") ? add_prompt(j, prompt, strlen(prompt), c->tokens_to_generate)
                                       : read_file(j, prompt, add_all));
    }
    if (c->prompts_file) ERR_RETURN(read_file(j, c->prompts_file, add_text_lines));
    if (c->prompt_file) ERR_RETURN(read_file(j, c->prompt_file, add_json_lines));
    return j->n ? ERR_OK
                : err_user(
                      "there is nothing to continue; set --prompt TEXT, --prompts-file FILE or --prompt-file "
                      "FILE");
}
