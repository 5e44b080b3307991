#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/min_max.h"
#include "base/utf8.h"
#include "main/generate.h"
#include "server/text.h"

/* ---- text ---- */

Err generate_decode(const GenerateJob *j, const int32_t *tokens, int64_t n, char **text, size_t *bytes) {
    const Tokenizer *t = j->setup.tokenizer;
    int32_t *known = mem_alloc((size_t)(n + 1) * sizeof *known);
    size_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < tokenizer_vocab_size(t)) known[count++] = tokens[i];
    const Err e = tokenizer_decode(t, known, count, text, bytes);
    free(known);
    return e;
}

Err generate_find_stop(const GenerateJob *j, int64_t sample, const Generated *g, char **text, size_t *bytes,
                       int64_t *before) {
    const TextList *stop = &j->setup.config.stop;
    const int64_t prompt = generate_is_t5(j) ? 1 : j->prompts[sample].n,
                  from = generate_is_t5(j) ? 1 : larger(0, prompt - TEXT_CONTEXT);
    size_t base;
    *before = -1;
    ERR_RETURN(generate_decode(j, g->tokens + from, prompt - from, text, &base));
    free(*text);
    ERR_RETURN(generate_decode(j, g->tokens + from, g->n - from, text, bytes));
    *bytes -= smaller(base, *bytes);
    memmove(*text, *text + base, *bytes);
    for (int64_t i = 0; i < stop->count; i++) {
        const char *at = memmem(*text, *bytes, stop->at[i], strlen(stop->at[i]));
        if (at && (*before < 0 || at - *text < *before)) *before = at - *text;
    }
    return ERR_OK;
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

Err generate_print(const GenerateJob *j, int64_t i, const Generated *g) {
    char *text;
    size_t bytes;
    int64_t before;
    print_start(j, i);
    ERR_RETURN(generate_find_stop(j, i, g, &text, &bytes, &before));
    fwrite(text, 1, before < 0 ? bytes : (size_t)before, stdout);
    putchar('\n');
    free(text);
    print_logprobs(j, g);
    return ERR_OK;
}

/* ---- a stream ---- */

struct GenerateStream {
    const GenerateJob *job;
    const Generated *out; /* [job->n] */
    StopList stops;
    TextStream text;
    /* the sample that is being printed, and how many of its tokens `text` has received */
    int64_t sample, pushed;
    bool begun;
};

GenerateStream *generate_stream_new(const GenerateJob *j, const Generated *out) {
    const TextList *stop = &j->setup.config.stop;
    GenerateStream *s = mem_zero(1, sizeof *s);
    *s = (GenerateStream){.job = j, .out = out, .stops = {.at = (char **)stop->at, .n = stop->count}};
    return s;
}

void generate_stream_free(GenerateStream *s) {
    if (s && s->begun) text_free(&s->text);
    free(s);
}

static void begin(GenerateStream *s, const Generated *g) {
    const GenerateJob *j = s->job;
    const bool t5 = generate_is_t5(j);
    print_start(j, s->sample);
    text_begin(&s->text, j->setup.tokenizer, &s->stops, g->tokens, t5 ? 0 : (size_t)g->n_prompt);
    s->text.special = true; /* special tokens are printed, as without streaming */
    s->begun = true, s->pushed = g->n_prompt;
}

/* Prints a sample's new tokens. Returns whether the sample has ended. */
static bool print_new(GenerateStream *s, const Generated *g) {
    Str out = {0};
    if (!s->begun) begin(s, g);
    while (s->pushed < g->n) text_push(&s->text, g->tokens[s->pushed++], &out);
    if (g->ended) text_end(&s->text, &out), str_add(&out, "\n", 1);
    if (out.len) fwrite(out.s, 1, out.len, stdout);
    str_free(&out);
    if (!g->ended) return false;
    print_logprobs(s->job, g);
    text_free(&s->text);
    s->begun = false;
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

/* Returns, for each of the tokens [first, end), a map from the text of each of the most likely tokens to its
 * log-probability. If several tokens have the same text, the map contains only the most likely one. */
static json_t *likeliest_json(const GenerateJob *j, const Generated *g, int64_t first, int64_t end) {
    const int64_t k = j->setup.config.top_n_logprobs;
    json_t *list = json_array();
    for (int64_t i = first; i < end; i++) {
        const LikelyToken *row = g->likeliest + (i - 1) * k;
        json_t *map = json_object();
        for (int64_t t = 0; t < k; t++) {
            char *text;
            size_t bytes;
            if (generate_decode(j, &row[t].id, 1, &text, &bytes).code) continue;
            json_t *key = text_json(text, bytes);
            const char *name = json_string_value(key);
            const size_t n = json_string_length(key); /* the text can contain a zero byte */
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
static Err sample_json(const GenerateJob *j, const GenerateResults *r, int64_t i, json_t **out) {
    const Generated *g = &r->out[i];
    const int64_t end = g->n + g->has_end;
    char *text;
    size_t bytes;
    int64_t before;
    ERR_RETURN(generate_find_stop(j, i, g, &text, &bytes, &before));
    json_t *json = *out = json_object(), *tokens = json_array();
    for (int64_t k = g->n_prompt; k < end; k++) json_array_append_new(tokens, json_integer(g->tokens[k]));
    json_object_set_new(json, "input_prompt", json_string(j->texts[i]));
    json_object_set_new(json, "generated_text", text_json(text, before < 0 ? bytes : (size_t)before));
    json_object_set_new(json, "generated_tokens", tokens);
    add_times(json, g, end);
    static const char *const UNKNOWN[] = {"cuda_graph_request_count_map", "routing_indices",
                                          "routing_indices_token_indices"};
    for (int k = 0; k < 3; k++) json_object_set_new(json, UNKNOWN[k], json_null());
    json_object_set_new(json, "step_count", json_integer(r->counts.passes));
    add_logprobs(j, json, g, end);
    free(text);
    return ERR_OK;
}

static Err samples_json(const GenerateJob *j, const GenerateResults *r, json_t *all) {
    for (int64_t i = 0; i < j->n; i++) {
        char id[24];
        json_t *sample;
        if (i % j->setup.config.output_every_n_results && i != j->n - 1) continue;
        ERR_RETURN(sample_json(j, r, i, &sample));
        snprintf(id, sizeof id, "%lld", (long long)i);
        json_object_set_new(all, id, sample);
    }
    return ERR_OK;
}

Err generate_write_json(const GenerateJob *j, const GenerateResults *r) {
    const Config *c = &j->setup.config;
    json_t *all = json_object(), *rates = json_array();
    Err e = c->throughput_check_only ? ERR_OK : samples_json(j, r, all);
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
    if (!e.code) e = command_write_report(c->output_path, &text);
    str_free(&text);
    return e;
}
