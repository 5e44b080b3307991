#include "optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/exact_sum.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "param/bucket.h"
#include "tape/tape.h"

static size_t buffer_bytes(const Optimizer *o, int i) {
    return (size_t)o->registry->held[FLAT_STATE] * dtype_size(o->buffer[i].dtype);
}

static DType state_type(StateType t, DType precise) {
    return t == STATE_BF16 ? BF16 : t == STATE_FP16 ? F16 : precise;
}

/* ---- what the ops touch: of each bucket's part the pieces that are parameters ---- */

static int64_t cut(const Param *p, FlatRange part, int64_t origin, FlatPiece *out) {
    int64_t n = 0;
    for (int64_t at = part.begin; at < part.end; at += PIECE_MOST) {
        const int64_t rest = part.end - at;
        out[n++] = (FlatPiece){.begin = at - origin,
                               .count = rest < PIECE_MOST ? rest : PIECE_MOST,
                               .group = p->spec.flags & (PARAM_NO_DECAY | PARAM_EMBEDDING)};
    }
    return n;
}

/* The pieces of those parameters of a bucket that this rank speaks for, or of the others. */
static int64_t cut_bucket(const Registry *r, const Bucket *b, bool spoken, FlatPiece *out) {
    const int64_t origin = bucket_part(r, b).begin;
    int64_t n = 0;
    for (int i = b->first; b->trained && i < b->first + b->n; i++) {
        const Param *p = r->laid[i];
        if (param_speaks(r, p) == spoken) n += cut(p, param_part_held(r, p), origin, out + n);
    }
    return n;
}

static size_t piece_bytes(const Optimizer *o) { return (size_t)o->n_pieces * sizeof(FlatPiece); }

static void lay_pieces(Optimizer *o) {
    const Registry *r = o->registry;
    FlatPiece *piece = mem_alloc((size_t)(r->elements / PIECE_MOST + r->n) * sizeof *piece);
    o->of_bucket = mem_zero((size_t)r->n_buckets, sizeof *o->of_bucket);
    for (int k = 0; k < r->n_buckets; k++) {
        BucketPieces *of = &o->of_bucket[k];
        of->first = o->n_pieces;
        of->spoken = cut_bucket(r, &r->buckets[k], true, piece + of->first);
        of->n = of->spoken + cut_bucket(r, &r->buckets[k], false, piece + of->first + of->spoken);
        o->n_pieces += of->n;
    }
    o->pieces = device_alloc(r->device, piece_bytes(o), "pieces of the parameters");
    device_write(r->device, o->pieces, piece, piece_bytes(o));
    free(piece);
}

static Tensor piece_table(const Optimizer *o, int bucket, int64_t n) {
    return tensor_make(o->pieces + o->of_bucket[bucket].first, I64, 2, (int64_t[]){n, PIECE_WORDS});
}

/* A bucket's part of a flat buffer. */
static Tensor part_of(const Registry *r, int bucket, FlatBuffer which, DType type, void *flat) {
    const FlatRange part = bucket_part(r, &r->buckets[bucket]);
    return registry_slice_of(r, which, type, flat, bucket, part.begin, part.end - part.begin);
}

/* ---- life ---- */

Optimizer *optim_new(const Config *c, Registry *r, Sync *sync) {
    static const char *const ADAM[] = {".exp_avg", ".exp_avg_sq"}, *const SGD[] = {".momentum_buffer"};
    bool adam = c->optimizer == OPTIMIZER_ADAM;
    Optimizer *o = mem_zero(1, sizeof *o);
    *o = (Optimizer){.config = c, .registry = r, .sync = sync, .n_buffers = adam ? 2 : 1};
    for (int i = 0; i < o->n_buffers; i++) {
        o->buffer[i].suffix = adam ? ADAM[i] : SGD[i];
        o->buffer[i].dtype = state_type(i == 0 ? c->exp_avg_dtype : c->exp_avg_sq_dtype, r->precise);
        o->buffer[i].flat = device_alloc(r->device, buffer_bytes(o, i), "optimizer state");
    }
    o->sums = device_alloc(r->device, sizeof(ExactSum), "sums");
    lay_pieces(o);
    return o;
}

void optim_free(Optimizer *o) {
    if (!o) return;
    for (int i = 0; i < o->n_buffers; i++)
        device_release(o->registry->device, o->buffer[i].flat, buffer_bytes(o, i));
    device_release(o->registry->device, o->sums, sizeof(ExactSum));
    device_release(o->registry->device, o->pieces, piece_bytes(o));
    free(o->of_bucket);
    free(o);
}

size_t optim_bytes(const Optimizer *o) {
    size_t sum = piece_bytes(o);
    for (int i = 0; i < o->n_buffers; i++) sum += buffer_bytes(o, i);
    return sum;
}

/* ---- sums ---- */

/* Adds to `sum` what the op makes of what this rank speaks for in a bucket. */
static void add_sum(const Optimizer *o, int bucket, OpNumber op, FlatBuffer which, void *flat, Tensor *sum) {
    const Registry *r = o->registry;
    Tensor pieces = piece_table(o, bucket, o->of_bucket[bucket].spoken),
           x = part_of(r, bucket, which, r->precise, flat);
    /* The exact lane's sum knows no blocks, for a parameter that is cut has others. */
    const SumAttr attr = {o->config->lane == LANE_EXACT ? 1 : SUM_BLOCK};
    if (pieces.dim[0])
        call_run(&OPS[op], &(Call){.in = {&x, &pieces}, .out = {sum}, .attr = &attr, .device = r->device});
}

