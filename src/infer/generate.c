#include "infer/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/min_max.h"
#include "base/philox.h"
#include "comm/agree.h"

static bool has_encoder(const Model *m) { return m->plan.sample.encoder > 0; }

/* decoder_pages and encoder_pages return the number of pages that a prompt needs in each pool. */
static int64_t decoder_pages(const Model *m, const Prompt *p, int64_t fresh, int64_t page) {
    return engine_pages((has_encoder(m) ? 1 : p->n) + fresh, page);
}
static int64_t encoder_pages(const Model *m, const Prompt *p, int64_t page) {
    return has_encoder(m) ? engine_pages(p->n, page) : 0;
}

/* The prompts' requirements, which rank 0 sends to all ranks. Each of r replicas receives every r-th prompt; `all` is
 * the largest number of pages that a replica needs. */
typedef struct Demand {
    int64_t prompts, longest, all, all_encoder, most, most_encoder;
} Demand;

static int64_t page_of(const GenerateOptions *o) { return o->page ? o->page : ENGINE_PAGE; }

static Demand demand_of(const Model *m, const Prompt *prompts, int64_t n, int64_t replicas,
                        const GenerateOptions *o) {
    Demand demand = {.prompts = n};
    for (int64_t r = 0; r < replicas; r++) {
        int64_t all = 0, all_encoder = 0;
        for (int64_t i = r; i < n; i += replicas) {
            const int64_t pages = decoder_pages(m, &prompts[i], generate_most_new(o, i), page_of(o)),
                          encoder = encoder_pages(m, &prompts[i], page_of(o));
            all += pages, all_encoder += encoder;
            demand.most = larger(demand.most, pages),
            demand.most_encoder = larger(demand.most_encoder, encoder);
            demand.longest = larger(demand.longest, prompts[i].n);
        }
        demand.all = larger(demand.all, all), demand.all_encoder = larger(demand.all_encoder, all_encoder);
    }
    return demand;
}

/* Returns the engine's limits. All prompts run at the same time if their pages fit. If the pages do not fit,
 * some prompts wait. The pages of the largest prompt must always fit. */
static EngineLimits limits_for(const Model *m, const RunContext *c, const Demand *demand, int64_t replicas,
                               const GenerateOptions *o) {
    const int64_t budget = o->tokens ? o->tokens : ENGINE_PASS_TOKENS,
                  checked = 1 + o->speculation.tokens, /* number of tokens per request in a pass */
        longest = larger(demand->longest, checked), n = (demand->prompts + replicas - 1) / replicas;
    EngineLimits l = {.page = page_of(o),
                      .pages = demand->all,
                      .shares_prefixes = true,
                      .encoder_pages = demand->all_encoder,
                      .requests =
                          larger(1, smaller(o->requests ? smaller(n, o->requests) : n, budget / checked)),
                      .speculation = o->speculation,
                      .suspended = o->suspended,
                      .route = o->route,
                      .route_alpha = o->route_alpha};
    const double room = o->room > 0 ? o->room : engine_room(c);
    double states = engine_state_bytes(m, c, l.requests);
    for (; l.requests > 1 && states > room / 2; states = engine_state_bytes(m, c, l.requests))
        l.requests /= 2;
    l.tokens = larger(l.requests * checked, longest < budget / n ? n * longest : budget);
    const double share = states < room ? (engine_cache_bytes(m, c, &l) - states) / (room - states) : 1;
    if (share > 1) {
        l.pages = larger((int64_t)((double)demand->all / share), demand->most);
        l.encoder_pages = larger((int64_t)((double)demand->all_encoder / share), demand->most_encoder);
    }
    return l;
}

/* ---- the sink of the engine's events ---- */

typedef struct Session {
    Fleet *fleet;
    const Model *model;
    const Prompt *prompts;
    const GenerateOptions *options;
    Generated *out;
    int64_t n, added, start_ns;
    bool progressed; /* whether a prompt has received a new token since the fleet was suspended */
    Err error;
} Session;

