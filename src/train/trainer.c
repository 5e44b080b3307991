#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "base/fault.h"
#include "param/fp8_weights.h"
#include "run/launch.h"

/* Returns the sum of a loss's weights over complete samples, including positions that other ranks hold. */
static double weight_sum(const Trainer *r, const Batch *b, const LossSpec *loss) {
    const int64_t each = loss_samples(loss);
    if (loss->weights == FIELDS) return (double)(b->b / each);
    const int64_t width = batch_width(b, (FieldId)loss->weights);
    const float *weights = (const float *)b->field[loss->weights] + loss->column;
    double sum = 0;
    if (loss->extent == EXTENT_SAMPLES) {
        for (int64_t i = 0; i < b->b; i += each) sum += (double)weights[i];
        return sum;
    }
    for (int64_t i = 0; i < b->b * b->shape.positions; i++) sum += (double)weights[i * width];
    if (r->run.layout.mesh.size[AXIS_CP] > 1)
        comm_all_reduce(r->run.comm, mesh_group(&r->run.layout.mesh, 1 << AXIS_CP), "loss_mask", COMM_SUM,
                        F64, &sum, 1);
    return sum;
}

static int n_losses(const Trainer *r) { return r->run.model->plan.n_losses; }

/* Returns the number of losses plus the number of counts. */
static int n_sums(const Trainer *r) { return model_sums(&r->run.model->plan); }

static void set_count_weights(const Trainer *r, LossSum *sum) {
    const ModelPlan *p = &r->run.model->plan;
    for (int i = 0; i < p->n_counts; i++) sum[p->n_losses + i].weight = sum[p->counted[i]].weight;
}

static size_t loss_bytes(const Trainer *r) { return (size_t)n_sums(r) * sizeof(double); }

static void read_losses(const Trainer *r, LossSum *sum) {
    double loss[MODEL_LOSSES];
    device_read(r->run.device, loss, microbatches_losses(r->microbatches), loss_bytes(r));
    for (int i = 0; i < n_sums(r); i++) sum[i].loss = loss[i];
}

static void forward_only(Trainer *r, const Batch *rows, LossSum *sum) {
    microbatches_begin(r->microbatches, 1, rows);
    microbatches_add(r->microbatches, 0, rows, (LossWeights){.aux = 0}, 0);
    if (sum) microbatches_set_losses(r->microbatches, sum);
    microbatches_evaluate(r->microbatches, sum != NULL);
    if (sum) read_losses(r, sum);
}

Err trainer_check(const Config *c) {
    Arena *arena = arena_new();
    PipelineLayout layout;
    PipelineSpec spec;
    Err e = model_check_frozen(c);
    if (!e.code) e = pipeline_layout(c, arena, &layout);
    for (int64_t i = 0; i < c->derived.num_batch_steps && !e.code; i++)
        e = pipeline_spec(c, &layout,
                          pipeline_units(c, c->derived.batch_steps[i].size / (c->derived.micro_batch_size *
                                                                              c->derived.data_parallel_size)),
                          false, &spec);
    arena_free(arena);
    return e;
}

static const CommReduction REDUCTIONS[] = {COMM_SUM, COMM_MAX};
enum { N_REDUCTIONS = sizeof REDUCTIONS / sizeof *REDUCTIONS };

/* Returns whether the i-th reduction has step counters, and sets *out to the counters. */
static bool has_counters(const Trainer *r, int i, const Tensor **out) {
    *out = states_counters(r->run.model->registry, REDUCTIONS[i]);
    return (*out)->ndim;
}

static size_t result_bytes(const Trainer *r) {
    const Tensor *counters;
    size_t bytes = loss_bytes(r);
    for (int i = 0; i < N_REDUCTIONS; i++)
        if (has_counters(r, i, &counters)) bytes += tensor_bytes(counters);
    return bytes;
}

