#include "kernels/ops.h"

#define OP(name, rule, operands)                                                                             \
    void cpu_f32_##name(const Call *);                                                                       \
    void cpu_f64_##name(const Call *);
#include "kernels/ops.def"
#undef OP

const OpDef OPS[OP_COUNT] = {
#define OP(name, rule, operands)                                                                             \
    [OP_##name] = {#name, OP_##name, SPMD_##rule, cpu_f32_##name, cpu_f64_##name},
#include "kernels/ops.def"
#undef OP
};
