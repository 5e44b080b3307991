/* The rows of cases.def and of other such lists as OpCases:
 *
 *   static const OpCase CASES[] = {
 *   #include "unit/ops/cases.def"
 *   }; */
#ifndef ISOTRON_TESTS_OPS_ROWS_H
#define ISOTRON_TESTS_OPS_ROWS_H

#include "unit/ops/builders.h"
#include "unit/ops/moe_builders.h"

#define NONE            NULL
#define ATTR(type, ...) (&(const type){__VA_ARGS__})
#define SHAPE(...)      .ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}
#define ACT(...)                                                                                             \
    { .role = ROLE_ACTIVATION, SHAPE(__VA_ARGS__) }
#define PARAM(...)                                                                                           \
    { .role = ROLE_PARAMETER, SHAPE(__VA_ARGS__) }
#define SHARED(...)                                                                                          \
    { .role = ROLE_PARAMETER, .shared = true, SHAPE(__VA_ARGS__) }
#define TABLE(...)                                                                                           \
    { .role = ROLE_TABLE, SHAPE(__VA_ARGS__) }
#define IDS(n, ...)                                                                                          \
    { .role = ROLE_IDS, .range = n, SHAPE(__VA_ARGS__) }
#define CASE(name, builder, attr, ...) {#name, build_##builder, attr, {__VA_ARGS__}},

#endif
