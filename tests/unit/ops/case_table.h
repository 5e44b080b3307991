/* Converts tapes to OpCases: the tapes of tapes.def,
 *
 *   static const OpCase CASES[] = {
 *   #define TAPE TAPE_ROW
 *   #include "unit/ops/tapes.def"
 *   };
 *
 * and the rows of kernels/cases.def that have a builder. */
#pragma once

#include "kernels/case_rows.h"
#include "unit/ops/builders.h"
#include "unit/ops/moe_builders.h"

#define TAPE_ROW(name, builder, attr, ...) {#name, build_##builder, attr, {__VA_ARGS__}},

/* Returns false if the row has no builder. */
static inline bool case_on_tape(int number, OpCase *out) {
    static BuildFn *const BUILDERS[] = {
#define build_none                   NULL
#define CASE(name, op, builder, ...) build_##builder,
#include "kernels/cases.def"
#undef CASE
#undef build_none
    };
    const KernelCase *c = kernel_case(CASE_TEST, number);
    *out = (OpCase){.name = c->name, .build = BUILDERS[number], .attr = c->attr};
    memcpy(out->in, c->in, sizeof out->in);
    return out->build;
}