/* Builds the trainer without random initial values. Allocates no memory on the null device. */
static Trainer *assemble(const Config *c, Comm *comm, Device *device, ExecutorMemory memory) {
    Trainer *r = mem_zero(1, sizeof *r);
    model_run_new(&r->run, c, comm, device, MODEL_TRAINS);
    if (comm) r->run.context.sync = r->sync = sync_new(r->run.model->registry, comm);
    r->results = device_host_alloc(device, result_bytes(r), "losses");
    r->optimizer = optim_new(c, r->run.model->registry, r->sync);
    r->scaler = scaler_new(c);
    r->executor =
        executor_new(&r->run.context, r->run.model, model_run_together(&r->run, c->derived.micro_batch_size),
                     c->interleaved_microbatches, pipeline_unit(c), memory);
    r->microbatches = microbatches_new(c, &r->run.context, r->run.model, r->executor, &r->run.pipeline);
    r->layers = config_layers(c);
    if (c->moe_per_layer_logging)
        r->layer_router_loss = mem_zero((size_t)(ROUTER_LOSSES * r->layers), sizeof(double));
    return r;
}

int64_t trainer_loss_chunk(const Trainer *r, int64_t *chunks) {
    const ModelPlan *plan = &r->run.model->plan;
    const int64_t b = model_run_together(&r->run, r->run.config->derived.micro_batch_size),
                  s = model_run_tokens(&r->run) / b;
    int64_t positions = 0;
    for (const HeadSpec *h = plan->head; h < plan->head + plan->n_heads && !positions; h++)
        if (h->ops->chunk) positions = h->ops->chunk(h->spec, &r->run.layout, s, b, r->run.context.dtype);
    *chunks = positions ? (s + positions - 1) / positions : 0;
    return positions * b;
}

double trainer_flops(const Trainer *r, int64_t samples) { return model_flops(&r->run.model->plan, samples); }

int64_t trainer_fp8_linears(const Trainer *r, const char **emulation) {
    return quantize_layers(r->run.model->registry, model_run_tokens(&r->run), emulation);
}

/* Returns the number of microbatches per data-parallel rank in the largest global batch. */
static int64_t most_microbatches(const Trainer *r) {
    int64_t most = 0;
    for (int64_t i = 0; i < r->run.config->derived.num_batch_steps; i++)
        if (r->run.config->derived.batch_steps[i].size > most)
            most = r->run.config->derived.batch_steps[i].size;
    return most / (r->run.config->derived.micro_batch_size * r->run.layout.mesh.size[AXIS_DP]);
}

/* Returns whether this rank is primary for its microbatches' losses. The primary rank is the first
 * tensor-parallel rank of the last pipeline stage. */
static bool tells_loss(const Trainer *r) {
    const Mesh *m = &r->run.layout.mesh;
    return m->coordinate[AXIS_TP] == 0 && m->coordinate[AXIS_PP] == m->size[AXIS_PP] - 1;
}

/* Returns a microbatch without data. */
static Batch empty_rows(const Trainer *r) {
    return (Batch){.b = model_run_together(&r->run, r->run.config->derived.micro_batch_size),
                   .shape = shape_slice(r->run.model->plan.sample, r->run.layout.mesh.size[AXIS_CP])};
}

/* Runs n microbatches on the null device. `most` is the number of microbatches in a step. */
static void dry_microbatches(Trainer *r, const Batch *rows, int64_t n, int64_t most) {
    model_run_refresh(&r->run, true);
    if (!r->sync) grads_mark_unwritten(r->run.model->registry);
    microbatches_reserve(r->microbatches, most, rows);
    microbatches_begin(r->microbatches, n, rows);
    for (int64_t i = 0; i < n; i++) microbatches_add(r->microbatches, i, rows, (LossWeights){.aux = 0}, 0);
    if (r->sync) sync_begin(r->sync, n);
    microbatches_train(r->microbatches, tells_loss(r));
    if (r->sync) sync_finish(r->sync);
}

