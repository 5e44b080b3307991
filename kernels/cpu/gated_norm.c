/* RMSNorm with a gate over groups of m channels. The gate multiplies before the norm, as in Mamba-2:
 *
 *   u     = x silu(z),  silu(z) = z sigmoid(z)
 *   rstd  = 1 / sqrt(mean(u^2) + eps),  y = u rstd gain
 *   du    = rstd (dy gain - u rstd^2 mean(dy gain u))
 *   dx    = du silu(z),  dz = du x sigmoid(z) (1 + z (1 - sigmoid(z)))
 *   dgain = sum of dy u rstd
 *
 * y and rstd are written; dx, dz and dgain are written or accumulated. */
#include "kernels/cpu/softplus.h"

static int64_t groups_of(const Call *c) { return ((const GatedNormAttr *)c->attr)->groups; }

/* A unit of work is a group of a row. */
static void norm_units(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *x = c->in[0], *z = c->in[1];
    const int64_t groups = groups_of(c), m = tensor_width(x) / groups;
    const real eps = (real)((const GatedNormAttr *)c->attr)->eps;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % groups * m;
        const real *in = reals(x) + unit * m, *gain = reals(c->in[2]) + first,
                   *gate = reals(z) + tensor_row_offset(z, unit / groups) + first;
        real *y = reals(c->out[0]) + unit * m, sum = 0;
        for (int64_t i = 0; i < m; i++) y[i] = in[i] * gate[i] * sigmoid(gate[i]);
        for (int64_t i = 0; i < m; i++) sum += y[i] * y[i];
        const real rstd = 1 / REAL_MATH(sqrt)(sum / (real)m + eps);
        for (int64_t i = 0; i < m; i++) y[i] *= rstd * gain[i];
        reals(c->out[1])[unit] = rstd;
    }
}

void KERNEL(gated_norm)(const Call *c) {
    const int64_t groups = groups_of(c), rows = tensor_rows(c->in[0]);
    pool_for(c->device->pool, rows * groups, grain_rows(tensor_width(c->in[0]) / groups), norm_units,
             (void *)c);
}

static void put(const Tensor *out, real *to, real value) { *to = accumulates(out) ? *to + value : value; }

static void grad_units(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *x = c->in[1], *z = c->in[2], *dx = c->out[0], *dz = c->out[1];
    const int64_t groups = groups_of(c), m = tensor_width(x) / groups;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % groups * m;
        const real *dy = reals(c->in[0]) + unit * m, *in = reals(x) + unit * m,
                   *gate = reals(z) + tensor_row_offset(z, unit / groups) + first,
                   *gain = reals(c->in[3]) + first, rstd = reals(c->in[4])[unit];
        real along = 0;
        for (int64_t i = 0; i < m; i++) along += dy[i] * gain[i] * (in[i] * gate[i] * sigmoid(gate[i]));
        along *= rstd * rstd / (real)m;
        for (int64_t i = 0; i < m; i++) {
            const real open = sigmoid(gate[i]), silu = gate[i] * open,
                       du = rstd * (dy[i] * gain[i] - in[i] * silu * along);
            if (dx) put(dx, reals(dx) + unit * m + i, du * silu);
            if (dz)
                put(dz, reals(dz) + tensor_row_offset(dz, unit / groups) + first + i,
                    du * in[i] * open * (1 + gate[i] * (1 - open)));
        }
    }
}

static void gain_columns(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *x = c->in[1], *z = c->in[2], *out = c->out[2];
    const int64_t s = x->dim[0], b = x->dim[1], width = x->dim[2], groups = groups_of(c), m = width / groups;
    for (int64_t j = begin; j < end; j++)
        for (int64_t sample = 0; sample < b; sample++) {
            real sum = 0, *to = reals(out) + j;
            for (int64_t t = 0; t < s; t++) {
                const int64_t row = t * b + sample;
                const real gate = reals(z)[tensor_row_offset(z, row) + j];
                sum += reals(c->in[0])[row * width + j] * (reals(x)[row * width + j] * gate * sigmoid(gate) *
                                                           reals(c->in[4])[row * groups + j / m]);
            }
            *to = sample || accumulates(out) ? *to + sum : sum;
        }
}

void KERNEL(gated_norm_grad)(const Call *c) {
    const Tensor *x = c->in[1];
    const int64_t groups = groups_of(c), rows = tensor_rows(x), width = tensor_width(x);
    if (c->out[0] || c->out[1])
        pool_for(c->device->pool, rows * groups, grain_rows(width / groups), grad_units, (void *)c);
    if (c->out[2]) pool_for(c->device->pool, width, grain_rows(rows), gain_columns, (void *)c);
}
