/* Calls kernels without a tape. Creates the operands of rows of kernels/cases.def or calls.def, and arranges
 * their values. */
#pragma once

#include <float.h>

#include "base/exact_sum.h"
#include "base/philox.h"
#include "kernels/choice.h"
#include "kernels/cases.h"
#include "unit/ops/case.h"

typedef struct DirectCall {
    KernelCase row;
    void (*arrange)(Call *); /* changes values of operands; NULL if nothing is changed */
} DirectCall;

/* ---- arrangements ---- */

/* Some rows see no key in the first set of keys, some in the second set, and some in both. */
static inline void some_rows_see_nothing(Call *c) {
    const int64_t n = tensor_count(c->in[1]), width = tensor_width(c->in[1]);
    for (int64_t i = 0; i < n; i++) {
        if (i % 3 == 0) store_element(c->in[1], i, -INFINITY);
        if (i % 4 == 0)
            store_element(c->out[1], tensor_row_offset(c->out[1], i / width) + i % width, -INFINITY);
    }
}

static inline void rows_that_see_nothing(Call *c) {
    for (int64_t i = 0; i < tensor_count(c->in[1]); i += 3) store_element(c->in[1], i, -INFINITY);
}
/* The log-sum-exp of a row must be at least its sink, because the sum includes the sink. */
static inline void sums_hold_sinks(Call *c) {
    Tensor *lse = c->in[2];
    double most = 0;
    for (int64_t i = 0; i < tensor_count(c->in[3]); i++) most = fmax(most, load_element(c->in[3], i));
    for (int64_t i = 0; i < tensor_count(lse); i++) store_element(lse, i, most + fabs(load_element(lse, i)));
}

/* Choices with different parameters, from rows with different ranges and numbers of equal logits. */
static inline void choices_vary(Call *c) {
    static const double RATES[] = {0, 1, 1 / 0.7, 1e-3, 50}, TOP_P[] = {0, 0.3, 0.95, 1},
                        SCALES[] = {1, 0, 9, 40, 1e20};
    static const int64_t TOP_K[] = {0, 1, 7, 300, INT32_MAX};
    const int64_t rows = tensor_rows(c->in[0]), width = tensor_width(c->in[0]),
                  n = ((const ChooseAttr *)c->attr)->n;
    ChoiceRow *how = c->in[1]->data;
    for (int64_t i = 0; i < rows; i++) {
        const uint32_t roll = philox_u32(1, 2, (uint64_t)i);
        how[i] = (ChoiceRow){.rate = RATES[roll % 5],
                             .least = roll % 7 ? -INFINITY : log(0.02),
                             .top_p = TOP_P[roll / 35 % 4],
                             .uniform = philox_uniform(3, 4, (uint64_t)i),
                             .top_k = TOP_K[roll / 140 % 5],
                             .known = roll % 11 == 0,
                             .token = roll / 11 % n,
                             .sums = roll / 700 % 2};
        for (int64_t k = i * width; k < (i + 1) * width; k++) {
            const double x = load_element(c->in[0], k) * SCALES[i % 5];
            store_element(c->in[0], k, i % 3 ? x : round(x * 4) / 4);
        }
    }
    store_element(c->in[0], 2 * width - 1, NAN); /* after the first n of a row, which count */
    if (rows > 9) store_element(c->in[0], 9 * width, -INFINITY);
}