/* Runs the operations of reduce_report. */
static void dry_report(const Trainer *r) {
    LossSum sum[MODEL_LOSSES] = {{0}};
    const Tensor *counters;
    device_wait(r->run.device);
    trainer_total(r, sum);
    for (int i = 0; i < N_REDUCTIONS; i++)
        if (has_counters(r, i, &counters))
            comm_all_reduce(r->run.comm, comm_everyone(r->run.comm), "report", REDUCTIONS[i], F64,
                            counters->data, tensor_count(counters));
}

void trainer_dry_step(Trainer *r, int64_t microbatches) {
    const Batch rows = empty_rows(r);
    if (r->sync) sync_publish(r->sync);
    dry_microbatches(r, &rows, microbatches, microbatches);
    if (r->sync) dry_report(r);
    const StateContext state = model_run_state(&r->run, true);
    states_end_step(r->run.model->registry, &state);
    optim_dry_step(r->optimizer);
}

RankSchedule trainer_dry_run(Trainer *r, PipelineSpec *spec) {
    const Batch rows = empty_rows(r);
    LossSum sum[MODEL_LOSSES] = {{0}};
    const int64_t n = most_microbatches(r) * (r->run.config->derived.micro_batch_size / rows.b);
    Err e = pipeline_spec(r->run.config, &r->run.pipeline, pipeline_units(r->run.config, n), false, spec);
    CHECK(!e.code, "%s", e.msg); /* trainer_check has ruled out an error */
    const int64_t repeated = pipeline_shortened(spec).microbatches * pipeline_unit(r->run.config),
                  passes = repeated < n ? repeated : n;
    dry_microbatches(r, &rows, passes, n);
    optim_dry_run(r->optimizer);
    const RankSchedule schedule = microbatches_schedule(r->microbatches, false, &(PipelineSpec){0});
    forward_only(r, &rows, sum);
    return schedule;
}

Trainer *trainer_new(const Config *c, const MemoryPlan *plan, Comm *comm, Device *device) {
    if (!device) device = device_cpu((int)c->derived.cpu_threads);
    if (plan) device_reserve_scratch(device, plan->part[MEMORY_scratch]);
    ExecutorMemory memory = plan ? plan->unit : (ExecutorMemory){0};
    /* Experts with unequal shares of the tokens need more memory than planned, so only the host memory has a
     * planned size. */
    if (plan && plan->balanced) {
        memory.slot = memory.transient = memory.offload.slot = 0;
        for (int i = 0; i < OFFLOAD_MODULES; i++) memory.module[i].slot = 0;
    }
    return assemble(c, comm, device, memory);
}

Device *trainer_free_but_device(Trainer *r) {
    Device *device = r->run.device;
    executor_free(r->executor);
    device_host_release(r->run.device, r->results, result_bytes(r));
    microbatches_free(r->microbatches);
    optim_free(r->optimizer);
    sync_free(r->sync);
    model_run_free(&r->run);
    free(r->layer_router_loss);
    free(r);
    return device;
}

void trainer_free(Trainer *r) {
    if (!r) return;
    Comm *comm = r->run.context.comm;
    rank_free_device(comm, trainer_free_but_device(r));
}

/* ---- steps ---- */

StepReport trainer_begin_step(Trainer *r) {
    if (!r->sync) grads_mark_unwritten(r->run.model->registry);
    if (tells_loss(r)) microbatches_set_losses(r->microbatches, (LossSum[MODEL_LOSSES]){{0}});
    states_begin_step(r->run.model->registry);
    model_run_refresh(&r->run, true);
    return (StepReport){.loss_scale = r->scaler.scale};
}

/* With --calculate-per-token-loss, all gradients are finally divided by the sum of the first loss's weights.
 * Every other loss is therefore multiplied by the ratio of this sum to the sum of the other loss's weights. The
 * ratios of the losses must be known before the first microbatch. */
