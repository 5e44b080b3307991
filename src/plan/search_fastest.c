/* This file finds the fastest layouts. search.c finds those that need the fewest ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/candidate.h"

/* The sizes that determine the time of a microbatch. Without FSDP, `fsdp` and `data` are 0. */
typedef struct Pass {
    int64_t tensor, sequence, context, expert, expert_tensor, micro, level, fsdp, data;
} Pass;

typedef struct PassTime {
    Pass pass;
    double ns; /* of a sample */
} PassTime;

/* A layout to try. If `exact`, the bound is that of its recomputation and microbatch. Otherwise, it is that of the
 * fastest ones. */
typedef struct Try {
    FoundLayout layout;
    double bubble; /* of equal passes */
    double bound;
    bool exact;
} Try;

typedef struct Fastest {
    Seeker seeker;
    const Rates *rates;
    PassTime *pass; /* [passes] */
    int64_t passes;
    Try *heap; /* [n], a heap with the smallest bound at the top */
    int64_t n;
    int64_t events; /* number of simulated events */
    Search *out;
} Fastest;

/* ---- the heap ---- */

static bool is_before(const Try *a, const Try *b) {
    if (a->bound != b->bound) return a->bound < b->bound;
    return a->layout.zero != b->layout.zero ? a->layout.zero < b->layout.zero
                                            : a->layout.chunks < b->layout.chunks;
}

static void swap(Try *a, Try *b) {
    const Try x = *a;
    *a = *b, *b = x;
}

