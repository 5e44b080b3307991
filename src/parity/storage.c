#include "parity/storage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "kernels/ops.h"
#include "models/option_map.h"
#include "tape/tape_ops.h"

void storage_log_free(StorageLog *log) {
    free(log->calls);
    *log = (StorageLog){0};
}

/* ---- types ---- */

static void check_type(StorageLog *log, const OpDef *op, const Tensor *x, const char *kind, int index) {
    if (!x || !dtype_is_16bit((DType)x->dtype)) return;
    if (!log->narrow++)
        snprintf(log->first_narrow, sizeof log->first_narrow, "%s, %s %d in %s", op->name, kind, index,
                 dtype_name((DType)x->dtype));
}

static void check_types(StorageLog *log, const Config *lane, const OpDef *op, const Call *call) {
    /* This test does not call config_bf16_grads, because it must detect a fault in that function. */
    const bool bf16_grads = lane->grad_reduce_in_bf16 || lane->main_grads_dtype == MAIN_GRADS_BF16;
    for (int k = 0; k < CALL_IN; k++)
        if (op->in[k].precise) check_type(log, op, call->in[k], "input", k);
    for (int k = 0; k < CALL_OUT; k++)
        if (op->out[k].precise) check_type(log, op, call->out[k], "output", k);
    for (int k = 0; k < CALL_OUT && !bf16_grads; k++)
        if (call->out[k] && call->out[k]->flags & TENSOR_MAIN_GRAD)
            check_type(log, op, call->out[k], "main gradient", k);
}

void storage_record(void *storage, const OpDef *op, const Call *call) {
    StorageLog *log = ((Storage *)storage)->log;
    check_types(log, ((Storage *)storage)->lane, op, call);
    if (log->n == log->capacity) {
        log->capacity = log->capacity ? 2 * log->capacity : 1024;
        log->calls = mem_grow(log->calls, (size_t)log->capacity, sizeof *log->calls);
    }
    StorageCall *c = &log->calls[log->n++];
    c->op = (int16_t)op->number;
    for (int i = 0; i < CALL_OUT; i++) c->type[i] = call->out[i] ? call->out[i]->dtype : DTYPES;
}

/* ---- rounding ---- */

static void round_tensor(Tensor *t, DType type) {
    enum { CHUNK = 256 };
    const int64_t width = tensor_width(t);
    double stored[CHUNK];
    for (int64_t row = 0, rows = tensor_rows(t); row < rows; row++)
        for (int64_t i = 0; i < width; i += CHUNK) {
            double *x = (double *)t->data + tensor_row_offset(t, row) + i;
            const size_t n = (size_t)(width - i < CHUNK ? width - i : CHUNK);
            dtype_convert(stored, type, x, F64, n);
            dtype_convert(x, F64, stored, type, n);
        }
}

/* Adds noise of up to half a grid step to a value that the lane rounds. The lane does not round partial sums. */
static void add_grid_noise(Storage *s, Tensor *t) {
    const uint64_t key = hash_name("grid") + (uint64_t)s->draw, seed = (uint64_t)s->lane->seed;
    const double step = ldexp(1, -EXACT_GRID_BITS);
    for (int64_t row = 0, rows = tensor_rows(t), width = tensor_width(t); row < rows; row++) {
        double *x = (double *)t->data + tensor_row_offset(t, row);
        for (int64_t i = 0; i < width; i++)
            if (x[i] != 0) x[i] += (philox_uniform(seed, key, (uint64_t)s->drawn++) - 0.5) * step;
    }
}

static void round_output(Storage *s, Tensor *y, DType type) {
    if (!y || y->dtype != F64) return;
    const bool on_grid = !(y->flags & TENSOR_MAIN_GRAD || tape_grad_is_off_grid(y));
    if (s->lane->lane == LANE_EXACT && on_grid) add_grid_noise(s, y);
    if (s->lane->lane != LANE_EXACT && dtype_is_16bit(type)) round_tensor(y, type);
}

void storage_round(void *storage, const OpDef *op, const Call *call) {
    Storage *s = storage;
    StorageCall of = {0};
    if (s->lane->lane != LANE_EXACT) { /* the exact lane rounds the outputs of every op */
        CHECK(s->at < s->log->n && s->log->calls[s->at].op == op->number,
              "op %lld of the fp64 run is %s, but the low-precision run has a different op there",
              (long long)s->at, op->name);
        of = s->log->calls[s->at++];
    }
    for (int i = 0; i < CALL_OUT; i++) round_output(s, call->out[i], (DType)of.type[i]);
}

/* ---- weights and moments ---- */

/* Adds noise to the parts of a flat buffer that the exact lane rounds. Untrained buffers are rounded but
 * receive no noise, because they change by fixed amounts that always round in the same way. */
static void add_noise_to(Storage *s, const Registry *r, FlatBuffer buffer) {
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        Tensor master = p->master, grad = p->main_grad;
        if (!(p->spec.flags & PARAM_BUFFER))
            add_grid_noise(s, buffer == FLAT_GRADS ? &grad : &master);
        else if (buffer == FLAT_MASTERS)
            for (int64_t k = 0; k < p->count; k++)
                ((double *)master.data)[k] =
                    ldexp(nearbyint(ldexp(((double *)master.data)[k], EXACT_GRID_BITS)), -EXACT_GRID_BITS);
    }
}

void storage_begin(Storage *s, Trainer *t) {
    s->at = s->drawn = 0;
    /* with this scaler, gradients underflow as in the fp16 lane */
    if (s->lane->lane == LANE_FP16) t->scaler = scaler_new(s->lane);
    if (s->lane->lane == LANE_EXACT) add_noise_to(s, t->run.model->registry, FLAT_MASTERS);
}

/* Rounds the weights that the forward and backward passes use. */
void storage_step(Storage *s, Trainer *t) {
    const Registry *r = t->run.model->registry;
    const size_t bytes = (size_t)r->elements * sizeof(double);
    if (s->lane->lane == LANE_EXACT) return;
    s->kept = mem_alloc(bytes);
    memcpy(s->kept, r->masters, bytes);
    for (int i = 0; i < r->n; i++)
        if (!(r->params[i]->spec.flags & PARAM_BUFFER))
            round_tensor(&r->params[i]->master, map_storage(s->lane->lane));
}

void storage_gradients(Storage *s, Trainer *t) {
    const Registry *r = t->run.model->registry;
    if (!s->kept) {
        add_noise_to(s, r, FLAT_GRADS);
        return;
    }
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        if (!(p->spec.flags & PARAM_BUFFER))
            memcpy(p->master.data, s->kept + p->offset, (size_t)p->count * sizeof(double));
    }
    free(s->kept);
    s->kept = NULL;
}

static void round_state(const Trainer *t, int buffer, DType type) {
    const int64_t n = t->run.model->registry->held[t->optimizer->buffer[buffer].layout];
    Tensor all = tensor_make(t->optimizer->buffer[buffer].flat, F64, 1, &n);
    if (type != F64) round_tensor(&all, type);
}

void storage_updated(Storage *s, Trainer *t) {
    for (int i = 0; s->lane->use_precision_aware_optimizer && i < t->optimizer->n_buffers; i++)
        round_state(t, i, optim_moment_type(s->lane, i, F64));
    if (s->lane->lane == LANE_EXACT) add_noise_to(s, t->run.model->registry, FLAT_MASTERS);
}