static void step_ratios(const Trainer *r, const Batch *batches, int64_t count, int64_t n,
                        double ratio[MODEL_LOSSES]) {
    double sum[MODEL_LOSSES] = {0};
    const int losses = n_losses(r);
    if (losses == 1) return;
    CHECK(count == n, "only the weights of %lld of %lld microbatches are known", (long long)count,
          (long long)n);
    for (int64_t k = 0; k < count; k++)
        for (int i = 0; i < losses; i++) sum[i] += weight_sum(r, &batches[k], &r->run.model->plan.loss[i]);
    if (r->run.layout.mesh.size[AXIS_DP] > 1)
        comm_all_reduce(r->run.comm, mesh_group(&r->run.layout.mesh, 1 << AXIS_DP), "loss_weights", COMM_SUM,
                        F64, sum, losses);
    for (int i = 1; i < losses; i++) ratio[i] = fmax(sum[0], 1) / fmax(sum[i], 1);
}

/* Computes the loss weights of one of n microbatches. Adds the sums of the losses' weights to the report. As in
 * Megatron-LM, a loss is the mean of the microbatches' means, unless --calculate-per-token-loss is given. */
static LossWeights loss_weights(const Trainer *r, const Batch *b, int64_t n, const double *ratio,
                                StepReport *report) {
    const bool per_token = r->run.config->calculate_per_token_loss;
    const int64_t together = model_run_together(&r->run, b->b);
    const double scale = r->scaler.scale;
    LossWeights w;
    for (int i = 0; i < n_losses(r); i++) {
        const double sum = weight_sum(r, b, &r->run.model->plan.loss[i]);
        w.loss[i] = loss_factor(&r->run.model->plan.loss[i]) *
                    (per_token ? scale * ratio[i] : scale / (fmax(sum, 1) * (double)n));
        report->sum[i].weight += sum;
    }
    set_count_weights(r, report->sum);
    /* As in Megatron-LM's MoEAuxLossAutoScaler, every position of the pass counts, regardless of the mask. */
    w.aux = per_token ? scale * (double)(together * r->run.config->seq_length)
                      : scale / (double)(n * (b->b / together));
    return w;
}

void trainer_microbatches(Trainer *r, const Batch *batches, int64_t count, int64_t n, StepReport *report) {
    const int *size = r->run.layout.mesh.size, *at = r->run.layout.mesh.coordinate;
    const int64_t samples = r->run.config->derived.micro_batch_size,
                  together = model_run_together(&r->run, samples), parts = samples / together;
    double ratio[MODEL_LOSSES] = {1};
    CHECK(count == n || !r->sync || r->run.config->cuda_graph_impl == CUDA_GRAPH_NONE,
          "with several ranks, a CUDA graph needs all %lld microbatches of a step, not %lld", (long long)n,
          (long long)count);
    if (r->sync && !report->samples) sync_begin(r->sync, n * parts);
    const Batch like = batch_rows(&batches[0], 0, together);
    microbatches_begin(r->microbatches, count * parts, &like);
    if (r->run.config->calculate_per_token_loss) step_ratios(r, batches, count, n, ratio);
    for (int64_t i = 0; i < count; i++) {
        const LossWeights weights = loss_weights(r, &batches[i], n, ratio, report);
        for (int64_t k = 0; k < parts; k++) {
            /* number of earlier microbatches on all data-parallel ranks */
            const int64_t dealt = report->microbatches++ * size[AXIS_DP] + at[AXIS_DP];
            const Batch rows = batch_rows(&batches[i], k * together, together);
            microbatches_add(r->microbatches, i * parts + k, &rows, weights,
                             r->consumed_samples + dealt * together);
        }
        report->samples += samples * size[AXIS_DP];
    }
    microbatches_train(r->microbatches, tells_loss(r));
}

