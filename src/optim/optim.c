#include "optim/optim.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/ops.h"
#include "param/bucket.h"
#include "param/state.h"
#include "tape/tape.h"

static size_t buffer_bytes(const Optimizer *o, int i) {
    return (size_t)o->registry->held[FLAT_STATE] * dtype_size(o->buffer[i].dtype);
}

DType optim_moment_type(const Config *c, int moment, DType precise) {
    if (moment == 1) return c->exp_avg_sq_dtype == SQUARES_BF16 ? BF16 : precise;
    return c->exp_avg_dtype == STATE_BF16 ? BF16 : c->exp_avg_dtype == STATE_FP16 ? F16 : precise;
}

/* ---- pieces: the parameters in each bucket's part ---- */

static int64_t count_pieces(FlatRange part) {
    return part.end > part.begin ? (part.end - part.begin + PIECE_MOST - 1) / PIECE_MOST : 0;
}

static void cut(const Param *p, FlatRange part, int64_t origin, FlatPiece *out) {
    for (int64_t at = part.begin; at < part.end; at += PIECE_MOST) {
        const int64_t rest = part.end - at;
        *out++ = (FlatPiece){.begin = at - origin,
                             .count = rest < PIECE_MOST ? rest : PIECE_MOST,
                             .group = p->spec.flags & (PARAM_NO_DECAY | PARAM_EMBEDDING)};
    }
}

/* Returns the number of pieces of a bucket's parameters for which this rank is primary, or, if `primary` is
 * false, of the other parameters. Writes the pieces to `out` unless it is NULL. */
static int64_t cut_bucket(const Registry *r, const Bucket *b, bool primary, FlatPiece *out) {
    const int64_t origin = bucket_part(r, b).begin;
    int64_t n = 0;
    for (int i = b->first; b->trained && i < b->first + b->n; i++) {
        const Param *p = r->laid[i];
        if (param_is_primary(r, p) != primary) continue;
        const FlatRange part = param_part_held(r, p);
        if (out) cut(p, part, origin, out + n);
        n += count_pieces(part);
    }
    return n;
}

static size_t piece_bytes(const Optimizer *o) { return (size_t)o->n_pieces * sizeof(FlatPiece); }

static void lay_pieces(Optimizer *o) {
    const Registry *r = o->registry;
    o->of_bucket = mem_zero((size_t)r->n_buckets, sizeof *o->of_bucket);
    for (int k = 0; k < r->n_buckets; k++) {
        BucketPieces *of = &o->of_bucket[k];
        of->first = o->n_pieces;
        of->n_primary = cut_bucket(r, &r->buckets[k], true, NULL);
        of->n = of->n_primary + cut_bucket(r, &r->buckets[k], false, NULL);
        o->n_pieces += of->n;
    }
    o->pieces = device_alloc(r->device, piece_bytes(o), "pieces of the parameters");
    if (r->device->kind == DEVICE_NULL) return;
    FlatPiece *piece = mem_alloc(piece_bytes(o));
    for (int k = 0; k < r->n_buckets; k++) {
        const BucketPieces *of = &o->of_bucket[k];
        cut_bucket(r, &r->buckets[k], true, piece + of->first);
        cut_bucket(r, &r->buckets[k], false, piece + of->first + of->n_primary);
    }
    device_write(r->device, o->pieces, piece, piece_bytes(o));
    free(piece);
}

static Tensor piece_table(const Optimizer *o, int bucket, int64_t n) {
    return tensor_make(o->pieces + o->of_bucket[bucket].first, I64, 2, (int64_t[]){n, PIECE_WORDS});
}

/* Returns this rank's part of a bucket in a flat buffer. */
static Tensor part_of(const Registry *r, int bucket, FlatBuffer which, DType type, void *flat) {
    const FlatRange part = bucket_part(r, &r->buckets[bucket]);
    return registry_slice_of(r, which, type, flat, bucket, part.begin, part.end - part.begin);
}

/* ---- construction ---- */

Optimizer *optim_new(const Config *c, Registry *r, Sync *sync) {
    static const char *const ADAM[] = {".exp_avg", ".exp_avg_sq"}, *const SGD[] = {".momentum_buffer"};
    bool adam = c->optimizer == OPTIMIZER_ADAM;
    Optimizer *o = mem_zero(1, sizeof *o);
    *o = (Optimizer){.config = c, .registry = r, .sync = sync, .n_buffers = adam ? 2 : 1};
    for (int i = 0; i < o->n_buffers; i++) {
        o->buffer[i].suffix = adam ? ADAM[i] : SGD[i];
        o->buffer[i].dtype = optim_moment_type(c, i, r->precise);
        o->buffer[i].flat = device_alloc(r->device, buffer_bytes(o, i), "optimizer state");
    }
    o->state = device_alloc(r->device, sizeof *o->state, "a step of the optimizer");
    o->host = device_host_alloc(r->device, sizeof *o->host, "a step of the optimizer");
    lay_pieces(o);
    return o;
}