/* Each request has separate pages, in descending order, and new rows at its tokens' positions. */
static inline void pages_hold_new_rows(Call *c) {
    const RopePagedAttr *a = c->attr;
    const int64_t *position = c->in[3]->data, *request = c->in[6]->data, page = a->attention.page,
                  width = c->in[5]->dim[1], pages = tensor_count(c->in[5]);
    int64_t *table = c->in[5]->data, *row = c->in[4]->data;
    for (int64_t i = 0; i < pages; i++) table[i] = pages - 1 - i;
    for (int64_t i = 0; i < c->in[0]->dim[0]; i++)
        row[i] = table[request[i] * width + position[i] / page] * page + position[i] % page;
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
/* Row 0 has only zeros. */
static inline void amaxes_are_those_of_rows(Call *c) {
    const Tensor *x = c->in[0];
    const int64_t n = tensor_width(x);
    for (int64_t i = 0; i < n; i++) store_element(c->in[0], i, 0);
    for (int64_t r = 0; r < tensor_rows(x); r++) {
        double most = 0;
        for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(load_element(x, r * n + i)));
        store_element(c->out[1], r, most);
    }
}
static inline void largest_are_at_least_one(Call *c) {
    for (int64_t i = 0; i < tensor_count(c->in[4]); i++)
        store_element(c->in[4], i, 1 + load_element(c->in[4], i));
}
static inline void third_is_zero(Call *c) {
    for (int64_t i = 0; i < tensor_count(c->in[0]); i += 3) store_element(c->in[0], i, i % 2 ? -0.0 : 0);
}
/* Makes offsets ascend, as running sums do. */
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
/* Experts have unequal numbers of rows, and some rows follow those of the last expert. */
static inline void rows_of_experts(Call *c) {
    const Tensor *offset = c->in[2];
    const int64_t experts = offset->dim[0] - 1, rows = c->in[0]->dim[0];
    for (int64_t e = 0; e <= experts; e++)
        ((int64_t *)offset->data)[e] = e == 2 ? rows / (experts + 1) : e * rows / (experts + 1);
}
/* One expert has all rows. */
static inline void rows_of_one_expert(Call *c) {
    const Tensor *offset = c->in[2];
    for (int64_t e = 0; e < offset->dim[0]; e++) ((int64_t *)offset->data)[e] = e < 2 ? 0 : c->in[0]->dim[0];
}
static inline void gradients_of_experts(Call *c) {
    rows_of_experts(c);
    results_are_main_gradients(c);
}
/* Sets the experts' offsets for all rows except a few. Unless `padded` is NULL, also sets the padded offsets. Expert 1
 * has no rows. */