/* In the exact lane, parameters are on the grid from the start, and updates keep them on the grid. */
void trainer_publish(Trainer *r) {
    if (r->run.context.exact) registry_snap(r->run.model->registry, FLAT_MASTERS, EXACT_GRID_BITS);
    if (r->sync) {
        sync_publish(r->sync);
        return;
    }
    registry_round_values(r->run.model->registry);
    fp8_weights_cast(r->run.model->registry, NULL);
}

void trainer_sum(const Trainer *r, double *x, int64_t n) {
    if (r->run.comm) comm_all_reduce(r->run.comm, comm_everyone(r->run.comm), "report", COMM_SUM, F64, x, n);
}

void trainer_total(const Trainer *r, LossSum sum[MODEL_LOSSES]) {
    const bool tells = tells_loss(r), counts = tells && r->run.layout.mesh.coordinate[AXIS_CP] == 0;
    double sums[2 * MODEL_LOSSES];
    const int n = n_sums(r);
    for (int i = 0; i < n; i++) sums[i] = tells ? sum[i].loss : 0, sums[n + i] = counts ? sum[i].weight : 0;
    trainer_sum(r, sums, 2 * n);
    for (int i = 0; i < n; i++) sum[i] = (LossSum){sums[i], sums[n + i]};
}

double trainer_mean(LossSum sum) { return sum.loss / fmax(sum.weight, 1); }

/* Reports the router losses. `counters` are a single rank's counters, or the sums over all ranks. */
static void report_routers(Trainer *r, const double *counters, StepReport *report) {
    const Model *m = r->run.model;
    const int64_t microbatches = report->microbatches * r->run.layout.mesh.size[AXIS_DP];
    for (int i = 0; i < ROUTER_LOSSES; i++) {
        if (model_router_loss_coeff(m, i) == 0) continue;
        report->router_losses |= 1u << i;
        double *layer = r->layer_router_loss ? r->layer_router_loss + i * r->layers : NULL;
        const double mean = model_router_loss(m, counters, i, layer) / (double)microbatches;
        report->router_loss[i] = r->run.context.exact ? exact_on_grid(mean) : mean;
        for (int64_t l = 0; layer && l < r->layers; l++) layer[l] /= (double)microbatches;
    }
    report->layer_router_loss = r->layer_router_loss;
}

/* `counters` contains the counters of the i-th reduction, combined over all ranks. */
static void report_counters(Trainer *r, int i, const double *counters, int64_t n, StepReport *report) {
    if (REDUCTIONS[i] == COMM_SUM)
        report_routers(r, counters, report);
    else
        for (int64_t k = 0; k < n; k++) report->max_score = fmax(report->max_score, counters[k]);
}

/* Combines all ranks' counters for the i-th reduction. Each rank has counted only its own tokens in its own layers, and
 * only its part of the microbatches' losses. */
static void reduce_counters(Trainer *r, int i, StepReport *report) {
    const Tensor *counters;
    if (!has_counters(r, i, &counters)) return;
    const int64_t n = tensor_count(counters);
    DeviceView view =
        device_view(r->run.device, counters->data, tensor_bytes(counters), VIEW_READ | VIEW_WRITE);
    comm_all_reduce(r->run.comm, comm_everyone(r->run.comm), "report", REDUCTIONS[i], F64, view.data, n);
    report_counters(r, i, view.data, n, report);
    device_view_end(&view);
}

static void report_loss(const Trainer *r, StepReport *report) {
    double all = report->loss = 0;
    for (int i = 0; i < n_losses(r); i++) {
        const double mean = trainer_mean(report->sum[i]);
        all += mean, report->loss += r->run.model->plan.loss[i].auxiliary ? 0 : mean;
    }
    report->loss_is_nan = !isfinite(all);
    report->is_read = true;
}

/* Sums the report over the ranks. With several ranks, the host computes the sums. */
static void reduce_report(Trainer *r, StepReport *report) {
    if (tells_loss(r)) read_losses(r, report->sum);
    trainer_total(r, report->sum);
    for (int i = 0; i < N_REDUCTIONS; i++) reduce_counters(r, i, report);
    report_loss(r, report);
}

