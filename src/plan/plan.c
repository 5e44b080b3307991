#include "plan/plan.h"

#include <math.h>

#include "pipeline/simulate.h"
#include "train/trainer.h"

/* ---- bubble ---- */

static const PassTimes EQUAL = {1, 1, 1};

/* For schedules without a closed form, computes the bubble with the simulator. */
static double simulated_share(const PipelineSpec *s, Arena *arena) {
    enum { MOST = 1 << 20 };
    const int64_t stages = (int64_t)s->ranks * s->chunks;
    if (stages * s->microbatches > MOST) return NAN;
    PassTimes *each = arena_alloc(arena, (size_t)stages * sizeof *each);
    RankSchedule *schedules = arena_alloc(arena, (size_t)s->ranks * sizeof *schedules);
    for (int64_t i = 0; i < stages; i++) each[i] = EQUAL;
    for (int rank = 0; rank < s->ranks; rank++) schedules[rank] = pipeline_schedule(s, rank, arena);
    const PipelineTimes times = {.stages = each};
    Simulation played;
    if (pipeline_simulate(s, schedules, &times, arena, &played).code) return NAN;
    return 1 - played.ranks[0].busy / played.makespan;
}

static double bubble_share(const PipelineSpec *s, Arena *arena) {
    const double passes = EQUAL.forward + EQUAL.backward_input + EQUAL.backward_weight,
                 busy = passes * (double)(s->microbatches * s->chunks), idle = pipeline_bubble(s, EQUAL);
    return isnan(idle) ? simulated_share(s, arena) : idle / (busy + idle);
}

/* ---- memory ---- */

static Comm *comm_of(const Config *c, int rank) {
    const int world = (int)config_ranks(c);
    return world > 1 ? comm_null(world, rank) : NULL;
}

MemoryPlan plan_rank(const Config *c, const Device *target, int rank) {
    Comm *comm = comm_of(c, rank);
    const MemoryPlan plan = memory_plan_new(c, comm, target);
    if (comm) comm_free(comm);
    return plan;
}

static void add_worst(StagePlan *s, const Config *c, const Device *target) {
    Comm *comm = comm_of(c, s->rank);
    memory_plan_worst(&s->memory, c, comm, target);
    if (comm) comm_free(comm);
}

size_t plan_bytes(const RunPlan *p) { return memory_plan_total(&p->stages[p->largest].memory); }

double plan_checkpoint_bytes(const Config *c) {
    Arena *arena = arena_new();
    Config one = *c;
    config_on_one_rank(&one, arena);
    one.save = "checkpoints", one.async_save = true; /* so that the plan includes a copy of the checkpoint */
    const MemoryPlan whole = memory_plan_new(&one, NULL, NULL);
    arena_free(arena);
    return (double)whole.part[MEMORY_snapshot];
}

Err plan_schedule(const Config *c, Arena *arena, RunPlan *out) {
    ERR_RETURN(trainer_check(c));
    const int world = (int)config_ranks(c);
    *out = (RunPlan){.config = c, .layout = model_run_layout(c, 0, world)};
    ERR_RETURN(pipeline_layout(c, arena, &out->pipeline));
    const int64_t samples = c->derived.global_batch_size / c->derived.data_parallel_size,
                  together = c->batch_invariant_mode ? 1 : c->derived.micro_batch_size;
    out->microbatches = samples / together;
    ERR_RETURN(pipeline_spec(c, &out->pipeline, pipeline_units(c, out->microbatches), false, &out->spec));
    out->bubble = bubble_share(&out->spec, arena);
    return ERR_OK;
}

Err plan_make(const Config *c, const Device *target, Arena *arena, RunPlan *out) {
    ERR_RETURN(plan_schedule(c, arena, out));
    const int world = (int)config_ranks(c), stages = out->pipeline.ranks;
    out->parameters = model_count(c);
    const ModelPlan model = model_plan(c, arena);
    out->flops = model_flops(&model, 1);
    out->stages = arena_alloc(arena, (size_t)stages * sizeof *out->stages);
    for (int i = 0; i < stages; i++) {
        /* The pipeline axis is the slowest axis of the ranks (comm/mesh.h). */
        out->stages[i].rank = i * (world / stages);
        out->stages[i].memory = plan_rank(c, target, out->stages[i].rank);
        if (memory_plan_total(&out->stages[i].memory) > plan_bytes(out)) out->largest = i;
    }
    add_worst(&out->stages[out->largest], c, target);
    return ERR_OK;
}
