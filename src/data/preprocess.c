/* Preprocessing repeats three steps: it reads a few MiB of records, encodes these records on all threads, and writes
 * the results in order. */
#include "data/preprocess.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/thread.h"
#include "data/indexed.h"
#include "data/json_line.h"
#include "data/sentences.h"
#include "data/text_reader.h"

enum { ROUND_BYTES = 8 << 20, ROUND_RECORDS = 16384, MAX_WORKERS = 1024 };

/* One document for one key, with its sequences concatenated. */
typedef struct Document {
    int32_t *tokens;
    size_t count;
    size_t *lengths; /* [sequences] */
    int sequences;
} Document;

typedef struct Record {
    size_t begin, end; /* range in Run.text */
    const char *path;
    int64_t line;
    Document *documents; /* [keys] */
    Err *err;            /* NULL means success */
} Record;

typedef struct Run {
    const PreprocessConfig *config;
    const char *const *keys;
    int num_keys;
    TextReader reader;
    Str text;
    Record *records; /* [ROUND_RECORDS] */
    int64_t count;
    atomic_llong next; /* the next record to encode */
    Pool *pool;
    Sentences *sentences; /* NULL if text is not split into sentences */
    int partitions;
    IndexedBuilder **builders; /* [partitions][keys] */
    PreprocessStats stats;
} Run;

static const char *const TEXT_KEY[] = {"text"};

static Err add_sequence(const PreprocessConfig *c, const char *text, size_t n, Document *d) {
    int32_t *tokens = NULL;
    size_t count = 0;
    Err e = c->encode(c->encode_ctx, text, n, &tokens, &count);
    if (!e.code && count) {
        d->tokens = mem_grow(d->tokens, d->count + count, sizeof *d->tokens);
        memcpy(d->tokens + d->count, tokens, count * sizeof *tokens);
        d->count += count;
        d->lengths = mem_grow(d->lengths, (size_t)d->sequences + 1, sizeof *d->lengths);
        d->lengths[d->sequences++] = count;
    }
    free(tokens);
    return e;
}

/* Adds the text as one sequence, or as one sequence per sentence. */
static Err add_text(const PreprocessConfig *c, Sentences *sentences, const char *text, size_t n,
                    Document *d) {
    if (!sentences) return add_sequence(c, text, n, d);
    ERR_RETURN(sentences_begin(sentences, text, n));
    for (size_t begin, end; sentences_next(sentences, &begin, &end);)
        ERR_RETURN(add_sequence(c, text + begin, end - begin, d));
    return ERR_OK;
}

static void end_document(const PreprocessConfig *c, Document *d) {
    if (!c->append_eod || !d->count) return;
    d->tokens = mem_grow(d->tokens, d->count + 1, sizeof *d->tokens);
    d->tokens[d->count++] = c->eod;
    d->lengths[d->sequences - 1]++;
}

static Err add_string(const PreprocessConfig *c, Sentences *sentences, const char *key, JsonText value,
                      Document *d) {
    json_t *text;
    ERR_RETURN(json_line_string(value, key, &text));
    const Err e = add_text(c, sentences, json_string_value(text), json_string_length(text), d);
    json_decref(text);
    return e;
}

static Err encode_value(const PreprocessConfig *c, Sentences *sentences, const char *key, JsonText value,
                        Document *d) {
    if (!value.at || *value.at == '"') return add_string(c, sentences, key, value, d);
    if (*value.at != '[')
        return err_user("the value of the key '%s' is neither a string nor a list of "
                        "strings",
                        key);
    JsonText sentence;
    for (size_t i = 0; json_line_element(&value, &sentence); i++) {
        if (*sentence.at != '"') return err_user("element %zu of the key '%s' is not a string", i, key);
        ERR_RETURN(add_string(c, NULL, key, sentence, d));
    }
    return ERR_OK;
}

static Err encode_json(const Run *run, Sentences *sentences, const char *text, const Record *r) {
    JsonText *values = mem_zero((size_t)run->num_keys, sizeof *values);
    Err e = json_line(text, r->end - r->begin, r->line == 1, run->keys, run->num_keys, values);
    for (int k = 0; k < run->num_keys && !e.code; k++)
        e = encode_value(run->config, sentences, run->keys[k], values[k], &r->documents[k]);
    free(values);
    return e;
}

