/* What the time of a step is summed up by. */
#ifndef ISOTRON_BENCH_FAMILY_H
#define ISOTRON_BENCH_FAMILY_H

#include "kernels/ops.h"

#define FAMILIES                                                                                             \
    FAMILY(GEMM, "gemm")                                                                                     \
    FAMILY(ATTENTION, "attention")                                                                           \
    FAMILY(NORM, "norm")                                                                                     \
    FAMILY(ACTIVATION, "activation")                                                                         \
    FAMILY(LOSS, "loss")                                                                                     \
    FAMILY(ELEMENTWISE, "elementwise")                                                                       \
    FAMILY(EMBEDDING, "embedding")                                                                           \
    FAMILY(OPTIMIZER, "optimizer")                                                                           \
    FAMILY(MOE, "moe")                                                                                       \
    FAMILY(FP8, "fp8")

typedef enum OpFamily {
#define FAMILY(constant, name) FAMILY_##constant,
    FAMILIES
#undef FAMILY
        FAMILY_COUNT
} OpFamily;

extern const char *const FAMILY_NAMES[FAMILY_COUNT];
/* Stops on an op that is in no family. */
OpFamily family_of(OpNumber);

#endif
