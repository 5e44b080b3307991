#include "train/microbatches.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_ops.h"

/* The CUDA graph of a microbatch. */
typedef struct Recording {
    DeviceRecording work;
    double aux_scale; /* a constant in the graph */
} Recording;

/* The values on which a step's CUDA graph depends. Keys can be compared as bytes, because the struct has no
 * padding. */
typedef struct StepKey {
    int64_t n, allocations; /* number of microbatches; executor_allocations */
    char *fields;
    double aux_scale;
} StepKey;

/* State for --cuda-graph-impl local. A single rank has two graphs for microbatches. Both graphs read a
 * microbatch's fields from a fixed address. The graph `first` runs a step's first microbatch, and overwrites
 * the gradients. The graph `other` runs all later microbatches, and adds to the gradients. If there are several
 * ranks, one graph contains an entire step, because a step's microbatches share one schedule and the sums over
 * ranks. */
typedef struct Graphs {
    char *fields;
    size_t bytes;
    Recording first, other;
    DeviceRecording step;
    StepKey key;
} Graphs;

struct Microbatches {
    const Config *config;
    const RunContext *context;
    Registry *registry;
    Executor *executor;
    const PipelineLayout *pipeline;
    const ModelPlan *plan;
    Arena *arena; /* contains the microbatches and their schedule */
    Microbatch *list;
    int64_t n;
    char *fields, *host;       /* device memory, and the host memory from which it is copied */
    size_t bytes;              /* size of `fields` and of `host` */
    bool sending;              /* whether copies to the device may be in progress */
    Tensor loss[MODEL_LOSSES]; /* F64 [1], adjacent */
    Graphs *graphs;            /* NULL before the first use */
};

static size_t loss_bytes(const Microbatches *m) { return (size_t)model_sums(m->plan) * sizeof(double); }

Microbatches *microbatches_new(const Config *config, const RunContext *context, const Model *model,
                               Executor *executor, const PipelineLayout *pipeline) {
    Microbatches *m = mem_zero(1, sizeof *m);
    *m = (Microbatches){.config = config,
                        .context = context,
                        .registry = model->registry,
                        .executor = executor,
                        .pipeline = pipeline,
                        .plan = &model->plan,
                        .arena = arena_new()};
    double *sums = device_alloc(context->device, loss_bytes(m), "loss");
    for (int i = 0; i < model_sums(m->plan); i++) {
        m->loss[i] = tensor_make(sums + i, F64, 1, (int64_t[]){1});
        m->loss[i].flags = TENSOR_ACCUM;
        /* The losses are not rounded to the exact lane's grid, because they are exact sums of products of two numbers
         * on the grid. */
        tape_grad_off_grid(&m->loss[i]);
    }
    return m;
}

static void free_fields(Microbatches *m) {
    Device *d = m->context->device;
    device_release(d, m->fields, m->bytes);
    if (m->host != m->fields) device_host_release(d, m->host, m->bytes);
}

void microbatches_free(Microbatches *m) {
    if (!m) return;
    Device *d = m->context->device;
    if (m->graphs) {
        device_recording_drop(d, &m->graphs->first.work);
        device_recording_drop(d, &m->graphs->other.work);
        device_recording_drop(d, &m->graphs->step);
        device_release(d, m->graphs->fields, m->graphs->bytes);
        free(m->graphs);
    }
    free_fields(m);
    device_release(d, m->loss[0].data, loss_bytes(m));
    arena_free(m->arena);
    free(m);
}

/* Returns whether CUDA graphs are used. The option is read at each call, because a benchmark disables graphs to
 * time single ops. */
static bool uses_graphs(const Microbatches *m) { return m->config->cuda_graph_impl == CUDA_GRAPH_LOCAL; }

/* ---- fields: one block of device memory for each microbatch ---- */

/* Returns a field's type on the device. Real fields have the loss's type. */
static DType field_dtype(const Microbatches *m, FieldId field) {
    return field_info(field)->is_integer ? I64 : m->registry->precise;
}

/* Returns a field's SPMD type. Data-parallel ranks have different samples, and context-parallel ranks have different
 * positions of the same samples. */
static SpmdType field_type(const RunContext *c, FieldExtent extent) {
    SpmdType type = 0;
    for (int a = AXIS_CP; c->layout && a <= AXIS_DP; a++)
        if (c->layout->mesh.size[a] > 1 && (a != AXIS_CP || extent_is_cut(extent)))
            type = spmd_with(type, a, SPMD_V);
    return type;
}

