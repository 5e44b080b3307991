/* Reads weights that a Hugging Face file stores in quantized form: low-precision numbers in one tensor, and their
 * scales in another. Each format is a row in the table in quantized.c. Only the import supports these formats. An
 * export writes plain weights. */
#pragma once

#include <stdbool.h>

#include "tensor/tensor.h"

typedef struct HfQuantization {
    const char *method;           /* quant_method in config.json's quantization_config */
    const char *numbers, *scales; /* suffixes that turn the weight's name into the two tensors' names */
    /* Describes the two tensors, without content, that store a weight of shape [.., out, in]. Returns false
     * if the format cannot store the weight. */
    bool (*describe)(const Tensor *weight, Tensor *numbers, Tensor *scales);
    /* Computes all values of the weight, in order. A value can be NaN or infinite. */
    void (*decode)(const Tensor *numbers, const Tensor *scales, float *out);
    int side; /* weight_block_size in config.json must be [side, side]; 0 if config.json has no such key */
} HfQuantization;

enum { HF_QUANTIZATIONS = 2 };
extern const HfQuantization HF_QUANTIZATION[HF_QUANTIZATIONS];

/* Returns the format for this quant_method, or NULL if Isotron cannot read such weights. */
const HfQuantization *hf_quantization(const char *method);
