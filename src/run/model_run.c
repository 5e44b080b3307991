#include "run/model_run.h"

#include <stdlib.h>

#include "base/amount.h"
#include "base/fault.h"
#include "base/philox.h"
#include "comm/agree.h"
#include "models/option_map.h"
#include "param/bucket.h"
#include "param/quantized.h"
#include "run/launch.h"
#include "run/source.h"

/* ---- layout ---- */

/* Returns the data-parallel settings. The bucket sizes are those of Megatron-LM
 * (core/distributed/distributed_data_parallel.py). */
static DataParallel data_parallel(const Config *c, int ranks) {
    DataParallel d = {.stage = c->use_megatron_fsdp ? (int)c->data_parallel_sharding_strategy
                                                    : c->use_distributed_optimizer,
                      .instances = (int)c->num_distributed_optimizer_instances,
                      .num_buckets = (int)i64_or(c->ddp_num_buckets, 0),
                      .overlap_grads = c->overlap_grad_reduce,
                      .overlap_values = c->overlap_param_gather,
                      .with_attention = c->overlap_with_attention,
                      .bf16_grads = config_bf16_grads(c)};
    if (i64_is_set(c->ddp_bucket_size))
        d.bucket_size = c->ddp_bucket_size;
    else if (d.overlap_grads && d.stage < 2 && !d.num_buckets)
        d.bucket_size = ranks > 40 ? ranks * 1000000 : 40000000;
    return d;
}

Layout model_run_layout(const Config *c, int rank, int world) {
    const int size[AXES] = {[AXIS_TP] = (int)c->tensor_model_parallel_size,
                            [AXIS_CP] = (int)c->context_parallel_size,
                            [AXIS_PP] = (int)c->pipeline_model_parallel_size,
                            [AXIS_EP] = (int)c->expert_model_parallel_size,
                            [AXIS_ETP] = (int)config_expert_tensor_ranks(c)};
    Layout l = {.mesh = mesh_make(world, rank, size)};
    l.sequence_parallel = c->sequence_parallel && l.mesh.size[AXIS_TP] > 1;
    l.data = data_parallel(c, l.mesh.size[AXIS_DP]);
    return l;
}

/* The axes whose collectives must not overlap with other ops. */
static unsigned at_once_axes(const Config *c) {
    const bool experts = c->moe_shared_expert_overlap || c->overlap_dispatch_backward_with_experts_wgrad ||
                         c->interleaved_microbatches > 1;
    return (c->tp_comm_overlap ? 0 : 1u << AXIS_TP) | (c->cp_comm_overlap ? 0 : 1u << AXIS_CP) |
           (experts ? 0 : 1u << AXIS_EP);
}

/* ---- construction ---- */

static Model *place_model(ModelRun *r) {
    Err e = pipeline_layout(r->config, r->arena, &r->pipeline);
    CHECK(!e.code, "%s", e.msg); /* the caller has checked the options */
    const int stages = r->pipeline.chunks * r->pipeline.ranks;
    return model_new(r->config, &(ModelPlace){r->layout, r->pipeline.stages, stages});
}

void model_run_new(ModelRun *r, const Config *c, Comm *comm, Device *device, ModelUse use) {
    const bool trains = use == MODEL_TRAINS;
    *r = (ModelRun){.config = c, .comm = comm, .device = device, .arena = arena_new()};
    r->layout = model_run_layout(c, comm ? comm_rank(comm) : 0, comm ? comm_world(comm) : 1);
    if (!trains) r->layout.data = (DataParallel){.stage = 0};
    r->context = (RunContext){
        .device = device,
        .dtype = map_storage(c->lane),
        .batch_invariant = c->batch_invariant_mode,
        .exact = c->lane == LANE_EXACT,
        .seed = (uint64_t)c->seed,
        .at_once = at_once_axes(c),
        /* In a model with experts, memory cannot be registered, because the offsets of activations differ
         * between ranks. */
        .registered = comm && c->use_nccl_ub && !i64_is_set(c->num_experts),
        .keeps_gathered = c->keep_gathered_inputs,
        .postpones_experts = c->overlap_dispatch_backward_with_experts_wgrad,
        .layout = comm ? &r->layout : NULL,
        .comm = comm,
    };
    r->model = place_model(r);
    model_allocate(r->model, device, r->context.dtype, c->derived.max_position_embeddings, trains);
    const StateContext state = model_run_state(r, trains);
    states_prepare(r->model->registry, &state);
}

void model_run_free(ModelRun *r) {
    model_free(r->model);
    arena_free(r->arena);
}

/* ---- state ---- */

int64_t model_run_together(const ModelRun *r, int64_t samples) {
    return r->config->batch_invariant_mode ? r->config->derived.choices : samples;
}

int64_t model_run_tokens(const ModelRun *r) {
    return model_run_together(r, r->config->derived.micro_batch_size) * r->config->seq_length /
           r->layout.mesh.size[AXIS_CP];
}

