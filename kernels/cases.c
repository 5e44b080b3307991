#include "kernels/cases.h"

#include "base/philox.h"
#include "kernels/case_rows.h"

/* ---- the rows ---- */

#define S      PICK(64, 64, 2048)
#define B      PICK(2, 4, 8)
#define H      PICK(384, 768, 4096)
#define F      PICK(256, 3072, 16384)
#define GATED  PICK(96, 2048, 14336)
#define HEAD   PICK(64, 64, 128)
#define V      PICK(160, 50304, 50304)
#define VOCAB  PICK(131, 50257, 50257)
#define LONG_B PICK(1, 1, 2)
#define LONG_V PICK(4104, 128256, 128256)
#define ROUTED PICK(8, 64, 16384)
#define TALL   PICK(300, 2048, 131072)
#define MANY   PICK(33, 64, 128)
#define THIN   PICK(40, 256, 2048)
#define SMALL  PICK(72, 384, 1536)
/* fp8_expert_cast with 2 S B rows of eight experts */
#define BLOCKED (8 * ((S * B / 4 + 127) / 128 * 128))
#define TURNED  ((2 * S * B + 127) / 128 * 128 + 8 * 128)
#define N       PICK(4104, 38633472, 1 << 28)

#define CASE(name, op, builder, attr, in, ...) {name, OP_##op, attr, in, __VA_ARGS__},

#define PICK(test, cpu, gpu) test
static const KernelCase TEST[] = {
#include "kernels/cases.def"
};
#undef PICK
#define PICK(test, cpu, gpu) cpu
static const KernelCase CPU[] = {
#include "kernels/cases.def"
};
#undef PICK
#define PICK(test, cpu, gpu) gpu
static const KernelCase GPU[] = {
#include "kernels/cases.def"
};
#undef PICK
#undef CASE

/* If an op has no row, this type is missing, and the compiler's error names the op. */
#define CASE(name, op, ...) typedef char op##_has_a_case;
#include "kernels/cases.def"
#undef CASE
enum {
#define OP(name, ...) SIZE_OF_##name = sizeof(name##_has_a_case),
#include "kernels/ops.def"
};

/* ---- access ---- */

int kernel_case_count(void) { return sizeof TEST / sizeof *TEST; }

const KernelCase *kernel_case(CaseSize size, int number) {
    static const KernelCase *const SIZES[CASE_SIZES] = {
        [CASE_TEST] = TEST, [CASE_CPU] = CPU, [CASE_GPU] = GPU};
    return &SIZES[size][number];
}

DType case_dtype(const CaseOperand *o, DType storage) {
    if (o->dtype == CASE_STORAGE) return storage;
    if (o->dtype == CASE_PRECISE) return storage == F64 ? F64 : F32;
    return (DType)o->dtype;
}

Tensor case_tensor(const CaseOperand *o, DType storage) {
    Tensor t = tensor_make(NULL, case_dtype(o, storage), o->ndim, o->dim);
    t.flags = (uint8_t)((o->updated ? TENSOR_ACCUM : 0) | (o->main_grad ? TENSOR_MAIN_GRAD : 0));
    int64_t span = o->dim[o->ndim - 1] + o->gap;
    for (int i = o->ndim - 2; i >= 0; span *= o->dim[i--]) t.stride[i] = span;
    if (o->swapped) t.stride[0] = t.stride[1], t.stride[1] *= o->dim[0];
    return t;
}

int64_t case_integer(const CaseOperand *o, int64_t i, int64_t n, uint64_t seed, uint64_t stream) {
    const int64_t share = o->range ? n / o->range : 0, width = o->dim[o->ndim - 1];
    switch (o->content) {
    case CONTENT_WHOLE:
        return o->low + philox_u32(seed, stream, (uint64_t)i) % o->range;
    case CONTENT_POSITIONS:
        return i % width;
    case CONTENT_DOCUMENTS:
        return i % width / o->range * o->range;
    case CONTENT_CHOICES:
        return i % o->range;
    case CONTENT_ROWS:
        return i % o->range * share + i / o->range;
    case CONTENT_COPIES:
        return i % share * o->range + i / share;
    case CONTENT_OFFSETS:
        return o->range * (i % width) / (width - 1);
    default:
        return 0;
    }
}
