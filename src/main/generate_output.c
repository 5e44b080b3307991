#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/min_max.h"
#include "base/utf8.h"
#include "main/generate.h"
#include "server/text.h"

/* ---- text ---- */

/* Decodes one token. The caller frees the text. As in transformers, the ids that pad a vocabulary have no text. */
static Err decode(const GenerateJob *j, int32_t token, char **text, size_t *bytes) {
    const Tokenizer *t = j->setup.tokenizer;
    return tokenizer_decode(t, &token, token < tokenizer_vocab_size(t), text, bytes);
}

void generate_text(const GenerateJob *j, const Generated *g, GenerateText *t, Str *out) {
    if (!t->pushed) {
        const size_t prompt = generate_is_t5(j) ? 0 : (size_t)g->n_prompt;
        text_begin(&t->text, j->setup.tokenizer, &j->stops, true, g->tokens, prompt);
        t->pushed = g->n_prompt;
    }
    while (t->pushed < g->n) text_push(&t->text, g->tokens[t->pushed++], out);
    if (g->ended) text_end(&t->text, out);
}

void generate_text_free(GenerateText *t) {
    if (t->pushed) text_free(&t->text);
    *t = (GenerateText){0};
}

/* Returns the new text of a sample that has ended. */
static Str whole_text(const GenerateJob *j, const Generated *g) {
    GenerateText t = {0};
    Str text = {0};
    str_puts(&text, "");
    generate_text(j, g, &t, &text);
    generate_text_free(&t);
    return text;
}

static void print_logprobs(const GenerateJob *j, const Generated *g) {
    const Config *c = &j->setup.config;
    for (int64_t k = c->skip_prompt_log_probs ? g->n_prompt : 1; k < g->n && c->logprobs; k++)
        printf("%s %lld\t%d\t%.9g\n", k < g->n_prompt ? "prompt" : "new", (long long)k, g->tokens[k],
               g->logprobs[k - 1]);
}

/* Prints what precedes the new text. */
static void print_start(const GenerateJob *j, int64_t i) {
    if (j->n > 1) printf("%s--- %lld\n", i ? "\n" : "", (long long)i + 1);
    if (!generate_is_t5(j)) fputs(j->texts[i], stdout);
}

void generate_print(const GenerateJob *j, int64_t i, const Generated *g) {
    Str text = whole_text(j, g);
    print_start(j, i);
    fwrite(text.s, 1, text.len, stdout);
    putchar('\n');
    str_free(&text);
    print_logprobs(j, g);
}

/* ---- a stream ---- */

struct GenerateStream {
    const GenerateJob *job;
    const Generated *out; /* [job->n] */
    int64_t sample;       /* the sample that is being printed */
    GenerateText text;
};

GenerateStream *generate_stream_new(const GenerateJob *j, const Generated *out) {
    GenerateStream *s = mem_zero(1, sizeof *s);
    *s = (GenerateStream){.job = j, .out = out};
    return s;
}

void generate_stream_free(GenerateStream *s) {
    if (s) generate_text_free(&s->text);
    free(s);
}

/* Prints a sample's new tokens. Returns whether the sample has ended. */
static bool print_new(GenerateStream *s, const Generated *g) {
    Str out = {0};
    if (!s->text.pushed) print_start(s->job, s->sample);
    generate_text(s->job, g, &s->text, &out);
    if (g->ended) str_add(&out, "\n", 1);
    if (out.len) fwrite(out.s, 1, out.len, stdout);
    str_free(&out);
    if (!g->ended) return false;
    print_logprobs(s->job, g);
    generate_text_free(&s->text);
    return true;
}

void generate_stream_print(GenerateStream *s) {
    while (s->sample < s->job->n && s->out[s->sample].tokens && print_new(s, &s->out[s->sample])) s->sample++;
    fflush(stdout);
}

/* ---- JSON ---- */

static json_t *text_json(const char *text, size_t bytes) {
    Str valid = {0};
    utf8_repair(text, bytes, &valid);
    json_t *json = json_stringn(valid.s ? valid.s : "", valid.len);
    str_free(&valid);
    return json;
}

/* Returns the log-probabilities of tokens [first, end). */
static json_t *logprobs_json(const Generated *g, int64_t first, int64_t end) {
    json_t *list = json_array();
    for (int64_t i = first; i < end; i++) json_array_append_new(list, json_finite(g->logprobs[i - 1]));
    return list;
}

/* Returns a list of maps, one for each of the tokens [first, end). A map's keys are the most likely tokens' texts, and
 * its values are their log-probabilities. If several tokens have the same text, the map contains only the most likely
 * one. */
