#include "optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/exact_sum.h"
#include "base/mem.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "param/bucket.h"
#include "tape/tape.h"

static size_t buffer_bytes(const Optimizer *o, int i) {
    return (size_t)o->registry->held[FLAT_STATE] * dtype_size(o->buffer[i].dtype);
}

static DType state_type(StateType t, DType precise) {
    return t == STATE_BF16 ? BF16 : t == STATE_FP16 ? F16 : precise;
}

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
    return o;
}

void optim_free(Optimizer *o) {
    if (!o) return;
    for (int i = 0; i < o->n_buffers; i++)
        device_release(o->registry->device, o->buffer[i].flat, buffer_bytes(o, i));
    device_release(o->registry->device, o->sums, sizeof(ExactSum));
    free(o);
}

size_t optim_bytes(const Optimizer *o) {
    size_t sum = 0;
    for (int i = 0; i < o->n_buffers; i++) sum += buffer_bytes(o, i);
    return sum;
}

/* Adds to `sum` what the op makes of this rank's part of a parameter. */
static void add_sum(const Optimizer *o, const Param *p, OpNumber op, FlatBuffer which, void *flat,
                    Tensor *sum) {
    const Registry *r = o->registry;
    const FlatRange part = param_part_held(r, p);
    if (part.end <= part.begin || p->spec.flags & PARAM_BUFFER || !param_speaks(r, p)) return;
    Tensor x = registry_slice(r, which, flat, p->bucket, part.begin, part.end - part.begin);
    /* The exact lane's sum knows no blocks, for a parameter that is cut has others. */
    const SumAttr attr = {o->config->lane == LANE_EXACT ? 1 : SUM_BLOCK};
    call_run(&OPS[op], &(Call){.in = {&x}, .out = {sum}, .attr = &attr, .device = r->device});
}

/* Over all parameters of the whole model, each element once; `words` of the op's sum. */
static void total(const Optimizer *o, OpNumber op, FlatBuffer which, void *flat, void *host, int64_t words) {
    const Registry *r = o->registry;
    Tensor sum = tensor_make(o->sums, I64, 1, &words);
    memset(host, 0, tensor_bytes(&sum));
    device_write(r->device, sum.data, host, tensor_bytes(&sum));
    sum.flags = TENSOR_ACCUM;
    for (int i = 0; i < r->n; i++) add_sum(o, r->params[i], op, which, flat, &sum);
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

/* Whether the update itself rounds values from masters: of what no other rank holds, and nothing comes
 * between. */
static bool updates_values(const Optimizer *o, const OptimStep *s) {
    return o->config->optimizer == OPTIMIZER_ADAM && !o->sync && !s->exact &&
           o->registry->values != o->registry->masters;
}

static void update(Optimizer *o, const Param *p, const OptimStep *s, double grad_scale) {
    const Registry *r = o->registry;
    const FlatRange part = param_part_held(r, p);
    const int64_t n = part.end - part.begin;
    if (n <= 0 || p->spec.flags & PARAM_BUFFER) return;
    const Config *c = o->config;
    Tensor grad = registry_slice(r, FLAT_GRADS, r->grads, p->bucket, part.begin, n);
    Tensor master = registry_slice(r, FLAT_MASTERS, r->masters, p->bucket, part.begin, n);
    Tensor state[OPTIM_BUFFERS];
    for (int i = 0; i < o->n_buffers; i++) {
        state[i] =
            registry_slice_of(r, FLAT_STATE, o->buffer[i].dtype, o->buffer[i].flat, p->bucket, part.begin, n);
        state[i].flags = TENSOR_ACCUM; /* 16-bit ones are read too */
    }
    Tensor value;
    double lr = p->spec.flags & PARAM_EMBEDDING ? s->decoupled_lr : s->lr;
    double decay = p->spec.flags & PARAM_NO_DECAY ? 0 : s->weight_decay;
    Call call = {.in = {&grad}, .out = {&master, &state[0]}, .device = r->device};
    if (c->optimizer == OPTIMIZER_ADAM) {
        AdamAttr attr = {
            .lr = lr,
            .beta1 = c->adam_beta1,
            .beta2 = c->adam_beta2,
            .eps = c->adam_eps,
            .weight_decay = decay,
            .correction1 = 1 - pow(c->adam_beta1, (double)o->step),
            .correction2 = 1 - pow(c->adam_beta2, (double)o->step),
            .grad_scale = grad_scale,
        };
        call.out[2] = &state[1];
        if (updates_values(o, s)) {
            value = registry_slice(r, FLAT_VALUES, r->values, p->bucket, part.begin, n);
            call.out[3] = &value;
        }
        call.attr = &attr;
        call_run(&OPS[OP_adamw], &call);
    } else {
        SgdAttr attr = {
            .lr = lr, .momentum = c->sgd_momentum, .weight_decay = decay, .grad_scale = grad_scale};
        call.attr = &attr;
        call_run(&OPS[OP_sgd], &call);
    }
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
    for (int i = 0; i < r->n; i++) update(o, r->params[i], &s, s.grad_scale * result.clip);
    if (s.exact) registry_snap(r, FLAT_MASTERS, EXACT_GRID_BITS);
    if (o->sync)
        sync_publish(o->sync);
    else if (updates_values(o, &s))
        registry_round_buffers(r);
    else
        registry_round_values(r);
    return result;
}
