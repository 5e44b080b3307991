#include "plan/search.h"

#include <math.h>
#include <stdlib.h>

#include "plan/candidate.h"

/* Rounds the bubble down to a whole percentage, because smaller differences do not matter. */
static int64_t percents(double bubble) { return isnan(bubble) ? 100 : (int64_t)(100 * bubble); }

/* Returns whether layout a has a better choice of virtual stages and microbatches than layout b. The criteria are,
 * in this order, a smaller bubble, larger GEMMs and fewer messages. */
static bool is_faster(const FoundLayout *a, const FoundLayout *b) {
    if (percents(a->bubble) != percents(b->bubble)) return percents(a->bubble) < percents(b->bubble);
    return a->micro != b->micro ? a->micro > b->micro : a->chunks < b->chunks;
}

/* Returns whether layout f fits and, if `other` is not NULL, is faster than `other`. Sets the memory and the bubble
 * of f. */
static bool fits(Seeker *s, FoundLayout *f, const FoundLayout *other) {
    if (candidate_least_state(s, f) > (double)s->available || s->tries == SEARCH_TRIES) return false;
    arena_reset(s->arena);
    s->tries++;
    Config c = candidate_config(s, f);
    RunPlan plan;
    if (!candidate_keeps_rules(s, &c)) return false;
    config_finish(&c, s->arena, s->config->derived.vocab_size);
    if (plan_schedule(&c, s->arena, &plan).code) return false;
    f->bubble = plan.bubble, f->chunks = plan.pipeline.chunks;
    if (other && !is_faster(f, other)) return false;
    if (!seeker_fits(s, &c, &plan)) return false;
    f->bytes = plan_bytes(&plan);
    candidate_words(&c, f, f->words);
    return true;
}

/* Chooses the number of virtual stages and the microbatch size. Starts with one stage per rank and one sample per
 * microbatch, which need the least memory. */
static bool divide(Seeker *s, FoundLayout *out) {
    const Config *c = s->config;
    const bool one = out->pipeline == 1 || c->pipeline_model_parallel_layout;
    const int64_t chunks_most = one ? 1 : (config_layers(c) + 2) / out->pipeline;
    out->micro = out->chunks = 1;
    if (!fits(s, out, NULL)) return false;
    for (int64_t chunks = 1; chunks <= chunks_most; chunks++)
        for (int64_t micro = candidate_micro_most(c); micro; micro--) {
            FoundLayout f = *out;
            f.chunks = chunks, f.micro = micro;
            const bool tried = !(micro & (micro - 1)) || micro == c->micro_batch_size;
            if (tried && fits(s, &f, out)) *out = f;
        }
    return true;
}

/* Finds the layout that fits with the least recomputation. The lowest ZeRO stage, and then the smallest expert-parallel
 * size, break ties. */
static bool find(Seeker *s, const Candidate *a, FoundLayout *out) {
    const Config *c = s->config;
    const int zero_most = a->data * a->context > 1 ? ZERO_MOST : s->zero;
    const int64_t experts = i64_or(c->num_experts, 1);
    for (int level = candidate_level(c->recompute_granularity); level < CANDIDATE_LEVEL_COUNT; level++)
        for (int zero = s->zero; zero <= zero_most; zero++)
            for (int64_t expert = 1; expert <= experts && expert <= a->ranks; expert *= 2) {
                *out = (FoundLayout){.ranks = a->ranks,
                                     .tensor = a->tensor,
                                     .sequence = a->tensor > 1,
                                     .context = a->context,
                                     .pipeline = a->pipeline,
                                     .expert = expert,
                                     .data = a->data,
                                     .zero = zero,
                                     .recompute = CANDIDATE_LEVELS[level]};
                if (divide(s, out)) return true;
            }
    return false;
}

/* Returns whether layout a is listed before layout b. */
static bool is_better(const FoundLayout *a, const FoundLayout *b) {
    if (a->ranks != b->ranks) return a->ranks < b->ranks;
    if (a->recompute != b->recompute) return candidate_level(a->recompute) < candidate_level(b->recompute);
    return a->zero != b->zero ? a->zero < b->zero : percents(a->bubble) < percents(b->bubble);
}

/* Inserts a layout in order. If there are too many layouts, the last one is removed. */
static void insert(Search *s, const FoundLayout *f) {
    int at = s->n;
    for (; at && is_better(f, &s->found[at - 1]); at--)
        if (at < SEARCH_MOST) s->found[at] = s->found[at - 1];
    if (at < SEARCH_MOST) s->found[at] = *f;
    if (s->n < SEARCH_MOST) s->n++;
}

Search plan_search(const Config *c, const Device *target, size_t available, int64_t node) {
    Seeker s = seeker_new(c, target, available);
    Search out = {.n = 0};
    int64_t n;
    Candidate *list = candidates_list(c, node, &n);
    for (int64_t i = 0; i < n; i++) {
        FoundLayout found;
        if (out.n == SEARCH_MOST && list[i].ranks > out.found[SEARCH_MOST - 1].ranks) break;
        if (find(&s, &list[i], &found)) insert(&out, &found);
    }
    out.tries = s.tries, out.stopped = s.tries == SEARCH_TRIES;
    out.node = node, out.micro = candidate_micro_most(c);
    free(list);
    arena_free(s.arena);
    return out;
}
