#include "optim/muon.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/exact_sum.h"
#include "base/fault.h"
#include "base/mem.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "param/bucket.h"

/* ---- coefficients of the steps (emerging_optimizers/orthogonalized_optimizers/muon_utils.py) ---- */

#define SIMPLE                                                                                               \
    { 3.4445, -4.7750, 2.0315 }
#define POLISH                                                                                               \
    { 2.0, -1.5, 0.5 }
typedef struct Coefficients {
    int n;
    /* whether steps after the first n repeat only the last step, instead of the whole sequence */
    bool repeats_last;
    double step[10][3];
} Coefficients;

static const Coefficients COEFFICIENTS[] = {
    [MUON_SIMPLE] = {1, false, {SIMPLE}},
    [MUON_QUINTIC] = {5,
                      false,
                      {{4.0848, -6.8946, 2.9270},
                       {3.9505, -6.3029, 2.6377},
                       {3.7418, -5.5913, 2.3037},
                       {2.8769, -3.1427, 1.2046},
                       {2.8366, -3.0525, 1.2012}}},
    [MUON_POLAR_EXPRESS] = {8,
                            true,
                            {{8.2051, -22.9019, 16.4607},
                             {4.0664, -2.8612, 0.5184},
                             {3.9096, -2.8234, 0.5250},
                             {3.2856, -2.4153, 0.4853},
                             {2.2779, -1.6198, 0.3985},
                             {1.8726, -1.2307, 0.3585},
                             {1.8564, -1.2132, 0.3568},
                             {1.8750, -1.2500, 0.3750}}},
    [MUON_CANS] = {5,
                   true,
                   {{8.4703, -25.1081, 18.6293},
                    {4.1828, -3.1087, 0.5806},
                    {3.9619, -2.9541, 0.5630},
                    {3.2866, -2.4647, 0.5074},
                    {2.2737, -1.6447, 0.4162}}},
    [MUON_AOL] = {4,
                  false,
                  {{4.0098, -7.0585, 2.4635},
                   {3.4585, -5.5479, 2.5959},
                   {2.7573, -3.2939, 1.4254},
                   {2.7215, -3.0494, 1.3169}}},
    [MUON_DEEPSEEKV4] = {10,
                         true,
                         {SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, SIMPLE, POLISH, POLISH}},
    [MUON_CUBIC5] = {5,
                     false,
                     {{3.3656576, -3.3420992, 0},
                      {2.5744352, -1.4957376, 0},
                      {2.5368962, -1.4312570, 0},
                      {2.4418906, -1.2764040, 0},
                      {2.2230472, -0.9630650, 0}}},
};

static const double *coefficients(const Config *c, int64_t step) {
    const Coefficients *k = &COEFFICIENTS[c->muon_coefficient_type];
    return k->step[step < k->n ? step : k->repeats_last ? k->n - 1 : step % k->n];
}

/* ---- memory ---- */

/* The buffers. Each buffer has space for this rank's largest operand. X, GRAM and POLYNOMIAL have the type of
 * the GEMM operands. */
typedef enum Buffer { UPDATE, GATHERED, MATRIX, SUM, X, GRAM, POLYNOMIAL, BUFFERS } Buffer;

struct Muon {
    const Config *config;
    Registry *registry;
    Sync *sync; /* NULL if there is only one rank */
    DType gemm; /* the type of the GEMM operands */
    int64_t size[BUFFERS];
    void *buffer[BUFFERS];
    void *squares; /* an ExactSum */
};

static DType type_of(const Muon *m, Buffer b) { return b < X ? m->registry->precise : m->gemm; }
static size_t bytes_of(const Muon *m, Buffer b) { return (size_t)m->size[b] * dtype_size(type_of(m, b)); }

static Tensor tensor_in(const Muon *m, Buffer b, int64_t rows, int64_t columns) {
    CHECK(rows * columns <= m->size[b], "muon: %lld x %lld elements do not fit into a buffer of %lld",
          (long long)rows, (long long)columns, (long long)m->size[b]);
    return tensor_make(m->buffer[b], type_of(m, b), 3, (int64_t[]){rows, 1, columns});
}

/* ---- a weight's matrices ---- */

static bool is_gathered(const Muon *m, const Param *p) {
    return p->shards > 1 && m->config->muon_tp_mode == MUON_DUPLICATED;
}
static bool is_distributed(const Muon *m, const Param *p) {
    return p->shards > 1 && m->config->muon_tp_mode == MUON_DISTRIBUTED;
}
static bool is_split_qkv(const Muon *m, const Param *p) {
    return m->config->muon_split_qkv && strstr(p->spec.name, ".linear_qkv.");
}

