/* Calls of ops that no row of cases.def reaches by itself (calls.def): their operands, and what a call of
 * numbers without meaning would not show. */
#ifndef ISOTRON_TESTS_OPS_DIRECT_H
#define ISOTRON_TESTS_OPS_DIRECT_H

#include <float.h>

#include "base/exact_sum.h"
#include "kernels/ops.h"
#include "unit/ops/case.h"

typedef enum OperandType {
    OPERAND_NONE,
    OPERAND_STORAGE,
    OPERAND_ARITHMETIC, /* double beside F64, else float */
    OPERAND_FIXED,      /* `dtype` */
} OperandType;

typedef enum OperandFill {
    FILL_GRID,
    FILL_POSITIVE, /* grid */
    FILL_WIDE,     /* of many magnitudes */
    FILL_WHOLE,    /* in [low, low + range) */
} OperandFill;

typedef struct DirectOperand {
    OperandType type;
    DType dtype;
    OperandFill fill;
    int64_t low, range, gap; /* gap: elements between rows */
    int ndim;
    int64_t dim[TENSOR_DIMS];
} DirectOperand;

typedef struct DirectCall {
    const char *name;
    OpNumber op;
    const void *attr;
    void (*arrange)(Call *); /* NULL: the numbers are good as they are */
    DirectOperand in[CALL_IN], out[CALL_OUT];
} DirectCall;

/* ---- what calls.def is made of ---- */

#define IN(...)                                                                                              \
    { __VA_ARGS__ }
#define OUT(...)                                                                                             \
    { __VA_ARGS__ }
#define S(...)                                                                                               \
    { .type = OPERAND_STORAGE, SHAPE(__VA_ARGS__) }
#define GAP(n, ...)                                                                                          \
    { .type = OPERAND_STORAGE, .gap = n, SHAPE(__VA_ARGS__) }
#define WIDE(...)                                                                                            \
    { .type = OPERAND_STORAGE, .fill = FILL_WIDE, SHAPE(__VA_ARGS__) }
#define R(...)                                                                                               \
    { .type = OPERAND_ARITHMETIC, SHAPE(__VA_ARGS__) }
#define POSITIVE(...)                                                                                        \
    { .type = OPERAND_ARITHMETIC, .fill = FILL_POSITIVE, SHAPE(__VA_ARGS__) }
#define TYPED(t, n, ...)                                                                                     \
    { .type = OPERAND_FIXED, .dtype = t, .gap = n, SHAPE(__VA_ARGS__) }
#define POSITIVE_TYPED(t, ...)                                                                               \
    { .type = OPERAND_FIXED, .dtype = t, .fill = FILL_POSITIVE, SHAPE(__VA_ARGS__) }
#define CODES(t, ...)                                                                                        \
    { .type = OPERAND_FIXED, .dtype = t, SHAPE(__VA_ARGS__) }
#define COUNTS(n, ...)                                                                                       \
    { .type = OPERAND_FIXED, .dtype = F64, .fill = FILL_WHOLE, .range = n, SHAPE(__VA_ARGS__) }
#define WHOLE(first, n, ...)                                                                                 \
    { .type = OPERAND_FIXED, .dtype = I64, .fill = FILL_WHOLE, .low = first, .range = n, SHAPE(__VA_ARGS__) }
#define NUMBERS(n)                                                                                           \
    { .type = OPERAND_FIXED, .dtype = F64, .fill = FILL_POSITIVE, SHAPE(n) }
#define SUM                                                                                                  \
    { .type = OPERAND_FIXED, .dtype = I64, .fill = FILL_WHOLE, .range = 1, SHAPE(EXACT_WORDS) }

/* ---- arrangements ---- */

/* A row that no key of the first, of the second, of neither set. */
static inline void some_rows_see_nothing(Call *c) {
    const int64_t n = tensor_count(c->in[1]);
    for (int64_t i = 0; i < n; i++) {
        if (i % 3 == 0) store_element(c->in[1], i, -INFINITY);
        if (i % 4 == 0) store_element(c->out[1], i, -INFINITY);
    }
}

