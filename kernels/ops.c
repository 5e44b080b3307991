#include "kernels/ops.h"

#ifdef ISOTRON_CUDA
#define CUDA_KERNEL(name) cuda_##name
#define PLAN(name)        cuda_plans_##name
#define PLAN_PATH(name)   cuda_plans_##name, .cuda_path = cuda_path_##name
#else
#define CUDA_KERNEL(name) NULL
#define PLAN(name)        NULL
#define PLAN_PATH(name)   NULL
#endif
#define NO_PLAN(name) NULL

#define OP(name, ...)                                                                                        \
    void cpu_f32_##name(const Call *);                                                                       \
    void cpu_f64_##name(const Call *);                                                                       \
    void cuda_##name(const Call *);                                                                          \
    size_t cuda_plans_##name(const Call *);                                                                  \
    const char *cuda_path_##name(const Call *);
#include "kernels/ops.def"

#define T(...)                                                                                               \
    { .text = __VA_ARGS__ }
#define OPTIONAL .optional = true
#define ADDS     .adds = true
#define UPDATED  .updated = true
#define PRECISE  .precise = true
#define STORED   .stored = true
#define IN(...)                                                                                              \
    { __VA_ARGS__ }
#define OUT(...)                                                                                             \
    { __VA_ARGS__ }

const OpDef OPS[OP_COUNT] = {
#define OP(op, constant, spmd, plan, agrees, inputs, ...)                                                    \
    [OP_##op] = {.name = #op,                                                                                \
                 .number = OP_##op,                                                                          \
                 .family = OP_FAMILY_##constant,                                                             \
                 .rule = SPMD_##spmd,                                                                        \
                 .match = MATCH_##agrees,                                                                    \
                 .in = inputs,                                                                               \
                 .out = __VA_ARGS__,                                                                         \
                 .cpu_f32 = cpu_f32_##op,                                                                    \
                 .cpu_f64 = cpu_f64_##op,                                                                    \
                 .cuda = CUDA_KERNEL(op),                                                                    \
                 .cuda_plans = plan(op)},
#define COLLECTIVE(op, text) [OP_##op] = {.name = #op, .number = OP_##op, .family = OP_FAMILIES},
#include "kernels/ops.def"
};

const char *const OP_FAMILY_NAMES[OP_FAMILIES] = {
#define FAMILY(constant, name) name,
#include "kernels/ops.def"
};
