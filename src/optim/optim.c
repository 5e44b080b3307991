#include "optim/optim.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/ops.h"
#include "param/bucket.h"
#include "param/fp8_weights.h"
#include "param/state.h"
#include "tape/tape.h"

static size_t buffer_bytes(const Optimizer *o, int i) {
    return (size_t)o->registry->held[o->buffer[i].layout] * dtype_size(o->buffer[i].dtype);
}

/* Describes how one kind of parameter is updated: its states and its op. */
typedef struct Rule {
    int n_states;
    const char *state[2];
    OpNumber op;
} Rule;
static const Rule ADAM = {2, {".exp_avg", ".exp_avg_sq"}, OP_adamw}, SGD = {1, {".momentum_buffer"}, OP_sgd},
                  LION = {1, {".exp_avg"}, OP_lion}, MUON = {1, {".momentum_buffer"}, OP_muon_update};

/* Returns the rule for parameters that are updated element by element. */
static const Rule *rule_of(const Config *c) {
    if (c->optimizer == OPTIMIZER_SGD) return &SGD;
    return c->optimizer == OPTIMIZER_MUON && c->muon_scalar_optimizer == SCALAR_LION ? &LION : &ADAM;
}

DType optim_moment_type(const Config *c, int moment, DType precise) {
    if (moment == 1) return c->exp_avg_sq_dtype == SQUARES_BF16 ? BF16 : precise;
    return c->exp_avg_dtype == STATE_BF16 ? BF16 : c->exp_avg_dtype == STATE_FP16 ? F16 : precise;
}

const char *optim_op_name(const Config *c, const Param *p) {
    return OPS[(p->spec.flags & PARAM_MATRIX ? &MUON : rule_of(c))->op].name;
}

/* ---- pieces: the parameters in each bucket's part ---- */

/* Parameters with the same PARAM_NO_DECAY, PARAM_EMBEDDING and GROUP_RESCALED bits form a group. These bits are
 * the group's index. */
enum { GROUP_RESCALED = 4 };
_Static_assert((PARAM_NO_DECAY | PARAM_EMBEDDING | GROUP_RESCALED) == STEP_GROUPS - 1,
               "each combination has a group");

static int64_t count_pieces(FlatRange part) {
    return part.end > part.begin ? (part.end - part.begin + PIECE_MOST - 1) / PIECE_MOST : 0;
}

static void cut(const Param *p, FlatRange part, int64_t origin, FlatPiece *out) {
    for (int64_t at = part.begin; at < part.end; at += PIECE_MOST) {
        const int64_t rest = part.end - at;
        *out++ = (FlatPiece){.begin = at - origin,
                             .count = rest < PIECE_MOST ? rest : PIECE_MOST,
                             .group = (p->spec.flags & (PARAM_NO_DECAY | PARAM_EMBEDDING)) |
                                      (p->spec.flags & PARAM_RESCALED ? GROUP_RESCALED : 0)};
    }
}

/* Counts the pieces of the bucket's parameters for which this rank is primary or, if `primary` is false, those
 * for which it is not primary. If `out` is not NULL, writes the pieces to `out`. */
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

static void add_states(Optimizer *o, const Rule *rule, FlatBuffer layout) {
    const Registry *r = o->registry;
    for (int i = 0; i < rule->n_states; i++) {
        const int k = o->n_buffers++;
        o->buffer[k].suffix = rule->state[i];
        o->buffer[k].layout = layout;
        o->buffer[k].dtype = rule == &ADAM ? optim_moment_type(o->config, i, r->precise) : r->precise;
        o->buffer[k].flat = device_alloc(r->device, buffer_bytes(o, k), "optimizer state");
    }
}

Optimizer *optim_new(const Config *c, Registry *r, Sync *sync) {
    Optimizer *o = mem_zero(1, sizeof *o);
    *o = (Optimizer){.config = c, .registry = r, .sync = sync, .muon = muon_new(c, r, sync)};
    add_states(o, rule_of(c), FLAT_STATE);
    if (o->muon) add_states(o, &MUON, FLAT_MATRIX_STATE);
    o->state = device_alloc(r->device, sizeof *o->state, "an optimizer step");
    o->host = device_host_alloc(r->device, sizeof *o->host, "an optimizer step");
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
    muon_free(o->muon);
    free(o->of_bucket);
    free(o);
}

size_t optim_bytes(const Optimizer *o) {
    size_t sum = sizeof *o->state + piece_bytes(o) + muon_bytes(o->muon);
    for (int i = 0; i < o->n_buffers; i++) sum += buffer_bytes(o, i);
    return sum;
}

/* ---- sums over parameters ---- */

/* Adds the result of the op to `sum`. The op reads those parameters in the bucket for which this rank is
 * primary. */