/* A matrix within a weight. `from` and `own` are strided views of this rank's memory. `from` is a view of the gathered
 * weight or of this rank's shard, and contains all `rows` x `columns` elements. `own` contains the elements in this
 * rank's shard. `whole` is the size that determines the scale. */
typedef struct Matrix {
    Tensor from, own;
    int64_t rows, columns, first_row, first_column, whole[2];
} Matrix;

static Tensor view(Tensor base, int64_t at, int64_t a, int64_t a_stride, int64_t b, int64_t b_stride,
                   int64_t c) {
    Tensor t = tensor_make((char *)base.data + at * (int64_t)dtype_size((DType)base.dtype), (DType)base.dtype,
                           3, (int64_t[]){a, b, c});
    t.stride[0] = a_stride, t.stride[1] = b_stride;
    return t;
}

static int matrix_count(const Muon *m, const Param *p) {
    const int64_t each = p->spec.dim[0] / p->spec.groups / (p->spec.tp_split == 0 ? p->shards : 1);
    return is_split_qkv(m, p) ? p->spec.n_parts : p->spec.expert ? (int)(p->rows / each) : 1;
}

/* Divides this rank's shard into n equal ranges of rows, and returns range k as a matrix. */
static Matrix matrix_of_rows(const Param *p, Tensor local, const Tensor *gathered, int k, int n) {
    const int64_t r = p->rows / n, c = p->columns, at = k * r * c, shards = p->shards;
    const bool by_rows = p->spec.tp_split == 0, by_columns = p->spec.tp_split == 1;
    Matrix x = {.own = view(local, at, 1, r * c, r, c, c), .rows = r, .columns = c};
    x.whole[0] = by_rows ? r * shards : r, x.whole[1] = by_columns ? c * shards : c;
    x.from = x.own;
    if (gathered && by_rows) {
        x.from = view(*gathered, at, shards, p->count, r, c, c);
        x.rows = r * shards, x.first_row = r * p->shard;
    } else if (gathered) {
        x.from = view(*gathered, at, r, c, shards, p->count, c);
        x.columns = c * shards, x.first_column = c * p->shard;
    }
    return x;
}

/* Returns part k of all groups as a matrix. If there are more ranks than groups, a rank holds rows of only one
 * group. */
static Matrix matrix_of_part(const Param *p, Tensor local, const Tensor *gathered, int k) {
    const Box box = param_boxes(p, k) ? param_box(p, k, 0) : (Box){{0}, {0}};
    const int64_t each = p->spec.parts[k].rows, r = box.shape[0], c = p->columns,
                  group = p->spec.dim[0] / p->spec.groups, run = r % each ? r : each,
                  at = r ? param_memory_row(p, k, box.offset[0]) : 0;
    Matrix x = {.own = view(local, at * c, r / run, group * c, run, c, c), .rows = r, .columns = c};
    x.whole[0] = param_part_rows(p, k), x.whole[1] = c;
    x.from = x.own;
    if (gathered) {
        int64_t before = 0;
        for (int i = 0; i < k; i++) before += p->spec.parts[i].rows;
        x.from = view(*gathered, before * c, p->spec.groups, group * c, each, c, c);
        x.rows = x.whole[0], x.first_row = box.offset[0];
    }
    return x;
}

/* Returns matrix k of the weight. `local` is this rank's shard. `gathered` contains the shards of all ranks,
 * or is NULL. */
static Matrix matrix_of(const Muon *m, const Param *p, Tensor local, const Tensor *gathered, int k) {
    Matrix x = is_split_qkv(m, p) ? matrix_of_part(p, local, gathered, k)
                                  : matrix_of_rows(p, local, gathered, k, matrix_count(m, p));
    if (!gathered && !is_distributed(m, p)) x.whole[0] = x.rows, x.whole[1] = x.columns;
    return x;
}

/* Returns whether the Gram matrix is x^T x instead of x x^T. */
static bool is_tall(const Muon *m, const Param *p, const Matrix *x) {
    return is_distributed(m, p) ? p->spec.tp_split == 0 : x->rows > x->columns;
}

static int64_t gram_size(const Muon *m, const Param *p, const Matrix *x) {
    return is_tall(m, p, x) ? x->columns : x->rows;
}

/* ---- construction ---- */