/* Over all parameters of the whole model, each element once; `words` of the op's sum. */
static void total(const Optimizer *o, OpNumber op, FlatBuffer which, void *flat, void *host, int64_t words) {
    const Registry *r = o->registry;
    Tensor sum = tensor_make(o->sums, I64, 1, &words);
    memset(host, 0, tensor_bytes(&sum));
    device_write(r->device, sum.data, host, tensor_bytes(&sum));
    sum.flags = TENSOR_ACCUM;
    for (int k = 0; k < r->n_buckets; k++) add_sum(o, k, op, which, flat, &sum);
    device_read(r->device, host, sum.data, tensor_bytes(&sum));
    sync_world_sum(o->sync, I64, host, words);
}

static double norm(const Optimizer *o, FlatBuffer which, void *flat) {
    ExactSum sum;
    total(o, OP_sum_squares, which, flat, &sum, EXACT_WORDS);
    return sqrt(exact_value(sum));
}

static double zeros(const Optimizer *o) {
    int64_t n;
    total(o, OP_count_zeros, FLAT_GRADS, o->registry->grads, &n, 1);
    return (double)n;
}

double optim_params_norm(const Optimizer *o) { return norm(o, FLAT_MASTERS, o->registry->masters); }

/* ---- steps ---- */

/* Whether the update itself rounds values from masters: of what no other rank holds, and nothing comes
 * between. */
static bool updates_values(const Optimizer *o, const OptimStep *s) {
    return o->config->optimizer == OPTIMIZER_ADAM && !o->sync && !s->exact &&
           o->registry->values != o->registry->masters;
}

static void set_groups(StepGroup *group, const OptimStep *s) {
    for (int i = 0; i < STEP_GROUPS; i++)
        group[i] = (StepGroup){.lr = i & PARAM_EMBEDDING ? s->decoupled_lr : s->lr,
                               .weight_decay = i & PARAM_NO_DECAY ? 0 : s->weight_decay};
}

static void step_adamw(const Optimizer *o, Call *call, const OptimStep *s, double grad_scale) {
    const Config *c = o->config;
    AdamAttr attr = {
        .beta1 = c->adam_beta1,
        .beta2 = c->adam_beta2,
        .eps = c->adam_eps,
        .correction1 = 1 - pow(c->adam_beta1, (double)o->step),
        .correction2 = 1 - pow(c->adam_beta2, (double)o->step),
        .grad_scale = grad_scale,
    };
    set_groups(attr.group, s);
    call->attr = &attr;
    call_run(&OPS[OP_adamw], call);
}

static void step_sgd(const Optimizer *o, Call *call, const OptimStep *s, double grad_scale) {
    SgdAttr attr = {.momentum = o->config->sgd_momentum, .grad_scale = grad_scale};
    set_groups(attr.group, s);
    call->attr = &attr;
    call_run(&OPS[OP_sgd], call);
}

static void update(const Optimizer *o, int bucket, const OptimStep *s, double grad_scale) {
    const Registry *r = o->registry;
    Tensor pieces = piece_table(o, bucket, o->of_bucket[bucket].n);
    if (!pieces.dim[0]) return;
    Tensor grad = part_of(r, bucket, FLAT_GRADS, r->precise, r->grads), out[1 + OPTIM_BUFFERS + 1];
    Call call = {.in = {&grad, &pieces}, .device = r->device};
    int n = 0;
    out[n++] = part_of(r, bucket, FLAT_MASTERS, r->precise, r->masters);
    for (int i = 0; i < o->n_buffers; i++)
        out[n++] = part_of(r, bucket, FLAT_STATE, o->buffer[i].dtype, o->buffer[i].flat);
    if (updates_values(o, s)) out[n++] = part_of(r, bucket, FLAT_VALUES, r->storage, r->values);
    for (int i = 0; i < n; i++) {
        out[i].flags = TENSOR_ACCUM; /* 16-bit ones are read too, and keep what is between the pieces */
        call.out[i] = &out[i];
    }
    (o->config->optimizer == OPTIMIZER_ADAM ? step_adamw : step_sgd)(o, &call, s, grad_scale);
}

OptimResult optim_step(Optimizer *o, OptimStep s) {
    const Config *c = o->config;
    Registry *r = o->registry;
    OptimResult result = {.clip = 1, .num_zeros = -1};
    result.grad_norm = norm(o, FLAT_GRADS, r->grads) * fabs(s.grad_scale);
    if (c->log_num_zeros_in_grad) result.num_zeros = zeros(o);
    result.found_inf = !isfinite(result.grad_norm);
    if (result.found_inf) return result;
    if (c->clip_grad > 0) result.clip = fmin(1, c->clip_grad / (result.grad_norm + 1e-6));
    o->step++;
    for (int k = 0; k < r->n_buckets; k++) update(o, k, &s, s.grad_scale * result.clip);
    if (s.exact) registry_snap(r, FLAT_MASTERS, EXACT_GRID_BITS);
    if (o->sync)
        sync_publish(o->sync);
    else if (updates_values(o, &s))
        registry_round_buffers(r);
    else
        registry_round_values(r);
    return result;
}