static void add_sum(const Optimizer *o, int bucket, OpNumber op, FlatBuffer which, void *flat, Tensor *sum) {
    const Registry *r = o->registry;
    Tensor pieces = piece_table(o, bucket, o->of_bucket[bucket].n_primary),
           x = part_of(r, bucket, which, registry_dtype(r, which), flat);
    /* The exact lane does not need sums over blocks, which would depend on a parameter's sharding. */
    const SumAttr attr = {o->config->lane == LANE_EXACT ? 1 : SUM_BLOCK};
    if (pieces.dim[0])
        call_run(&OPS[op], &(Call){.in = {&x, &pieces}, .out = {sum}, .attr = &attr, .device = r->device});
}

enum { EVERY_NORM = -1 };

/* Computes a sum over all parameters of the full model that belong to norm number `norm`. Each element counts once.
 * `at` is device memory for the sum (`words` words). */
static void total(const Optimizer *o, int norm, OpNumber op, FlatBuffer which, void *flat, void *at,
                  int64_t words) {
    const Registry *r = o->registry;
    Tensor zeros = tensor_make(at, F64, 1, &words), sum = tensor_make(at, I64, 1, &words);
    registry_zero(r, &zeros); /* all-zero bits represent 0 in both types */
    sum.flags = TENSOR_ACCUM;
    for (int k = 0; k < r->n_buckets; k++)
        if (norm == EVERY_NORM || norm == r->buckets[k].apart) add_sum(o, k, op, which, flat, &sum);
    sync_world_sum(o->sync, I64, at, words);
}

/* ---- steps ---- */

/* Returns whether the update op also rounds the values from the masters. The update op can round the values
 * only if this rank holds all masters and nothing changes the masters after the update. */
static bool updates_values(const Optimizer *o, const OptimStep *s) {
    return o->config->optimizer == OPTIMIZER_ADAM && !o->sync && !s->exact && !o->config->qk_clip &&
           !o->registry->fp8_amaxes && o->registry->values != o->registry->masters;
}

static double lr_of(const OptimStep *s, int group) {
    if (group & GROUP_RESCALED) return s->rescaled_lr;
    return group & PARAM_EMBEDDING ? s->decoupled_lr : s->lr;
}

/* Returns the StepNumbers for the next step, assuming that the step changes the parameters. */
static StepNumbers numbers_of(const Optimizer *o, const OptimStep *s) {
    const Config *c = o->config;
    StepNumbers n = {.unbias1 = 1 / (1 - pow(c->adam_beta1, (double)(o->step + 1))),
                     .unbias2 = 1 / (1 - pow(c->adam_beta2, (double)(o->step + 1))),
                     .grad_scale = s->grad_scale};
    for (int i = 0; i < STEP_GROUPS; i++)
        n.group[i] = (StepGroup){.lr = lr_of(s, i),
                                 .weight_decay = i & PARAM_NO_DECAY ? 0 : s->weight_decay,
                                 .eps = i & GROUP_RESCALED && c->optimizer == OPTIMIZER_ADAM
                                            ? c->adam_eps / c->derived.width_ratio
                                            : c->adam_eps};
    return n;
}

static Tensor words_of(void *at, size_t bytes) {
    return tensor_make(at, F64, 1, (int64_t[]){(int64_t)(bytes / sizeof(double))});
}

static void clip(const Optimizer *o) {
    OptimState *at = o->state;
    const int n = o->config->mtp_detach_heads ? 2 : 1;
    Registry *r = o->registry;
    for (int i = 0; i < n; i++)
        total(o, i, OP_sum_squares, FLAT_GRADS, r->grads, &at->squares[i], EXACT_WORDS);
    Tensor squares = tensor_make(at->squares, I64, 1, (int64_t[]){n * EXACT_WORDS}),
           given = words_of(&at->given, sizeof at->given),
           clipped = words_of(at->clipped, (size_t)n * sizeof *at->clipped),
           outcome = words_of(at->outcome, (size_t)n * sizeof *at->outcome);
    const ClipAttr attr = {o->config->clip_grad};
    call_run(&OPS[OP_clip], &(Call){.in = {&squares, &given},
                                    .out = {&clipped, &outcome},
                                    .attr = &attr,
                                    .device = o->registry->device});
}

static Tensor numbers_for(const Optimizer *o, const Bucket *b) {
    return words_of(&o->state->clipped[b->apart], sizeof *o->state->clipped);
}

static void update_matrices(const Optimizer *o, const Bucket *b) {
    Registry *r = o->registry;
    const int state = o->n_buffers - 1;
    Tensor numbers = numbers_for(o, b);
    for (int i = b->first; i < b->first + b->n; i++) {
        const Param *p = r->laid[i];
        const FlatRange held = param_part_held(r, p);
        const int64_t n = held.end - held.begin;
        if (n <= 0) continue;
        MuonSlices s = {
            .grad = registry_slice(r, FLAT_GRADS, r->grads, p->bucket, p->offset, n),
            .momentum = registry_slice(r, FLAT_MATRIX_STATE, o->buffer[state].flat, p->bucket, p->offset, n),
            .master = registry_slice(r, FLAT_MASTERS, r->masters, p->bucket, p->offset, n)};
        muon_update(o->muon, p, s, &numbers);
    }
}

