#include "train/run.h"

#include <math.h>
#include <stdlib.h>

#include "base/fault.h"
#include "kernels/ops.h"

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

static double mask_sum(const Batch *b) {
    double sum = 0;
    for (int64_t i = 0; i < b->b * b->s; i++) sum += (double)b->loss_mask[i];
    return sum;
}

/* A [b, s] tensor of the loss's type with mask * scale; released with the tape. */
static Tensor *weights(Run *r, const Batch *b, double scale) {
    DType type = r->model->registry->precise;
    Tensor *w = tape_tensor(r->tape, type, 2, (int64_t[]){b->b, b->s});
    for (int64_t i = 0; r->device->kind != DEVICE_NULL && i < b->b * b->s; i++) {
        double x = (double)b->loss_mask[i] * scale;
        if (type == F64)
            ((double *)w->data)[i] = x;
        else
            ((float *)w->data)[i] = (float)x;
    }
    return w;
}

/* Adds each sample's sum of loss * mask, in sample order: the total does not depend on the microbatches. */
static void add_loss(Run *r, Tensor *loss_bs, Tensor *mask_bs, double *total) {
    int64_t b = loss_bs->dim[0];
    double *sums = mem_zero((size_t)b, sizeof *sums);
    Tensor out = tensor_make(sums, F64, 1, &b);
    tape_call(r->tape, &OPS[OP_weighted_sum], (Call){.in = {loss_bs, mask_bs}, .out = {&out}});
    for (int64_t i = 0; i < b; i++) *total += sums[i];
    free(sums);
}

/* ---- memory ---- */

static size_t table_bytes(const Gpt *m) {
    return m->rope.cos.ndim ? tensor_bytes(&m->rope.cos) + tensor_bytes(&m->rope.sin) : 0;
}

static DType storage_type(const Config *c) {
    switch (c->lane) {
    case LANE_FP64:
        return F64;
    case LANE_BF16:
        return BF16;
    case LANE_FP16:
        return F16;
    default:
        return F32;
    }
}

/* Everything but the random numbers; on the null device nothing is taken. */
static Run *assemble(const Config *c, const Derived *d, Device *device, size_t slot_bytes,
                     size_t transient_bytes) {
    Run *r = mem_zero(1, sizeof *r);
    r->config = c;
    r->derived = d;
    r->device = device;
    r->context = (RunContext){
        .device = device,
        .dtype = storage_type(c),
        .training = true,
        .batch_invariant = c->batch_invariant_mode,
        .seed = (uint64_t)c->seed,
    };
    r->model = gpt_new(c, d, NULL);
    gpt_allocate(r->model, device, r->context.dtype, d->max_position_embeddings);
    r->optimizer = optim_new(c, r->model->registry);
    r->scaler = scaler_new(c);
    r->slot = space_new(device, "activation", slot_bytes);
    r->transient = space_new(device, "transient", transient_bytes);
    r->tape = tape_new(&r->context, r->slot, r->transient);
    return r;
}

/* Opens the tape; `tensors` must live until it ends. */
static Tensor *token_losses(Run *r, const Batch *b, BatchTensors *tensors, double *loss_sum) {
    batch_tensors(b, r->config->reset_attention_mask, tensors);
    tape_begin(r->tape, r->context.training);
    Tensor *loss_bs = gpt_loss(r->tape, r->model, &tensors->input, &tensors->labels);
    add_loss(r, loss_bs, weights(r, b, 1), loss_sum);
    return loss_bs;
}

static void micro_step(Run *r, const Batch *b, double scale, double *loss_sum) {
    BatchTensors tensors;
    Tensor *loss_bs = token_losses(r, b, &tensors, loss_sum);
    tape_backward(r->tape, loss_bs, weights(r, b, scale), NEED_ALL);
    tape_end(r->tape);
}

/* How many of a microbatch's samples go through the model at once. --batch-invariant-mode: each by itself, so
 * that no gradient knows how samples were grouped (a tied embedding is the sum of two ops' sums). */
static int64_t at_once(const Config *c, int64_t samples) { return c->batch_invariant_mode ? 1 : samples; }