/* Stores a token with the log-probability that the event reports. */
static void store(Session *s, const EngineEvent *event) {
    const size_t k = (size_t)s->options->likeliest;
    Generated *g = &s->out[event->id];
    g->tokens[event->index] = event->token;
    g->logprobs[event->index - 1] = event->logprob;
    if (k) memcpy(g->likeliest + (size_t)(event->index - 1) * k, event->likeliest, k * sizeof *g->likeliest);
    if (event->kind != EVENT_PROMPT) g->at_ns[event->index - 1] = clock_ns();
}

static bool watch(Session *s, int64_t i) {
    const GenerateOptions *o = s->options;
    return o->watch && o->watch(o->watch_arg, i, &s->out[i]);
}

Err generate_not_finite(int64_t tokens, int64_t prompt) {
    return err_user(
        "prompt %lld: the model's logits are not finite after %lld tokens (prompt and generated); "
        "check the model's parameters, or use a higher precision (--lane)",
        (long long)prompt, (long long)tokens);
}

static void take_event(void *arg, const EngineEvent *event) {
    Session *s = arg;
    Generated *g = &s->out[event->id];
    if (event->kind != EVENT_END || event->finish == FINISH_STOP) store(s, event);
    if (event->kind == EVENT_PROMPT) return;
    s->progressed = true;
    if (event->kind == EVENT_TOKEN) {
        g->n = event->index + 1;
        if (!watch(s, event->id)) return;
        g->stopped = true;
        fleet_abort(s->fleet, event->id);
    } else {
        g->stopped = g->has_end = event->finish == FINISH_STOP;
    }
    g->ended = true, g->ended_ns = clock_ns();
    if (event->kind == EVENT_TOKEN || event->finish != FINISH_NAN)
        watch(s, event->id);
    else
        s->error = generate_not_finite(event->index, event->id + 1);
}

/* ---- adding prompts ---- */

/* Adds a request. Its result begins with the prompt, or with the start token in an encoder-decoder model. */
static Err add(Session *s, int64_t i) {
    const GenerateOptions *o = s->options;
    const Prompt *p = &s->prompts[i];
    const bool encoder = has_encoder(s->model);
    const int32_t start = (int32_t)o->start;
    const Request request = {.id = i,
                             .prompt = p->tokens,
                             .n = p->n,
                             .start = start,
                             .sampling = o->sampling,
                             .seed = o->seed,
                             .stream = (uint64_t)i,
                             .max_new_tokens = generate_most_new(o, i),
                             .ends = o->ends,
                             .n_ends = o->n_ends,
                             .logprobs = !o->skip_logprobs,
                             .prompt_logprobs = !o->skip_logprobs && !o->skip_prompt_logprobs,
                             .likeliest = o->likeliest};
    const Err e = fleet_add(s->fleet, &request);
    if (e.code) return err_user("prompt %lld: %s", (long long)i + 1, e.msg);
    const int64_t first = encoder ? 1 : p->n, room = first + request.max_new_tokens;
    Generated *g = &s->out[i];
    *g = (Generated){.n = first,
                     .n_prompt = first,
                     .tokens = mem_zero((size_t)room, sizeof *g->tokens),
                     .logprobs = mem_zero((size_t)room, sizeof *g->logprobs),
                     .at_ns = mem_zero((size_t)room, sizeof *g->at_ns),
                     .likeliest =
                         o->likeliest ? mem_zero((size_t)(room * o->likeliest), sizeof *g->likeliest) : NULL,
                     .added_ns = clock_ns()};
    memcpy(g->tokens, encoder ? &start : p->tokens, (size_t)first * sizeof *g->tokens);
    return ERR_OK;
}