StateContext model_run_state(const ModelRun *r, bool training) {
    return (StateContext){.device = r->device,
                          .layout = &r->layout,
                          .comm = comm_starts(r->comm, r->device) ? r->comm : NULL,
                          .tokens = model_run_tokens(r),
                          .training = training};
}

void model_run_refresh(ModelRun *r, bool training) {
    const StateContext c = model_run_state(r, training);
    states_refresh(r->model->registry, &c);
}

/* ---- a checkpoint's model ---- */

static Err check_stages(const Config *c) {
    Arena *arena = arena_new();
    const Err e = pipeline_layout(c, arena, &(PipelineLayout){0});
    arena_free(arena);
    return e;
}

static Err check_memory(const Config *c, Comm *comm, const Device *device) {
    const double sharing = (double)rank_sharing(comm, device);
    Comm *notes = comm ? comm_null(comm_world(comm), comm_rank(comm)) : NULL;
    Device *null = device_null();
    ModelRun dry;
    model_run_new(&dry, c, notes, null, MODEL_COMPUTES);
    const double parameters = sharing * ((double)registry_bytes(dry.model->registry) +
                                         (double)quantized_stage_bytes(dry.model->registry)),
                 tables = sharing * (double)states_bytes(dry.model->registry),
                 have = (double)device_memory_available(device);
    model_run_free(&dry);
    device_free(null);
    if (notes) comm_free(notes);
    if (parameters + tables <= have) return ERR_OK;
    return err_user("the model's parameters need %s and its tables need %s, but %s are available; "
                    "use a 16-bit --lane, more tensor-parallel ranks on other devices, or a smaller "
                    "--max-position-embeddings",
                    bytes_text(parameters).s, bytes_text(tables).s, bytes_text(have).s);
}

/* ---- quantized weights, each of which is cast once its values are available ---- */

static void *stage_new(const ModelRun *r) {
    return device_alloc(r->device, quantized_stage_bytes(r->model->registry),
                        "a weight before it is quantized");
}

static void stage_free(const ModelRun *r, void *stage) {
    device_release(r->device, stage, quantized_stage_bytes(r->model->registry));
}

typedef struct Stage {
    const ModelRun *run;
    void *values;
} Stage;

static void cast_staged(void *arg, Param *p) {
    const Stage *s = arg;
    quantized_cast(s->run->model->registry, s->run->comm, p, s->values);
}

/* The number of checkpoint items: the 16-bit values, the quantized weights, and the buffers' masters. */
enum { ITEMS = 3 };

static int items(const Registry *g, Stage *stage, CkptItem out[ITEMS]) {
    int n = 0;
    out[n] = (CkptItem){.suffix = "", .flat = g->values, .dtype = g->storage, .convert = true};
    out[n].ranges = registry_ranges(g, FLAT_VALUES, &out[n].n_ranges);
    n++;
    out[n++] = (CkptItem){.suffix = "",
                          .flat = stage->values,
                          .dtype = g->storage,
                          .convert = true,
                          .each = cast_staged,
                          .arg = stage};
    if (g->masters == g->values) return n;
    out[n] = (CkptItem){.suffix = "", .flat = g->masters, .dtype = g->precise, .convert = true};
    out[n].ranges = registry_ranges(g, FLAT_MASTERS, &out[n].n_ranges);
    return n + 1;
}

void model_run_note_fp8(const ModelRun *r, const Ckpt *ckpt, FILE *to) {
    const bool stored = ckpt_has_fp8_state(ckpt),
               wanted = r->config->fp8_format != FP8_NONE && r->config->fp8_recipe == FP8_DELAYED;
    if (stored && !wanted)
        fprintf(to, "  the FP8 scales of the checkpoint are omitted: this run has no delayed scaling\n");
    if (!stored && wanted)
        fprintf(to, "  the checkpoint has no FP8 scales: they start with their initial values\n");
}

/* Zeroes the delayed FP8 scales, as in a new model. */
static void forget_scales(const Registry *g) {
    for (int i = 0; i < g->n; i++)
        if (param_is_fp8_state(g->params[i]->spec.name)) registry_zero(g, &g->params[i]->master);
}

/* remedy: what to do if the checkpoint contains a different model. NULL means that the run starts with this
 * checkpoint, and that the printing rank reports it */
static Err load_parameters(ModelRun *r, const Source *s, const char *remedy) {
    Ckpt *ckpt;
    CkptItem list[ITEMS];
    Stage stage = {r, stage_new(r)};
    const int n = items(r->model->registry, &stage, list);
    Err e = ckpt_open(s->dir, s->step, r->comm, &ckpt);
    if (!e.code) ckpt_set_remedy(ckpt, remedy);
    if (!e.code) e = comm_agree(r->comm, source_check(r->config, ckpt, s->dir, true, remedy));
    if (!e.code) e = ckpt_load(ckpt, r->model->registry, list, n);
    if (!e.code && !remedy && rank_is_printer(r->comm)) {
        fprintf(stderr, "  successfully loaded checkpoint from %s at iteration %lld\n", s->dir,
                (long long)ckpt_manifest(ckpt)->iteration);
        model_run_note_fp8(r, ckpt, stderr);
    }
    const bool scaled = ckpt && ckpt_has_fp8_state(ckpt);
    ckpt_close(ckpt);
    stage_free(r, stage.values);
    if (e.code) return e;
    if (!scaled) forget_scales(r->model->registry);
    if (r->context.exact) registry_snap(r->model->registry, FLAT_MASTERS, EXACT_GRID_BITS);
    model_run_refresh(r, false);
    return ERR_OK;
}

