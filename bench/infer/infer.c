#include "bench/infer/infer.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/statistics.h"
#include "bench/infer/clients.h"
#include "bench/infer/session.h"
#include "comm/agree.h"
#include "measure/peaks.h"
#include "models/cache.h"
#include "param/quantized.h"
#include "run/source.h"

/* The times of a round in ns. */
typedef struct Round {
    int64_t start, last; /* start: when the requests arrived; last: when the latest token was generated */
    /* time of the most recent first token of any request, and number of requests that have received their first
     * token */
    int64_t first, n_first;
    double *gap; /* [n_gaps]: times between the tokens of a request */
    /* [requests]: when the last token of each request was generated, or 0 if there is none */
    int64_t n_gaps, *before;
} Round;

typedef struct Row {
    int64_t requests;
    double *prefill, *gap, *wall, *outside; /* [rounds]; `outside` is a fraction of the round's time */
    double slowest;                         /* the median of the 99 % quantiles of the times between tokens */
} Row;

/* ---- rounds ---- */

static void take(void *arg, const EngineEvent *e) {
    Round *r = arg;
    if (e->kind != EVENT_TOKEN) return;
    int64_t *before = &r->before[e->id];
    r->last = clock_ns();
    if (*before)
        r->gap[r->n_gaps++] = (double)(r->last - *before);
    else
        r->first = r->last, r->n_first++;
    *before = r->last;
}

/* Adds requests with different prompts and generates all their tokens. */
static void run_round(const Session *s, Engine *engine, int64_t requests, int64_t number, int64_t fresh,
                      Round *r) {
    const BenchInfer *o = s->options;
    int32_t *prompt = mem_alloc((size_t)o->prompt * sizeof *prompt);
    memset(r->before, 0, (size_t)requests * sizeof *r->before);
    r->n_gaps = r->n_first = 0;
    r->start = clock_ns();
    for (int64_t i = 0; i < requests; i++) {
        session_prompt(s, number * requests + i, prompt);
        const Request request = {.id = i,
                                 .prompt = prompt,
                                 .n = o->prompt,
                                 .sampling = session_sampling(s),
                                 .stream = (uint64_t)i,
                                 .max_new_tokens = fresh};
        const Err e = engine_add(engine, &request);
        CHECK(!e.code, "%s", e.msg); /* check_work has checked the length, and the engine has enough pages */
    }
    while (engine_step(engine, take, r)) continue;
    free(prompt);
}

static void summarise(Row *row, int64_t i, Round *r, int64_t model_ns, double *slowest) {
    sort_numbers(r->gap, r->n_gaps);
    row->prefill[i] = (double)(r->first - r->start);
    row->gap[i] = median_of(r->gap, r->n_gaps);
    row->wall[i] = (double)(r->last - r->start);
    row->outside[i] = 1 - (double)model_ns / row->wall[i];
    *slowest = session_slowest(r->gap, r->n_gaps);
}

static Err measure_row(Session *s, Row *row) {
    const BenchInfer *o = s->options;
    const int64_t n = row->requests;
    const EngineLimits limits = session_limits(s, n);
    Engine *engine;
    ERR_RETURN(engine_new(s->run.model, &s->run.context, &limits, &engine));
    Round r = {.gap = mem_alloc((size_t)(n * o->fresh) * sizeof *r.gap),
               .before = mem_alloc((size_t)n * sizeof *r.before)};
    double *slowest = mem_alloc((size_t)o->rounds * sizeof *slowest);
    /* a warm-up round, which accesses all memory for the first time */
    run_round(s, engine, n, o->rounds, 2, &r);
    for (int64_t i = 0; i < o->rounds; i++) {
        const int64_t before = engine_counts(engine).model_ns;
        run_round(s, engine, n, i, o->fresh, &r);
        summarise(row, i, &r, engine_counts(engine).model_ns - before, &slowest[i]);
    }
    row->slowest = median_of(slowest, o->rounds);
    free(slowest), free(r.gap), free(r.before);
    engine_free(engine);
    return ERR_OK;
}

/* ---- the work ---- */

/* Returns whether the parameter is a table of which a pass reads only some rows. */
static bool is_looked_up(const Session *s, const Param *p) {
    const bool words = !strcmp(p->spec.name, "embedding.word_embeddings.weight");
    return words ? s->config->untie_embeddings_and_output_weights
                 : !strncmp(p->spec.name, "embedding.", strlen("embedding.")) && p->spec.ndim == 2;
}

/* Sums the bytes that a pass reads, and counts the weights that multiply each token, except in the output
 * layer. */
