/* Reads weights that a Hugging Face file stores quantized, with small numbers in one tensor and their scales
 * in another. A format is a row of the table in quantized.c. Only the import supports these formats. An export writes
 * plain weights. */
#pragma once

#include <stdbool.h>

#include "tensor/tensor.h"

typedef struct HfQuantization {
    const char *method; /* the quant_method in the quantization_config of config.json */
    const char *numbers,
        *scales; /* suffixes; the names of the two tensors are the name of the weight and these suffixes */
    /* Describes the two tensors, without content, that store a weight of shape [.., out, in]. Returns false if
     * the format cannot store it. */
    bool (*describe)(const Tensor *weight, Tensor *numbers, Tensor *scales);
    /* Sets all values of the weight, in order. A value can be NaN or infinite. */
    void (*decode)(const Tensor *numbers, const Tensor *scales, float *out);
    int side; /* weight_block_size in config.json must be [side, side]; 0 if config.json has no such key */
} HfQuantization;

enum { HF_QUANTIZATIONS = 2 };
extern const HfQuantization HF_QUANTIZATION[HF_QUANTIZATIONS];

/* Returns the format of this quant_method, or NULL if weights of this method cannot be read. */
const HfQuantization *hf_quantization(const char *method);
