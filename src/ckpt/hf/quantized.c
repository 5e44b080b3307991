#include "ckpt/hf/quantized.h"

#include <math.h>
#include <string.h>

#include "tensor/fp8.h"

/* ---- MXFP4: OCP Microscaling Formats (MX) Specification 1.0 ---- */

enum { MX_GROUP = 32, MX_BYTES = MX_GROUP / 2, E8M0_BIAS = 127 };

/* Describes the two tensors that store a weight [experts, out, in]: numbers [experts, out, in / 32, 16] and scales
 * [experts, out, in / 32]. */
static bool mxfp4_describe(const Tensor *weight, Tensor *numbers, Tensor *scales) {
    if (weight->ndim != 3 || weight->dim[2] % MX_GROUP) return false;
    const int64_t dim[] = {weight->dim[0], weight->dim[1], weight->dim[2] / MX_GROUP, MX_BYTES};
    *numbers = tensor_make(NULL, U8, 4, dim);
    *scales = tensor_make(NULL, U8, 3, dim);
    return true;
}

/* Decodes MXFP4. A byte contains two numbers, the first one in the lower half. The scale 255, which means NaN,
 * becomes infinity here, so every value in its group becomes infinite or NaN. */
static void mxfp4_decode(const Tensor *numbers, const Tensor *scales, float *out) {
    static const float E2M1[16] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    const uint8_t *byte = numbers->data, *scale = scales->data;
    for (int64_t g = 0, groups = tensor_count(scales); g < groups; g++) {
        const float factor = ldexpf(1, scale[g] - E8M0_BIAS);
        for (int i = 0; i < MX_BYTES; i++, byte++) {
            *out++ = factor * E2M1[*byte & 15];
            *out++ = factor * E2M1[*byte >> 4];
        }
    }
}

/* ---- FP8 in blocks: DeepSeek-V3 ---- */

enum { SIDE = 128 };

static int64_t blocks(int64_t n) { return (n + SIDE - 1) / SIDE; }

/* Describes the two tensors that store a weight. Each scale multiplies a block of SIDE x SIDE values. The last blocks
 * in a row or column may be smaller. */
static bool fp8_describe(const Tensor *weight, Tensor *numbers, Tensor *scales) {
    if (weight->ndim != 2) return false;
    *numbers = tensor_make(NULL, F8E4M3, 2, weight->dim);
    *scales = tensor_make(NULL, F32, 2, (int64_t[]){blocks(weight->dim[0]), blocks(weight->dim[1])});
    return true;
}

static void fp8_decode(const Tensor *numbers, const Tensor *scales, float *out) {
    const uint8_t *byte = numbers->data;
    const float *scale = scales->data;
    float value[256];
    for (int i = 0; i < 256; i++) value[i] = fp8_to_float(E4M3, (uint8_t)i);
    for (int64_t r = 0; r < numbers->dim[0]; r++)
        for (int64_t c = 0; c < numbers->dim[1]; c++)
            *out++ = value[*byte++] * scale[r / SIDE * scales->dim[1] + c / SIDE];
}

/* ---- formats ---- */

const HfQuantization HF_QUANTIZATION[HF_QUANTIZATIONS] = {
    {"mxfp4", "_blocks", "_scales", mxfp4_describe, mxfp4_decode, 0},
    {"fp8", "", "_scale_inv", fp8_describe, fp8_decode, SIDE},
};

const HfQuantization *hf_quantization(const char *method) {
    for (int i = 0; method && i < HF_QUANTIZATIONS; i++)
        if (!strcmp(HF_QUANTIZATION[i].method, method)) return &HF_QUANTIZATION[i];
    return NULL;
}