static void count_work(Session *s) {
    const Registry *g = s->run.model->registry;
    const CacheShape page = {.dtype = s->run.context.dtype, .page = SESSION_PAGE, .pages = 1};
    s->token_bytes = cache_bytes(s->run.model, &page) / SESSION_PAGE;
    for (int i = 0; i < g->n; i++) {
        const Param *p = g->params[i];
        const double factors = param_is_quantized(p) ? (double)tensor_bytes(&p->inverse) : 0,
                     bytes = (double)p->count * (double)dtype_size((DType)p->value.dtype) + factors;
        if (is_looked_up(s, p)) continue;
        *(p->spec.expert ? &s->expert_bytes : &s->other_bytes) += bytes;
        if (p->spec.ndim != 2 || p->spec.flags & PARAM_EMBEDDING) continue;
        s->multiplied +=
            (double)p->count *
            (p->spec.expert ? (double)s->config->moe_router_topk / (double)s->config->num_experts : 1);
    }
}

/* Returns how many bytes this rank reads in a pass that generates one token for each request, once half of
 * the new tokens have been generated. The estimate assumes that each token is routed independently. */
static double pass_bytes(const Session *s, int64_t requests) {
    const Config *c = s->config;
    const double rows = (double)requests * ((double)s->options->prompt + (double)s->options->fresh / 2),
                 unused = i64_is_set(c->num_experts)
                              ? pow(1 - (double)c->moe_router_topk / (double)c->num_experts, (double)requests)
                              : 0;
    return s->other_bytes + s->expert_bytes * (1 - unused) + s->token_bytes * rows;
}

/* ---- results ---- */

static json_t *row_facts(const Session *s, const char *what, int64_t requests) {
    char load[24];
    snprintf(load, sizeof load, "%lld", (long long)requests);
    return session_row(s, what, load, "requests", requests);
}

static json_t *row_json(const Session *s, const char *what, const Row *row, const double *ns,
                        double rate_per_ns, const char *unit, double roof) {
    const int64_t rounds = s->options->rounds;
    json_t *json = row_facts(s, what, row->requests);
    const double rate = rate_per_ns / median_of(ns, rounds);
    session_add_times(json, ns, rounds);
    json_object_set_new(json, unit, json_real(rate));
    if (roof > 0) json_object_set_new(json, "of_roof", json_real(rate / roof));
    return json;
}

static double prefill_flops(const Session *s, int64_t requests) {
    return 2 * s->multiplied * (double)(requests * s->options->prompt);
}

/* Adds three rows for a number of requests: the time for all prompts, the time between tokens, and the total
 * time. */
static void add_rows(const Session *s, const Row *row, json_t *rows) {
    const double n = (double)row->requests, fresh = (double)s->options->fresh;
    json_t *first =
               row_json(s, "prefill", row, row->prefill, prefill_flops(s, row->requests), "gflops", s->gemm),
           *next = row_json(s, "decode", row, row->gap, pass_bytes(s, row->requests), "gbytes", s->read),
           *all = row_json(s, "all", row, row->wall, n * fresh * 1e9, "tokens_per_second", 0);
    json_object_set_new(next, "slowest_us", json_real(row->slowest * 1e-3));
    json_object_set_new(next, "megabytes", json_real(pass_bytes(s, row->requests) * 1e-6));
    json_object_set_new(all, "outside_model", json_real(median_of(row->outside, s->options->rounds)));
    json_array_append_new(rows, first), json_array_append_new(rows, next), json_array_append_new(rows, all);
}

static json_t *head(const Session *s, json_t *rows) {
    json_t *facts =
        bench_head("infer", s->device, s->comm ? comm_world(s->comm) : 1, s->transport, s->threads);
    json_object_set_new(facts, "options", source_options(s->config, CLASS_ALL));
    json_object_set_new(facts, "rows", rows);
    return facts;
}

static Err ask(const Session *s, const BenchGuard *guard) {
    static const char *const WHAT[] = {"prefill", "decode", "all"};
    json_t *rows = json_array();
    for (int64_t i = 0; i < s->options->requests.count; i++)
        for (int k = 0; k < 3; k++)
            json_array_append_new(rows, row_facts(s, WHAT[k], s->options->requests.at[i]));
    clients_facts(s, rows);
    json_t *facts = head(s, rows);
    const Err e = guard->check(guard->arg, facts);
    json_decref(facts);
    return e;
}

static void print_row(const Session *s, const Row *row) {
    const int64_t rounds = s->options->rounds;
    const double wall = median_of(row->wall, rounds), gap = median_of(row->gap, rounds);
    printf("%8lld %14.2f %14.3f %14.3f %12.1f %10.1f %14.2f %%\n", (long long)row->requests,
           median_of(row->prefill, rounds) * 1e-6, gap * 1e-6, row->slowest * 1e-6,
           (double)(row->requests * s->options->fresh) * 1e9 / wall, pass_bytes(s, row->requests) / gap,
           100 * median_of(row->outside, rounds));
    fflush(stdout);
}

static void print_head(const Session *s) {
    printf("device: %s\n", s->device);
    if (s->comm) printf("ranks: %d, transport: %s\n", comm_world(s->comm), s->transport);
    printf("prompts of %lld tokens, %lld new tokens\n", (long long)s->options->prompt,
           (long long)s->options->fresh);
    if (s->options->requests.count)
        printf("\n%8s %14s %14s %14s %12s %10s %16s\n", "requests", "prompts, ms", "a token, ms", "99 %, ms",
               "tokens/s", "GB/s", "outside model");
}

