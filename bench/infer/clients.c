#include "bench/infer/clients.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/min_max.h"
#include "base/statistics.h"
#include "bench/infer/load.h"
#include "comm/agree.h"
#include "server/http.h"

enum { TURN_MS = 50, UNREAD_BYTES = 16 << 20, UNREAD_MS = 10000 };

/* The measured times: three times per request, and the duration of each round. */
enum { TTFT, TPOT, LATENCY, OF_REQUESTS, SERVE = OF_REQUESTS, TIMES };
static const char *const NAMES[TIMES] = {"ttft", "tpot", "latency", "serve"};

/* The results for a number of clients, in ns. */
typedef struct Curve {
    int64_t clients, requests; /* requests: number of requests per round */
    double *of[OF_REQUESTS];   /* [rounds * requests] */
    double *gaps;              /* [n_gaps]: times between tokens */
    int64_t n_gaps, tokens;    /* tokens: number of tokens in all rounds */
    double *median[TIMES];     /* [rounds]: each round's median, or the round's duration for SERVE */
    /* [rounds]: the time that the engine needs for the same requests without HTTP */
    double *engine;
    double *scheduler, *http; /* [rounds]: the scheduler's and HTTP's shares of the round's time */
} Curve;

/* A server and its clients, on rank 0. */
typedef struct Stage {
    const Session *session;
    Fleet *fleet;
    Queue *queue;
    int64_t port, clients;
} Stage;

/* ---- without HTTP ---- */

typedef struct Alone {
    int64_t *ended, n_ended; /* the requests that ended in the current step */
    int64_t last;            /* time of the last token, in ns */
} Alone;

static void take(void *arg, const EngineEvent *e) {
    Alone *a = arg;
    if (e->kind == EVENT_TOKEN) a->last = clock_ns();
    if (e->kind == EVENT_END) a->ended[a->n_ended++] = e->id;
}

static void add(const Stage *x, int64_t id, const int32_t *prompt, int64_t fresh) {
    const Request request = {.id = id,
                             .prompt = prompt,
                             .n = x->session->options->prompt,
                             .sampling = session_sampling(x->session),
                             .stream = (uint64_t)id,
                             .max_new_tokens = fresh};
    const Err e = fleet_add(x->fleet, &request);
    CHECK(!e.code, "%s", e.msg); /* the lengths have been checked, and the engine has enough pages */
}

/* Generates the answers to the same requests, `each` per client, without connections. Returns the time in
 * ns. */
static int64_t run_alone(const Stage *x, const int32_t *prompts, int64_t each) {
    const int64_t prompt = x->session->options->prompt, fresh = x->session->options->fresh;
    Alone a = {.ended = mem_zero((size_t)x->clients, sizeof *a.ended)};
    const int64_t start = clock_ns();
    for (int64_t i = 0; i < x->clients; i++) add(x, i * each, prompts + i * each * prompt, fresh);
    while (fleet_step(x->fleet, take, &a)) {
        for (int64_t i = 0; i < a.n_ended; i++) {
            const int64_t next = a.ended[i] + 1;
            if (next % each) add(x, next, prompts + next * prompt, fresh);
        }
        a.n_ended = 0;
    }
    free(a.ended);
    return a.last - start;
}

/* Runs passes with each possible number of requests, so that CUDA graphs are captured before the first round.
 * All requests have the same prompt, so they share its pages. The requests end one by one. */
static void warm_up(const Stage *x) {
    const int64_t fresh = x->session->options->fresh, n = x->clients;
    int32_t *prompt = mem_alloc((size_t)x->session->options->prompt * sizeof *prompt);
    Alone a = {.ended = mem_zero((size_t)n, sizeof *a.ended)};
    session_prompt(x->session, 0, prompt);
    for (int64_t i = 0; i < n; i++) add(x, i, prompt, fresh - i * (fresh - 1) / n);
    while (fleet_step(x->fleet, take, &a)) a.n_ended = 0;
    free(prompt), free(a.ended);
}

/* ---- with HTTP ---- */

