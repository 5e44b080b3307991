/* Quantizes the operands of FP8 GEMMs, like Transformer Engine
 * common/recipe/{delayed_scaling,current_scaling}.cu and common/recipe/recipe_common.cuh. The results are FP8
 * values, or the numbers that FP8 values represent. Scales and x * scale are floats even if `real` is double,
 * so that both precisions produce equal FP8 values. state and newest are updated in place; y, yt and inverse
 * are written. */
#include <float.h>
#include <string.h>

#include "kernels/cpu/real.h"
#include "tensor/fp8.h"

static float largest(const real *x, int64_t rows, int64_t columns, int64_t stride) {
    real most = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++)
            most = REAL_MATH(fmax)(most, REAL_MATH(fabs)(x[r * stride + i])); /* ignores a NaN */
    return (float)most;
}

/* Returns state g of the states [1+n] or [g,1+n]. */
static real *state_of(const Tensor *states, int64_t g) { return reals(states) + g * tensor_width(states); }

static void add_amax(real *state, float amax) { state[1] = REAL_MATH(fmax)(state[1], (real)amax); }

void KERNEL(amax)(const Call *c) {
    const int64_t matrices = tensor_rows(c->out[0]), each = tensor_count(c->in[0]) / matrices;
    for (int64_t g = 0; g < matrices; g++)
        add_amax(state_of(c->out[0], g), largest(reals(c->in[0]) + g * each, 1, each, 0));
}

static float scale_for(float amax, float most, float otherwise) {
    if (!(amax > 0) || isinf(amax)) return otherwise;
    const float scale = most / amax;
    return isinf(scale) ? FLT_MAX : scale;
}

static void end_step(const Fp8ScaleAttr *a, real *scale, int64_t n) {
    real *amax = scale + 1;
    const float chosen = (float)(a->most_recent ? amax[0] : (real)largest(amax, 1, n, 0));
    *scale = (real)scale_for(chosen, (float)a->largest, (float)*scale);
    const real newest = amax[0];
    memmove(amax, amax + 1, (size_t)(n - 1) * sizeof *amax);
    amax[n - 1] = newest;
    amax[0] = 0;
}

void KERNEL(fp8_scale)(const Call *c) {
    for (int64_t g = 0; g < tensor_rows(c->out[0]); g++)
        end_step(c->attr, state_of(c->out[0], g), tensor_width(c->out[0]) - 1);
}

void KERNEL(fp8_own_scale)(const Call *c) {
    const Fp8ScaleAttr *a = c->attr;
    const int64_t matrices = tensor_rows(c->out[0]), each = tensor_count(c->in[0]) / matrices;
    for (int64_t g = 0; g < matrices; g++) {
        real *state = state_of(c->out[0], g);
        state[0] = (real)scale_for(largest(reals(c->in[0]) + g * each, 1, each, 0), (float)a->largest, 0);
        state[1] = 0;
    }
}

/* Rounds a scale down to a power of two, because the scales of blocks must be powers of two. */
static float power_of_two(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xff800000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void round_block(const Call *c, int64_t at, int64_t rows, int64_t columns, float scale) {
    const QuantizeAttr *a = c->attr;
    const int64_t stride = tensor_width(c->in[0]);
    const float inverse = 1 / scale;
    for (int64_t r = 0; r < rows; r++) {
        const real *x = reals(c->in[0]) + at + r * stride;
        real *y = reals(c->out[0]) + at + r * stride;
        for (int64_t i = 0; i < columns; i++)
            y[i] = (real)fp8_to_float(a->type, fp8_from_float(a->type, (float)x[i] * scale)) * (real)inverse;
    }
}

/* Processes strips of blocks; each strip is `rows` rows high. */
static void strips(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const QuantizeAttr *a = c->attr;
    const int64_t total = tensor_rows(c->in[0]), width = tensor_width(c->in[0]);
    for (int64_t k = begin; k < end; k++) {
        const int64_t row = k * a->rows, rows = total - row < a->rows ? total - row : a->rows;
        for (int64_t at = 0; at < width; at += a->columns) {
            const int64_t n = width - at < a->columns ? width - at : a->columns, first = row * width + at;
            const float amax = largest(reals(c->in[0]) + first, rows, n, width);
            round_block(c, first, rows, n, power_of_two(scale_for(amax, fp8_max(a->type), 1)));
        }
    }
}

static void whole_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const float scale = (float)reals(c->in[1])[0];
    const int64_t width = tensor_width(c->in[0]);
    round_block(c, begin * width, end - begin, width, scale > 0 ? scale : 1);
}