/* Returns a microbatch with tensors for the fields and losses of a batch. The tensors have no memory yet. */
static Microbatch microbatch_like(const Microbatches *m, const Batch *b) {
    const ModelPlan *plan = m->plan;
    Microbatch mb = {.n_losses = plan->n_losses};
    CHECK(!(plan->sample.fields & ~b->shape.fields), "a batch lacks a field that the model reads");
    for (int f = 0; f < FIELDS; f++) {
        const FieldId field = (FieldId)f;
        int64_t dim[3];
        if (!fields_have(plan->sample.fields, f)) continue;
        mb.field[f] = tensor_make(NULL, field_dtype(m, field), batch_dims(b, field, dim), dim);
        mb.field[f].spmd = field_type(m->context, field_info(field)->extent);
    }
    for (int i = 0; i < plan->n_losses; i++) {
        const LossSpec *l = &plan->loss[i];
        const int64_t dim[] = {b->b / loss_samples(l), l->extent == EXTENT_SAMPLES ? 1 : b->shape.positions};
        mb.weights[i] = mb.loss_gradients[i] = tensor_make(NULL, m->registry->precise, 2, dim);
    }
    return mb;
}

typedef struct BlockPart {
    Tensor *tensor;
    int field, loss; /* field: the field; loss: the loss whose weights or gradient the part contains */
    bool gradient;
} BlockPart;

enum { BLOCK_PARTS = FIELDS + 2 * MODEL_LOSSES };

/* Returns whether a loss's weights are identical to a field of the batch. */
static bool weights_are_field(const Microbatches *m, int loss) {
    const LossSpec *l = &m->plan->loss[loss];
    return l->weights < FIELDS && loss_samples(l) == 1 && m->plan->sample.width[l->weights] <= 1;
}

/* Lists the parts of a microbatch's block in order, and returns the number of parts. Weights that equal a field
 * are not a separate part. */
static int block_parts(const Microbatches *m, Microbatch *mb, BlockPart out[BLOCK_PARTS]) {
    int n = 0;
    for (int f = 0; f < FIELDS; f++)
        if (mb->field[f].ndim) out[n++] = (BlockPart){&mb->field[f], f, -1, false};
    for (int i = 0; i < mb->n_losses; i++) {
        if (!weights_are_field(m, i)) out[n++] = (BlockPart){&mb->weights[i], FIELDS, i, false};
        out[n++] = (BlockPart){&mb->loss_gradients[i], FIELDS, i, true};
    }
    return n;
}

/* Returns the size of a block. The size of a block is a multiple of 8, so that the integers in the next block
 * are aligned. */
static size_t block_bytes(const Microbatches *m, const Batch *b) {
    Microbatch mb = microbatch_like(m, b);
    BlockPart part[BLOCK_PARTS];
    size_t bytes = 0;
    for (int i = 0, n = block_parts(m, &mb, part); i < n; i++) bytes += tensor_bytes(part[i].tensor);
    return (bytes + 7) / 8 * 8;
}

/* If the host can write to device memory, `host` is the device memory itself, and no copy is needed. */
void microbatches_reserve(Microbatches *m, int64_t n, const Batch *like) {
    const size_t bytes = (size_t)n * block_bytes(m, like);
    if (bytes <= m->bytes) return;
    Device *d = m->context->device;
    free_fields(m);
    m->fields = device_alloc(d, bytes, "batches");
    m->host = device_is_discrete(d) ? device_host_alloc(d, bytes, "batches") : m->fields;
    m->bytes = bytes;
}

/* Makes the tensors of a microbatch (which may be a copy) point to a block of device memory. */
static void point_fields(const Microbatches *m, Microbatch *mb, char *block) {
    BlockPart part[BLOCK_PARTS];
    mb->block = block;
    for (int i = 0, n = block_parts(m, mb, part); i < n; i++) {
        part[i].tensor->data = block;
        block += tensor_bytes(part[i].tensor);
    }
    for (int f = 0; f < FIELDS; f++) mb->feed.field[f] = mb->field[f].ndim ? &mb->field[f] : NULL;
    for (int i = 0; i < mb->n_losses; i++) {
        if (weights_are_field(m, i)) mb->weights[i].data = mb->field[m->plan->loss[i].weights].data;
        mb->feed.dloss[i] = &mb->loss_gradients[i];
    }
    for (int i = 0; i < m->plan->n_counts; i++)
        mb->weights[mb->n_losses + i] = mb->weights[m->plan->counted[i]];
}

/* Writes n values x[i * step] * scale. If x is NULL, its values are 1. In the exact lane, the values are
 * rounded to the grid. */
static void write_scaled(const Microbatches *m, const float *x, int64_t n, int64_t step, double scale,
                         void *out) {
    for (int64_t i = 0; i < n; i++) {
        double y = x ? (double)x[i * step] * scale : scale;
        if (m->context->exact) y = exact_on_grid(y);
        if (m->registry->precise == F64)
            ((double *)out)[i] = y;
        else
            ((float *)out)[i] = (float)y;
    }
}