typedef struct LoadThread {
    Load *load;
    Err error;
    atomic_bool done;
} LoadThread;

static void *run_load(void *arg) {
    LoadThread *t = arg;
    t->error = load_run(t->load);
    t->done = true;
    return NULL;
}

/* Returns the text of a request whose answer has exactly the wanted number of tokens. */
static Str request_text(const Session *s, const int32_t *prompt) {
    const Sampling sampling = session_sampling(s);
    Str body = {0};
    str_puts(&body, "{\"prompt\":[");
    for (int64_t k = 0; k < s->options->prompt; k++) str_printf(&body, "%s%d", k ? "," : "", prompt[k]);
    str_printf(&body, "],\"max_tokens\":%lld,\"ignore_eos\":true,\"temperature\":%g",
               (long long)s->options->fresh, sampling.temperature);
    if (sampling.top_k > 0) str_printf(&body, ",\"top_k\":%lld", (long long)sampling.top_k);
    if (sampling.top_p > 0) str_printf(&body, ",\"top_p\":%g", sampling.top_p);
    str_puts(&body, ",\"stream\":true,\"stream_options\":"
                    "{\"include_usage\":true,\"continuous_usage_stats\":true}}");
    const Str text = load_post("/v1/completions", &body);
    str_free(&body);
    return text;
}

/* Runs the engine until the clients have all their answers, and their connections have released the tickets. */
static Err run_server(const Stage *x, Load *load) {
    LoadThread t = {.load = load};
    pthread_t thread;
    const int failed = pthread_create(&thread, NULL, run_load, &t);
    CHECK(!failed, "cannot start a thread: %s", strerror(failed));
    while (!t.done || queue_counts(x->queue).tickets) queue_turn(x->queue, x->fleet, TURN_MS);
    pthread_join(thread, NULL);
    return t.error;
}

/* ---- a round ---- */

static void take_load(Curve *c, int64_t round, const Load *l) {
    int64_t last = 0;
    double *of[OF_REQUESTS];
    for (int k = 0; k < OF_REQUESTS; k++) of[k] = c->of[k] + round * c->requests;
    for (int64_t i = 0; i < c->requests; i++) {
        const LoadRequest *r = &l->requests[i];
        of[TTFT][i] = (double)(r->first - r->sent);
        /* Tokens can arrive simultaneously, but the gate divides by the median time, so that median must not be
         * 0. */
        of[TPOT][i] = (double)larger(r->last - r->first, 1) / (double)(l->tokens - 1);
        of[LATENCY][i] = (double)(r->last - r->sent);
        c->tokens += r->tokens;
        if (last < r->last) last = r->last;
    }
    memcpy(c->gaps + c->n_gaps, l->gaps, (size_t)l->n_gaps * sizeof *l->gaps);
    c->n_gaps += l->n_gaps;
    for (int k = 0; k < OF_REQUESTS; k++) c->median[k][round] = median_of(of[k], c->requests);
    c->median[SERVE][round] = (double)(last - l->start);
}

static Err serve_round(const Stage *x, Curve *c, int64_t round, const int32_t *prompts) {
    const BenchInfer *o = x->session->options;
    Load load = {.port = x->port, .clients = c->clients, .each = o->each, .tokens = o->fresh};
    load.requests = mem_zero((size_t)c->requests, sizeof *load.requests);
    load.gaps = mem_alloc((size_t)(c->requests * (o->fresh - 1)) * sizeof *load.gaps);
    for (int64_t i = 0; i < c->requests; i++)
        load.requests[i].text = request_text(x->session, prompts + i * o->prompt);
    const Err e = run_server(x, &load);
    if (!e.code) take_load(c, round, &load);
    for (int64_t i = 0; i < c->requests; i++) str_free(&load.requests[i].text);
    free(load.requests), free(load.gaps);
    return e;
}

static void alone_round(const Stage *x, Curve *c, int64_t round, const int32_t *prompts) {
    const int64_t before = fleet_counts(x->fleet).model_ns;
    c->engine[round] = (double)run_alone(x, prompts, x->session->options->each);
    c->scheduler[round] = 1 - (double)(fleet_counts(x->fleet).model_ns - before) / c->engine[round];
}