static inline void rows_that_see_nothing(Call *c) {
    for (int64_t i = 0; i < tensor_count(c->in[1]); i += 3) store_element(c->in[1], i, -INFINITY);
}
/* Log-sums of rows are at least the sinks, which are among what they sum. */
static inline void sums_hold_sinks(Call *c) {
    Tensor *lse = c->in[2];
    double most = 0;
    for (int64_t i = 0; i < tensor_count(c->in[3]); i++) most = fmax(most, load_element(c->in[3], i));
    for (int64_t i = 0; i < tensor_count(lse); i++) store_element(lse, i, most + fabs(load_element(lse, i)));
}

static inline void a_number_is_nan(Call *c) { store_element(c->in[0], tensor_count(c->in[0]) / 2, NAN); }
static inline void all_are_zero(Call *c) {
    for (int64_t i = 0; i < tensor_count(c->in[0]); i++) store_element(c->in[0], i, 0);
}
static inline void no_amax(Call *c) {
    for (int64_t i = 1; i < tensor_count(c->out[0]); i++) store_element(c->out[0], i, 0);
}
static inline void amax_is_infinite(Call *c) {
    store_element(c->out[0], 1, INFINITY);
    store_element(c->out[0], 2, INFINITY);
}
static inline void some_are_infinite_or_nan(Call *c) {
    const int64_t n = tensor_count(c->in[0]);
    store_element(c->in[0], 0, INFINITY), store_element(c->in[0], n / 2, -INFINITY);
    store_element(c->in[0], n - 1, NAN);
}
static inline void third_is_zero(Call *c) {
    for (int64_t i = 0; i < tensor_count(c->in[0]); i += 3) store_element(c->in[0], i, i % 2 ? -0.0 : 0);
}
/* Rows of running sums. */
static inline void offsets_ascend(Call *c) {
    Tensor *t = c->in[0];
    int64_t *offset = t->data;
    for (int64_t r = 0; r < t->dim[0]; r++)
        for (int64_t e = 0; e < t->dim[1]; e++, offset++) *offset = e ? offset[-1] + *offset : 0;
}
static inline void results_are_main_gradients(Call *c) {
    for (int j = 0; j < CALL_OUT; j++)
        if (c->out[j]) c->out[j]->flags |= TENSOR_MAIN_GRAD;
}
static inline void sinks_have_main_gradients(Call *c) { sums_hold_sinks(c), results_are_main_gradients(c); }
/* And the rows are those of experts, not all equal, with some behind the last one. */
static inline void gradients_of_experts(Call *c) {
    const Tensor *offset = c->in[2];
    const int64_t experts = offset->dim[0] - 1, rows = c->in[0]->dim[0];
    for (int64_t e = 0; e <= experts; e++)
        ((int64_t *)offset->data)[e] = e == 2 ? rows / (experts + 1) : e * rows / (experts + 1);
    results_are_main_gradients(c);
}
/* As the optimizer asks for it: 16-bit ones are read too. */
static inline void moments_are_read(Call *c) { c->out[1]->flags = c->out[2]->flags = TENSOR_ACCUM; }
/* Pieces of all groups with gaps between them, which the outputs keep; some pieces are as large as they may
 * be. */