void KERNEL(quantize)(const Call *c) {
    const QuantizeAttr *a = c->attr;
    const int64_t rows = tensor_rows(c->in[0]), width = tensor_width(c->in[0]);
    const int64_t each = c->in[1] ? 1 : a->rows;
    pool_for(c->device->pool, (rows + each - 1) / each, grain_rows(each * width),
             c->in[1] ? whole_rows : strips, (void *)c);
}

/* ---- FP8 values ---- */

/* A matrix of FP8 values. Element (r, i) of the matrix is the cast of x[r * row + i * column]. */
typedef struct Fp8Cast {
    const real *x;
    int64_t rows, columns, row, column;
    Fp8Type type;
    Fp8Blocks blocks;
    float scale; /* the scale for all elements, unless each block has a scale */
    uint8_t *values;
    real *inverse;
    /* distances between rows of `values`, and between columns of blocks in `inverse` (only for FP8_ROWS) */
    int64_t pitch, block_pitch;
} Fp8Cast;

static Fp8Type fp8_type(const Tensor *t) { return t->dtype == F8E4M3 ? E4M3 : E5M2; }

static float scale_of_block(const Fp8Cast *m, int64_t r, int64_t i, int64_t high, int64_t wide) {
    float amax = 0;
    if (m->blocks == FP8_WHOLE) return m->scale;
    for (int64_t a = r; a < r + high; a++)
        for (int64_t b = i; b < i + wide; b++)
            amax = fmaxf(amax, fabsf((float)m->x[a * m->row + b * m->column]));
    return power_of_two(scale_for(amax, fp8_max(m->type), 1));
}

static void write_values(const Fp8Cast *m) {
    const int64_t most = m->blocks == FP8_SQUARES ? FP8_BLOCK : 1,
                  padded = m->blocks == FP8_SQUARES ? fp8_blocks_count(m->blocks, m->rows, m->columns) : 0;
    for (int64_t k = 0; k < padded; k++) m->inverse[k] = 0;
    for (int64_t r = 0; r < m->rows; r += most)
        for (int64_t i = 0; i < m->columns; i += FP8_BLOCK) {
            const int64_t high = m->rows - r < most ? m->rows - r : most,
                          wide = m->columns - i < FP8_BLOCK ? m->columns - i : FP8_BLOCK;
            const float scale = scale_of_block(m, r, i, high, wide);
            if (m->inverse)
                m->inverse[fp8_block_of(m->blocks, m->block_pitch, m->columns, r, i)] = (real)(1 / scale);
            for (int64_t a = r; a < r + high; a++)
                for (int64_t b = i; b < i + wide; b++)
                    m->values[a * m->pitch + b] =
                        fp8_from_float(m->type, (float)m->x[a * m->row + b * m->column] * scale);
        }
}

/* Writes the values of matrix g or, if `turned` is true, of its transpose. */
static void write_matrix(Fp8Cast m, int64_t rows, int64_t width, const Tensor *to, int64_t g, bool turned) {
    m.values = (uint8_t *)to->data + g * rows * width;
    m.rows = turned ? width : rows, m.columns = turned ? rows : width;
    m.row = turned ? 1 : width, m.column = turned ? width : 1;
    m.type = fp8_type(to), m.pitch = m.columns, m.block_pitch = m.rows;
    write_values(&m);
}

void KERNEL(fp8_cast)(const Call *c) {
    const Fp8CastAttr *a = c->attr;
    const Tensor *x = c->in[0], *y = c->out[0], *yt = c->out[1];
    const int64_t matrices = a->matrices ? a->matrices : 1, rows = tensor_rows(x) / matrices,
                  width = tensor_width(x), step = tensor_count(c->out[2]) / matrices;
    CHECK(a->blocks == FP8_WHOLE || !y || !yt,
          "fp8_cast: if each block has a scale, only one of y and yt can be computed");
    for (int64_t g = 0; g < matrices; g++) {
        const float scale = c->in[1] ? (float)*state_of(c->in[1], g) : 1;
        const Fp8Cast m = {.x = reals(x) + g * rows * width,
                           .blocks = a->blocks,
                           .scale = scale > 0 ? scale : 1,
                           .inverse = reals(c->out[2]) + g * step};
        if (a->blocks == FP8_WHOLE) *m.inverse = (real)(1 / m.scale);
        if (y) write_matrix(m, rows, width, y, g, false);
        if (yt) write_matrix(m, rows, width, yt, g, true);
    }
    if (c->out[3]) KERNEL(amax)(&(Call){.in = {c->in[0]}, .out = {c->out[3]}, .device = c->device});
}