/* Generates requests with and without HTTP, in alternating order. No prompt occurs twice, because the engine
 * would reuse the first computation of the prompt. */
static Err run_round(const Stage *x, Curve *c, int64_t round) {
    const int64_t length = x->session->options->prompt;
    int32_t *prompts = mem_alloc((size_t)(c->requests * length) * sizeof *prompts);
    Err e = ERR_OK;
    for (int64_t half = 0; half < 2 && !e.code; half++) {
        for (int64_t i = 0; i < c->requests; i++)
            session_prompt(x->session, 1 + (2 * round + half) * c->requests + i, prompts + i * length);
        if (half == round % 2)
            e = serve_round(x, c, round, prompts);
        else
            alone_round(x, c, round, prompts);
    }
    c->http[round] = 1 - c->engine[round] / c->median[SERVE][round];
    free(prompts);
    return e;
}

/* ---- the server ---- */

static Err run_rounds(Stage *x, Curve *c) {
    const HttpOptions options = {.host = "127.0.0.1"};
    const int64_t vocab = x->session->run.model->plan.vocab;
    /* a null token has a complete text, so no text waits for the next token */
    TokenizerConfig t = TOKENIZER_CONFIG_DEFAULT;
    Tokenizer *tokenizer;
    Http *http;
    t.type = "NullTokenizer", t.vocab_size = vocab;
    ERR_RETURN(tokenizer_open(&t, &tokenizer));
    const Served served = {.name = "bench",
                           .tokenizer = tokenizer,
                           .vocab = vocab,
                           .context = x->session->run.model->plan.limit,
                           .choices = c->clients};
    x->queue = queue_new((QueueLimits){c->clients, c->clients, UNREAD_BYTES, UNREAD_MS});
    Err e = http_start(&options, &served, x->queue, &http, &x->port);
    if (!e.code) {
        warm_up(x);
        for (int64_t i = 0; i < x->session->options->rounds && !e.code; i++) e = run_round(x, c, i);
        http_stop(http);
        queue_turn(x->queue, x->fleet, 0); /* removes the tickets of connections that http_stop has closed */
    }
    queue_free(x->queue);
    tokenizer_free(tokenizer);
    return e;
}

/* ---- results ---- */

static json_t *row_of(const Session *s, int time, int64_t clients) {
    char load[48];
    snprintf(load, sizeof load, "%lldx%lld", (long long)clients, (long long)s->options->each);
    return session_row(s, NAMES[time], load, "clients", clients);
}

void clients_facts(const Session *s, json_t *rows) {
    for (int64_t i = 0; i < s->options->clients.count; i++)
        for (int time = 0; time < TIMES; time++)
            json_array_append_new(rows, row_of(s, time, s->options->clients.at[i]));
}

static double rate(const Session *s, const Curve *c, int64_t of_round) {
    return (double)of_round * 1e9 / median_of(c->median[SERVE], s->options->rounds);
}

static void add_rows(const Session *s, const Curve *c, json_t *rows) {
    const int64_t rounds = s->options->rounds;
    json_t *row[TIMES];
    for (int time = 0; time < TIMES; time++) {
        json_array_append_new(rows, row[time] = row_of(s, time, c->clients));
        session_add_times(row[time], c->median[time], rounds);
        if (time == SERVE) continue;
        const double slowest = session_slowest(c->of[time], rounds * c->requests);
        json_object_set_new(row[time], "p99_us", json_real(slowest * 1e-3));
    }
    json_object_update_new(row[TPOT], json_pack("{s:f, s:f}", "itl_us", median_of(c->gaps, c->n_gaps) * 1e-3,
                                                "itl_p99_us", session_slowest(c->gaps, c->n_gaps) * 1e-3));
    json_object_update_new(row[SERVE],
                           json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "requests",
                                     (json_int_t)(rounds * c->requests), "tokens", (json_int_t)c->tokens,
                                     "requests_per_second", rate(s, c, c->requests), "tokens_per_second",
                                     rate(s, c, c->tokens / rounds), "engine_us",
                                     median_of(c->engine, rounds) * 1e-3, "scheduler",
                                     median_of(c->scheduler, rounds), "http", median_of(c->http, rounds)));
}