static void forward_only(Run *r, const Batch *b, double *loss_sum) {
    BatchTensors tensors;
    r->context.training = false;
    token_losses(r, b, &tensors, loss_sum);
    tape_end(r->tape);
    r->context.training = true;
}

MemoryPlan run_plan_memory(const Config *c, const Derived *d) {
    Device *null = device_null();
    Run *r = assemble(c, d, null, SPACE_UNPLANNED, SPACE_UNPLANNED);
    int64_t dummy = 0;
    Batch b = {.b = at_once(c, d->micro_batch_size),
               .s = c->seq_length,
               .tokens = &dummy,
               .labels = &dummy,
               .position_ids = &dummy,
               .document_start = &dummy};
    double loss = 0;
    micro_step(r, &b, 1, &loss);
    forward_only(r, &b, &loss);
    MemoryPlan plan = {
        .parameters = registry_bytes(r->model->registry),
        .optimizer = optim_bytes(r->optimizer),
        .slots = space_peak(r->slot),
        .transient = space_peak(r->transient),
        .tables = table_bytes(r->model),
    };
    run_free(r);
    return plan;
}

size_t memory_plan_total(const MemoryPlan *p) {
    return p->parameters + p->optimizer + p->slots + p->transient + p->tables;
}

Run *run_new(const Config *c, const Derived *d, const MemoryPlan *plan) {
    return assemble(c, d, device_cpu((int)c->cpu_threads), plan ? plan->slots : SPACE_UNPLANNED,
                    plan ? plan->transient : SPACE_UNPLANNED);
}

void run_free(Run *r) {
    if (!r) return;
    tape_free(r->tape);
    space_free(r->slot);
    space_free(r->transient);
    optim_free(r->optimizer);
    gpt_free(r->model);
    device_free(r->device);
    free(r);
}

/* ---- steps ---- */

StepReport run_begin(Run *r) {
    registry_zero_grads(r->model->registry);
    return (StepReport){.loss_scale = r->scaler.scale};
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

void run_microbatch(Run *r, const Batch *b, int64_t n, StepReport *report) {
    bool per_token = r->config->calculate_per_token_loss;
    double tokens = mask_sum(b), scale = r->scaler.scale;
    /* Megatron-LM: the mean of the microbatches' means, unless --calculate-per-token-loss. */
    double weight = per_token ? scale : scale / (fmax(tokens, 1) * (double)n);
    int64_t together = at_once(r->config, b->b);
    for (int64_t first = 0; first < b->b; first += together, report->samples += together) {
        Batch part = rows_of(b, first, together);
        r->context.first_sample = r->consumed_samples + report->samples;
        micro_step(r, &part, weight, &report->loss_sum);
    }
    report->tokens += tokens;
    report->loss = report->loss_sum / fmax(report->tokens, 1);
    report->loss_is_nan = isnan(report->loss);
    report->grad_scale = (per_token ? 1 / fmax(report->tokens, 1) : 1) / scale;
}

void run_update(Run *r, StepReport *report) {
    const Config *c = r->config;
    const Derived *d = r->derived;
    OptimStep s = {.grad_scale = report->grad_scale};
    s.lr = report->lr = schedule_lr(c, d, c->lr, c->min_lr, r->schedule_samples);
    s.decoupled_lr = schedule_lr(c, d, d->decoupled_lr, d->decoupled_min_lr, r->schedule_samples);
    s.weight_decay = report->weight_decay = schedule_weight_decay(c, d, r->schedule_samples);
    report->optim = optim_step(r->optimizer, s);
    scaler_update(&r->scaler, report->optim.found_inf);
    r->iteration++;
    r->consumed_samples += report->samples;
    if (report->optim.found_inf)
        r->skipped_iterations++;
    else
        r->schedule_samples += report->samples;
}

void run_evaluate(Run *r, const Batch *b, double *loss, double *tokens) {
    int64_t together = at_once(r->config, b->b);
    for (int64_t first = 0; first < b->b; first += together) {
        Batch part = rows_of(b, first, together);
        forward_only(r, &part, loss);
    }
    *tokens += mask_sum(b);
}
