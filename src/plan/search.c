#include "plan/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "train/trainer.h"

enum { RANKS_MOST = 1 << 16, PIPELINE_MOST = 128, ZERO_MOST = 3 };

typedef struct Candidate {
    int64_t ranks, tensor, context, pipeline, data;
} Candidate;

typedef struct Seeker {
    const Config *config;
    const Device *target;
    size_t available;
    MemoryPlan whole; /* memory that a rank needs if it holds the full model */
    double experts;   /* the fraction of the parameters that belong to experts */
    int64_t tries;
    Arena *arena; /* contains the data of the layout that is being tried */
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
    char expert[64] = "", chunks[64] = "";
    if (i64_is_set(c->num_experts))
        snprintf(expert, sizeof expert, " --expert-model-parallel-size %lld", (long long)f->expert);
    if (i64_is_set(c->num_virtual_stages_per_pipeline_rank))
        snprintf(chunks, sizeof chunks, " --num-virtual-stages-per-pipeline-rank %lld", (long long)f->chunks);
    snprintf(out, SEARCH_WORDS,
             "--ranks %lld --tensor-model-parallel-size %lld%s --context-parallel-size %lld "
             "--pipeline-model-parallel-size %lld%s%s%s --micro-batch-size %lld%s%s%s%s",
             (long long)f->ranks, (long long)f->tensor, f->tensor > 1 ? " --sequence-parallel" : "",
             (long long)f->context, (long long)f->pipeline, chunks,
             c->given[OPTION_num_layers_per_virtual_pipeline_stage]
                 ? " --num-layers-per-virtual-pipeline-stage none"
                 : "",
             expert, (long long)f->micro, ZERO[f->zero], f->recompute ? " --recompute-granularity " : "",
             f->recompute ? RecomputeGranularity_spellings[f->recompute] : "",
             f->recompute == RECOMPUTE_FULL ? " --recompute-method uniform --recompute-num-layers 1" : "");
}

/* Sets the number of virtual stages, unless --pipeline-model-parallel-layout already defines the stages. */
static void set_chunks(Config *c, int64_t chunks) {
    if (c->pipeline_model_parallel_layout) return;
    c->num_layers_per_virtual_pipeline_stage = I64_UNSET;
    if (chunks > 1 || i64_is_set(c->num_virtual_stages_per_pipeline_rank))
        c->num_virtual_stages_per_pipeline_rank = chunks;
}

static Config config_of(const Seeker *s, const FoundLayout *f) {
    Config c = *s->config;
    c.ranks = f->ranks, c.given[OPTION_ranks] = 1;
    c.tensor_model_parallel_size = f->tensor;
    c.sequence_parallel |= f->tensor > 1;
    c.context_parallel_size = f->context;
    c.pipeline_model_parallel_size = f->pipeline;
    c.micro_batch_size = f->micro;
    set_chunks(&c, f->chunks);
    c.expert_model_parallel_size = f->expert;
    set_zero(&c, f->zero);
    set_recompute(&c, f->recompute);
    return c;
}

/* ---- checks of a layout ---- */

/* Returns a lower bound on the peak memory per rank: the memory for parameters, gradients and optimizer state,
 * split equally across ranks. */
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
    if (least_state(s, f) > (double)s->available || s->tries == SEARCH_TRIES) return false;
    arena_reset(s->arena);
    s->tries++;
    Config c = config_of(s, f);
    RunPlan plan;
    if (!keeps_rules(s, &c)) return false;
    config_finish(&c, s->arena, s->config->derived.vocab_size);
    if (plan_schedule(&c, s->arena, &plan).code) return false;
    f->bubble = plan.bubble, f->chunks = plan.pipeline.chunks;
    if (other && !is_faster(f, other)) return false;
    const MemoryPlan first = plan_rank(&c, s->target, 0); /* usually the rank that needs the most memory */
    if (memory_plan_total(&first) > s->available) return false;
    if (plan_make(&c, s->target, s->arena, &plan).code || plan_bytes(&plan) > s->available) return false;
    f->bytes = plan_bytes(&plan);
    put_words(&c, f, f->words);
    return true;
}