static void print_roofs(const Session *s) {
    if (!s->options->alone) return;
    printf("\nroofs%s: read %.1f GB/s, GEMM %.1f GFLOP/s\n", s->comm ? " of a rank" : "", s->read, s->gemm);
    for (int64_t i = 0; i < s->options->requests.count; i++) {
        const Row *row = &s->rows[i];
        const double gap = median_of(row->gap, s->options->rounds),
                     prefill = median_of(row->prefill, s->options->rounds);
        printf("%lld at a time: prompts at %.1f %% of the GEMM roof, tokens at %.1f %% of the read roof\n",
               (long long)row->requests, 100 * prefill_flops(s, row->requests) / prefill / s->gemm,
               100 * pass_bytes(s, row->requests) / gap / s->read);
    }
}

static Err report(const Session *s, json_t **result) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < s->options->requests.count; i++) add_rows(s, &s->rows[i], rows);
    json_array_extend(rows, s->clients);
    json_t *all = head(s, rows);
    json_object_set_new(all, "complete", json_true());
    if (s->options->alone)
        json_object_set_new(all, "roofs",
                            json_pack("{s:f, s:f}", "read_gbytes", s->read, "gemm_gflops", s->gemm));
    print_roofs(s);
    const Err e = bench_write(s->options->json, all);
    if (!e.code && result) *result = json_incref(all);
    json_decref(all);
    return e;
}

/* ---- ranks ---- */

static Row row_new(int64_t requests, int64_t rounds) {
    double *all = mem_zero(4 * (size_t)rounds, sizeof *all);
    return (Row){requests, all, all + rounds, all + 2 * rounds, all + 3 * rounds, 0};
}

static Err measure(Session *s) {
    const BenchInfer *o = s->options;
    if (s->prints) print_head(s);
    for (int64_t i = 0; i < o->requests.count; i++) {
        s->rows[i] = row_new(o->requests.at[i], o->rounds);
        ERR_RETURN(measure_row(s, &s->rows[i]));
        if (s->prints) print_row(s, &s->rows[i]);
    }
    return ERR_OK;
}

/* Measures the roofline limits on a newly opened device, after the model's memory has been freed. All ranks
 * measure at the same time. */
static Err measure_roofs(Session *s) {
    Device *d;
    const DeviceSpec spec = rank_device_spec(s->config, s->comm);
    ERR_RETURN(comm_agree(s->comm, device_open(&spec, &d)));
    ERR_RETURN(comm_agree(s->comm, ERR_OK));
    s->read = bench_roof_read(d);
    s->gemm = bench_roof_gemm(d, s->run.context.dtype);
    device_free(d);
    return comm_agree(s->comm, ERR_OK);
}

typedef struct Job {
    const Config *config;
    const BenchInfer *options;
    const BenchGuard *guard;
    json_t **result;
} Job;

static void describe(Session *s) {
    char transport[200];
    s->threads = s->run.device->pool ? pool_threads(s->run.device->pool) : 0;
    device_describe(s->run.device, s->device, sizeof s->device);
    if (s->comm) comm_describe_host(s->comm, transport);
    bench_transport(s->comm, s->comm ? transport : "", s->transport);
}

static Err run_rank(void *arg, Comm *comm) {
    const Job *j = arg;
    const BenchInfer *o = j->options;
    Session s = {.options = o, .config = j->config, .comm = comm, .prints = rank_is_printer(comm)};
    ERR_RETURN(comm_agree(comm, o->json && s.prints ? file_check_target(o->json) : ERR_OK));
    ERR_RETURN(model_run_open_random(&s.run, j->config, comm));
    describe(&s);
    count_work(&s);
    s.rows = mem_zero((size_t)o->requests.count, sizeof *s.rows);
    s.clients = json_array();
    Err e = comm_agree(comm, j->guard && s.prints ? ask(&s, j->guard) : ERR_OK);
    if (!e.code) e = measure(&s);
    if (!e.code) e = clients_measure(&s, s.clients);
    model_run_close(&s.run);
    if (!e.code && o->alone) e = measure_roofs(&s);
    if (!e.code) e = comm_agree(comm, s.prints ? report(&s, j->result) : ERR_OK);
    for (int64_t i = 0; i < o->requests.count; i++) free(s.rows[i].prefill);
    free(s.rows);
    json_decref(s.clients);
    return e;
}

Err bench_infer(const Config *c, const BenchInfer *o, const BenchGuard *guard, json_t **result) {
    Job job = {c, o, guard, result};
    const int64_t positions = c->derived.max_position_embeddings;
    if (o->fresh > positions || o->prompt > positions - o->fresh)
        return err_user("%lld prompt tokens and %lld new tokens exceed the model's %lld positions: lower "
                        "--prompt-tokens or --new-tokens, or raise --max-position-embeddings",
                        (long long)o->prompt, (long long)o->fresh, (long long)positions);
    return world_run(c, run_rank, &job);
}
