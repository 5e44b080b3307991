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

static size_t offloaded_bytes(const Optimizer *o, int i) {
    return (size_t)o->registry->offloaded[o->buffer[i].layout] * dtype_size(o->buffer[i].dtype);
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

/* The bucket's parameters for which this rank is primary, and for which it is not. */
enum { PRIMARY = 1, OTHERS = 2 };

/* Counts the pieces of these parameters. If `out` is not NULL, writes the pieces to `out`, in the bucket's order. */
static int64_t cut_bucket(const Registry *r, const Bucket *b, unsigned which, FlatPiece *out) {
    const int64_t origin = bucket_part(r, b).begin;
    int64_t n = 0;
    for (int i = b->first; b->trained && i < b->first + b->n; i++) {
        const Param *p = r->laid[i];
        if (!(which & (param_is_primary(r, p) ? PRIMARY : OTHERS))) continue;
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
        of->n_primary = cut_bucket(r, &r->buckets[k], PRIMARY, NULL);
        of->n = of->n_primary + cut_bucket(r, &r->buckets[k], OTHERS, NULL);
        o->n_pieces += of->n;
    }
    o->pieces = device_alloc(r->device, piece_bytes(o), "pieces of the parameters");
    if (r->device->kind == DEVICE_NULL) return;
    FlatPiece *piece = mem_alloc(piece_bytes(o));
    for (int k = 0; k < r->n_buckets; k++) {
        const BucketPieces *of = &o->of_bucket[k];
        cut_bucket(r, &r->buckets[k], PRIMARY, piece + of->first);
        cut_bucket(r, &r->buckets[k], OTHERS, piece + of->first + of->n_primary);
    }
    device_write(r->device, o->pieces, piece, piece_bytes(o));
    free(piece);
}

static Tensor piece_table(const Optimizer *o, int bucket, int64_t n) {
    return tensor_make(o->pieces + o->of_bucket[bucket].first, I64, 2, (int64_t[]){n, PIECE_WORDS});
}

/* Adds a piece to the last chunk if the chunk then has at most HOST_CHUNK elements, and otherwise to a new chunk. The
 * piece is relative to the start of this rank's part of the bucket. Chunks do not overlap, because the next one is
 * copied while one is updated. */
static void add_to_chunks(OffloadedPart *h, int bucket, int64_t origin, FlatPiece *piece, int64_t number) {
    enum { HOST_CHUNK = 1 << 20 };
    HostChunk *c = h->n ? &h->chunks[h->n - 1] : NULL;
    const int64_t begin = origin + piece->begin, end = begin + piece->count;
    if (!c || c->bucket != bucket || end - c->begin > HOST_CHUNK) {
        h->chunks = mem_grow(h->chunks, (size_t)h->n + 1, sizeof *h->chunks);
        c = &h->chunks[h->n++];
        *c = (HostChunk){bucket, begin, 0, number, 0};
    }
    piece->begin = begin - c->begin;
    c->n = end - c->begin;
    c->pieces++;
    if (c->n > h->longest) h->longest = c->n;
}

static void lay_chunks(Optimizer *o) {
    const Registry *r = o->registry;
    OffloadedPart *h = &o->offloaded;
    int64_t at = 0;
    for (int k = 0; k < r->n_buckets; k++)
        if (r->buckets[k].offloaded) at += o->of_bucket[k].n;
    h->pieces = mem_zero((size_t)at, sizeof *h->pieces);
    at = 0;
    for (int k = 0; k < r->n_buckets; k++) {
        if (!r->buckets[k].offloaded) continue;
        cut_bucket(r, &r->buckets[k], PRIMARY | OTHERS, h->pieces + at);
        for (const int64_t end = at + o->of_bucket[k].n; at < end; at++)
            add_to_chunks(h, k, bucket_part(r, &r->buckets[k]).begin, &h->pieces[at], at);
    }
}

/* Returns this rank's part of a bucket in a flat buffer. */
static Tensor part_of(const Registry *r, int bucket, FlatBuffer which, DType type, void *flat) {
    const FlatRange part = bucket_part(r, &r->buckets[bucket]);
    return registry_slice_of(r, which, type, flat, bucket, part.begin, part.end - part.begin);
}

/* ---- construction ---- */

static size_t side_bytes(const Optimizer *o, DType type) {
    return (size_t)o->offloaded.longest * dtype_size(type);
}

static void add_states(Optimizer *o, const Rule *rule, FlatBuffer layout) {
    const Registry *r = o->registry;
    for (int i = 0; i < rule->n_states; i++) {
        const int k = o->n_buffers++;
        o->buffer[k].suffix = rule->state[i];
        o->buffer[k].layout = layout;
        o->buffer[k].dtype = rule == &ADAM ? optim_moment_type(o->config, i, r->precise) : r->precise;
        o->buffer[k].flat = device_alloc(r->device, buffer_bytes(o, k), "optimizer state");
        o->buffer[k].host = registry_host_alloc(r, offloaded_bytes(o, k), "offloaded optimizer state");
    }
}

static bool stages_masters(const Registry *r) { return !dtype_is_16bit(r->storage); }

static void offload_begin_run(Optimizer *o) {
    const Registry *r = o->registry;
    Device *d = r->device;
    OffloadedPart *h = &o->offloaded;
    lay_chunks(o);
    if (!h->n || d->kind == DEVICE_NULL) return;
    h->cpu = device_is_discrete(d) ? device_cpu(pool_threads(d->pool)) : d;
    for (int i = 0; i < HOST_SIDES; i++) {
        h->side[i].grad = device_host_alloc(d, side_bytes(o, r->gradients), "offloaded gradients");
        if (stages_masters(r))
            h->side[i].master = device_host_alloc(d, side_bytes(o, r->precise), "offloaded parameters");
        h->side[i].copied = device_event_new(d);
    }
}

static void offload_end_run(Optimizer *o) {
    Device *d = o->registry->device;
    OffloadedPart *h = &o->offloaded;
    for (int i = 0; i < HOST_SIDES; i++) {
        device_host_release(d, h->side[i].grad, side_bytes(o, o->registry->gradients));
        device_host_release(d, h->side[i].master, side_bytes(o, o->registry->precise));
        device_event_free(d, h->side[i].copied);
    }
    if (h->cpu != d) device_free(h->cpu);
    free(h->chunks);
    free(h->pieces);
}

Optimizer *optim_new(const Config *c, Registry *r, Sync *sync) {
    Optimizer *o = mem_zero(1, sizeof *o);
    *o = (Optimizer){.config = c, .registry = r, .sync = sync, .muon = muon_new(c, r, sync)};
    add_states(o, rule_of(c), FLAT_STATE);
    if (o->muon) add_states(o, &MUON, FLAT_MATRIX_STATE);
    o->state = device_alloc(r->device, sizeof *o->state, "an optimizer step");
    o->host = device_host_alloc(r->device, sizeof *o->host, "an optimizer step");
    lay_pieces(o);
    offload_begin_run(o);
    return o;
}

void optim_free(Optimizer *o) {
    if (!o) return;
    for (int i = 0; i < o->n_buffers; i++) {
        device_release(o->registry->device, o->buffer[i].flat, buffer_bytes(o, i));
        device_host_release(o->registry->device, o->buffer[i].host, offloaded_bytes(o, i));
    }
    offload_end_run(o);
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

size_t optim_offloaded_bytes(const Optimizer *o) {
    const Registry *r = o->registry;
    size_t sum =
        HOST_SIDES * (side_bytes(o, r->gradients) + (stages_masters(r) ? side_bytes(o, r->precise) : 0));
    for (int i = 0; i < o->n_buffers; i++) sum += offloaded_bytes(o, i);
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

/* The operands of an update: the master, the states and, unless the data is NULL, the value. */
typedef struct Elements {
    Tensor grad, pieces, numbers, out[1 + OPTIM_BUFFERS + 1];
    int n_out;
} Elements;

static void run_rule(const Optimizer *o, Device *d, Elements *e) {
    const Config *c = o->config;
    const Rule *rule = rule_of(c);
    const AdamAttr adam = {.beta1 = c->adam_beta1, .beta2 = c->adam_beta2};
    const SgdAttr sgd = {.momentum = c->sgd_momentum};
    const LionAttr lion = {.beta1 = c->lion_beta1, .beta2 = c->lion_beta2};
    Call call = {.in = {&e->grad, &e->pieces, &e->numbers}, .device = d};
    for (int i = 0; i < e->n_out; i++) {
        /* 16-bit outputs are also read, so that the gaps between pieces keep their content */
        e->out[i].flags = TENSOR_ACCUM;
        call.out[i] = &e->out[i];
    }
    call.attr = rule == &ADAM ? (const void *)&adam : rule == &SGD ? (const void *)&sgd : &lion;
    call_run(&OPS[rule->op], &call);
}

static void update_elements(const Optimizer *o, int bucket, const OptimStep *s) {
    const Registry *r = o->registry;
    Elements e = {.pieces = piece_table(o, bucket, o->of_bucket[bucket].n),
                  .numbers = numbers_for(o, &r->buckets[bucket])};
    if (!e.pieces.dim[0]) return;
    e.grad = part_of(r, bucket, FLAT_GRADS, r->gradients, r->grads);
    e.out[e.n_out++] = part_of(r, bucket, FLAT_MASTERS, r->precise, r->masters);
    for (int i = 0; i < rule_of(o->config)->n_states; i++)
        e.out[e.n_out++] = part_of(r, bucket, FLAT_STATE, o->buffer[i].dtype, o->buffer[i].flat);
    if (updates_values(o, s)) e.out[e.n_out++] = part_of(r, bucket, FLAT_VALUES, r->storage, r->values);
    run_rule(o, r->device, &e);
}

static void update(const Optimizer *o, int bucket, const OptimStep *s) {
    const Bucket *b = &o->registry->buckets[bucket];
    if (b->offloaded) return;
    if (b->matrices)
        update_matrices(o, b);
    else
        update_elements(o, bucket, s);
}

/* ---- offloaded parameters ---- */

static Tensor chunk_of(const Registry *r, const HostChunk *c, FlatBuffer which, void *flat) {
    return registry_slice(r, which, flat, c->bucket, c->begin, c->n);
}

/* Starts the copies of a chunk's gradients and, if they are not in host memory, of its masters. */
static void fetch_chunk(const Optimizer *o, int64_t number) {
    const Registry *r = o->registry;
    const HostChunk *c = &o->offloaded.chunks[number];
    const int side = (int)(number % HOST_SIDES);
    const Tensor grad = chunk_of(r, c, FLAT_GRADS, r->grads),
                 master = chunk_of(r, c, FLAT_MASTERS, r->masters);
    DeviceEvent *copied = o->offloaded.side[side].copied;
    device_copy_async(r->device, o->offloaded.side[side].grad, grad.data, tensor_bytes(&grad), copied);
    if (stages_masters(r))
        device_copy_async(r->device, o->offloaded.side[side].master, master.data, tensor_bytes(&master),
                          copied);
}

/* Starts the copy of a chunk's values to the device, if registry_round_values or sync_publish does not follow. */
static void return_chunk(const Optimizer *o, const OptimStep *s, int64_t number) {
    const Registry *r = o->registry;
    const HostChunk *c = &o->offloaded.chunks[number];
    const int side = (int)(number % HOST_SIDES);
    Tensor master = chunk_of(r, c, FLAT_MASTERS, r->masters), value = chunk_of(r, c, FLAT_VALUES, r->values);
    if (stages_masters(r))
        device_copy_async(r->device, master.data, o->offloaded.side[side].master, tensor_bytes(&master),
                          o->offloaded.side[side].copied);
    else if (updates_values(o, s))
        call_run(&OPS[OP_copy], &(Call){.in = {&master}, .out = {&value}, .device = r->device});
}

static void update_chunk(const Optimizer *o, int64_t number) {
    const Registry *r = o->registry;
    const OffloadedPart *h = &o->offloaded;
    const HostChunk *c = &h->chunks[number];
    const int side = (int)(number % HOST_SIDES);
    StepNumbers *numbers = &o->host->clipped[r->buckets[c->bucket].apart];
    Elements e = {.grad = tensor_make(h->side[side].grad, r->gradients, 1, &c->n),
                  .pieces =
                      tensor_make(h->pieces + c->first_piece, I64, 2, (int64_t[]){c->pieces, PIECE_WORDS}),
                  .numbers = words_of(numbers, sizeof *numbers)};
    e.out[e.n_out++] = stages_masters(r) ? tensor_make(h->side[side].master, r->precise, 1, &c->n)
                                         : chunk_of(r, c, FLAT_MASTERS, r->masters);
    for (int i = 0; i < rule_of(o->config)->n_states; i++)
        e.out[e.n_out++] = registry_slice_of(r, FLAT_STATE, o->buffer[i].dtype, o->buffer[i].host, c->bucket,
                                             c->begin, c->n);
    run_rule(o, h->cpu, &e);
}

/* With --overlap-cpu-optimizer-d2h-h2d, a chunk is updated while the next one's gradients and the previous one's values
 * are copied. */
static void update_offloaded(const Optimizer *o, const OptimStep *s) {
    const OffloadedPart *h = &o->offloaded;
    Device *d = o->registry->device;
    if (!h->n || d->kind == DEVICE_NULL) return;
    device_copy(d, o->host->clipped, o->state->clipped, sizeof o->host->clipped);
    device_wait(d);
    for (int64_t i = 0, fetched = 0; i < h->n; i++) {
        const int64_t ahead = o->config->overlap_cpu_optimizer_d2h_h2d && i + 1 < h->n ? i + 2 : i + 1;
        while (fetched < ahead) fetch_chunk(o, fetched++);
        device_finish_event(d, h->side[i % HOST_SIDES].copied);
        update_chunk(o, i);
        return_chunk(o, s, i);
    }
    for (int i = 0; i < HOST_SIDES; i++)
        if (stages_masters(o->registry)) device_wait_event(d, h->side[i].copied);
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
    update_offloaded(o, w->step);
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
    if (o->config->cuda_graph_impl == CUDA_GRAPH_LOCAL &&
        !o->offloaded.n) /* a graph cannot contain the host's work */
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