static int64_t micro_most(const Config *c) {
    return c->micro_batch_size > SEARCH_MICRO ? c->micro_batch_size : SEARCH_MICRO;
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
        for (int64_t micro = micro_most(c); micro; micro--) {
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
    const int given = model_run_layout(c, 0, (int)config_ranks(c)).data.stage,
              zero_most = a->data * a->context > 1 ? ZERO_MOST : given;
    const int64_t experts = i64_or(c->num_experts, 1);
    for (int level = level_of(c->recompute_granularity); level < N_LEVELS; level++)
        for (int zero = given; zero <= zero_most; zero++)
            for (int64_t expert = 1; expert <= experts && expert <= a->ranks; expert *= 2) {
                *out = (FoundLayout){.ranks = a->ranks,
                                     .tensor = a->tensor,
                                     .context = a->context,
                                     .pipeline = a->pipeline,
                                     .expert = expert,
                                     .data = a->data,
                                     .zero = zero,
                                     .recompute = LEVELS[level]};
                if (divide(s, out)) return true;
            }
    return false;
}

/* ---- candidates ---- */

static int compare(const void *x, const void *y) {
    const Candidate *a = x, *b = y;
    if (a->ranks != b->ranks) return a->ranks < b->ranks ? -1 : 1;
    if (a->pipeline != b->pipeline) return a->pipeline < b->pipeline ? -1 : 1;
    if (a->context != b->context) return a->context < b->context ? -1 : 1;
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

/* Returns the smallest data-parallel size to try. If --ranks is set, returns the only size for which there are exactly
 * --ranks ranks. If there is no such size, returns a number that is too large to be used. */
static int64_t first_data(const Config *c, int64_t model_ranks) {
    if (!i64_is_set(c->ranks)) return 1;
    return c->ranks % model_ranks ? c->ranks + 1 : c->ranks / model_ranks;
}

/* Lists the candidates. All sizes are powers of two, with two exceptions: the pipeline size, which is at most
 * the number of layers plus embedding and head, and the data-parallel size that follows from --ranks. */
static Candidate *candidates(const Config *c, int64_t node, int64_t *n) {
    Candidate *list = NULL;
    *n = 0;
    for (int64_t tensor = 1; tensor <= node; tensor *= 2)
        for (int64_t context = 1; context <= SEARCH_CONTEXT; context *= 2)
            for (int64_t pipeline = 1; pipeline <= c->num_layers + 2 && pipeline <= PIPELINE_MOST;
                 pipeline++) {
                const int64_t model = tensor * context * pipeline;
                for (int64_t data = first_data(c, model); model * data <= i64_or(c->ranks, RANKS_MOST);
                     data *= 2) {
                    list = mem_grow(list, (size_t)*n + 1, sizeof *list);
                    list[(*n)++] = (Candidate){model * data, tensor, context, pipeline, data};
                }
            }
    if (*n) qsort(list, (size_t)*n, sizeof *list, compare);
    return list;
}

/* Returns whether layout a is listed before layout b. */
static bool is_better(const FoundLayout *a, const FoundLayout *b) {
    if (a->ranks != b->ranks) return a->ranks < b->ranks;
    if (a->recompute != b->recompute) return level_of(a->recompute) < level_of(b->recompute);
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
    Seeker s = {.config = c, .target = target, .available = available, .arena = arena_new()};
    Arena *arena = arena_new();
    Config one = *c;
    config_on_one_rank(&one, arena);
    s.whole = memory_plan_new(&one, NULL, NULL);
    const ModelCount count = model_count(&one);
    s.experts = (double)count.experts / (double)count.all;
    Search out = {.n = 0};
    int64_t n;
    Candidate *list = candidates(c, node, &n);
    for (int64_t i = 0; i < n; i++) {
        FoundLayout found;
        if (out.n == SEARCH_MOST && list[i].ranks > out.found[SEARCH_MOST - 1].ranks) break;
        if (find(&s, &list[i], &found)) insert(&out, &found);
    }
    out.tries = s.tries, out.stopped = s.tries == SEARCH_TRIES;
    out.node = node, out.micro = micro_most(c);
    free(list);
    arena_free(arena);
    arena_free(s.arena);
    return out;
}