void optim_free(Optimizer *o) {
    if (!o) return;
    for (int i = 0; i < o->n_buffers; i++)
        device_release(o->registry->device, o->buffer[i].flat, buffer_bytes(o, i));
    device_recording_drop(o->registry->device, &o->recording);
    device_release(o->registry->device, o->state, sizeof *o->state);
    device_host_release(o->registry->device, o->host, sizeof *o->host);
    device_release(o->registry->device, o->pieces, piece_bytes(o));
    free(o->of_bucket);
    free(o);
}

size_t optim_bytes(const Optimizer *o) {
    size_t sum = sizeof *o->state + piece_bytes(o);
    for (int i = 0; i < o->n_buffers; i++) sum += buffer_bytes(o, i);
    return sum;
}

/* ---- sums ---- */

/* Adds the op's result to `sum`, for the parameters of a bucket for which this rank is primary. */
static void add_sum(const Optimizer *o, int bucket, OpNumber op, FlatBuffer which, void *flat, Tensor *sum) {
    const Registry *r = o->registry;
    Tensor pieces = piece_table(o, bucket, o->of_bucket[bucket].n_primary),
           x = part_of(r, bucket, which, registry_dtype(r, which), flat);
    /* The exact lane does not sum in blocks: it does not need them, and the blocks of a parameter would
     * depend on its sharding. */
    const SumAttr attr = {o->config->lane == LANE_EXACT ? 1 : SUM_BLOCK};
    if (pieces.dim[0])
        call_run(&OPS[op], &(Call){.in = {&x, &pieces}, .out = {sum}, .attr = &attr, .device = r->device});
}

/* Sums over all parameters of the full model, counting each element once. `at` is device memory for the op's
 * sum, which has `words` words. */
static void total(const Optimizer *o, OpNumber op, FlatBuffer which, void *flat, void *at, int64_t words) {
    const Registry *r = o->registry;
    Tensor zeros = tensor_make(at, F64, 1, &words), sum = tensor_make(at, I64, 1, &words);
    registry_zero(r, &zeros); /* all-zero bits are 0 in both types */
    sum.flags = TENSOR_ACCUM;
    for (int k = 0; k < r->n_buckets; k++) add_sum(o, k, op, which, flat, &sum);
    sync_world_sum(o->sync, I64, at, words);
}

/* ---- steps ---- */

/* Whether the update op also rounds the values from the masters. This requires that this rank holds all
 * masters, and that nothing changes them after the update. */
static bool updates_values(const Optimizer *o, const OptimStep *s) {
    return o->config->optimizer == OPTIMIZER_ADAM && !o->sync && !s->exact && !o->config->qk_clip &&
           o->registry->values != o->registry->masters;
}

/* The numbers of the next step, on the assumption that it changes the parameters. */
static StepNumbers numbers_of(const Optimizer *o, const OptimStep *s) {
    const Config *c = o->config;
    StepNumbers n = {.unbias1 = 1 / (1 - pow(c->adam_beta1, (double)(o->step + 1))),
                     .unbias2 = 1 / (1 - pow(c->adam_beta2, (double)(o->step + 1))),
                     .grad_scale = s->grad_scale};
    for (int i = 0; i < STEP_GROUPS; i++)
        n.group[i] = (StepGroup){.lr = i & PARAM_EMBEDDING ? s->decoupled_lr : s->lr,
                                 .weight_decay = i & PARAM_NO_DECAY ? 0 : s->weight_decay};
    return n;
}

static Tensor words_of(void *at, size_t bytes) {
    return tensor_make(at, F64, 1, (int64_t[]){(int64_t)(bytes / sizeof(double))});
}

static void clip(const Optimizer *o) {
    OptimState *at = o->state;
    Tensor squares = tensor_make(&at->squares, I64, 1, (int64_t[]){EXACT_WORDS}),
           given = words_of(&at->given, sizeof at->given),
           clipped = words_of(&at->clipped, sizeof at->clipped),
           outcome = words_of(&at->outcome, sizeof at->outcome);
    const ClipAttr attr = {o->config->clip_grad};
    call_run(&OPS[OP_clip], &(Call){.in = {&squares, &given},
                                    .out = {&clipped, &outcome},
                                    .attr = &attr,
                                    .device = o->registry->device});
}