static void push(Fastest *s, const Try *t) {
    s->heap = mem_grow(s->heap, (size_t)s->n + 1, sizeof *s->heap);
    s->heap[s->n] = *t;
    for (int64_t i = s->n++; i && is_before(&s->heap[i], &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&s->heap[i], &s->heap[(i - 1) / 2]);
}

static Try pop(Fastest *s) {
    const Try top = s->heap[0];
    s->heap[0] = s->heap[--s->n];
    for (int64_t i = 0;;) {
        int64_t least = i;
        for (int64_t k = 2 * i + 1; k <= 2 * i + 2 && k < s->n; k++)
            if (is_before(&s->heap[k], &s->heap[least])) least = k;
        if (least == i) return top;
        swap(&s->heap[i], &s->heap[least]);
        i = least;
    }
}

/* ---- the bound ---- */

/* Returns the time of a sample on a rank that has all layers, or 0 if such a layout is invalid. */
static double simulate_pass(Fastest *s, const Pass *p, const FoundLayout *f) {
    FoundLayout one = *f;
    one.ranks /= f->pipeline, one.zero = (int)p->fsdp, one.pipeline = one.chunks = 1, one.micro = p->micro;
    one.recompute = CANDIDATE_LEVELS[p->level];
    Config c = candidate_config(&s->seeker, &one);
    c.pipeline_model_parallel_layout = NULL;
    c.global_batch_size = 4 * p->micro * f->data;
    RunPlan plan;
    arena_reset(s->seeker.arena);
    if (!candidate_keeps_rules(&s->seeker, &c)) return 0;
    config_finish(&c, s->seeker.arena, s->seeker.config->derived.vocab_size);
    if (plan_schedule(&c, s->seeker.arena, &plan).code) return 0;
    return step_time_microbatch(&plan, s->seeker.target, s->rates, &s->events) / (double)p->micro;
}

static double pass_ns(Fastest *s, const FoundLayout *f, int64_t micro, int level, int fsdp) {
    const Pass p = {f->tensor, f->sequence, f->context, f->expert,         f->expert_tensor,
                    micro,     level,       fsdp,       fsdp ? f->data : 0};
    for (int64_t i = 0; i < s->passes; i++)
        if (!memcmp(&s->pass[i].pass, &p, sizeof p)) return s->pass[i].ns;
    s->pass = mem_grow(s->pass, (size_t)s->passes + 1, sizeof *s->pass);
    s->pass[s->passes] = (PassTime){p, simulate_pass(s, &p, f)};
    return s->pass[s->passes++].ns;
}

static double bound_of(Fastest *s, const Try *t, int64_t micro, int level, int fsdp) {
    const FoundLayout *f = &t->layout;
    const double samples = (double)s->seeker.config->derived.global_batch_size / (double)f->data,
                 busy = pass_ns(s, f, micro, level, fsdp) * samples / (double)f->pipeline;
    return busy / (1 - t->bubble);
}

/* ---- the layouts ---- */

/* Adds the layout with all choices of ZeRO and recomputation, if it keeps the rules. */
static void add(Fastest *s, FoundLayout *f) {
    Seeker *seeker = &s->seeker;
    const Config *c = seeker->config;
    /* tensor-parallel ranks can hold copies of experts */
    const bool shares = f->data * f->context > 1 || (f->expert_tensor && f->expert_tensor < f->tensor);
    const int zero_most = shares ? ZERO_MOST : seeker->zero;
    f->zero = zero_most;
    if (candidate_least_state(seeker, f) > (double)seeker->available) return;
    if (c->derived.global_batch_size % (f->micro * f->data) || seeker->tries == SEARCH_LAYOUTS) return;
    f->zero = seeker->zero, f->recompute = c->recompute_granularity;
    arena_reset(seeker->arena);
    seeker->tries++;
    Config run = candidate_config(seeker, f);
    RunPlan plan;
    if (!candidate_keeps_rules(seeker, &run)) return;
    config_finish(&run, seeker->arena, c->derived.vocab_size);
    if (plan_schedule(&run, seeker->arena, &plan).code) return;
    f->bubble = plan.bubble, f->chunks = plan.pipeline.chunks;
    const int first = candidate_level(c->recompute_granularity);
    /* only these schedules have a bubble that does not depend on the parts of a pass */
    const bool fixed = plan.spec.kind == SCHEDULE_1F1B || plan.spec.kind == SCHEDULE_INTERLEAVED;
    Try t = {.layout = *f, .bubble = fixed && !isnan(plan.bubble) ? plan.bubble : 0};
    t.bound = bound_of(s, &t, candidate_micro_most(c), first, 0);
    for (int level = first; level < CANDIDATE_LEVEL_COUNT; level++)
        for (t.layout.zero = seeker->zero; t.layout.zero <= zero_most; t.layout.zero++) {
            t.layout.recompute = CANDIDATE_LEVELS[level];
            if (candidate_least_state(seeker, &t.layout) <= (double)seeker->available) push(s, &t);
        }
}

static void add_pipelines(Fastest *s, FoundLayout *f) {
    const Config *c = s->seeker.config;
    const bool one = f->pipeline == 1 || c->pipeline_model_parallel_layout;
    const int64_t most = one ? 1 : (config_layers(c) + 2) / f->pipeline;
    for (int64_t chunks = 1; chunks <= most; chunks++)
        for (int64_t micro = 1; micro <= candidate_micro_most(c); micro++) {
            if (micro & (micro - 1) && micro != c->micro_batch_size) continue;
            f->chunks = chunks, f->micro = micro;
            add(s, f);
        }
}

static void add_candidate(Fastest *s, const Candidate *a) {
    const Config *c = s->seeker.config;
    const int64_t experts = i64_or(c->num_experts, 1);
    const bool has_experts = i64_is_set(c->num_experts);
    for (int sequence = a->tensor > 1; sequence >= (a->tensor > 1 && c->sequence_parallel); sequence--)
        for (int64_t expert = 1; expert <= experts && expert <= a->ranks; expert *= 2)
            for (int64_t etp = a->tensor; etp; etp = has_experts && etp > 1) {
                FoundLayout f = {.ranks = a->ranks,
                                 .tensor = a->tensor,
                                 .sequence = sequence,
                                 .context = a->context,
                                 .pipeline = a->pipeline,
                                 .expert = expert,
                                 .expert_tensor = has_experts ? etp : 0,
                                 .data = a->data};
                add_pipelines(s, &f);
            }
}

/* ---- the search ---- */

static bool is_alike(const FoundLayout *a, const FoundLayout *b) {
    return a->tensor == b->tensor && a->context == b->context && a->pipeline == b->pipeline &&
           a->expert == b->expert;
}

/* Returns the time that a layout must be below to be listed. */
static double limit_for(const Search *s, const FoundLayout *f) {
    for (int i = 0; i < s->n; i++)
        if (is_alike(&s->found[i], f)) return fmin(s->found[i].ns, SEARCH_SLOWEST * s->found[0].ns);
    return s->n == SEARCH_MOST ? s->found[s->n - 1].ns : s->n ? SEARCH_SLOWEST * s->found[0].ns : HUGE_VAL;
}

/* Inserts a layout in order of time. Removes the one that is alike, or the last one if there are too many. */
static void insert(Search *s, const FoundLayout *f) {
    int at = 0;
    while (at < s->n && !is_alike(&s->found[at], f)) at++;
    if (at == s->n && s->n < SEARCH_MOST) s->n++;
    if (at == s->n) at--;
    for (; at && f->ns < s->found[at - 1].ns; at--) s->found[at] = s->found[at - 1];
    s->found[at] = *f;
}

/* Simulates the step if the layout fits. */
static Err time_of(Fastest *s, FoundLayout *f) {
    Seeker *seeker = &s->seeker;
    arena_reset(seeker->arena);
    Config c = candidate_config(seeker, f);
    RunPlan plan;
    StepTime t;
    f->ns = HUGE_VAL;
    if (!candidate_keeps_rules(seeker, &c)) return ERR_OK;
    config_finish(&c, seeker->arena, seeker->config->derived.vocab_size);
    if (!seeker_fits(seeker, &c, &plan)) return ERR_OK;
    s->out->timed++;
    const Err e = step_time(&plan, seeker->target, s->rates, NULL, seeker->arena, &t);
    s->events += t.events;
    ERR_RETURN(e);
    f->bytes = plan_bytes(&plan), f->ns = t.ns, f->tokens_per_second = t.tokens_per_second, f->mfu = t.mfu;
    f->idle = t.parts.bubble / t.ns, f->exposed = 0;
    for (int i = 0; i < (int)SIM_AXES; i++) f->exposed += t.parts.exposed[i] / t.ns;
    candidate_words(&c, f, f->words);
    return ERR_OK;
}

/* Tries the layout with the smallest bound. */
static Err try_next(Fastest *s) {
    Try t = pop(s);
    FoundLayout *f = &t.layout;
    if (t.bound >= limit_for(s->out, f)) {
        s->out->slower++;
        return ERR_OK;
    }
    if (!t.exact) {
        const int fsdp = f->zero > 1 ? f->zero : 0;
        const double exact = bound_of(s, &t, f->micro, candidate_level(f->recompute), fsdp);
        t.bound = fmax(t.bound, exact), t.exact = true;
        push(s, &t);
        return ERR_OK;
    }
    const Err e = time_of(s, f);
    if (e.code)
        s->out->unrated++;
    else if (f->ns < limit_for(s->out, f))
        insert(s->out, f);
    return e;
}

Err plan_search_fastest(const Config *given, const Device *target, size_t available, int64_t node,
                        const Rates *rates, Search *out) {
    Config c = *given;
    if (!i64_is_set(c.ranks)) {
        *out = plan_search(given, target, available, node);
        if (!out->n) return ERR_OK;
        c.ranks = out->found[0].ranks;
    }
    Fastest s = {.seeker = seeker_new(&c, target, available), .rates = rates, .out = out};
    *out = (Search){.rated = true, .node = node, .micro = candidate_micro_most(&c)};
    int64_t n;
    Candidate *list = candidates_list(&c, node, &n);
    for (int64_t i = 0; i < n; i++) add_candidate(&s, &list[i]);
    Err e = ERR_OK;
    while (s.n && s.events < SEARCH_EVENTS) {
        const Err tried = try_next(&s);
        if (tried.code) e = tried;
    }
    out->tries = s.seeker.tries, out->left = s.n, out->stopped = s.n || s.seeker.tries == SEARCH_LAYOUTS;
    free(list), free(s.pass), free(s.heap);
    arena_free(s.seeker.arena);
    return out->n ? ERR_OK : e;
}
