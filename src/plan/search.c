#include "plan/search.h"

#include <stdio.h>
#include <stdlib.h>

#include "train/trainer.h"

enum { RANKS_MOST = 1 << 16, PIPELINE_MOST = 128, ZERO_MOST = 3 };

typedef struct Candidate {
    int64_t ranks, tensor, pipeline, data;
} Candidate;

typedef struct Seeker {
    const Config *config;
    const Derived *derived;
    const Device *target;
    size_t available;
    MemoryPlan whole; /* of one rank that holds the whole model */
    double experts;   /* their part of the parameters */
    Arena *arena;     /* of one layout */
} Seeker;

/* ---- a layout ---- */

static void set_zero(Config *c, int zero) {
    if (zero == 1) c->use_distributed_optimizer = true;
    if (zero < 2) return;
    c->use_megatron_fsdp = true;
    c->data_parallel_sharding_strategy = zero == 2 ? SHARD_OPTIM_GRADS : SHARD_OPTIM_GRADS_PARAMS;
    c->given[OPTION_data_parallel_sharding_strategy] = 1;
}

static const RecomputeGranularity LEVELS[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
enum { N_LEVELS = sizeof LEVELS / sizeof *LEVELS };

static int level_of(RecomputeGranularity g) {
    int level = 0;
    while (LEVELS[level] != g) level++;
    return level;
}

static void set_recompute(Config *c, RecomputeGranularity level) {
    if (c->recompute_granularity == level) return;
    c->recompute_granularity = level;
    if (level != RECOMPUTE_FULL) return;
    c->recompute_method = RECOMPUTE_UNIFORM;
    c->recompute_num_layers = 1;
}

static void put_words(const Config *c, const FoundLayout *f, char *out) {
    static const char *const ZERO[] = {
        "", " --use-distributed-optimizer",
        " --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
        " --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"};
    char expert[64] = "";
    if (i64_is_set(c->num_experts))
        snprintf(expert, sizeof expert, " --expert-model-parallel-size %lld", (long long)f->expert);
    snprintf(out, SEARCH_WORDS,
             "--ranks %lld --tensor-model-parallel-size %lld%s --pipeline-model-parallel-size %lld%s%s%s%s%s",
             (long long)f->ranks, (long long)f->tensor, f->tensor > 1 ? " --sequence-parallel" : "",
             (long long)f->pipeline, expert, ZERO[f->zero], f->recompute ? " --recompute-granularity " : "",
             f->recompute ? RecomputeGranularity_spellings[f->recompute] : "",
             f->recompute == RECOMPUTE_FULL ? " --recompute-method uniform --recompute-num-layers 1" : "");
}

static Config config_of(const Seeker *s, const FoundLayout *f) {
    Config c = *s->config;
    c.ranks = f->ranks, c.given[OPTION_ranks] = 1;
    c.tensor_model_parallel_size = f->tensor;
    c.sequence_parallel |= f->tensor > 1;
    c.pipeline_model_parallel_size = f->pipeline;
    c.expert_model_parallel_size = f->expert;
    set_zero(&c, f->zero);
    set_recompute(&c, f->recompute);
    return c;
}

/* ---- does it fit? ---- */

/* The least that the largest rank holds of parameters, gradients and optimizer: an even share. */
static double least_state(const Seeker *s, const FoundLayout *f) {
    const Config *c = s->config;
    const double dense_ranks = (double)(f->tensor * f->pipeline),
                 each = (double)i64_or(c->expert_tensor_parallel_size, f->tensor) * (double)f->expert *
                        (double)f->pipeline,
                 expert_ranks = each < (double)f->ranks ? each : (double)f->ranks;
    double sum = 0;
    for (int part = MEMORY_parameters; part <= MEMORY_optimizer; part++) {
        static const int FROM[] = {[MEMORY_parameters] = 3, [MEMORY_gradients] = 2, [MEMORY_optimizer] = 1};
        const bool shared = f->zero >= FROM[part];
        const double dense = (1 - s->experts) / (shared ? (double)f->ranks : dense_ranks),
                     expert = s->experts / (shared ? (double)f->ranks : expert_ranks);
        sum += (double)s->whole.part[part] * (dense + expert);
    }
    return sum;
}

static bool keeps_rules(const Seeker *s, const Config *c) {
    Args args;
    args_init(&args, s->arena, "", NULL);
    config_check(c, CHECK_MODEL | CHECK_TRAIN, &args);
    const bool kept = !args.num_problems;
    args_free(&args);
    return kept;
}

/* Fills in the memory that the layout needs. */
static bool fits(Seeker *s, FoundLayout *f) {
    if (least_state(s, f) > (double)s->available) return false;
    arena_reset(s->arena);
    const Config c = config_of(s, f);
    Derived d;
    RunPlan plan;
    if (!keeps_rules(s, &c)) return false;
    config_finish(&c, s->arena, s->derived->vocab_size, &d);
    if (trainer_check(&c, &d).code) return false;
    const MemoryPlan first = plan_rank(&c, &d, s->target, 0); /* mostly the largest */
    if (memory_plan_total(&first) > s->available) return false;
    if (plan_make(&c, &d, s->target, s->arena, &plan).code || plan_bytes(&plan) > s->available) return false;
    f->bytes = plan_bytes(&plan);
    f->bubble = plan.bubble;
    f->microbatches = plan.microbatches;
    put_words(&c, f, f->words);
    return true;
}

/* With as little as possible of recomputation, then of ZeRO, then of expert parallelism. */
static bool find(Seeker *s, const Candidate *a, FoundLayout *out) {
    const Config *c = s->config;
    const int given = trainer_layout(c, 0, (int)config_ranks(c)).data.stage,
              zero_most = a->data * c->context_parallel_size > 1 ? ZERO_MOST : given;
    const int64_t experts = i64_or(c->num_experts, 1);
    for (int level = level_of(c->recompute_granularity); level < N_LEVELS; level++)
        for (int zero = given; zero <= zero_most; zero++)
            for (int64_t expert = 1; expert <= experts && expert <= a->ranks; expert *= 2) {
                *out = (FoundLayout){.ranks = a->ranks,
                                     .tensor = a->tensor,
                                     .pipeline = a->pipeline,
                                     .expert = expert,
                                     .data = a->data,
                                     .zero = zero,
                                     .recompute = LEVELS[level]};
                if (fits(s, out)) return true;
            }
    return false;
}

/* ---- candidates ---- */

static int compare(const void *x, const void *y) {
    const Candidate *a = x, *b = y;
    if (a->ranks != b->ranks) return a->ranks < b->ranks ? -1 : 1;
    return a->pipeline < b->pipeline ? -1 : a->pipeline > b->pipeline;
}

/* With --ranks the only size of layouts of exactly these ranks; above it, none. */
static int64_t first_data(const Config *c, int64_t model_ranks) {
    if (!i64_is_set(c->ranks)) return 1;
    return c->ranks % model_ranks ? c->ranks + 1 : c->ranks / model_ranks;
}

/* Sizes are powers of two, except pipeline sizes, which are at most the layers with embedding and head, and the
 * data-parallel size that --ranks leaves. */
static Candidate *candidates(const Config *c, int64_t node, int64_t *n) {
    const int64_t context = c->context_parallel_size;
    Candidate *list = NULL;
    *n = 0;
    for (int64_t tensor = 1; tensor <= node; tensor *= 2)
        for (int64_t pipeline = 1; pipeline <= c->num_layers + 2 && pipeline <= PIPELINE_MOST; pipeline++)
            for (int64_t data = first_data(c, tensor * pipeline * context);
                 tensor * pipeline * context * data <= i64_or(c->ranks, RANKS_MOST); data *= 2) {
                list = mem_grow(list, (size_t)*n + 1, sizeof *list);
                list[(*n)++] = (Candidate){tensor * pipeline * context * data, tensor, pipeline, data};
            }
    if (*n) qsort(list, (size_t)*n, sizeof *list, compare);
    return list;
}

/* Whether a is listed before b. */
static bool is_better(const FoundLayout *a, const FoundLayout *b) {
    if (a->ranks != b->ranks) return a->ranks < b->ranks;
    if (a->recompute != b->recompute) return level_of(a->recompute) < level_of(b->recompute);
    return a->zero != b->zero ? a->zero < b->zero : a->bubble < b->bubble;
}

/* Drops the last of too many. */
static void insert(Search *s, const FoundLayout *f) {
    int at = s->n;
    for (; at && is_better(f, &s->found[at - 1]); at--)
        if (at < SEARCH_MOST) s->found[at] = s->found[at - 1];
    if (at < SEARCH_MOST) s->found[at] = *f;
    if (s->n < SEARCH_MOST) s->n++;
}

Search plan_search(const Config *c, const Derived *d, const Device *target, size_t available, int64_t node) {
    Seeker s = {.config = c, .derived = d, .target = target, .available = available, .arena = arena_new()};
    Arena *arena = arena_new();
    Config one = *c;
    Derived of_one = *d;
    config_on_one_rank(&one, arena, &of_one);
    s.whole = memory_plan_new(&one, &of_one, NULL, NULL);
    const ModelCount count = model_count(&one, &of_one);
    s.experts = (double)count.experts / (double)count.all;
    Search out = {.n = 0};
    int64_t n;
    Candidate *list = candidates(c, node, &n);
    for (int64_t i = 0; i < n; i++) {
        FoundLayout found;
        if (out.n == SEARCH_MOST && list[i].ranks > out.found[SEARCH_MOST - 1].ranks) break;
        if (find(&s, &list[i], &found)) insert(&out, &found);
    }
    free(list);
    arena_free(arena);
    arena_free(s.arena);
    return out;
}
