#include "train/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"

typedef struct Pass {
    Batch batch;
    BatchTensors tensors;
    Tensor mask,
        weights; /* [b,s] in the loss's type: of each token's loss in the reported sum; its gradient */
    double aux_weight;
    int64_t first_sample;
} Pass;

/* ---- what the executor calls ---- */

static void begin_pass(void *arg, const Action *a) {
    Run *r = arg;
    r->context.first_sample = r->passes[a->microbatch].first_sample;
    r->context.aux_scale = r->passes[a->microbatch].aux_weight;
}

static Tensor *forward_pass(void *arg, Tape *t, const Action *a, Tensor *x_sbh) {
    Run *r = arg;
    Pass *p = &r->passes[a->microbatch];
    Tensor *y = gpt_stage(t, r->model, a->chunk, &p->tensors.input, x_sbh, &p->tensors.labels);
    if (r->model->stages[a->chunk].head && r->counts_loss)
        tape_call(t, &OPS[OP_weighted_sum], (Call){.in = {y, &p->mask}, .out = {&r->loss_sum}});
    return y;
}

static Tensor *loss_gradient(void *arg, Tape *t, const Action *a, Tensor *loss_bs) {
    const Run *r = arg;
    (void)t, (void)loss_bs;
    return &r->passes[a->microbatch].weights;
}

ExecutorCalls passes_calls(Run *r) { return (ExecutorCalls){begin_pass, forward_pass, loss_gradient, r}; }

/* ---- batches ---- */

static Tensor ids(int64_t *data, const Batch *b) {
    return tensor_make(data, I64, 2, (int64_t[]){b->b, b->s});
}

void batch_tensors(const Batch *b, bool packed, BatchTensors *t) {
    t->tokens = ids(b->tokens, b);
    t->labels = ids(b->labels, b);
    t->position = ids(b->position_ids, b);
    t->first_key = ids(b->document_start, b);
    t->input = (ModelInput){
        .tokens = &t->tokens, .position = &t->position, .first_key = packed ? &t->first_key : NULL};
}

/* Samples [first, first + n) of a batch. */
static Batch rows_of(const Batch *b, int64_t first, int64_t n) {
    int64_t at = first * b->s;
    return (Batch){n,
                   b->s,
                   b->tokens + at,
                   b->labels + at,
                   b->position_ids + at,
                   b->loss_mask + at,
                   b->document_start + at,
                   b->indices + first};
}

/* ---- inputs: what passes read, in one block of device memory ---- */

enum { IDS = 4 };

static size_t input_bytes(const Run *r, int64_t tokens) {
    return (size_t)tokens * (IDS * sizeof(int64_t) + 2 * dtype_size(r->model->registry->precise));
}

static void free_inputs(Run *r) {
    device_release(r->device, r->inputs, r->input_bytes);
    if (r->host_inputs != r->inputs) device_host_release(r->device, r->host_inputs, r->input_bytes);
}

/* Where the host can write them itself there is nothing to copy. */
static void take_inputs(Run *r, size_t bytes) {
    if (bytes <= r->input_bytes) return;
    free_inputs(r);
    r->inputs = device_alloc(r->device, bytes, "batches");
    r->host_inputs = device_is_apart(r->device) ? device_host_alloc(r->device, bytes, "batches") : r->inputs;
    r->input_bytes = bytes;
}

/* mask * scale, on the exact lane's grid if it is that. */
static void fill_weights(const Run *r, const Batch *b, double scale, void *out) {
    for (int64_t i = 0; i < b->b * b->s; i++) {
        double x = (double)b->loss_mask[i] * scale;
        if (r->context.exact) x = exact_on_grid(x);
        if (r->model->registry->precise == F64)
            ((double *)out)[i] = x;
        else
            ((float *)out)[i] = (float)x;
    }
}

/* Points the tensors of the pass at `at`, in device memory. */
static void point_inputs(const Run *r, Pass *p, char *at) {
    const Batch *b = &p->batch;
    const int64_t tokens = b->b * b->s;
    const size_t ids = (size_t)tokens * sizeof(int64_t), half = (input_bytes(r, tokens) - IDS * ids) / 2;
    Tensor *tensors[IDS] = {&p->tensors.tokens, &p->tensors.labels, &p->tensors.position,
                            &p->tensors.first_key};
    for (int i = 0; i < IDS; i++) tensors[i]->data = at + (size_t)i * ids;
    p->mask = tensor_make(at + IDS * ids, r->model->registry->precise, 2, (int64_t[]){b->b, b->s});
    p->weights = p->mask;
    p->weights.data = at + IDS * ids + half;
    ModelInput *input = &p->tensors.input; /* of this pass, which may be another's copy */
    input->tokens = &p->tensors.tokens;
    input->position = &p->tensors.position;
    if (input->first_key) input->first_key = &p->tensors.first_key;
    input->dloss = &p->weights;
}

/* Copies what the tensors of the pass show to `offset` of the inputs, and points them there. The copy may
 * still be under way when this returns. */
static void place_inputs(Run *r, Pass *p, double weight, size_t offset) {
    const Batch *b = &p->batch;
    const int64_t tokens = b->b * b->s;
    const size_t ids = (size_t)tokens * sizeof(int64_t), bytes = input_bytes(r, tokens),
                 half = (bytes - IDS * ids) / 2;
    const Tensor *tensors[IDS] = {&p->tensors.tokens, &p->tensors.labels, &p->tensors.position,
                                  &p->tensors.first_key};
    char *host = r->host_inputs + offset, *at = r->inputs + offset;
    if (r->device->kind != DEVICE_NULL) {
        for (int i = 0; i < IDS; i++) memcpy(host + (size_t)i * ids, tensors[i]->data, ids);
        fill_weights(r, b, 1, host + IDS * ids);
        fill_weights(r, b, weight, host + IDS * ids + half);
        if (host != at) device_copy(r->device, at, host, bytes);
        r->sending = true;
    }
    point_inputs(r, p, at);
}