static void encode_record(const Run *run, Sentences *sentences, Record *r) {
    const char *text = run->text.s ? run->text.s + r->begin : "";
    size_t n = r->end - r->begin;
    r->documents = mem_zero((size_t)run->num_keys, sizeof *r->documents);
    Err e = run->config->kind == PREPROCESS_JSONL ? encode_json(run, sentences, text, r)
                                                  : add_text(run->config, sentences, text, n, r->documents);
    for (int k = 0; k < run->num_keys; k++) end_document(run->config, &r->documents[k]);
    if (!e.code) return;
    r->err = mem_alloc(sizeof *r->err);
    *r->err = e;
}

/* Each thread processes one record at a time, so that a long document does not delay other records. */
static void encode_share(void *arg, int64_t begin, int64_t end) {
    (void)begin, (void)end;
    Run *run = arg;
    Sentences *sentences = run->sentences ? sentences_clone(run->sentences) : NULL;
    for (long long i; (i = atomic_fetch_add(&run->next, 1)) < run->count;)
        encode_record(run, sentences, &run->records[i]);
    sentences_close(sentences);
}

static Err read_round(Run *run, bool *more) {
    str_clear(&run->text);
    const int64_t most =
        run->config->most_documents ? run->config->most_documents - run->stats.documents : INT64_MAX;
    *more = most > ROUND_RECORDS;
    for (run->count = 0; run->count < ROUND_RECORDS && run->count < most && run->text.len < ROUND_BYTES;
         run->count++) {
        size_t begin = run->text.len;
        ERR_RETURN(text_reader_next(&run->reader, &run->text, more));
        if (!*more) break;
        run->records[run->count] = (Record){
            .begin = begin, .end = run->text.len, .path = run->reader.path, .line = run->reader.line};
    }
    return ERR_OK;
}

static Err write_record(Run *run, const Record *r) {
    if (r->err) {
        Err e = err_user("line %" PRId64 " of '%s': %s", r->line, r->path, r->err->msg);
        e.code = r->err->code;
        return e;
    }
    const int64_t partition = run->stats.documents % run->partitions;
    for (int k = 0; k < run->num_keys; k++) {
        const Document *d = &r->documents[k];
        const int32_t *tokens = d->tokens;
        IndexedBuilder *b = run->builders[partition * run->num_keys + k];
        for (int i = 0; i < d->sequences; i++) {
            ERR_RETURN(indexed_builder_add_tokens(b, tokens, (int64_t)d->lengths[i]));
            tokens += d->lengths[i];
        }
        indexed_builder_end_document(b);
        run->stats.sequences += d->sequences, run->stats.tokens += (int64_t)d->count;
    }
    run->stats.documents++;
    return ERR_OK;
}

static void free_record(Record *r, int num_keys) {
    for (int k = 0; r->documents && k < num_keys; k++)
        free(r->documents[k].tokens), free(r->documents[k].lengths);
    free(r->documents), free(r->err);
    *r = (Record){0};
}

static Err run_rounds(Run *run) {
    for (bool more = true; more;) {
        ERR_RETURN(read_round(run, &more));
        atomic_store(&run->next, 0);
        pool_for(run->pool, pool_threads(run->pool), 1, encode_share, run);
        Err e = ERR_OK;
        for (int64_t i = 0; i < run->count; i++) {
            if (!e.code) e = write_record(run, &run->records[i]);
            free_record(&run->records[i], run->num_keys);
        }
        ERR_RETURN(e);
        run->stats.bytes = text_reader_bytes(&run->reader);
        if (run->config->progress) run->config->progress(run->config->progress_ctx, &run->stats);
    }
    return ERR_OK;
}

static Err check_inputs(const PreprocessConfig *c, const char *prefix) {
    for (int i = 0; i < c->num_inputs; i++)
        if (indexed_is_part(prefix, c->inputs[i]))
            return err_user("'%s' is both an input and an output: use another --output-prefix", c->inputs[i]);
    return ERR_OK;
}

/* Each partition after the first writes its unfinished files under a separate name. The finished dataset is the
 * concatenation of all partitions. */
static Err open_builder(const Run *run, int partition, const char *key, IndexedBuilder **out) {
    const PreprocessConfig *c = run->config;
    const char *level = c->split_sentences ? "sentence" : "document";
    char *prefix = partition ? mem_printf("%s_%d_%s_%s", c->output_prefix, partition, key, level)
                             : mem_printf("%s_%s_%s", c->output_prefix, key, level);
    Err e = partition ? ERR_OK : check_inputs(c, prefix);
    if (!e.code && !partition) e = indexed_check_target(prefix, c->overwrite || c->most_documents);
    if (!e.code) e = indexed_builder_open(prefix, indexed_dtype_for_vocab(c->vocab_size), out);
    free(prefix);
    return e;
}