static void grow(int64_t *size, int64_t n) { *size = n > *size ? n : *size; }

static void reserve(Muon *m, const Param *p) {
    /* the tensor has no memory, because only shapes are read */
    const Tensor none = tensor_make(m, m->registry->precise, 1, &p->count);
    const bool gathers = is_gathered(m, p);
    grow(&m->size[UPDATE], p->count);
    if (gathers) grow(&m->size[GATHERED], p->count * p->shards);
    for (int k = 0; k < matrix_count(m, p); k++) {
        const Matrix x = matrix_of(m, p, none, gathers ? &none : NULL, k);
        const int64_t gram = gram_size(m, p, &x);
        grow(&m->size[MATRIX], x.rows * x.columns), grow(&m->size[X], x.rows * x.columns);
        grow(&m->size[SUM], gram * gram), grow(&m->size[GRAM], gram * gram);
        grow(&m->size[POLYNOMIAL], gram * gram);
    }
}

Muon *muon_new(const Config *c, Registry *r, Sync *sync) {
    Muon *m = mem_zero(1, sizeof *m);
    *m = (Muon){.config = c, .registry = r, .sync = sync};
    m->gemm = r->precise == F32 && c->muon_fp32_matmul_prec == MATMUL_MEDIUM ? BF16 : r->precise;
    bool any = false;
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        const FlatRange held = param_part_held(r, p);
        if (!(p->spec.flags & PARAM_MATRIX)) continue;
        any = true;
        if (held.end > held.begin) reserve(m, p);
    }
    if (!any) {
        free(m);
        return NULL;
    }
    for (int b = 0; b < BUFFERS; b++)
        m->buffer[b] = device_alloc(r->device, bytes_of(m, (Buffer)b), "a Muon update");
    m->squares = device_alloc(r->device, sizeof(ExactSum), "a Muon update");
    return m;
}

size_t muon_bytes(const Muon *m) {
    size_t sum = m ? sizeof(ExactSum) : 0;
    for (int b = 0; m && b < BUFFERS; b++) sum += bytes_of(m, (Buffer)b);
    return sum;
}

void muon_free(Muon *m) {
    if (!m) return;
    Device *d = m->registry->device;
    for (int b = 0; b < BUFFERS; b++) device_release(d, m->buffer[b], bytes_of(m, (Buffer)b));
    device_release(d, m->squares, sizeof(ExactSum));
    free(m);
}

/* ---- Newton-Schulz ---- */

static void run(const Muon *m, OpNumber op, Tensor *a, Tensor *b, Tensor *out, const void *attr) {
    call_run(&OPS[op], &(Call){.in = {a, b}, .out = {out}, .attr = attr, .device = m->registry->device});
}

/* Computes y = factor * x or, if `add` is true, y += factor * x. */
static void scale(const Muon *m, double factor, Tensor *x, Tensor *y, bool add) {
    y->flags = add ? TENSOR_ACCUM : 0;
    run(m, OP_scale, x, NULL, y, &(FactorAttr){factor});
}

/* Computes y [i,1,k] = a [i,1,j] b [j,1,k] or, if `add` is true, y += a b. */
static void multiply(const Muon *m, Tensor *a, const Tensor *b, Tensor *y, bool add) {
    Tensor w = tensor_make(b->data, (DType)b->dtype, 2, (int64_t[]){b->dim[0], b->dim[2]});
    y->flags = add ? TENSOR_ACCUM : 0;
    run(m, OP_linear_dgrad, a, &w, y, &(LinearAttr){.fixed_order = false});
}

/* Computes gram = x x^T or, if `tall` is true, x^T x. */
static void multiply_by_itself(const Muon *m, Tensor *x, bool tall, Tensor *gram) {
    const LinearAttr attr = {.fixed_order = false};
    Tensor w = tensor_make(x->data, (DType)x->dtype, 2, (int64_t[]){x->dim[0], x->dim[2]});
    Tensor square = tensor_make(gram->data, (DType)gram->dtype, 2, (int64_t[]){gram->dim[0], gram->dim[2]});
    if (tall)
        run(m, OP_linear_wgrad, x, x, &square, &attr);
    else
        run(m, OP_linear, x, &w, gram, &attr);
}

/* Computes y = factor * NS(x), both [rows,1,columns]. Overwrites x. In each step, x, A and b A + c A^2
 * (muon.h) are rounded to the GEMM type. */