static void update_elements(const Optimizer *o, int bucket, const OptimStep *s) {
    const Registry *r = o->registry;
    const Config *c = o->config;
    const Rule *rule = rule_of(c);
    const AdamAttr adam = {.beta1 = c->adam_beta1, .beta2 = c->adam_beta2};
    const SgdAttr sgd = {.momentum = c->sgd_momentum};
    const LionAttr lion = {.beta1 = c->lion_beta1, .beta2 = c->lion_beta2};
    Tensor pieces = piece_table(o, bucket, o->of_bucket[bucket].n),
           numbers = numbers_for(o, &r->buckets[bucket]);
    if (!pieces.dim[0]) return;
    Tensor grad = part_of(r, bucket, FLAT_GRADS, r->gradients, r->grads), out[1 + OPTIM_BUFFERS + 1];
    Call call = {.in = {&grad, &pieces, &numbers}, .device = r->device};
    int n = 0;
    out[n++] = part_of(r, bucket, FLAT_MASTERS, r->precise, r->masters);
    for (int i = 0; i < rule->n_states; i++)
        out[n++] = part_of(r, bucket, FLAT_STATE, o->buffer[i].dtype, o->buffer[i].flat);
    if (updates_values(o, s)) out[n++] = part_of(r, bucket, FLAT_VALUES, r->storage, r->values);
    for (int i = 0; i < n; i++) {
        /* 16-bit outputs are also read, so that the gaps between pieces keep their content */
        out[i].flags = TENSOR_ACCUM;
        call.out[i] = &out[i];
    }
    call.attr = rule == &ADAM ? (const void *)&adam : rule == &SGD ? (const void *)&sgd : &lion;
    call_run(&OPS[rule->op], &call);
}

static void update(const Optimizer *o, int bucket, const OptimStep *s) {
    const Bucket *b = &o->registry->buckets[bucket];
    if (b->matrices)
        update_matrices(o, b);
    else
        update_elements(o, bucket, s);
}

void optim_dry_run(const Optimizer *o) {
    for (int k = 0; k < o->registry->n_buckets; k++)
        if (o->registry->buckets[k].matrices) update_matrices(o, &o->registry->buckets[k]);
}

typedef struct Work {
    const Optimizer *of;
    /* a CUDA graph would keep the step's values, so `work` may read only `exact`, which is the same in every
     * step */
    const OptimStep *step;
} Work;

/* Runs the step on the device. If the norm is not finite, the update writes the old values. */
static void work(void *arg) {
    const Work *w = arg;
    const Optimizer *o = w->of;
    Registry *r = o->registry;
    clip(o);
    if (o->config->log_num_zeros_in_grad)
        total(o, EVERY_NORM, OP_count_zeros, FLAT_GRADS, r->grads, &o->state->zeros, 1);
    for (int k = 0; k < r->n_buckets; k++) update(o, k, w->step);
    states_after_update(r);
    if (w->step->exact) registry_snap(r, FLAT_MASTERS, EXACT_GRID_BITS);
    if (o->config->log_params_norm)
        total(o, EVERY_NORM, OP_sum_squares, FLAT_MASTERS, r->masters, &o->state->params, EXACT_WORDS);
    if (o->sync) return;
    if (updates_values(o, w->step))
        registry_round_buffers(r);
    else
        registry_round_values(r);
    fp8_weights_cast(r, NULL);
}

void optim_dry_step(const Optimizer *o) {
    work(&(Work){o, &(OptimStep){.exact = o->config->lane == LANE_EXACT}});
}

static void replay(Optimizer *o, Work *w) {
    device_replay(o->registry->device, &o->recording, work, w);
    if (o->sync && o->recording.graph) sync_launched(o->sync, "the optimizer's CUDA graph");
}

/* The offset of the part of the state that the host reads. */
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
    const ClipOutcome *told = o->host->outcome;
    const bool updates = told->updates != 0;
    o->step += updates;
    /* The delayed scales of FP8 weights have changed at the end of the step. */
    if (o->sync && (updates || o->config->qk_clip || o->registry->fp8_amaxes)) sync_publish(o->sync);
    return (OptimResult){.grad_norm = told->norm,
                         .clip = told->clip,
                         .num_zeros = o->config->log_num_zeros_in_grad ? (double)o->host->zeros : -1,
                         .params_norm = o->config->log_params_norm ? sqrt(exact_value(o->host->params)) : -1,
                         .found_inf = !updates};
}