static Err open_builders(Run *run) {
    for (int i = 0; i < run->partitions * run->num_keys; i++)
        ERR_RETURN(open_builder(run, i / run->num_keys, run->keys[i % run->num_keys], &run->builders[i]));
    return ERR_OK;
}

static void remove_unfinished(void *arg) {
    const Run *run = arg;
    for (int i = 0; i < run->partitions * run->num_keys; i++) indexed_builder_unlink(run->builders[i]);
}

static Err check_text(const Run *run) {
    if (run->stats.tokens) return ERR_OK;
    return err_user("the input has %" PRId64 " documents but no text; nothing is written",
                    run->stats.documents);
}

/* Removes a builder from the list of unfinished builders, and returns it. */
static IndexedBuilder *take(Run *run, int i) {
    IndexedBuilder *b = run->builders[i];
    run->builders[i] = NULL;
    return b;
}

static Err finalize(Run *run) {
    for (int i = run->num_keys; i < run->partitions * run->num_keys; i++)
        ERR_RETURN(indexed_builder_take(run->builders[i % run->num_keys], take(run, i)));
    for (int k = 0; k < run->num_keys; k++) ERR_RETURN(indexed_builder_finalize(take(run, k)));
    return ERR_OK;
}

static Err check_config(const PreprocessConfig *c) {
    if (c->num_inputs < 1) return err_user("there is nothing to preprocess; set --input");
    for (int i = 0; i < c->num_inputs; i++)
        if (!input_is_stdin(c->inputs[i]) && access(c->inputs[i], R_OK))
            return file_failed("open", c->inputs[i]);
    if (c->workers < 1 || c->workers > MAX_WORKERS)
        return err_user("--workers is %d; it must be from 1 to %d", c->workers, MAX_WORKERS);
    if (c->append_eod && c->eod < 0)
        return err_user("--append-eod needs an end-of-document token, but this tokenizer has none");
    if (c->keys && c->kind != PREPROCESS_JSONL)
        return err_user("--json-keys applies only to JSON Lines; the only key of plain text is 'text'");
    for (int k = 0; c->keys && k < c->num_keys; k++)
        for (int i = 0; i < k; i++)
            if (!strcmp(c->keys[i], c->keys[k])) return err_user("the key '%s' is given twice", c->keys[k]);
    return ERR_OK;
}

Err preprocess_run(const PreprocessConfig *c, PreprocessStats *stats) {
    ERR_RETURN(check_config(c));
    Sentences *sentences = NULL;
    if (c->split_sentences) ERR_RETURN(sentences_open(c->lang, c->keep_newlines, &sentences));
    bool chosen = c->keys && c->num_keys > 0;
    Run run = {.config = c,
               .keys = chosen ? c->keys : TEXT_KEY,
               .num_keys = chosen ? c->num_keys : 1,
               .partitions = c->partitions ? c->partitions : 1,
               .sentences = sentences};
    for (int i = 0; i < c->num_inputs; i++) {
        int64_t size = input_is_stdin(c->inputs[i]) ? 0 : file_size(c->inputs[i]);
        run.stats.total_bytes += size > 0 ? size : 0;
    }
    const int columns = c->kind == PREPROCESS_JSONL ? run.num_keys : 0;
    run.reader =
        text_reader(c->kind, c->inputs, c->num_inputs, (InputOptions){run.keys, columns, c->encoding});
    run.records = mem_zero(ROUND_RECORDS, sizeof *run.records);
    run.builders = mem_zero((size_t)(run.num_keys * run.partitions), sizeof(IndexedBuilder *));
    Interrupt *interrupt = interrupt_watch(remove_unfinished, &run, INTERRUPT_REMOVED);
    run.pool = pool_new(c->workers);
    Err e = open_builders(&run);
    interrupt_release(interrupt);
    if (!e.code) e = run_rounds(&run);
    if (!e.code) e = check_text(&run);
    interrupt_hold(interrupt);
    if (!e.code && !c->most_documents) e = finalize(&run);
    for (int i = 0; i < run.num_keys * run.partitions; i++) indexed_builder_abort(take(&run, i));
    interrupt_end(interrupt);
    pool_free(run.pool);
    sentences_close(sentences);
    free(run.builders), free(run.records);
    str_free(&run.text);
    text_reader_close(&run.reader);
    *stats = run.stats;
    return e;
}