/* Returns how many prompts have arrived. The times between arrivals are exponentially distributed. */
static int64_t arrived(const Session *s) {
    const GenerateOptions *o = s->options;
    const double passed = 1e-9 * (double)(clock_ns() - s->start_ns);
    int64_t n = 1;
    for (double at = 0; n < s->n; n++) {
        at -= log(philox_uniform(o->seed, hash_name("arrival"), (uint64_t)n)) / o->per_second;
        if (at > passed) break;
    }
    return n;
}

/* Adds the prompts that are due before the next pass. */
static void add_arrived(Session *s) {
    const GenerateOptions *o = s->options;
    int64_t n = o->per_second > 0 ? arrived(s) : o->per_pass ? s->added + o->per_pass : s->n;
    if (n > s->n) n = s->n;
    while (s->added < n && !s->error.code) s->error = add(s, s->added++);
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

static void signal(Session *s, FleetSignal signal) {
    const Err e = fleet_signal(s->fleet, signal, NULL);
    CHECK(!e.code, "%s", e.msg);
}

/* Suspends and resumes the fleet, which then runs again in the next step. Steps without a pass show the other ranks
 * that this rank is alive. */
static void suspend(Session *s) {
    signal(s, SIGNAL_PAUSE);
    fleet_step(s->fleet, take_event, s);
    signal(s, SIGNAL_SUSPEND);
    const int64_t start = clock_ns();
    for (bool rests = true; rests;) {
        fleet_step(s->fleet, take_event, s);
        rests = 1e-9 * (double)(clock_ns() - start) < s->options->suspend_s;
        if (rests) nap();
    }
    signal(s, SIGNAL_RESUME);
    while (fleet_state(s->fleet) != FLEET_PAUSED) fleet_step(s->fleet, take_event, s);
    signal(s, SIGNAL_UNPAUSE);
}

static void run(Session *s) {
    const int64_t every = s->options->suspend_every;
    s->start_ns = clock_ns();
    for (int64_t busy = 1, passes = 0; (busy || s->added < s->n) && !s->error.code; passes += busy) {
        add_arrived(s);
        if (every && busy && passes >= every && s->progressed) {
            suspend(s);
            passes = 0, s->progressed = false;
        }
        busy = !s->error.code && fleet_step(s->fleet, take_event, s);
        if (!busy && s->added < s->n) nap();
    }
    if (s->options->counts) *s->options->counts = fleet_counts(s->fleet);
}

/* Opens the fleet, with the limits that rank 0's prompts require. */
static Err open_fleet(Session *s, const RunContext *c) {
    const int64_t replicas = c->layout ? c->layout->mesh.size[AXIS_DP] : 1;
    Demand demand = demand_of(s->model, s->prompts, s->n, replicas, s->options);
    if (c->comm)
        comm_run(c->comm, &(CommCall){.kind = COMM_BROADCAST,
                                      .dtype = I64,
                                      .group = comm_everyone(c->comm),
                                      .site = "needs of prompts",
                                      .in = &demand,
                                      .out = &demand,
                                      .n = sizeof demand / sizeof(int64_t)});
    const EngineLimits limits = limits_for(s->model, c, &demand, replicas, s->options);
    return fleet_new(s->model, c, &limits, &s->fleet);
}

Err generate(const Model *m, const RunContext *context, const Prompt *prompts, int64_t n,
             const GenerateOptions *o, Generated *out) {
    Session s = {.model = m, .prompts = prompts, .options = o, .out = out, .n = n};
    ERR_RETURN(open_fleet(&s, context));
    memset(out, 0, (size_t)n * sizeof *out);
    if (fleet_leads(s.fleet))
        run(&s);
    else
        fleet_follow(s.fleet);
    fleet_free(s.fleet);
    s.error = comm_agree(context->comm, s.error);
    for (int64_t i = 0; i < n && s.error.code; i++) generated_free(&out[i]);
    return s.error;
}

void generated_free(Generated *g) {
    free(g->tokens);
    free(g->logprobs);
    free(g->likeliest);
    free(g->at_ns);
    *g = (Generated){0};
}