static void iterate(const Muon *m, const Param *p, const Matrix *of, double factor, Tensor *x, Tensor *y) {
    const int64_t n = gram_size(m, p, of), steps = m->config->muon_num_ns_steps;
    const bool tall = is_tall(m, p, of);
    Tensor gram = tensor_in(m, GRAM, n, n), sum = tensor_in(m, SUM, n, n),
           polynomial = tensor_in(m, POLYNOMIAL, n, n);
    for (int64_t i = 0; i < steps; i++) {
        const double *k = coefficients(m->config, i), by = i == steps - 1 ? factor : 1;
        if (i) run(m, OP_copy, y, NULL, x, NULL);
        multiply_by_itself(m, x, tall, &gram);
        if (is_distributed(m, p)) sync_sum_shards(m->sync, p, m->gemm, gram.data, n * n);
        if (k[2] != 0) {
            multiply(m, &gram, &gram, &sum, false);
            scale(m, k[1] / k[2], &gram, &sum, true);
            scale(m, by * k[2], &sum, &polynomial, false);
        } else {
            scale(m, by * k[1], &gram, &polynomial, false);
        }
        scale(m, by * k[0], x, y, false);
        if (tall)
            multiply(m, x, &polynomial, y, true);
        else
            multiply(m, &polynomial, x, y, true);
    }
}

static double factor_of(const Config *c, const int64_t whole[2]) {
    const double out = (double)whole[0], in = (double)whole[1];
    const double square = c->muon_scale_mode == MUON_SPECTRAL        ? fmax(out, in)
                          : c->muon_scale_mode == MUON_UNIT_RMS_NORM ? out / in
                                                                     : fmax(1, out / in);
    return sqrt(square) * c->muon_extra_scale_factor;
}

/* Replaces the elements of `own` with this rank's shard of scale * NS(from). */
static void orthogonalise(const Muon *m, const Param *p, Matrix *x) {
    Registry *r = m->registry;
    const int64_t n = x->rows * x->columns;
    Tensor flat = tensor_make(m->buffer[MATRIX], r->precise, 1, &n),
           packed = tensor_make(flat.data, r->precise, 3, x->from.dim),
           squares = tensor_make(m->squares, I64, 1, (int64_t[]){EXACT_WORDS}),
           unit = tensor_in(m, X, x->rows, x->columns), flat_unit = tensor_make(unit.data, m->gemm, 1, &n),
           now = tensor_in(m, MATRIX, x->rows, x->columns);
    run(m, OP_copy, &x->from, NULL, &packed, NULL);
    run(m, OP_sum_squares, &flat, NULL, &squares, &(SumAttr){SUM_BLOCK});
    if (is_distributed(m, p)) sync_sum_shards(m->sync, p, I64, m->squares, EXACT_WORDS);
    run(m, OP_unit_norm, &flat, &squares, &flat_unit, NULL);
    iterate(m, p, x, factor_of(m->config, x->whole), &unit, &now);
    Tensor mine = view(now, x->first_row * x->columns + x->first_column, x->own.dim[0],
                       x->own.dim[1] * x->columns, x->own.dim[1], x->columns, x->own.dim[2]);
    run(m, OP_copy, &mine, NULL, &x->own, NULL);
}

void muon_update(const Muon *m, const Param *p, MuonSlices s, Tensor *numbers) {
    const Config *c = m->config;
    const SgdAttr attr = {.momentum = c->muon_momentum, .nesterov = c->muon_nesterov};
    Tensor update = tensor_make(m->buffer[UPDATE], m->registry->precise, 1, &p->count),
           gathered =
               tensor_make(m->buffer[GATHERED], m->registry->precise, 1, (int64_t[]){p->count * p->shards});
    CHECK(param_filled_rows(p) == p->rows, "'%s': a matrix must not have padding", p->spec.name);
    call_run(&OPS[OP_muon_momentum], &(Call){.in = {&s.grad, NULL, numbers},
                                             .out = {&s.momentum, &update},
                                             .attr = &attr,
                                             .device = m->registry->device});
    const bool gathers = is_gathered(m, p);
    if (gathers) sync_gather_shards(m->sync, p, m->registry->precise, update.data, gathered.data, p->count);
    for (int k = 0; k < matrix_count(m, p); k++) {
        Matrix x = matrix_of(m, p, update, gathers ? &gathered : NULL, k);
        orthogonalise(m, p, &x);
    }
    call_run(&OPS[OP_muon_update], &(Call){.in = {&update, NULL, numbers},
                                           .out = {&s.master},
                                           .attr = &attr,
                                           .device = m->registry->device});
}