/* Returns the factor by which a loss's weights are multiplied on this rank. Per-sample losses count only on the first
 * context-parallel rank, which has the first position of each sample. */
static double weight_of(const Microbatches *m, FieldExtent extent) {
    const Layout *l = m->context->layout;
    return extent_is_cut(extent) || !l || !l->mesh.coordinate[AXIS_CP];
}

static void write_part(const Microbatches *m, const BlockPart *p, const Batch *b, LossWeights weights,
                       void *out) {
    const int64_t n = tensor_count(p->tensor);
    if (p->loss >= 0) {
        const LossSpec *l = &m->plan->loss[p->loss];
        const double scale = p->gradient ? weights.loss[p->loss] : 1;
        const bool all_one = l->weights == FIELDS;
        const float *x = all_one ? NULL : (const float *)b->field[l->weights] + l->column;
        write_scaled(m, x, n, all_one ? 1 : loss_samples(l) * batch_width(b, (FieldId)l->weights),
                     weight_of(m, l->extent) * scale, out);
    } else if (field_info((FieldId)p->field)->is_integer) {
        memcpy(out, b->field[p->field], tensor_bytes(p->tensor));
    } else {
        write_scaled(m, b->field[p->field], n, 1, weight_of(m, field_info((FieldId)p->field)->extent), out);
    }
}

/* Writes the block of a microbatch to host memory. */
static void write_block(const Microbatches *m, Microbatch *mb, const Batch *b, LossWeights weights,
                        char *host) {
    BlockPart part[BLOCK_PARTS];
    for (int i = 0, n = block_parts(m, mb, part); i < n; i++) {
        write_part(m, &part[i], b, weights, host);
        host += tensor_bytes(part[i].tensor);
    }
}

void microbatches_begin(Microbatches *m, int64_t n, const Batch *like) {
    Device *d = m->context->device;
    if (m->sending) device_wait(d);
    m->sending = false;
    arena_reset(m->arena);
    m->list = arena_alloc(m->arena, (size_t)n * sizeof *m->list);
    m->n = n;
    microbatches_reserve(m, n, like);
    if (!uses_graphs(m) || m->graphs) return;
    m->graphs = mem_zero(1, sizeof *m->graphs);
    if (m->context->sync) return;
    m->graphs->bytes = block_bytes(m, like);
    m->graphs->fields = device_alloc(d, m->graphs->bytes, "batches");
}

/* Adds a microbatch. When this function returns, the copy to the device may still be in progress. */
void microbatches_add(Microbatches *m, int64_t number, const Batch *b, LossWeights weights,
                      int64_t first_sample) {
    Microbatch *mb = &m->list[number];
    Device *d = m->context->device;
    *mb = microbatch_like(m, b);
    mb->context = (MicrobatchContext){.first_sample = first_sample, .aux_scale = weights.aux};
    const size_t bytes = block_bytes(m, b), offset = (size_t)number * bytes;
    point_fields(m, mb, m->fields + offset);
    if (d->kind == DEVICE_NULL) return;
    write_block(m, mb, b, weights, m->host + offset);
    if (m->host != m->fields) device_copy(d, m->fields + offset, m->host + offset, bytes);
    m->sending = true;
}

/* ---- running ---- */

static RankSchedule schedule_of(Microbatches *m, int64_t n, bool forward_only, bool loads,
                                PipelineSpec *spec) {
    Err e = pipeline_spec(m->config, m->pipeline, pipeline_units(m->config, n), forward_only, spec);
    CHECK(!e.code, "%s", e.msg); /* trainer_check has ruled out an error */
    const Layout *l = m->context->layout;
    spec->overlap &= !loads;
    return pipeline_schedule(spec, l ? l->mesh.coordinate[AXIS_PP] : 0, m->arena);
}

RankSchedule microbatches_schedule(Microbatches *m, bool forward_only, PipelineSpec *spec) {
    return schedule_of(m, m->n, forward_only, false, spec);
}

/* Runs the first group of microbatches, so that their kernels are loaded (executor_loads), and returns the
 * number of microbatches in the group. An entire group runs, because the schedule might not support the number
 * of microbatches that would otherwise remain. The group runs without overlap, so it needs no more slots or
 * buffers than a run of all microbatches. */
static int64_t execute_first(Microbatches *m, const Microbatch *list, int64_t n, const PipelineSpec *all,
                             Tensor *loss) {
    const int64_t group = all->group * pipeline_unit(m->config), first = group < n ? group : n;
    PipelineSpec spec;
    const RankSchedule schedule = schedule_of(m, first, all->forward_only, true, &spec);
    executor_run(m->executor, &spec, &schedule, list, first, loss);
    return first;
}