static json_t *likeliest_json(const GenerateJob *j, const Generated *g, int64_t first, int64_t end) {
    const int64_t k = j->setup.config.top_n_logprobs;
    json_t *list = json_array();
    for (int64_t i = first; i < end; i++) {
        const LikelyToken *row = g->likeliest + (i - 1) * k;
        json_t *map = json_object();
        for (int64_t t = 0; t < k; t++) {
            char *text;
            size_t bytes;
            if (decode(j, row[t].id, &text, &bytes).code) continue;
            json_t *key = text_json(text, bytes);
            const char *name = json_string_value(key);
            const size_t n = json_string_length(key); /* the text can contain NULs */
            if (!json_object_getn(map, name, n))
                json_object_setn_new(map, name, n, json_finite(row[t].logprob));
            json_decref(key), free(text);
        }
        json_array_append_new(list, map);
    }
    return list;
}

static json_t *seconds(int64_t ns) { return json_real((double)ns / 1e9); }

/* Adds the time to the first token, and the time for each token. */
static void add_times(json_t *json, const Generated *g, int64_t end) {
    json_t *each = json_array();
    int64_t before = g->added_ns;
    for (int64_t i = g->n_prompt; i < end; before = g->at_ns[i++ - 1])
        json_array_append_new(each, seconds(g->at_ns[i - 1] - before));
    json_object_set_new(json, "latency", seconds(g->ended_ns - g->added_ns));
    json_object_set(json, "ttft", json_array_size(each) ? json_array_get(each, 0) : json_null());
    json_object_set_new(json, "tpot", each);
}

static void add_logprobs(const GenerateJob *j, json_t *json, const Generated *g, int64_t end) {
    const Config *c = &j->setup.config;
    json_t *top = c->top_n_logprobs ? likeliest_json(j, g, g->n_prompt, end) : json_null();
    json_object_set_new(json, "top_n_logprobs", top);
    json_object_set(json, "generated_top_n_logprobs", top);
    json_object_set_new(json, "prompt_top_n_logprobs",
                        c->top_n_logprobs && !c->skip_prompt_log_probs ? likeliest_json(j, g, 1, g->n_prompt)
                                                                       : json_null());
    if (!c->logprobs) return;
    const int64_t prompt = c->skip_prompt_log_probs ? g->n_prompt : 1;
    json_object_set_new(json, "prompt_logprobs", logprobs_json(g, prompt, g->n_prompt));
    json_object_set_new(json, "generated_logprobs", logprobs_json(g, g->n_prompt, end));
    json_object_set_new(json, "logprobs", logprobs_json(g, prompt, end));
}

/* Returns a sample's JSON object. As in Megatron-LM, the tokens include the end token, but the text does not. Values
 * that were not recorded are null. */
static json_t *sample_json(const GenerateJob *j, const GenerateResults *r, int64_t i) {
    const Generated *g = &r->out[i];
    const int64_t end = g->n + g->has_end;
    Str text = whole_text(j, g);
    json_t *json = json_object(), *tokens = json_array();
    for (int64_t k = g->n_prompt; k < end; k++) json_array_append_new(tokens, json_integer(g->tokens[k]));
    json_object_set_new(json, "input_prompt", json_string(j->texts[i]));
    json_object_set_new(json, "generated_text", json_stringn(text.s, text.len));
    json_object_set_new(json, "generated_tokens", tokens);
    add_times(json, g, end);
    static const char *const UNKNOWN[] = {"cuda_graph_request_count_map", "routing_indices",
                                          "routing_indices_token_indices"};
    for (int k = 0; k < 3; k++) json_object_set_new(json, UNKNOWN[k], json_null());
    json_object_set_new(json, "step_count", json_integer(r->counts.passes));
    add_logprobs(j, json, g, end);
    str_free(&text);
    return json;
}

static void add_samples(const GenerateJob *j, const GenerateResults *r, json_t *all) {
    for (int64_t i = 0; i < j->n; i++) {
        char id[24];
        if (i % j->setup.config.output_every_n_results && i != j->n - 1) continue;
        snprintf(id, sizeof id, "%lld", (long long)i);
        json_object_set_new(all, id, sample_json(j, r, i));
    }
}

Err generate_write_json(const GenerateJob *j, const GenerateResults *r) {
    const Config *c = &j->setup.config;
    json_t *all = json_object(), *rates = json_array();
    if (!c->throughput_check_only) add_samples(j, r, all);
    for (int64_t i = 0; i < r->n_rates; i++) json_array_append_new(rates, json_real(r->rates[i]));
    if (c->record_throughput || c->throughput_check_only) json_object_set(all, "throughput", rates);
    json_decref(rates);
    if (!c->throughput_check_only) {
        json_object_set_new(all, "mem-max-allocated-bytes", json_integer(r->most_bytes));
        json_object_set_new(all, "lifetime_prefill_token_count", json_integer(r->counts.prompt_tokens));
        json_object_set_new(all, "async_sched_step_count", json_integer(0));
        json_object_set_new(all, "async_sched_compaction_step_count", json_integer(0));
    }
    Str text = {0};
    json_print(&text, all, 1, 0);
    str_add(&text, "\n", 1);
    json_decref(all);
    const Err e = command_write_report(c->output_path, &text);
    str_free(&text);
    return e;
}
