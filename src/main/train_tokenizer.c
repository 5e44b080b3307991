#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/json_line.h"
#include "data/text_reader.h"
#include "main/command.h"
#include "tokenizer/model/vocab.h"
#include "tokenizer/train/bpe.h"
#include "tokenizer/train/unigram.h"

typedef struct Options {
    TextList input, special_tokens;
    const char *output, *json_key, *pattern, *input_encoding;
    int64_t vocab_size, min_frequency;
    int model;        /* a Model */
    int input_format; /* a PreprocessInput */
    bool overwrite;
} Options;

typedef enum Model { BPE, UNIGRAM } Model;
static const char *const MODELS[] = {"bpe", "unigram", NULL};

static const Arg ROWS[] = {
    ARG_ROW(Options, input, "input", ARG_TEXTS, "none", "Files to read, in the given order.",
            .required = true),
    ARG_ROW(Options, input_encoding, "input-encoding", ARG_TEXT, "utf-8", COMMAND_INPUT_ENCODING),
    ARG_ROW(Options, output, "output", ARG_TEXT, "none",
            "File tokenizer.json to write. Missing folders are created.", .required = true),
    ARG_ROW(Options, model, "model", ARG_ENUM, "bpe",
            "Model of the tokenizer. bpe: byte-level BPE, as in GPT-2; unigram: pieces with probabilities, "
            "as in T5 and XLM-R.",
            .choices = MODELS),
    ARG_ROW(Options, vocab_size, "vocab-size", ARG_I64, "32000",
            "Vocabulary size: special tokens, the 256 bytes and merges, or pieces."),
    ARG_ROW(Options, min_frequency, "min-frequency", ARG_I64, "2",
            "BPE: minimum number of occurrences of a pair that is merged."),
    ARG_ROW(Options, special_tokens, "special-tokens", ARG_TEXTS, "none",
            "Special tokens, which have the first ids; none = <|endoftext|>, for unigram <pad> </s> <unk>."),
    ARG_ROW(Options, pattern, "pattern", ARG_TEXT, "gpt2",
            "BPE: pattern that splits text into words: gpt2, v1 or v2 of --tiktoken-pattern, cl100k or "
            "o200k."),
    ARG_ROW(Options, input_format, "input-format", ARG_ENUM, "jsonl", COMMAND_INPUT_FORMAT,
            .choices = command_input_formats),
    ARG_ROW(Options, json_key, "json-key", ARG_TEXT, "text",
            "Key of each JSON object whose value is the "
            "text to train on."),
    ARG_ROW(Options, overwrite, "overwrite", ARG_FLAG, "off", "Replace the output if it exists."),
};

static Err add_json(Words *t, const Options *o, bool is_first, const Str *record) {
    JsonText value;
    json_t *text;
    ERR_RETURN(json_line(record->s, record->len, is_first, &o->json_key, 1, &value));
    if (!value.at || *value.at != '"')
        return err_user("the key \"%s\" has no text: set --json-key", o->json_key);
    ERR_RETURN(json_line_string(value, o->json_key, &text));
    const Err e = words_add(t, json_string_value(text), json_string_length(text));
    json_decref(text);
    return e;
}

static Err add_record(Words *t, const Options *o, const TextReader *r, const Str *record) {
    if (r->kind != PREPROCESS_JSONL) return words_add(t, record->s ? record->s : "", record->len);
    const Err e = add_json(t, o, r->line == 1, record);
    return e.code ? err_user("'%s' line %lld: %.900s", r->path, (long long)r->line, e.msg) : e;
}

static Err read_texts(Words *t, const Options *o) {
    enum { PROGRESS_BYTES = 1 << 28 };
    const InputOptions options = {&o->json_key, o->input_format == PREPROCESS_JSONL, o->input_encoding};
    TextReader r = text_reader((PreprocessInput)o->input_format, o->input.at, (int)o->input.count, options);
    Str record = {0};
    Err e = ERR_OK;
    int64_t documents = 0, told = 0;
    for (bool more = true; !e.code;) {
        str_clear(&record);
        e = text_reader_next(&r, &record, &more);
        if (e.code || !more) break;
        e = add_record(t, o, &r, &record);
        documents++;
        if (text_reader_bytes(&r) - told < PROGRESS_BYTES) continue;
        told = text_reader_bytes(&r);
        fprintf(stderr, "Read %s, %s, %s\n", bytes_text((double)told).s, amount(documents, "document").s,
                amount(words_number(t), "different word").s);
    }
    if (!e.code && !words_number(t)) e = err_user("the input has no text to train on");
    text_reader_close(&r);
    str_free(&record);
    return e;
}