static void execute(Microbatches *m, Microbatch *list, int64_t n, bool trains, bool counts_loss) {
    PipelineSpec spec;
    RankSchedule schedule = schedule_of(m, n, !trains, false, &spec);
    Tensor *loss = counts_loss ? m->loss : NULL;
    int64_t done = 0;
    for (int64_t i = 0; i < n; i++) {
        list[i].context.recording = list[i].context.training = trains;
        if (!trains) list[i].feed.tokens_ahead = NULL; /* an evaluation computes no auxiliary losses */
    }
    if (executor_loads(m->executor, &spec, n)) {
        executor_provide(m->executor, &spec, &schedule);
        const int64_t allocations = executor_allocations(m->executor);
        done = execute_first(m, list, n, &spec, loss);
        CHECK(executor_allocations(m->executor) == allocations, "%lld of %lld microbatches need more memory",
              (long long)done, (long long)n);
        if (done < n) schedule = schedule_of(m, n - done, !trains, false, &spec);
    }
    if (done < n) executor_run(m->executor, &spec, &schedule, list + done, n - done, loss);
    if (trains) grads_zero_unwritten(m->registry);
}

typedef struct Replay {
    Microbatches *all;
    Microbatch microbatch;
    bool counts_loss;
} Replay;

static void execute_one(void *arg) {
    Replay *r = arg;
    execute(r->all, &r->microbatch, 1, true, r->counts_loss);
}

static void replay(Microbatches *m, Recording *r, const Microbatch *mb, bool counts_loss) {
    Device *d = m->context->device;
    Replay one = {m, *mb, counts_loss};
    point_fields(m, &one.microbatch, m->graphs->fields);
    device_copy(d, m->graphs->fields, mb->block, m->graphs->bytes);
    if (r->aux_scale != mb->context.aux_scale) device_recording_drop(d, &r->work);
    r->aux_scale = mb->context.aux_scale;
    device_replay(d, &r->work, execute_one, &one);
}

/* Replays the graph of the first microbatch if gradients are unwritten. The first microbatch writes all
 * gradients, so either all gradients are unwritten or none are. */
static void replay_all(Microbatches *m, bool counts_loss) {
    for (int64_t i = 0; i < m->n; i++) {
        const bool first = grads_are_unwritten(m->registry);
        replay(m, first ? &m->graphs->first : &m->graphs->other, &m->list[i], counts_loss);
        grads_mark_written(m->registry);
    }
}

typedef struct Step {
    Microbatches *all;
    bool counts_loss;
} Step;

static void execute_step(void *arg) {
    const Step *s = arg;
    execute(s->all, s->all->list, s->all->n, true, s->counts_loss);
}

static StepKey step_key(const Microbatches *m) {
    return (StepKey){m->n, executor_allocations(m->executor), m->fields, m->list[0].context.aux_scale};
}

static void replay_step(Microbatches *m, bool counts_loss) {
    Graphs *g = m->graphs;
    StepKey key = step_key(m);
    if (memcmp(&key, &g->key, sizeof key)) {
        device_recording_drop(m->context->device, &g->step);
        g->step.warm = false;
    }
    sync_replay(m->context->sync, &g->step, execute_step, &(Step){m, counts_loss});
    g->key = step_key(m);
}

void microbatches_train(Microbatches *m, bool counts_loss) {
    const bool replays = uses_graphs(m) && m->graphs && m->context->device->kind != DEVICE_NULL;
    if (replays && m->context->sync)
        replay_step(m, counts_loss);
    else if (replays)
        replay_all(m, counts_loss);
    else
        execute(m, m->list, m->n, true, counts_loss);
}

void microbatches_evaluate(Microbatches *m, bool counts_loss) {
    execute(m, m->list, m->n, false, counts_loss);
}

/* ---- results ---- */

void microbatches_set_losses(Microbatches *m, const LossSum sum[MODEL_LOSSES]) {
    for (int i = 0; i < model_sums(m->plan); i++) {
        Tensor loss = m->loss[i];
        loss.flags = 0;
        call_run(&OPS[OP_fill],
                 &(Call){.out = {&loss}, .attr = &(FillAttr){sum[i].loss}, .device = m->context->device});
    }
}

const double *microbatches_losses(const Microbatches *m) { return m->loss[0].data; }

size_t microbatches_bytes(const Microbatches *m) {
    return m->bytes + (m->graphs ? m->graphs->bytes : 0) + loss_bytes(m);
}

void microbatches_waited(Microbatches *m) { m->sending = false; }