static Err load(ModelRun *r, const Source *s) { return load_parameters(r, s, NULL); }

Err model_run_reload(ModelRun *r, const char *path) {
    Source s = {.step = -1};
    const double stage = (double)rank_sharing(r->comm, r->device) *
                         (double)quantized_stage_bytes(r->model->registry),
                 have = (double)device_memory_available(r->device);
    Err e = ckpt_locate(path, &s.dir, &s.step);
    if (!e.code && stage > have)
        e = err_user(
            "a weight needs %s before it is quantized, but %s are available; release the KV cache (/sleep)",
            bytes_text(stage).s, bytes_text(have).s);
    e = comm_agree(r->comm, e);
    if (!e.code) e = load_parameters(r, &s, "load a checkpoint of the same model");
    source_free(&s);
    return e;
}

/* Fills the parameters with random numbers that repeat after a long period, because generating a separate
 * number for each parameter of a large model would take minutes. */
static Err fill(ModelRun *r, const Source *none) {
    enum { PERIOD = 99991 };
    (void)none;
    float *normal = mem_alloc(PERIOD * sizeof *normal), *scaled = mem_alloc(PERIOD * sizeof *scaled);
    Stage stage = {r, stage_new(r)};
    for (uint64_t i = 0; i < PERIOD; i++) normal[i] = (float)philox_normal(r->context.seed, 0, i);
    for (int k = 0; k < r->model->registry->n; k++) {
        Param *p = r->model->registry->params[k];
        const Init *init = &p->spec.init;
        const bool quantized = param_is_quantized(p);
        const DType type = quantized ? r->context.dtype : (DType)p->value.dtype;
        char *to = quantized ? stage.values : p->value.data;
        const size_t size = dtype_size(type);
        char *stored = mem_alloc(PERIOD * size);
        for (int i = 0; i < PERIOD; i++)
            scaled[i] = init->kind == INIT_NORMAL
                            ? (float)init->value * normal[i]
                            : (float)init_from_bits(init, philox_u32(r->context.seed, 1, (uint64_t)i));
        dtype_convert(stored, type, scaled, F32, PERIOD);
        for (int64_t i = 0, n; !(p->spec.flags & PARAM_BUFFER) && i < p->count; i += n) {
            n = p->count - i < PERIOD ? p->count - i : PERIOD;
            device_write(r->device, to + (size_t)i * size, stored, (size_t)n * size);
        }
        device_wait(r->device);
        free(stored);
        if (quantized) cast_staged(&stage, p);
    }
    free(normal), free(scaled);
    device_wait(r->device);
    stage_free(r, stage.values);
    model_run_refresh(r, false);
    return ERR_OK;
}

typedef Err SetValues(ModelRun *, const Source *);

/* Allocates the parameters and sets their values. */
static Err set_on(ModelRun *r, const Config *c, Comm *comm, Device *device, SetValues *set, const Source *s) {
    ERR_RETURN(comm_agree(comm, check_memory(c, comm, device)));
    model_run_new(r, c, comm, device, MODEL_COMPUTES);
    const Err e = comm_agree(comm, set(r, s));
    if (e.code) model_run_free(r);
    return e;
}

static Err open_with(ModelRun *r, const Config *c, Comm *comm, SetValues *set, const Source *s) {
    Device *device;
    char transport[200];
    ERR_RETURN(rank_open_device(c, comm, &device, transport));
    const Err e = set_on(r, c, comm, device, set, s);
    if (e.code) rank_free_device(comm, device);
    return e;
}

Err model_run_load(ModelRun *r, const Config *c, Comm *comm, Device *device) {
    Source s;
    ERR_RETURN(check_stages(c));
    Err e = source_find(c, &s);
    if (!e.code && !s.dir) e = ckpt_missing(c->load);
    e = comm_agree(comm, e);
    if (!e.code) e = device ? set_on(r, c, comm, device, load, &s) : open_with(r, c, comm, load, &s);
    source_free(&s);
    return e;
}

Err model_run_open(ModelRun *r, const Config *c, Comm *comm) { return model_run_load(r, c, comm, NULL); }

Err model_run_open_random(ModelRun *r, const Config *c, Comm *comm) {
    return open_with(r, c, comm, fill, NULL);
}

void model_run_close(ModelRun *r) {
    Comm *comm = r->comm;
    Device *device = r->device;
    model_run_free(r);
    rank_free_device(comm, device);
}
