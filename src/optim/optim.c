#include "optim/optim.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

static size_t buffer_bytes(const Registry *r) { return (size_t)r->elements * dtype_size(r->precise); }

Optimizer *optim_new(const Config *c, Registry *r) {
    static const char *const ADAM[] = {".exp_avg", ".exp_avg_sq"}, *const SGD[] = {".momentum_buffer"};
    bool adam = c->optimizer == OPTIMIZER_ADAM;
    Optimizer *o = mem_zero(1, sizeof *o);
    *o = (Optimizer){.config = c, .registry = r, .n_buffers = adam ? 2 : 1};
    for (int i = 0; i < o->n_buffers; i++) {
        o->buffer[i].suffix = adam ? ADAM[i] : SGD[i];
        o->buffer[i].flat = device_alloc(r->device, buffer_bytes(r), "optimizer state");
    }
    return o;
}

void optim_free(Optimizer *o) {
    if (!o) return;
    for (int i = 0; i < o->n_buffers; i++)
        device_release(o->registry->device, o->buffer[i].flat, buffer_bytes(o->registry));
    free(o);
}

size_t optim_bytes(const Optimizer *o) { return (size_t)o->n_buffers * buffer_bytes(o->registry); }

/* The logical elements of a tensor shaped like p, as a flat tensor: padding rows are the last ones. */
static Tensor logical(const Param *p, const Tensor *t) {
    return tensor_make(t->data, (DType)t->dtype, 1, (int64_t[]){param_logical_count(p)});
}

static Tensor buffer_of(const Optimizer *o, int i, const Param *p) {
    const Registry *r = o->registry;
    char *data = (char *)o->buffer[i].flat + (size_t)p->offset * dtype_size(r->precise);
    return tensor_make(data, r->precise, 1, (int64_t[]){param_logical_count(p)});
}

/* Runs a reduction to one double over the same tensor of every parameter and adds the results in registration
 * order. */
static double total(const Registry *r, OpNumber op, size_t member) {
    double sum = 0;
    for (int i = 0; i < r->n; i++) {
        if (r->params[i]->spec.flags & PARAM_BUFFER) continue;
        double part = 0;
        Tensor x = logical(r->params[i], (const Tensor *)((const char *)r->params[i] + member));
        Tensor out = tensor_make(&part, F64, 1, (int64_t[]){1});
        call_run(&OPS[op], &(Call){.in = {&x}, .out = {&out}, .device = r->device});
        sum += part;
    }
    return sum;
}

double optim_params_norm(const Registry *r) {
    return sqrt(total(r, OP_sum_squares, offsetof(Param, master)));
}

static void update(Optimizer *o, const Param *p, const OptimStep *s, double grad_scale) {
    const Config *c = o->config;
    Tensor grad = logical(p, &p->main_grad), master = logical(p, &p->master);
    Tensor state[OPTIM_BUFFERS];
    for (int i = 0; i < o->n_buffers; i++) state[i] = buffer_of(o, i, p);
    double lr = p->spec.flags & PARAM_EMBEDDING ? s->decoupled_lr : s->lr;
    double decay = p->spec.flags & PARAM_NO_DECAY ? 0 : s->weight_decay;
    Call call = {.in = {&grad}, .out = {&master, &state[0]}, .device = o->registry->device};
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
    result.grad_norm = sqrt(total(r, OP_sum_squares, offsetof(Param, main_grad))) * fabs(s.grad_scale);
    if (c->log_num_zeros_in_grad) result.num_zeros = total(r, OP_count_zeros, offsetof(Param, main_grad));
    result.found_inf = !isfinite(result.grad_norm);
    if (result.found_inf) return result;
    if (c->clip_grad > 0) result.clip = fmin(1, c->clip_grad / (result.grad_norm + 1e-6));
    o->step++;
    for (int i = 0; i < r->n; i++)
        if (!(r->params[i]->spec.flags & PARAM_BUFFER))
            update(o, r->params[i], &s, s.grad_scale * result.clip);
    registry_round_values(r);
    return result;
}
