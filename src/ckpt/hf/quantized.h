/* Reads weights that a Hugging Face file stores quantized, with small numbers in one tensor and their scales
 * in another. A format is a row of the table in quantized.c. Only the import reads them: an export writes
 * plain weights. */
#pragma once

#include <stdbool.h>

#include "tensor/tensor.h"

typedef struct HfQuantization {
    const char *method; /* quant_method in the quantization_config of config.json */
    const char *numbers,
        *scales; /* suffixes that, appended to the name of the weight, give the names of its two tensors */
    /* Sets the two tensors, without content, that store a weight of this shape: [.., out, in]. Returns false if
     * the format cannot store it. */
    bool (*describe)(const Tensor *weight, Tensor *numbers, Tensor *scales);
    /* Sets all values of the weight, in order. A value can be NaN or infinite. */
    void (*decode)(const Tensor *numbers, const Tensor *scales, float *out);
    int side; /* weight_block_size in config.json must be [side, side]; 0 if config.json has no such key */
} HfQuantization;

enum { HF_QUANTIZATIONS = 2 };
extern const HfQuantization HF_QUANTIZATION[HF_QUANTIZATIONS];

/* The format of this quant_method, or NULL if weights of this method cannot be read. */
const HfQuantization *hf_quantization(const char *method);
