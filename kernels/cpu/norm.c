/* LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) over rows of the last dimension.
 *
 *   rstd  = 1 / sqrt(mean((x - mean)^2) + eps)
 *   xhat  = (x - mean) * rstd
 *   y     = xhat * g + bias                                    g is the gain, or 1 + gain (--apply-layernorm-1p)
 *   dx    = rstd * (dy g - mean(dy g) - xhat * mean(dy g xhat))
 *   dgain = sum of dy xhat,  dbias = sum of dy
 *
 * For RMSNorm, mean and bias are 0, and dx has no term mean(dy g). The op add_norm normalizes a + b. sum, y,
 * rstd and mean are written; dx, dgain and dbias are written or accumulated. */
#include "kernels/cpu/real.h"

static real sum_of(const real *x, int64_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

static real sum_of_squares(const real *x, real mean, int64_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

static void norm_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const NormAttr *a = c->attr;
    const Tensor *x = c->in[0];
    const int64_t h = tensor_width(x);
    const real *gain = reals(c->in[1]), *bias = c->in[2] ? reals(c->in[2]) : NULL, plus = a->one_plus;
    for (int64_t r = begin; r < end; r++) {
        const real *row = reals(x) + tensor_row_offset(x, r);
        const real mean = a->rms ? 0 : sum_of(row, h) / (real)h;
        const real rstd = 1 / REAL_MATH(sqrt)(sum_of_squares(row, mean, h) / (real)h + (real)a->eps);
        real *y = reals(c->out[0]) + r * h;
        if (bias) {
#pragma omp simd
            for (int64_t i = 0; i < h; i++) y[i] = (row[i] - mean) * rstd * (plus + gain[i]) + bias[i];
        } else {
#pragma omp simd
            for (int64_t i = 0; i < h; i++) y[i] = (row[i] - mean) * rstd * (plus + gain[i]);
        }
        reals(c->out[1])[r] = rstd;
        if (c->out[2]) reals(c->out[2])[r] = mean;
    }
}

void KERNEL(norm)(const Call *c) {
    const Tensor *x = c->in[0];
    pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)), norm_rows, (void *)c);
}

/* If activations are stored in 16 bits, the sum is rounded to 16 bits in y's row, which is not in use yet. */
static void sum_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t h = tensor_width(c->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *a = reals(c->in[0]) + r * h, *b = reals(c->in[1]) + r * h;
        real *sum = reals(c->out[0]) + r * h, *y = reals(c->out[1]) + r * h;
#pragma omp simd
        for (int64_t i = 0; i < h; i++) sum[i] = a[i] + b[i];
        if (!dtype_is_16bit(c->stored)) continue;
        dtype_convert(y, c->stored, sum, REAL_TYPE, (size_t)h);
        dtype_convert(sum, REAL_TYPE, y, c->stored, (size_t)h);
    }
}

void KERNEL(add_norm)(const Call *c) {
    const Tensor *a = c->in[0];
    CHECK(tensor_is_contiguous(a) && tensor_is_contiguous(c->in[1]), "add_norm: a and b must be contiguous");
    pool_for(c->device->pool, tensor_rows(a), grain_rows(tensor_width(a)), sum_rows, (void *)c);
    KERNEL(norm)
    (&(Call){.in = {c->out[0], c->in[2], c->in[3]},
             .out = {c->out[1], c->out[2], c->out[3]},
             .attr = c->attr,
             .device = c->device});
}

static void dx_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const NormAttr *a = c->attr;
    const Tensor *x = c->in[1], *dx = c->out[0];
    const int64_t h = tensor_width(x);
    const real *gain = reals(c->in[2]), plus = a->one_plus;
    for (int64_t r = begin; r < end; r++) {
        const real *dy = reals(c->in[0]) + r * h, *row = reals(x) + tensor_row_offset(x, r);
        const real rstd = reals(c->in[3])[r], mean = a->rms ? 0 : reals(c->in[4])[r];
        real sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
        for (int64_t i = 0; i < h; i++) {
            const real g = dy[i] * (plus + gain[i]);
            sum += g;
            along += g * ((row[i] - mean) * rstd);
        }
        sum = a->rms ? 0 : sum / (real)h;
        along /= (real)h;
        real *out = reals(dx) + tensor_row_offset(dx, r);
        const bool add = accumulates(dx);
#pragma omp simd
        for (int64_t i = 0; i < h; i++) {
            const real v = rstd * (dy[i] * (plus + gain[i]) - sum - (row[i] - mean) * rstd * along);
            out[i] = add ? out[i] + v : v;
        }
    }
}

/* For columns [first, first + n) of dgain and dbias, adds one sample's contributions to sum_gain and sum_bias. n <=
 * COLUMNS. */
enum { COLUMNS = 64 };
static void sample_sums(const Call *c, int64_t sample, int64_t first, int64_t n, real *sum_gain,
                        real *sum_bias) {
    const Tensor *x = c->in[1];
    const int64_t h = tensor_width(x), s = x->dim[0], b = x->dim[1], inner = tensor_rows(x) / (s * b);
    for (int64_t i = 0; i < s; i++)
        for (int64_t k = 0; k < inner; k++) {
            const int64_t r = (i * b + sample) * inner + k;
            const real *dy = reals(c->in[0]) + r * h + first,
                       *row = reals(x) + tensor_row_offset(x, r) + first;
            const real rstd = reals(c->in[3])[r], mean = c->in[4] ? reals(c->in[4])[r] : 0;
#pragma omp simd
            for (int64_t j = 0; j < n; j++) {
                sum_gain[j] += dy[j] * ((row[j] - mean) * rstd);
                sum_bias[j] += dy[j];
            }
        }
}

static void put(Tensor *out, int64_t first, int64_t n, const real *sum, bool add) {
    if (!out) return;
    real *o = reals(out) + first;
    for (int64_t j = 0; j < n; j++) o[j] = add ? o[j] + sum[j] : sum[j];
}

static void parameter_columns(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *x = c->in[1];
    const int64_t h = tensor_width(x);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit * COLUMNS, n = h - first < COLUMNS ? h - first : COLUMNS;
        for (int64_t sample = 0; sample < x->dim[1]; sample++) {
            real sum_gain[COLUMNS] = {0}, sum_bias[COLUMNS] = {0};
            sample_sums(c, sample, first, n, sum_gain, sum_bias);
            put(c->out[1], first, n, sum_gain, sample > 0 || (c->out[1] && accumulates(c->out[1])));
            put(c->out[2], first, n, sum_bias, sample > 0 || (c->out[2] && accumulates(c->out[2])));
        }
    }
}

void KERNEL(norm_grad)(const Call *c) {
    const Tensor *x = c->in[1];
    const int64_t rows = tensor_rows(x), h = tensor_width(x);
    if (c->out[0]) pool_for(c->device->pool, rows, grain_rows(h), dx_rows, (void *)c);
    if (c->out[1] || c->out[2])
        pool_for(c->device->pool, (h + COLUMNS - 1) / COLUMNS, grain_rows(COLUMNS * rows), parameter_columns,
                 (void *)c);
}
