#include "plan/candidate.h"

#include <stdio.h>
#include <stdlib.h>

#include "train/trainer.h"

enum { RANKS_MOST = 1 << 16, PIPELINE_MOST = 128 };

/* ---- a layout ---- */

static void set_zero(Config *c, int zero) {
    if (zero == 1) c->use_distributed_optimizer = true;
    if (zero < 2) return;
    c->use_megatron_fsdp = true;
    c->data_parallel_sharding_strategy = zero == 2 ? SHARD_OPTIM_GRADS : SHARD_OPTIM_GRADS_PARAMS;
    c->given[OPTION_data_parallel_sharding_strategy] = 1;
}

const RecomputeGranularity CANDIDATE_LEVELS[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};

int candidate_level(RecomputeGranularity g) {
    int level = 0;
    while (CANDIDATE_LEVELS[level] != g) level++;
    return level;
}

static void set_recompute(Config *c, RecomputeGranularity level) {
    if (c->recompute_granularity == level) return;
    c->recompute_granularity = level;
    if (level != RECOMPUTE_FULL) return;
    c->recompute_method = RECOMPUTE_UNIFORM;
    c->recompute_num_layers = 1;
}

void candidate_words(const Config *c, const FoundLayout *f, char *out) {
    static const char *const ZERO[] = {
        "", " --use-distributed-optimizer",
        " --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
        " --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"};
    char expert[64] = "", expert_tensor[64] = "", chunks[64] = "";
    if (i64_is_set(c->num_experts))
        snprintf(expert, sizeof expert, " --expert-model-parallel-size %lld", (long long)f->expert);
    if (f->expert_tensor)
        snprintf(expert_tensor, sizeof expert_tensor, " --expert-tensor-parallel-size %lld",
                 (long long)f->expert_tensor);
    if (i64_is_set(c->num_virtual_stages_per_pipeline_rank))
        snprintf(chunks, sizeof chunks, " --num-virtual-stages-per-pipeline-rank %lld", (long long)f->chunks);
    snprintf(out, SEARCH_WORDS,
             "--ranks %lld --tensor-model-parallel-size %lld%s --context-parallel-size %lld "
             "--pipeline-model-parallel-size %lld%s%s%s%s --micro-batch-size %lld%s%s%s%s",
             (long long)f->ranks, (long long)f->tensor, f->sequence ? " --sequence-parallel" : "",
             (long long)f->context, (long long)f->pipeline, chunks,
             c->given[OPTION_num_layers_per_virtual_pipeline_stage]
                 ? " --num-layers-per-virtual-pipeline-stage none"
                 : "",
             expert, expert_tensor, (long long)f->micro, ZERO[f->zero],
             f->recompute ? " --recompute-granularity " : "",
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

Config candidate_config(const Seeker *s, const FoundLayout *f) {
    Config c = *s->config;
    c.ranks = f->ranks, c.given[OPTION_ranks] = 1;
    c.tensor_model_parallel_size = f->tensor;
    c.sequence_parallel |= f->sequence;
    c.context_parallel_size = f->context;
    c.pipeline_model_parallel_size = f->pipeline;
    c.micro_batch_size = f->micro;
    set_chunks(&c, f->chunks);
    c.expert_model_parallel_size = f->expert;
    if (f->expert_tensor) c.expert_tensor_parallel_size = f->expert_tensor;
    set_zero(&c, f->zero);
    set_recompute(&c, f->recompute);
    return c;
}

/* ---- checks of a layout ---- */

double candidate_least_state(const Seeker *s, const FoundLayout *f) {
    const Config *c = s->config;
    const double dense_ranks = (double)(f->tensor * f->pipeline),
                 each = (double)(f->expert_tensor ? f->expert_tensor
                                                  : i64_or(c->expert_tensor_parallel_size, f->tensor)) *
                        (double)f->expert * (double)f->pipeline,
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

bool candidate_keeps_rules(const Seeker *s, const Config *c) {
    Args args;
    args_init(&args, s->arena, "", NULL);
    config_check(c, CHECK_MODEL | CHECK_TRAIN, &args);
    const bool kept = !args.num_problems;
    args_free(&args);
    return kept;
}

int64_t candidate_micro_most(const Config *c) {
    return c->micro_batch_size > SEARCH_MICRO ? c->micro_batch_size : SEARCH_MICRO;
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

Candidate *candidates_list(const Config *c, int64_t node, int64_t *n) {
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

Seeker seeker_new(const Config *c, const Device *target, size_t available) {
    Seeker s = {.config = c, .target = target, .available = available, .arena = arena_new()};
    Arena *arena = arena_new();
    Config one = *c;
    config_on_one_rank(&one, arena);
    s.whole = memory_plan_new(&one, NULL, NULL);
    arena_free(arena);
    const ModelCount count = model_count(c);
    s.zero = model_run_layout(c, 0, (int)config_ranks(c)).data.stage;
    s.experts = (double)count.experts / (double)count.all;
    return s;
}

bool seeker_fits(const Seeker *s, const Config *c, RunPlan *plan) {
    const MemoryPlan first = plan_rank(c, s->target, 0); /* usually the rank that needs the most memory */
    return memory_plan_total(&first) <= s->available && !plan_make(c, s->target, s->arena, plan).code &&
           plan_bytes(plan) <= s->available;
}
