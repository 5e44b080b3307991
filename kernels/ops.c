#include "kernels/ops.h"

#ifdef ISOTRON_CUDA
#define CUDA_KERNEL(name) cuda_##name
#define CUDA_PLANS(name)  cuda_plans_##name
#else
#define CUDA_KERNEL(name) NULL
#define CUDA_PLANS(name)  NULL
#endif

#define OP(name, rule, operands)                                                                             \
    void cpu_f32_##name(const Call *);                                                                       \
    void cpu_f64_##name(const Call *);                                                                       \
    void cuda_##name(const Call *);                                                                          \
    size_t cuda_plans_##name(const Call *) __attribute__((weak)); /* NULL if there is none */
#include "kernels/ops.def"
#undef OP

const OpDef OPS[OP_COUNT] = {
#define OP(name, rule, operands)                                                                             \
    [OP_##name] = {#name,          OP_##name,         SPMD_##rule,     cpu_f32_##name,                       \
                   cpu_f64_##name, CUDA_KERNEL(name), CUDA_PLANS(name)},
#include "kernels/ops.def"
#undef OP
};