static void progress(void *ctx, int64_t tokens) {
    const Options *o = ctx;
    if (o->model == BPE)
        fprintf(stderr, "Made %lld of %lld tokens\n", (long long)tokens, (long long)o->vocab_size);
    else
        fprintf(stderr, "Estimating the probabilities of %s\n", amount(tokens, "piece").s);
}

static Err write_json(const char *path, const json_t *tokenizer) {
    char *text = json_dumps(tokenizer, JSON_INDENT(1));
    if (!text) return err_user("the tokenizer cannot be written as JSON");
    Err e = file_write_atomic(path, text, strlen(text));
    free(text);
    return e;
}

static Training training_of(Options *o) {
    static const char *const USUAL[] = {"<|endoftext|>"}, *const UNIGRAM_USUAL[] = {"<pad>", "</s>", "<unk>"};
    Training t = {.vocab_size = o->vocab_size,
                  .min_frequency = o->min_frequency,
                  .special = o->special_tokens.at,
                  .num_special = (size_t)o->special_tokens.count,
                  .progress = progress,
                  .ctx = o};
    if (t.num_special) return t;
    t.special = o->model == BPE ? USUAL : UNIGRAM_USUAL;
    t.num_special = o->model == BPE ? 1 : 3;
    return t;
}

static Err train(Words *words, Options *o) {
    const int64_t start = clock_ns();
    ERR_RETURN(read_texts(words, o));
    const Training training = training_of(o);
    json_t *made = NULL;
    int64_t tokens;
    if (o->model == BPE)
        ERR_RETURN(bpe_train(words, &training, &made, &tokens));
    else
        ERR_RETURN(unigram_train(words, &training, &made, &tokens));
    Err e = write_json(o->output, made);
    json_decref(made);
    if (e.code) return e;
    printf("%s of %s in %.1f s\n", amount(tokens, "token").s, amount(words_number(words), "different word").s,
           1e-9 * (double)(clock_ns() - start));
    if (tokens < o->vocab_size && o->model == BPE)
        printf("note: no other pair occurs %lld times: for more tokens, lower --min-frequency or add text\n",
               (long long)o->min_frequency);
    else if (tokens < o->vocab_size)
        printf("note: the text has no more pieces that occur often enough: for more tokens, add text\n");
    return ERR_OK;
}

static Err make_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = mem_printf("%.*s", slash ? (int)(slash - path) : 0, path);
    const Err e = *folder ? file_mkdirs(folder) : ERR_OK;
    free(folder);
    return e;
}

static Err run(void *options) {
    Options *o = options;
    if (file_exists(o->output) && !o->overwrite)
        return err_user("'%s' exists: choose another --output, or add --overwrite", o->output);
    ERR_RETURN(make_folder(o->output));
    ERR_RETURN(file_check_target(o->output));
    Words *words;
    ERR_RETURN(o->model == BPE ? bpe_words(o->pattern, &words) : unigram_words(&words));
    Err e = train(words, o);
    words_free(words);
    return e;
}

int command_train_tokenizer(int argc, char **argv) {
    Arena *arena = arena_new();
    Options o;
    Args args;
    args_init(
        &args, arena,
        "isotron train-tokenizer --input FILE... --output tokenizer.json [options]\n\n"
        "Trains byte-level BPE or a unigram model, as Hugging Face's tokenizers does for the same "
        "documents.\n\n"
        "example: isotron train-tokenizer --input corpus.jsonl --output tokenizer.json --vocab-size 32000",
        NULL);
    args_use(&args, ARG_TABLE(ROWS, &o));
    args_line(&args, argc, argv);
    command_check_encoding(&args, o.input_encoding);
    for (int64_t i = 0; i < o.input.count; i++)
        if (o.output && file_is_same(o.input.at[i], o.output))
            args_problem(&args, "--input and --output are the same file '%s': choose another output.",
                         o.output);
    args_check_texts(&args, "special-tokens", &o.special_tokens);
    for (int64_t i = 1; i < o.special_tokens.count; i++)
        for (int64_t k = 0; k < i; k++)
            if (!strcmp(o.special_tokens.at[i], o.special_tokens.at[k]))
                args_problem(&args, "--special-tokens has '%.60s' twice: remove one.",
                             o.special_tokens.at[i]);
    if (o.vocab_size < 1 || o.vocab_size > VOCAB_ID_LIMIT)
        args_problem(&args, "--vocab-size must be from 1 to %d.", VOCAB_ID_LIMIT);
    for (int i = 0; o.model == UNIGRAM && i < 2; i++)
        args_refuse(&args, i ? "min-frequency" : "pattern", "by --model unigram");
    if (o.min_frequency < 1) args_problem(&args, "--min-frequency must be at least 1.");
    const int status = command_finish(&args, args_end(&args), run, &o);
    arena_free(arena);
    return status;
}