static void update(const Optimizer *o, int bucket, const OptimStep *s) {
    const Registry *r = o->registry;
    const Config *c = o->config;
    const bool adam = c->optimizer == OPTIMIZER_ADAM;
    const AdamAttr of_adam = {.beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_eps};
    const SgdAttr of_sgd = {.momentum = c->sgd_momentum};
    Tensor pieces = piece_table(o, bucket, o->of_bucket[bucket].n),
           numbers = words_of(&o->state->clipped, sizeof o->state->clipped);
    if (!pieces.dim[0]) return;
    Tensor grad = part_of(r, bucket, FLAT_GRADS, r->gradients, r->grads), out[1 + OPTIM_BUFFERS + 1];
    Call call = {.in = {&grad, &pieces, &numbers}, .device = r->device};
    int n = 0;
    out[n++] = part_of(r, bucket, FLAT_MASTERS, r->precise, r->masters);
    for (int i = 0; i < o->n_buffers; i++)
        out[n++] = part_of(r, bucket, FLAT_STATE, o->buffer[i].dtype, o->buffer[i].flat);
    if (updates_values(o, s)) out[n++] = part_of(r, bucket, FLAT_VALUES, r->storage, r->values);
    for (int i = 0; i < n; i++) {
        out[i].flags = TENSOR_ACCUM; /* 16-bit outputs are also read, so that the gaps between pieces keep
                                        their content */
        call.out[i] = &out[i];
    }
    call.attr = adam ? (const void *)&of_adam : &of_sgd;
    call_run(&OPS[adam ? OP_adamw : OP_sgd], &call);
}

typedef struct Work {
    const Optimizer *of;
    const OptimStep *step; /* a CUDA graph keeps these values, so `work` may read only `exact`, which is equal
                              in every step */
} Work;

/* Runs the step on the device. If the norm is not finite, the update writes the old values. */
static void work(void *arg) {
    const Work *w = arg;
    const Optimizer *o = w->of;
    Registry *r = o->registry;
    total(o, OP_sum_squares, FLAT_GRADS, r->grads, &o->state->squares, EXACT_WORDS);
    if (o->config->log_num_zeros_in_grad) total(o, OP_count_zeros, FLAT_GRADS, r->grads, &o->state->zeros, 1);
    clip(o);
    for (int k = 0; k < r->n_buckets; k++) update(o, k, w->step);
    states_after_update(r);
    if (w->step->exact) registry_snap(r, FLAT_MASTERS, EXACT_GRID_BITS);
    if (o->config->log_params_norm)
        total(o, OP_sum_squares, FLAT_MASTERS, r->masters, &o->state->params, EXACT_WORDS);
    if (o->sync) return;
    if (updates_values(o, w->step))
        registry_round_buffers(r);
    else
        registry_round_values(r);
}

static void replay(Optimizer *o, Work *w) {
    device_replay(o->registry->device, &o->recording, work, w);
    if (o->sync && o->recording.graph) sync_launched(o->sync, "the optimizer's CUDA graph");
}

/* The host reads the state from this offset on. */
static const size_t TOLD = offsetof(OptimState, outcome);

OptimResult optim_step(Optimizer *o, OptimStep s) {
    Device *d = o->registry->device;
    Work w = {o, &s};
    o->host->given = numbers_of(o, &s);
    device_copy(d, &o->state->given, &o->host->given, sizeof o->host->given);
    if (o->config->cuda_graph_impl == CUDA_GRAPH_LOCAL)
        replay(o, &w);
    else
        work(&w);
    device_copy(d, (char *)o->host + TOLD, (char *)o->state + TOLD, sizeof *o->state - TOLD);
    device_wait(d);
    const ClipOutcome *told = &o->host->outcome;
    const bool updates = told->updates != 0;
    o->step += updates;
    if (o->sync && (updates || o->config->qk_clip)) sync_publish(o->sync);
    return (OptimResult){.grad_norm = told->norm,
                         .clip = told->clip,
                         .num_zeros = o->config->log_num_zeros_in_grad ? (double)o->host->zeros : -1,
                         .params_norm = o->config->log_params_norm ? sqrt(exact_value(o->host->params)) : -1,
                         .found_inf = !updates};
}
