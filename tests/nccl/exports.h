/* Declares the functions that a stand-in for NCCL exports, and the sizes of NCCL's types. */
#pragma once

#include <stdint.h>

#include "comm/nccl/library.h"

#define FUNCTION(name, parameters) int nccl##name parameters;
NCCL_FUNCTIONS(FUNCTION)
NCCL_WINDOW_FUNCTIONS(FUNCTION)
#undef FUNCTION
const char *ncclGetErrorString(int error);
const char *ncclGetLastError(NcclComm);

/* Bytes of an element, or 0 for a type that Isotron does not use. */
static inline size_t type_size(int type) {
    static const uint8_t SIZE[] = {[NCCL_U8] = 1,  [NCCL_I32] = 4, [NCCL_I64] = 8, [NCCL_F16] = 2,
                                   [NCCL_F32] = 4, [NCCL_F64] = 8, [NCCL_BF16] = 2};
    return type >= 0 && type < (int)sizeof SIZE ? SIZE[type] : 0;
}