void passes_add(Run *r, int64_t number, const Batch *b, int64_t first, int64_t n, PassWeight weight,
                int64_t first_sample) {
    Pass *p = &r->passes[number];
    p->batch = rows_of(b, first, n);
    p->first_sample = first_sample;
    p->aux_weight = weight.aux;
    batch_tensors(&p->batch, r->config->reset_attention_mask, &p->tensors);
    place_inputs(r, p, weight.loss, (size_t)number * input_bytes(r, n * b->s));
    const int *size = r->layout.mesh.size;
    Tensor *ids[] = {&p->tensors.tokens, &p->tensors.labels, &p->tensors.position, &p->tensors.first_key};
    for (int i = 0; i < 4; i++) {
        if (size[AXIS_CP] > 1) ids[i]->spmd = spmd_with(ids[i]->spmd, AXIS_CP, SPMD_V);
        if (size[AXIS_DP] > 1) ids[i]->spmd = spmd_with(ids[i]->spmd, AXIS_DP, SPMD_V);
    }
}

/* ---- running ---- */

/* The work of one pass. */
typedef struct PassRecording {
    DeviceRecording work;
    double aux_weight; /* a constant of it: the gradient of the auxiliary losses */
} PassRecording;

/* What --cuda-graph-impl local keeps: the work of a pass over inputs in a place of their own, twice: a step's
 * first pass writes the gradients to which the others add. */
struct PassGraph {
    char *inputs;
    size_t bytes;
    PassRecording first, other;
};

static void run_schedule(Run *r, int64_t passes, bool forward_only) {
    PipelineSpec spec;
    Err e = pipeline_spec(r->config, &r->pipeline, passes, forward_only, &spec);
    CHECK(!e.code, "%s", e.msg); /* run_check has asked */
    const RankSchedule schedule = pipeline_schedule(&spec, r->layout.mesh.coordinate[AXIS_PP], r->step_arena);
    executor_run(r->executor, &spec, &schedule);
}

/* Forward and backward; then every gradient is what it is. */
static void run_passes(Run *r, int64_t passes) {
    run_schedule(r, passes, false);
    registry_settle_grads(r->model->registry);
}

typedef struct OnePass {
    Run *run;
    Pass pass;
} OnePass;

static void run_pass(void *arg) {
    OnePass *one = arg;
    Run *r = one->run;
    Pass *all = r->passes;
    r->passes = &one->pass;
    run_passes(r, 1);
    r->passes = all;
}

static void replay_pass(Run *r, PassRecording *g, const Pass *p) {
    struct PassGraph *graph = r->graph;
    OnePass one = {r, *p};
    point_inputs(r, &one.pass, graph->inputs);
    device_copy(r->device, graph->inputs, p->tensors.tokens.data, graph->bytes);
    if (g->aux_weight != p->aux_weight) device_recording_drop(r->device, &g->work);
    g->aux_weight = p->aux_weight;
    device_replay(r->device, &g->work, run_pass, &one);
}

/* The first pass settles all gradients, so these are all fresh or none is. */
static void replay_passes(Run *r, int64_t passes) {
    for (int64_t i = 0; i < passes; i++) {
        const bool first = registry_is_fresh(r->model->registry);
        replay_pass(r, first ? &r->graph->first : &r->graph->other, &r->passes[i]);
        registry_grads_written(r->model->registry);
    }
}

static bool uses_graph(const Run *r) { return r->config->cuda_graph_impl == CUDA_GRAPH_LOCAL; }

void passes_begin(Run *r, int64_t n, int64_t tokens) {
    if (r->sending) device_wait(r->device);
    r->sending = false;
    arena_reset(r->step_arena);
    r->passes = arena_alloc(r->step_arena, (size_t)n * sizeof *r->passes);
    take_inputs(r, (size_t)n * input_bytes(r, tokens));
    if (!uses_graph(r) || r->graph) return;
    r->graph = mem_zero(1, sizeof *r->graph);
    r->graph->bytes = input_bytes(r, tokens);
    r->graph->inputs = device_alloc(r->device, r->graph->bytes, "batches");
}

void passes_set_loss(Run *r, double sum) {
    Tensor loss = r->loss_sum;
    loss.flags = 0;
    call_run(&OPS[OP_fill], &(Call){.out = {&loss}, .attr = &(FillAttr){sum}, .device = r->device});
}

void passes_play(Run *r, int64_t passes, bool forward_only, bool counts_loss) {
    r->counts_loss = counts_loss;
    if (uses_graph(r) && !forward_only && r->device->kind != DEVICE_NULL)
        replay_passes(r, passes);
    else if (forward_only)
        run_schedule(r, passes, true);
    else
        run_passes(r, passes);
}

void passes_free(Run *r) {
    if (r->graph) {
        device_recording_drop(r->device, &r->graph->first.work);
        device_recording_drop(r->device, &r->graph->other.work);
        device_release(r->device, r->graph->inputs, r->graph->bytes);
        free(r->graph);
    }
    free_inputs(r);
}
