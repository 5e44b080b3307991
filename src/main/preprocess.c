#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "data/preprocess.h"
#include "main/command.h"

typedef struct Options {
    TextList input, json_keys;
    const char *output_prefix;
    const char *lang, *input_encoding;
    bool append_eod, overwrite, split_sentences, keep_newlines;
    int64_t workers, log_interval;
    int input_format; /* PreprocessInput */
    Config config;
} Options;

static const char *const FORMATS[] = {"jsonl", "text", "paragraphs", NULL};

static const Arg ROWS[] = {
    {.names = "input",
     .type = ARG_TEXTS,
     .offset = offsetof(Options, input),
     .fallback = "none",
     .required = true,
     .help =
         "Files to read, in the given order: plain, compressed by gzip, bzip2, xz or zstd, or Parquet; - = "
         "standard input."},
    {.names = "input-encoding",
     .type = ARG_TEXT,
     .offset = offsetof(Options, input_encoding),
     .fallback = "utf-8",
     .help = COMMAND_INPUT_ENCODING},
    {.names = "output-prefix",
     .type = ARG_TEXT,
     .offset = offsetof(Options, output_prefix),
     .fallback = "none",
     .required = true,
     .help = "Write PREFIX_KEY_document.bin and .idx; PREFIX_KEY_sentence with split-sentences."},
    {.names = "json-keys",
     .type = ARG_TEXTS,
     .offset = offsetof(Options, json_keys),
     .fallback = "none",
     .help = "Keys of each JSON object to tokenize; each key becomes a dataset. none = text."},
    {.names = "input-format",
     .type = ARG_ENUM,
     .offset = offsetof(Options, input_format),
     .fallback = "jsonl",
     .choices = FORMATS,
     .help = "jsonl: one object per line; text: one document per file; paragraphs: one per block of lines."},
    {.names = "split-sentences",
     .type = ARG_FLAG,
     .offset = offsetof(Options, split_sentences),
     .fallback = "off",
     .help = "Make each sentence a sequence, as BERT and T5 need; ICU finds the sentences."},
    {.names = "keep-newlines",
     .type = ARG_FLAG,
     .offset = offsetof(Options, keep_newlines),
     .fallback = "off",
     .help = "With split-sentences: keep the white space between sentences."},
    {.names = "lang",
     .type = ARG_TEXT,
     .offset = offsetof(Options, lang),
     .fallback = "english",
     .help = "With split-sentences: language of the text, an English name or a locale such as de."},
    {.names = "append-eod",
     .type = ARG_FLAG,
     .offset = offsetof(Options, append_eod),
     .fallback = "off",
     .help = "Append the end-of-document token to each document."},
    {.names = "overwrite",
     .type = ARG_FLAG,
     .offset = offsetof(Options, overwrite),
     .fallback = "off",
     .help = "Replace existing datasets with these names."},
    {.names = "workers",
     .type = ARG_I64,
     .offset = offsetof(Options, workers),
     .fallback = "1",
     .help = "Number of threads that tokenize."},
    {.names = "log-interval",
     .type = ARG_I64,
     .offset = offsetof(Options, log_interval),
     .fallback = "1000",
     .help = "Documents between progress lines."},
};

static Err encode(void *tokenizer, const char *text, size_t n, int32_t **tokens, size_t *count) {
    return tokenizer_encode(tokenizer, text, n, tokens, count);
}

typedef struct Progress {
    int64_t start, next, interval;
} Progress;

static void progress(void *ctx, const PreprocessStats *s) {
    Progress *p = ctx;
    if (s->documents < p->next) return;
    p->next = s->documents + p->interval;
    double seconds = 1e-9 * (double)(clock_ns() - p->start), rate = (double)s->bytes / seconds;
    fprintf(stderr, "Processed %s (%.1f docs/s, %.2f MB/s)", amount(s->documents, "document").s,
            (double)s->documents / seconds, 1e-6 * rate);
    if (s->total_bytes) fprintf(stderr, ", time left %.0f s", (double)(s->total_bytes - s->bytes) / rate);
    fputc('\n', stderr);
}

static Err run(void *options) {
    const Options *o = options;
    Tokenizer *tokenizer;
    ERR_RETURN(setup_tokenizer_alone(&o->config, &tokenizer));
    Err e = ERR_OK;
    if (o->append_eod && tokenizer_eod(tokenizer) < 0)
        e = err_user("--append-eod needs an end-of-document token, and this tokenizer has none: remove it");
    Progress p = {.start = clock_ns(), .next = o->log_interval, .interval = o->log_interval};
    PreprocessStats stats = {0};
    if (!e.code)
        e = preprocess_run(&(PreprocessConfig){.kind = (PreprocessInput)o->input_format,
                                               .inputs = o->input.at,
                                               .num_inputs = (int)o->input.count,
                                               .encoding = o->input_encoding,
                                               .keys = o->json_keys.count ? o->json_keys.at : NULL,
                                               .num_keys = (int)o->json_keys.count,
                                               .output_prefix = o->output_prefix,
                                               .overwrite = o->overwrite,
                                               .vocab_size = tokenizer_vocab_size(tokenizer),
                                               .append_eod = o->append_eod,
                                               .split_sentences = o->split_sentences,
                                               .keep_newlines = o->keep_newlines,
                                               .lang = o->lang,
                                               .eod = tokenizer_eod(tokenizer),
                                               .workers = (int)o->workers,
                                               .encode = encode,
                                               .encode_ctx = tokenizer,
                                               .progress = progress,
                                               .progress_ctx = &p},
                           &stats);
    if (!e.code)
        printf("%s%s, %s, %s in %.1f s\n", amount(stats.documents, "document").s,
               o->json_keys.count > 1 ? " of each key" : "", amount(stats.sequences, "sequence").s,
               amount(stats.tokens, "token").s, 1e-9 * (double)(clock_ns() - p.start));
    tokenizer_free(tokenizer);
    return e;
}

static Err read_options(Options *o, Args *args, int argc, char **argv) {
    Config *c = &o->config;
    args_use(args, (ArgTable){.rows = ROWS, .count = sizeof ROWS / sizeof *ROWS, .target = o});
    args_use(args, config_table(c, USE_PREPROCESS));
    args_line(args, argc, argv);
    config_check(c, CHECK_STRICT, args);
    if (o->workers < 1 || o->workers > 1024) args_problem(args, "--workers must be from 1 to 1024.");
    if (o->log_interval < 1) args_problem(args, "--log-interval must be at least 1.");
    command_check_encoding(args, o->input_encoding);
    if (!o->split_sentences) {
        args_refuse(args, "keep-newlines", "without --split-sentences");
        args_refuse(args, "lang", "without --split-sentences");
    }
    setup_check_tokenizer(c, args);
    return args_end(args);
}

int command_preprocess(int argc, char **argv) {
    Arena *arena = arena_new();
    Options o = {0};
    Args args;
    args_init(&args, arena,
              "isotron preprocess --input FILE... --output-prefix PREFIX --tokenizer-type TYPE [options]\n\n"
              "Tokenizes text into the .bin and .idx files that training reads.\n\n"
              "example: isotron preprocess --input corpus.jsonl --output-prefix corpus --append-eod \\\n"
              "             --tokenizer-type HuggingFaceTokenizer --tokenizer-model tokenizer.json",
              NULL);
    const int status = command_finish(&args, read_options(&o, &args, argc, argv), run, &o);
    arena_free(arena);
    return status;
}