/* ---- rows of experts ---- */

void KERNEL(fp8_pad_offsets)(const Call *c) {
    const int64_t *offset = int64s(c->in[0]);
    int64_t *padded = int64s(c->out[0]);
    padded[0] = 0;
    for (int64_t e = 1; e < c->in[0]->dim[0]; e++)
        padded[e] = padded[e - 1] + (offset[e] - offset[e - 1] + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK;
}

void KERNEL(fp8_expert_amax)(const Call *c) {
    const int64_t *offset = int64s(c->in[1]), width = tensor_width(c->in[0]);
    for (int64_t e = 0; e < c->in[1]->dim[0] - 1; e++)
        add_amax(state_of(c->out[0], e),
                 largest(reals(c->in[0]) + offset[e] * width, 1, (offset[e + 1] - offset[e]) * width, 0));
}

static void clear_values(const Tensor *values, const Tensor *inverse) {
    if (!values) return;
    memset(values->data, 0, tensor_bytes(values));
    for (int64_t i = 0; inverse && i < tensor_count(inverse); i++) reals(inverse)[i] = 1;
}

static void cast_experts(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *y = c->out[0], *yt = c->out[1];
    const int64_t *offset = int64s(c->in[1]), *padded = int64s(c->in[2]), width = tensor_width(c->in[0]),
                  total = c->in[0]->dim[0];
    const bool blocks = ((const Fp8CastAttr *)c->attr)->blocks != FP8_WHOLE;
    for (int64_t e = begin; e < end; e++) {
        const int64_t rows = offset[e + 1] - offset[e];
        const float scale = c->in[3] ? (float)*state_of(c->in[3], e) : 0;
        Fp8Cast m = {.x = reals(c->in[0]) + offset[e] * width,
                     .blocks = blocks ? FP8_ROWS : FP8_WHOLE,
                     .scale = scale > 0 ? scale : 1,
                     .row = width,
                     .column = 1};
        if (!blocks && c->out[2]) reals(c->out[2])[e] = (real)(1 / m.scale);
        if (y) {
            m.rows = rows, m.columns = m.pitch = width, m.block_pitch = total;
            m.type = fp8_type(y), m.values = (uint8_t *)y->data + offset[e] * width;
            if (blocks && c->out[2]) m.inverse = reals(c->out[2]) + offset[e];
            write_values(&m);
        }
        if (!yt) continue;
        m.row = 1, m.column = width, m.inverse = NULL;
        m.rows = m.block_pitch = width, m.columns = rows, m.pitch = tensor_width(yt);
        m.type = fp8_type(yt), m.values = (uint8_t *)yt->data + padded[e];
        if (blocks && c->out[3]) m.inverse = reals(c->out[3]) + padded[e] / FP8_BLOCK * width;
        write_values(&m);
    }
}

void KERNEL(fp8_expert_cast)(const Call *c) {
    clear_values(c->out[0], c->out[2]);
    clear_values(c->out[1], c->out[3]);
    pool_for(c->device->pool, c->in[1]->dim[0] - 1, 1, cast_experts, (void *)c);
    if (c->out[4]) KERNEL(fp8_expert_amax)
    (&(Call){.in = {c->in[0], c->in[1]}, .out = {c->out[4]}, .device = c->device});
}

/* ---- weights that are stored in FP8 ---- */

/* A run of consecutive elements in a part of a weight; a run is always in one block. */
typedef struct Run {
    /* position in the part, number of elements, and index of the run's block in `inverse` */
    int64_t at, n, block;
} Run;

static Run run_at(const Fp8PartAttr *a, int64_t at, int64_t end) {
    const int64_t row = (a->first + at) / a->columns, column = (a->first + at) % a->columns,
                  in_matrix = (a->rows - row % a->rows) * a->columns - column, in_row = a->columns - column,
                  in_block = FP8_BLOCK - column % FP8_BLOCK;
    int64_t n = a->blocks == FP8_WHOLE ? in_matrix : in_block < in_row ? in_block : in_row;
    if (end - at < n) n = end - at;
    return (Run){at, n, fp8_block_of_each(a->blocks, a->rows, a->columns, row, column)};
}

static float rounded(DType to, real x) {
    const float y = (float)x;
    return to == BF16 ? bf16_to_float(bf16_from_float(y)) : to == F16 ? f16_to_float(f16_from_float(y)) : y;
}

void KERNEL(fp8_amax_part)(const Call *c) {
    const Fp8PartAttr *a = c->attr;
    const real *x = reals(c->in[0]);
    real *amaxes = reals(c->out[0]);
    const int64_t n = tensor_count(c->in[0]);
    for (Run r = {0}; r.at < n; r.at += r.n) {
        r = run_at(a, r.at, n);
        float most = (float)amaxes[r.block];
        for (int64_t i = r.at; i < r.at + r.n; i++) most = fmaxf(most, fabsf(rounded(a->rounded, x[i])));
        amaxes[r.block] = (real)most;
    }
}

static float scale_of_part(const Call *c, int64_t block) {
    const Fp8PartAttr *a = c->attr;
    const float given = c->in[2] ? (float)*state_of(c->in[2], block) : 0;
    if (c->in[2]) return given > 0 ? given : 1;
    const float scale = scale_for((float)reals(c->in[1])[block], fp8_max(fp8_type(c->out[0])), 1);
    return a->blocks == FP8_WHOLE ? scale : power_of_two(scale);
}

static void cast_part(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Fp8PartAttr *a = c->attr;
    const Fp8Type type = fp8_type(c->out[0]);
    const real *x = reals(c->in[0]);
    uint8_t *y = c->out[0]->data;
    for (Run r = {.at = begin}; r.at < end; r.at += r.n) {
        r = run_at(a, r.at, end);
        const float scale = scale_of_part(c, r.block);
        for (int64_t i = r.at; i < r.at + r.n; i++)
            y[i] = fp8_from_float(type, rounded(a->rounded, x[i]) * scale);
    }
}

void KERNEL(fp8_cast_part)(const Call *c) {
    const Fp8PartAttr *a = c->attr;
    const int64_t each = a->blocks == FP8_WHOLE ? a->rows : FP8_BLOCK, down = (a->rows + each - 1) / each,
                  wide = a->blocks == FP8_WHOLE ? 1 : (a->columns + FP8_BLOCK - 1) / FP8_BLOCK,
                  across = fp8_blocks_across(a->blocks, a->columns),
                  turned = fp8_blocks_across(a->blocks, a->rows);
    real *inverse = reals(c->out[1]), *transposed = c->out[2] ? reals(c->out[2]) : NULL;
    memset(inverse, 0, tensor_bytes(c->out[1])); /* clears the padding */
    if (transposed) memset(transposed, 0, tensor_bytes(c->out[2]));
    for (int64_t r = 0; r < a->matrices * down; r++)
        for (int64_t i = 0; i < wide; i++) {
            inverse[r * across + i] = (real)(1 / scale_of_part(c, r * across + i));
            if (transposed) transposed[(r / down * wide + i) * turned + r % down] = inverse[r * across + i];
        }
    pool_for(c->device->pool, tensor_count(c->in[0]), GRAIN, cast_part, (void *)c);
}

void KERNEL(fp8_decode)(const Call *c) {
    const Fp8CastAttr *a = c->attr;
    const Tensor *x = c->in[0];
    const Fp8Type type = fp8_type(x);
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const uint8_t *values = x->data;
    const real *inverse = reals(c->in[1]);
    real *y = reals(c->out[0]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = (real)fp8_to_float(type, values[r * width + i]) *
                               inverse[fp8_block_of(a->blocks, rows, width, r, i)];
}

void KERNEL(fp8_transpose)(const Call *c) {
    const int64_t rows = tensor_width(c->out[0]), width = tensor_width(c->in[0]), all = tensor_rows(c->in[0]);
    const uint8_t *x = c->in[0]->data;
    uint8_t *y = c->out[0]->data;
    for (int64_t r = 0; r < all; r++)
        for (int64_t i = 0; i < width; i++) y[(r / rows * width + i) * rows + r % rows] = x[r * width + i];
}