static inline void set_offsets(Tensor *offset, Tensor *padded, int64_t rows) {
    const int64_t experts = offset->dim[0] - 1;
    int64_t *first = offset->data, *column = padded ? padded->data : NULL;
    for (int64_t e = 0; e <= experts; e++) first[e] = (e == 2 ? 1 : e) * rows / (experts + 1);
    for (int64_t e = 0; padded && e <= experts; e++)
        column[e] = e ? column[e - 1] + (first[e] - first[e - 1] + 127) / 128 * 128 : 0;
}
static inline void offsets_of_experts(Call *c) {
    set_offsets(c->in[0], NULL, c->in[1]->dim[0]), c->in[1] = NULL;
}
static inline void experts_are_ragged(Call *c) { set_offsets(c->in[1], c->in[2], c->in[0]->dim[0]); }
static inline void experts_hold_nan(Call *c) {
    experts_are_ragged(c), some_are_infinite_or_nan(c), a_number_is_nan(c);
}
/* Expert 1 has all rows. */
static inline void give_all(Tensor *offset, int64_t rows) {
    for (int64_t e = 0; e < offset->dim[0]; e++) ((int64_t *)offset->data)[e] = e < 2 ? 0 : rows;
}
static inline void one_expert_has_all(Call *c) {
    give_all(c->in[1], c->in[0]->dim[0]);
    if (c->in[2]) give_all(c->in[2], (c->in[0]->dim[0] + 127) / 128 * 128);
}
static inline bool sums_over_rows(const Call *c) { return c->out[0]->ndim == 2; }
/* Sets the offsets of fp8_grouped_linear, or the padded offsets of fp8_grouped_wgrad. */
static inline void gemms_are_ragged(Call *c) {
    const int64_t experts = c->in[4]->dim[0] - 1, all = tensor_width(c->in[0]) - 128 * experts;
    int64_t *offset = c->in[4]->data;
    set_offsets(c->in[4], NULL, sums_over_rows(c) ? all : c->in[0]->dim[0]);
    for (int64_t e = experts; sums_over_rows(c) && e > 0; e--) offset[e] -= offset[e - 1];
    for (int64_t e = 1; sums_over_rows(c) && e <= experts; e++)
        offset[e] = offset[e - 1] + (offset[e] + 127) / 128 * 128;
}
static inline void gemms_of_one_expert(Call *c) {
    const int64_t experts = c->in[4]->dim[0] - 1;
    give_all(c->in[4], sums_over_rows(c) ? tensor_width(c->in[0]) - 128 * experts : c->in[0]->dim[0]);
}
static inline void main_gemms_are_ragged(Call *c) { gemms_are_ragged(c), results_are_main_gradients(c); }
/* Sets the flags of the moments as the optimizer does, so that 16-bit moments are read too. */
static inline void moments_are_read(Call *c) { c->out[1]->flags = c->out[2]->flags = TENSOR_ACCUM; }
/* Makes pieces of all groups, with gaps in which outputs must not change. Some pieces have the largest
 * possible size. */
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
/* Makes the call read the numbers of the step from memory. */
static inline void step_of_memory(Call *c) {
    pieces_have_gaps(c);
    *(StepNumbers *)c->in[2]->data =
        (StepNumbers){.unbias1 = 1 / 0.19, .unbias2 = 1 / 0.0975, .grad_scale = 0.5, .updates = 1};
    for (int i = 0; i < STEP_GROUPS; i++)
        ((StepNumbers *)c->in[2]->data)->group[i] =
            (StepGroup){i & 2 ? 0.01 : 0.1, i & 1 ? 0 : 0.1, i & 4 ? 1e-3 : 1e-8};
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

static inline double fill_value(const CaseOperand *o, uint64_t seed, int which, int64_t e, int64_t n) {
    if (o->dtype == I64 || o->content == CONTENT_WHOLE)
        return (double)case_integer(o, e, n, seed, (uint64_t)which);
    const double grid = grid_draw(seed, which, e, GRID_COARSE) * (o->dtype == I8 ? 127 : 1);
    if (o->content == CONTENT_POSITIVE) return fabs(grid);
    if (o->content == CONTENT_WIDE)
        return grid * exp(6 * philox_normal(seed, (uint64_t)which + 1000, (uint64_t)e));
    return grid;
}

/* Returns NULL if the call does not have the operand. */
static inline Tensor *direct_operand(Arena *arena, const CaseOperand *o, DType storage, const char *name,
                                     int which) {
    if (!o->ndim) return NULL;
    Tensor *t = arena_alloc(arena, sizeof *t);
    *t = case_tensor(o, storage);
    const DType dtype = (DType)t->dtype;
    t->data = arena_alloc(arena, tensor_extent(t) + dtype_size(dtype));
    const uint64_t seed = hash_name(name);
    const int64_t count = tensor_count(t), width = tensor_width(t);
    for (int64_t e = 0, at = 0; e < count; e++, at++) {
        if (e % width == 0) at = tensor_row_offset(t, e / width);
        const double x = fill_value(o, seed, which, e, count);
        if (dtype == I64)
            ((int64_t *)t->data)[at] = (int64_t)x;
        else
            store_element(t, at, x);
    }
    return t;
}

static inline Call direct_call(Arena *arena, const DirectCall *d, DType storage) {
    const KernelCase *row = &d->row;
    Call c = {.attr = row->attr};
    for (int i = 0; i < CALL_IN; i++) c.in[i] = direct_operand(arena, &row->in[i], storage, row->name, i);
    for (int j = 0; j < CALL_OUT; j++)
        c.out[j] = direct_operand(arena, &row->out[j], storage, row->name, CALL_IN + j);
    if (d->arrange) d->arrange(&c);
    return c;
}

/* Whether the call with a 16-bit type differs from that with F32. */
static inline bool has_storage(const KernelCase *c) {
    for (int i = 0; i < CALL_IN; i++)
        if (c->in[i].ndim && c->in[i].dtype == CASE_STORAGE) return true;
    for (int j = 0; j < CALL_OUT; j++)
        if (c->out[j].ndim && c->out[j].dtype == CASE_STORAGE) return true;
    return false;
}
