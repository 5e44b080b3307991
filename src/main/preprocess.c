#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/mem.h"
#include "data/input.h"
#include "data/preprocess.h"
#include "main/command.h"

typedef struct Options {
    TextList input, json_keys;
    const char *output_prefix;
    const char *lang, *input_encoding;
    bool append_eod, overwrite, split_sentences, keep_newlines;
    int64_t workers, log_interval, partitions, max_documents;
    I64List workers_to_check;
    bool keep_sequential_samples, find_optimal_num_workers;
    int input_format; /* a PreprocessInput */
    Config config;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, input, "input", ARG_TEXTS, "none",
            "Files to read, in the given order: plain, compressed with gzip, bzip2, xz, lzma, lzip or zstd, "
            "or Parquet; - = standard input.",
            .required = true),
    ARG_ROW(Options, input_encoding, "input-encoding", ARG_TEXT, "utf-8", COMMAND_INPUT_ENCODING),
    ARG_ROW(Options, output_prefix, "output-prefix", ARG_TEXT, "none",
            "Write PREFIX_KEY_document.bin and .idx; PREFIX_KEY_sentence with split-sentences.",
            .required = true),
    ARG_ROW(Options, json_keys, "json-keys", ARG_TEXTS, "none",
            "Keys of each JSON object to tokenize; each key becomes a dataset. none = text."),
    ARG_ROW(Options, input_format, "input-format", ARG_ENUM, "jsonl", COMMAND_INPUT_FORMAT,
            .choices = command_input_formats),
    ARG_ROW(Options, split_sentences, "split-sentences", ARG_FLAG, "off",
            "Make each sentence a sequence, as BERT and T5 need; ICU finds the sentences."),
    ARG_ROW(Options, keep_newlines, "keep-newlines", ARG_FLAG, "off",
            "With split-sentences, keep the white space between sentences."),
    ARG_ROW(Options, lang, "lang", ARG_TEXT, "english",
            "With split-sentences, the language of the text: an English name or a locale such as de."),
    ARG_ROW(Options, append_eod, "append-eod", ARG_FLAG, "off",
            "Append the end-of-document token to each document."),
    ARG_ROW(Options, overwrite, "overwrite", ARG_FLAG, "off", "Replace existing datasets with these names."),
    ARG_ROW(Options, workers, "workers", ARG_I64, "1",
            "Number of threads that tokenize, a multiple of partitions."),
    ARG_ROW(Options, partitions, "partitions", ARG_I64, "1",
            "Order the documents as with N partitions of Megatron-LM: first the documents 1, N + 1, 2N + 1, "
            "..., then 2, N + 2, ..., and so on."),
    ARG_ROW(Options, keep_sequential_samples, "keep-sequential-samples", ARG_FLAG, "off",
            "With partitions, keep the order of the input."),
    ARG_ROW(Options, find_optimal_num_workers, "find-optimal-num-workers", ARG_FLAG, "off",
            "Measure the speed with each number of threads in workers-to-check. No dataset is written."),
    ARG_ROW(Options, workers_to_check, "workers-to-check", ARG_I64S, "16 32 64",
            "With find-optimal-num-workers, the numbers of threads to try."),
    ARG_ROW(Options, max_documents, "max-documents", ARG_I64, "100000",
            "With find-optimal-num-workers, the number of documents per partition in each measurement."),
    ARG_ROW(Options, log_interval, "log-interval", ARG_I64, "1000",
            "Number of documents between progress lines."),
};

/* Options of Megatron-LM's preprocess_data.py that affect only its processes and temporary files. Isotron ignores these
 * options. */
static const Foreign NOTED[] = {
    {.kind = FOREIGN_NOTED,
     .words = "performance-dir= parquet-batch-size= log-interval-seconds= skip-document-count "
              "keep-partition-files",
     .reason = "Threads share one stream of documents, without partition files."},
};

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

static PreprocessConfig config_of(const Options *o, Tokenizer *tokenizer) {
    return (PreprocessConfig){.kind = (PreprocessInput)o->input_format,
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
                              .partitions = o->keep_sequential_samples ? 1 : (int)o->partitions,
                              .encode = setup_encode,
                              .encode_ctx = tokenizer};
}

static Err write_dataset(const Options *o, PreprocessConfig c) {
    Progress p = {.start = clock_ns(), .next = o->log_interval, .interval = o->log_interval};
    PreprocessStats stats = {0};
    c.progress = progress, c.progress_ctx = &p;
    ERR_RETURN(preprocess_run(&c, &stats));
    printf("%s%s, %s, %s in %.1f s\n", amount(stats.documents, "document").s,
           o->json_keys.count > 1 ? " of each key" : "", amount(stats.sequences, "sequence").s,
           amount(stats.tokens, "token").s, 1e-9 * (double)(clock_ns() - p.start));
    return ERR_OK;
}

typedef struct Speed {
    int64_t workers;
    double rate; /* number of documents per second */
} Speed;

