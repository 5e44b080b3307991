/* The convolution and the scan of Mamba-2 for a stream of tokens from several requests. The requests' states are stored
 * in slots. causal_conv.c and ssd_scan.c contain the formulas. The scan computes the recurrence token by token, so that
 * results do not depend on how a request's tokens are divided among passes. The tokens of a request are adjacent. A
 * token at position 0 has no earlier tokens. */
#include <string.h>

#include "kernels/cpu/softplus.h"

/* ---- convolution ---- */

typedef struct Conv {
    const Tensor *x;
    const real *w, *bias;
    const int64_t *slot, *position;
    real *y, *states;
    int64_t s, c, k;
} Conv;

static Conv conv_of(const Call *c) {
    const Tensor *x = c->in[0], *w = c->in[1];
    return (Conv){.x = x,
                  .w = reals(w),
                  .bias = c->in[2] ? reals(c->in[2]) : NULL,
                  .slot = int64s(c->in[3]),
                  .position = int64s(c->in[4]),
                  .y = reals(c->out[0]),
                  .states = reals(c->out[1]),
                  .s = x->dim[0],
                  .c = x->dim[2],
                  .k = w->dim[1]};
}

/* Returns the input of a token of a request. `first` is the request's first token in the stream; earlier tokens are in
 * the state. */
static real *input_of(const Conv *o, int64_t first, int64_t t) {
    real *state = o->states + o->slot[first] * (o->k - 1) * o->c;
    return t < first ? state + (o->k - 1 + t - first) * o->c : reals(o->x) + t * o->x->stride[0];
}

/* Computes channels [begin, end) of the outputs of a request's tokens [first, last]. */
static void convolve(const Conv *o, int64_t first, int64_t last, int64_t begin, int64_t end) {
    for (int64_t t = first; t <= last; t++) {
        real *y = o->y + t * o->c;
        for (int64_t j = begin; j < end; j++) y[j] = o->bias ? o->bias[j] : 0;
        for (int64_t i = 0; i < o->k; i++) {
            const int64_t back = o->k - 1 - i;
            if (o->position[t] < back) continue;
            const real *x = input_of(o, first, t - back);
#pragma omp simd
            for (int64_t j = begin; j < end; j++) y[j] += o->w[j * o->k + i] * x[j];
        }
        for (int64_t j = begin; j < end; j++) y[j] *= sigmoid(y[j]);
    }
}

/* Stores the last k - 1 inputs. An input moves only towards the start of the state. */
static void keep(const Conv *o, int64_t first, int64_t last, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < o->k - 1; i++) {
        real *to = o->states + (o->slot[first] * (o->k - 1) + i) * o->c;
        const real *from = input_of(o, first, last - (o->k - 2) + i);
        memmove(to + begin, from + begin, (size_t)(end - begin) * sizeof(real));
    }
}

static void channels(void *arg, int64_t begin, int64_t end) {
    const Conv o = conv_of(arg);
    for (int64_t first = 0, last; first < o.s; first = last + 1) {
        for (last = first; last + 1 < o.s && o.slot[last + 1] == o.slot[first];) last++;
        convolve(&o, first, last, begin, end);
        keep(&o, first, last, begin, end);
    }
}

void KERNEL(stream_conv)(const Call *c) {
    const Tensor *x = c->in[0];
    pool_for(c->device->pool, x->dim[2], grain_rows(x->dim[0]), channels, (void *)c);
}

/* ---- scan ---- */

static void heads(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const ScanAttr *a = c->attr;
    const Tensor *x = c->in[0], *dt = c->in[1];
    const int64_t *slot = int64s(c->in[5]), *position = int64s(c->in[6]);
    const int64_t p = a->head_dim, n = a->state, h = tensor_width(dt);
    for (int64_t head = begin; head < end; head++) {
        const real rate = -REAL_MATH(exp)(reals(c->in[3])[head]), skip = reals(c->in[4])[head],
                   least = (real)a->least, most = (real)a->most;
        for (int64_t t = 0; t < x->dim[0]; t++) {
            const real *row = reals(x) + t * x->dim[2], *own = row + head * p,
                       *b = row + h * p + head / (h / a->groups) * n, *cs = b + a->groups * n;
            const real step = softplus(reals(dt)[t * dt->stride[0] + head] + reals(c->in[2])[head]),
                       delta = step < least  ? least
                               : step > most ? most
                                             : step,
                       kept = REAL_MATH(exp)(rate * delta);
            real *state = reals(c->out[1]) + (slot[t] * h + head) * p * n,
                 *y = reals(c->out[0]) + (t * h + head) * p;
            if (position[t] == 0) memset(state, 0, (size_t)(p * n) * sizeof(real));
            for (int64_t i = 0; i < p; i++, state += n) {
                const real added = delta * own[i];
                real sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t k = 0; k < n; k++) {
                    state[k] = kept * state[k] + added * b[k];
                    sum += state[k] * cs[k];
                }
                y[i] = sum + skip * own[i];
            }
        }
    }
}

void KERNEL(stream_scan)(const Call *c) {
    const ScanAttr *a = c->attr;
    const int64_t h = tensor_width(c->in[1]);
    pool_for(c->device->pool, h, grain_rows(c->in[0]->dim[0] * a->head_dim * a->state), heads, (void *)c);
}
