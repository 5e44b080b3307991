/* Macros for the rows of cases.def, and for the lists of calls in the tests. */
#pragma once

#include "kernels/attr.h"
#include "kernels/cases.h"

#define NONE            NULL
#define ATTR(type, ...) (&(const type){__VA_ARGS__})
#define IN(...)                                                                                              \
    { __VA_ARGS__ }
#define OUT(...)                                                                                             \
    { __VA_ARGS__ }

#define SHAPE(...) .ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}
#define OPERAND(type, what, ...)                                                                             \
    { .dtype = type, .content = CONTENT_##what, __VA_ARGS__ }

/* Operands that have the type of activations. */
#define X(...)          OPERAND(CASE_STORAGE, SIGNED, SHAPE(__VA_ARGS__))
#define Y(...)          OPERAND(CASE_STORAGE, SIGNED, .updated = true, SHAPE(__VA_ARGS__))
#define P(...)          OPERAND(CASE_STORAGE, SIGNED, .parameter = true, SHAPE(__VA_ARGS__))
#define W(...)          OPERAND(CASE_STORAGE, SIGNED, .parameter = true, .shared = true, SHAPE(__VA_ARGS__))
#define WIDE(...)       OPERAND(CASE_STORAGE, WIDE, SHAPE(__VA_ARGS__))
#define GAP(n, ...)     OPERAND(CASE_STORAGE, SIGNED, .gap = n, SHAPE(__VA_ARGS__))
#define SWAPPED(n, ...) OPERAND(CASE_STORAGE, SIGNED, .gap = n, .swapped = true, SHAPE(__VA_ARGS__))
/* Operands that have the type of main gradients. */
#define M(...)        OPERAND(CASE_PRECISE, SIGNED, SHAPE(__VA_ARGS__))
#define MY(...)       OPERAND(CASE_PRECISE, SIGNED, .updated = true, SHAPE(__VA_ARGS__))
#define M_GAP(n, ...) OPERAND(CASE_PRECISE, SIGNED, .gap = n, SHAPE(__VA_ARGS__))
#define POSITIVE(...) OPERAND(CASE_PRECISE, POSITIVE, SHAPE(__VA_ARGS__))
#define MYP(...)      OPERAND(CASE_PRECISE, POSITIVE, .updated = true, SHAPE(__VA_ARGS__))
/* Operands that have the type `t`. */
#define TYPED(t, ...)          OPERAND(t, SIGNED, SHAPE(__VA_ARGS__))
#define TYPED_Y(t, ...)        OPERAND(t, SIGNED, .updated = true, SHAPE(__VA_ARGS__))
#define TYPED_GAP(t, n, ...)   OPERAND(t, SIGNED, .gap = n, SHAPE(__VA_ARGS__))
#define POSITIVE_TYPED(t, ...) OPERAND(t, POSITIVE, SHAPE(__VA_ARGS__))
#define TYPED_MYP(t, ...)      OPERAND(t, POSITIVE, .updated = true, SHAPE(__VA_ARGS__))
#define SUMS(...)              OPERAND(F64, POSITIVE, .updated = true, SHAPE(__VA_ARGS__))
#define COUNTS(n, ...)         OPERAND(F64, WHOLE, .range = n, SHAPE(__VA_ARGS__))
/* Integers. */
#define ZEROS(...)           OPERAND(I64, SIGNED, SHAPE(__VA_ARGS__))
#define ZEROS_Y(...)         OPERAND(I64, SIGNED, .updated = true, SHAPE(__VA_ARGS__))
#define WHOLE(first, n, ...) OPERAND(I64, WHOLE, .low = first, .range = n, SHAPE(__VA_ARGS__))
#define WHOLE_GAP(n, ...)    OPERAND(I64, WHOLE, .range = 99, .gap = n, SHAPE(__VA_ARGS__))
#define POSITIONS(...)       OPERAND(I64, POSITIONS, SHAPE(__VA_ARGS__))
#define DOCUMENTS(n, ...)    OPERAND(I64, DOCUMENTS, .range = n, SHAPE(__VA_ARGS__))
#define CHOICES(n, ...)      OPERAND(I64, CHOICES, .range = n, SHAPE(__VA_ARGS__))
#define ROWS(n, ...)         OPERAND(I64, ROWS, .range = n, SHAPE(__VA_ARGS__))
#define COPIES(n, ...)       OPERAND(I64, COPIES, .range = n, SHAPE(__VA_ARGS__))
#define OFFSETS(n, ...)      OPERAND(I64, OFFSETS, .range = n, SHAPE(__VA_ARGS__))