static int by_rate(const void *a, const void *b) {
    const double x = ((const Speed *)a)->rate, y = ((const Speed *)b)->rate;
    return (x < y) - (x > y);
}

static Err measure(const Options *o, PreprocessConfig c) {
    Speed *speeds = mem_zero((size_t)o->workers_to_check.count, sizeof *speeds);
    PreprocessStats stats;
    int n = 0;
    Err e = ERR_OK;
    c.most_documents = o->max_documents * o->partitions;
    for (int64_t i = 0; i < o->workers_to_check.count && !e.code; i++) {
        c.workers = (int)o->workers_to_check.at[i];
        if (c.workers % o->partitions) continue;
        const int64_t start = clock_ns();
        e = preprocess_run(&c, &stats);
        speeds[n++] = (Speed){c.workers, 1e9 * (double)stats.documents / (double)(clock_ns() - start)};
    }
    qsort(speeds, (size_t)n, sizeof *speeds, by_rate);
    for (int i = 0; i < n && !e.code; i++)
        printf("%d. %s: %.1f documents/s\n", i + 1, amount(speeds[i].workers, "worker").s, speeds[i].rate);
    if (!e.code)
        printf("The optimal number of workers is %lld. No dataset was written.\n",
               (long long)speeds[0].workers);
    free(speeds);
    return e;
}

static Err run(void *options) {
    const Options *o = options;
    Tokenizer *tokenizer;
    ERR_RETURN(setup_tokenizer_alone(&o->config, &tokenizer));
    Err e = ERR_OK;
    if (o->append_eod && tokenizer_eod(tokenizer) < 0)
        e = err_user(
            "--append-eod needs an end-of-document token, but this tokenizer has none: remove the option");
    const PreprocessConfig c = config_of(o, tokenizer);
    if (!e.code) e = o->find_optimal_num_workers ? measure(o, c) : write_dataset(o, c);
    tokenizer_free(tokenizer);
    return e;
}

static bool is_number_of_workers(int64_t n) { return n >= 1 && n <= 1024; }

/* Checks --workers-to-check. As in Megatron-LM, numbers that are not multiples of --partitions are skipped. */
static void check_measurement(const Options *o, Args *args) {
    int64_t usable = 0;
    for (int64_t i = 0; i < o->workers_to_check.count; i++) {
        const int64_t n = o->workers_to_check.at[i];
        const bool divides = o->partitions >= 1 && n % o->partitions == 0;
        if (!is_number_of_workers(n)) args_problem(args, "--workers-to-check must be from 1 to 1024.");
        if (!divides)
            args_note(args, "--workers-to-check %lld is skipped: it is not a multiple of --partitions %lld.",
                      (long long)n, (long long)o->partitions);
        usable += divides;
    }
    if (!usable) args_problem(args, "--workers-to-check needs a multiple of --partitions.");
    if (o->max_documents < 1 || o->max_documents > INT32_MAX)
        args_problem(args, "--max-documents must be from 1 to 2147483647.");
    for (int64_t i = 0; i < o->input.count; i++)
        if (input_is_stdin(o->input.at[i]))
            args_problem(args, "--find-optimal-num-workers reads the input several times, so standard "
                               "input cannot be used: specify files.");
}

static void check_partitions(const Options *o, Args *args) {
    if (!is_number_of_workers(o->partitions)) {
        args_problem(args, "--partitions must be from 1 to 1024.");
    } else if (!o->find_optimal_num_workers && o->workers % o->partitions) {
        args_problem(args, "--workers %lld is not a multiple of --partitions %lld: set --workers %lld.",
                     (long long)o->workers, (long long)o->partitions,
                     (long long)((o->workers / o->partitions + 1) * o->partitions));
    }
    if (o->keep_sequential_samples && o->partitions > 1)
        args_remark(args, REMARK_IDLE, "--partitions",
                    " with --keep-sequential-samples, which keeps the order.");
    if (o->keep_sequential_samples && o->partitions == 1)
        args_remark(args, REMARK_IDLE, "--keep-sequential-samples", " without --partitions.");
    if (o->find_optimal_num_workers) {
        check_measurement(o, args);
    } else {
        args_refuse(args, "workers-to-check", "without --find-optimal-num-workers");
        args_refuse(args, "max-documents", "without --find-optimal-num-workers");
    }
}

static Err read_options(Options *o, Args *args, int argc, char **argv) {
    Config *c = &o->config;
    args_use(args, ARG_TABLE(ROWS, o, .foreign = NOTED, .num_foreign = sizeof NOTED / sizeof *NOTED));
    args_use(args, config_table(c, USE_PREPROCESS));
    args_line(args, argc, argv);
    config_check(c, CHECK_STRICT, args);
    if (!is_number_of_workers(o->workers)) args_problem(args, "--workers must be from 1 to 1024.");
    if (o->log_interval < 1) args_problem(args, "--log-interval must be at least 1.");
    command_check_encoding(args, o->input_encoding);
    check_partitions(o, args);
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