static inline void pieces_have_gaps(Call *c) {
    FlatPiece *piece = c->in[1]->data;
    const int64_t n = c->in[1]->dim[0], each = tensor_count(c->in[0]) / n;
    for (int64_t i = 0; i < n; i++) piece[i] = (FlatPiece){i * each, each - i % 3 * 37, i % STEP_GROUPS};
    for (int j = 0; j < CALL_OUT; j++)
        if (c->out[j]) c->out[j]->flags = TENSOR_ACCUM;
}
static inline void a_piece_is_too_long(Call *c) {
    pieces_have_gaps(c);
    ((FlatPiece *)c->in[1]->data)[1].count = tensor_count(c->in[0]);
}
/* Of a step whose numbers are in memory. */
static inline void step_of_memory(Call *c) {
    pieces_have_gaps(c);
    *(StepNumbers *)c->in[2]->data =
        (StepNumbers){.group = {{0.1, 0.1}, {.lr = 0.1}, {0.01, 0.1}, {.lr = 0.01}},
                      .unbias1 = 1 / 0.19,
                      .unbias2 = 1 / 0.0975,
                      .grad_scale = 0.5,
                      .updates = 1};
}
static inline void step_without_update(Call *c) {
    step_of_memory(c);
    ((StepNumbers *)c->in[2]->data)->updates = 0;
}
static inline void sum_of_squares(Call *c) {
    double x[999];
    for (int i = 0; i < 999; i++) x[i] = exp(9 * philox_normal(1, 2, (uint64_t)i));
    exact_add(c->in[0]->data, x, 999);
}
static inline void sum_is_subnormal(Call *c) { exact_add(c->in[0]->data, &(double){0x1.8p-1070}, 1); }
static inline void sum_is_no_double(Call *c) { exact_add(c->in[0]->data, (double[]){DBL_MAX, DBL_MAX}, 2); }
static inline void sum_is_infinite(Call *c) { exact_add(c->in[0]->data, &(double){INFINITY}, 1); }
static inline void result_0_is_input_0(Call *c) { c->out[0]->data = c->in[0]->data; }
static inline void result_2_is_input_0(Call *c) { c->out[2]->data = c->in[0]->data; }

/* ---- operands ---- */

static inline double fill_value(const DirectOperand *o, const char *name, int which, int64_t e) {
    const double grid = grid_value(name, which, e, GRID_COARSE);
    switch (o->fill) {
    case FILL_POSITIVE:
        return fabs(grid);
    case FILL_WIDE:
        return grid * exp(6 * philox_normal(hash_name(name), (uint64_t)which + 1000, (uint64_t)e));
    case FILL_WHOLE:
        return (double)(o->low + philox_u32(hash_name(name), (uint64_t)which, (uint64_t)e) % o->range);
    default:
        return grid;
    }
}

static inline Tensor *direct_operand(Arena *arena, const DirectOperand *o, DType storage, const char *name,
                                     int which) {
    const DType dtype = o->type == OPERAND_STORAGE      ? storage
                        : o->type == OPERAND_ARITHMETIC ? arithmetic_type(storage)
                                                        : o->dtype;
    Tensor *t = arena_alloc(arena, sizeof *t);
    *t = tensor_make(NULL, dtype, o->ndim, o->dim);
    int64_t span = o->dim[o->ndim - 1] + o->gap;
    for (int i = o->ndim - 2; i >= 0; span *= o->dim[i--]) t->stride[i] = span;
    t->data = arena_alloc(arena, (size_t)(span + 1) * dtype_size(dtype));
    for (int64_t r = 0, n = tensor_rows(t), e = 0; r < n; r++)
        for (int64_t j = 0; j < tensor_width(t); j++, e++) {
            const int64_t at = tensor_row_offset(t, r) + j;
            const double x = fill_value(o, name, which, e);
            if (dtype == I64)
                ((int64_t *)t->data)[at] = (int64_t)x;
            else
                store_element(t, at, x);
        }
    return t;
}

static inline Call direct_call(Arena *arena, const DirectCall *d, DType storage) {
    Call c = {.attr = d->attr};
    for (int i = 0; i < CALL_IN; i++)
        if (d->in[i].type) c.in[i] = direct_operand(arena, &d->in[i], storage, d->name, i);
    for (int j = 0; j < CALL_OUT; j++)
        if (d->out[j].type) c.out[j] = direct_operand(arena, &d->out[j], storage, d->name, CALL_IN + j);
    if (d->arrange) d->arrange(&c);
    return c;
}

/* Whether a 16-bit type gives another call than F32. */
static inline bool has_storage(const DirectCall *d) {
    for (int i = 0; i < CALL_IN; i++)
        if (d->in[i].type == OPERAND_STORAGE) return true;
    for (int j = 0; j < CALL_OUT; j++)
        if (d->out[j].type == OPERAND_STORAGE) return true;
    return false;
}

#endif