static void print_head(const Session *s) {
    const BenchInfer *o = s->options;
    printf(
        "\nclients of the server: %lld rounds, in which each client sends %lld requests\n\n%31s %19s %19s\n"
        "%7s %12s %10s %9s %9s %9s %9s %10s %10s %10s %7s\n",
        (long long)o->rounds, (long long)o->each, "TTFT, ms", "TPOT, ms", "ITL, ms", "clients", "median",
        "99 %", "median", "99 %", "median", "99 %", "requests/s", "tokens/s", "scheduler", "HTTP");
}

static void print_curve(const Session *s, const Curve *c) {
    const int64_t rounds = s->options->rounds;
    printf("%7lld", (long long)c->clients);
    for (int k = TTFT; k <= TPOT; k++)
        printf(k ? " %9.3f %9.3f" : " %12.2f %10.2f", median_of(c->median[k], rounds) * 1e-6,
               session_slowest(c->of[k], rounds * c->requests) * 1e-6);
    printf(" %9.3f %9.3f %10.2f %10.1f %8.2f %% %5.2f %%\n", median_of(c->gaps, c->n_gaps) * 1e-6,
           session_slowest(c->gaps, c->n_gaps) * 1e-6, rate(s, c, c->requests),
           rate(s, c, c->tokens / rounds), 100 * median_of(c->scheduler, rounds),
           100 * median_of(c->http, rounds));
    fflush(stdout);
}

/* ---- ranks ---- */

static double *take_doubles(double **memory, int64_t n) { return (*memory += n) - n; }

/* Measures on rank 0, and reports the results. */
static Err lead(const Session *s, Fleet *fleet, int64_t clients, json_t *rows) {
    const int64_t rounds = s->options->rounds, requests = clients * s->options->each,
                  gaps = rounds * requests * (s->options->fresh - 1),
                  all = OF_REQUESTS * rounds * requests + gaps + (TIMES + 3) * rounds;
    Stage x = {.session = s, .fleet = fleet, .clients = clients};
    Curve c = {.clients = clients, .requests = requests};
    double *memory = mem_zero((size_t)all, sizeof *memory), *at = memory;
    for (int k = 0; k < OF_REQUESTS; k++) c.of[k] = take_doubles(&at, rounds * requests);
    for (int k = 0; k < TIMES; k++) c.median[k] = take_doubles(&at, rounds);
    c.gaps = take_doubles(&at, gaps), c.engine = take_doubles(&at, rounds);
    c.scheduler = take_doubles(&at, rounds), c.http = take_doubles(&at, rounds);
    const Err e = run_rounds(&x, &c);
    if (!e.code) {
        for (int k = 0; k < OF_REQUESTS; k++) sort_numbers(c.of[k], rounds * requests);
        sort_numbers(c.gaps, c.n_gaps);
        add_rows(s, &c, rows);
        print_curve(s, &c);
    }
    free(memory);
    return e;
}

static Err measure(const Session *s, int64_t clients, json_t *rows) {
    EngineLimits limits = session_limits(s, clients);
    Fleet *fleet;
    Err e = ERR_OK;
    limits.shares_prefixes = true;
    ERR_RETURN(fleet_new(s->run.model, &s->run.context, &limits, &fleet));
    if (fleet_leads(fleet))
        e = lead(s, fleet, clients, rows);
    else
        fleet_follow(fleet);
    fleet_free(fleet);
    return comm_agree(s->comm, e);
}

Err clients_measure(const Session *s, json_t *rows) {
    const I64List *clients = &s->options->clients;
    if (!clients->count) return ERR_OK;
    ERR_RETURN(comm_agree(s->comm, http_available()));
    if (s->prints) print_head(s);
    for (int64_t i = 0; i < clients->count; i++) ERR_RETURN(measure(s, clients->at[i], rows));
    return ERR_OK;
}