void trainer_reduce(Trainer *r, StepReport *report) {
    if (report->is_reduced) return;
    report->is_reduced = true;
    if (r->sync) sync_finish(r->sync);
    comm_compare_places(r->run.comm);
    if (r->run.context.exact) registry_snap(r->run.model->registry, FLAT_GRADS, EXACT_GRID_BITS);
    if (r->run.comm) reduce_report(r, report);
    const bool per_token = r->run.config->calculate_per_token_loss;
    report->grad_scale =
        (per_token ? 1 / fmax(report->sum[0].weight, 1) : 1.0 / r->run.layout.mesh.size[AXIS_DP]) /
        r->scaler.scale;
}

/* Starts copying the results of this rank to the host. The copy is complete after the next wait. */
static void start_read(Trainer *r) {
    const Tensor *counters;
    double *to = r->results;
    device_copy(r->run.device, to, microbatches_losses(r->microbatches), loss_bytes(r));
    to += n_sums(r);
    for (int i = 0; i < N_REDUCTIONS; i++) {
        if (!has_counters(r, i, &counters)) continue;
        device_copy(r->run.device, to, counters->data, tensor_bytes(counters));
        to += tensor_count(counters);
    }
}

static void finish_read(Trainer *r, StepReport *report) {
    const Tensor *counters;
    const double *from = r->results;
    microbatches_waited(r->microbatches);
    for (int i = 0; i < n_sums(r); i++) report->sum[i].loss = from[i];
    from += n_sums(r);
    for (int i = 0; i < N_REDUCTIONS; i++) {
        if (!has_counters(r, i, &counters)) continue;
        report_counters(r, i, from, tensor_count(counters), report);
        from += tensor_count(counters);
    }
    report_loss(r, report);
}

void trainer_read(Trainer *r, StepReport *report) {
    if (report->is_read) return;
    start_read(r);
    device_wait(r->run.device);
    finish_read(r, report);
}

void trainer_update(Trainer *r, StepReport *report) {
    const Config *c = r->run.config;
    const Derived *d = &r->run.config->derived;
    trainer_reduce(r, report);
    const StateContext state = model_run_state(&r->run, true);
    states_end_step(r->run.model->registry, &state);
    OptimStep s = {.grad_scale = report->grad_scale, .exact = r->run.context.exact};
    s.lr = report->lr = schedule_lr(c, c->lr, c->min_lr, r->schedule_samples);
    s.decoupled_lr = schedule_lr(c, d->decoupled_lr, d->decoupled_min_lr, r->schedule_samples);
    s.rescaled_lr = schedule_lr(c, d->rescaled_lr, d->rescaled_min_lr, r->schedule_samples);
    s.weight_decay = report->weight_decay = schedule_weight_decay(c, r->schedule_samples);
    if (!report->is_read) start_read(r);
    report->optim = optim_step(r->optimizer, s); /* the following call waits for the device */
    if (!report->is_read) finish_read(r, report);
    scaler_update(&r->scaler, report->optim.found_inf);
    r->iteration++;
    r->consumed_samples += report->samples;
    if (report->optim.found_inf)
        r->skipped_iterations++;
    else
        r->schedule_samples += report->samples;
}

void trainer_evaluate(Trainer *r, const Batch *b, LossSum sum[MODEL_LOSSES]) {
    const int64_t together = model_run_together(&r->run, b->b);
    model_run_refresh(&r->run, false);
    for (int64_t first = 0; first < b->b; first += together) {
        const Batch rows = batch_rows(b, first, together);
        forward_only(r, &rows, tells_loss(r) ? sum : NULL);
    }
    for (int i = 0; i < n_losses(r); i++) sum[i].weight += weight_sum(r, b, &r->run.model->plan.loss[i]);
    set_count_weights(r, sum);
}
