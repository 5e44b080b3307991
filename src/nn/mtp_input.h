/* The input of a layer that predicts additional tokens (MTP): the embedding of a later token and the previous stack's
 * output are concatenated, then projected. The input corresponds to Megatron-LM
 * core/transformer/multi_token_prediction.py. */
#pragma once

#include "nn/embedding.h"
#include "nn/linear.h"

typedef struct MtpInputSpec {
    const char *name; /* the scope of the parameter names */
    const EmbeddingSpec *words;
    NormAttr norm;
    double init_std;
    QuantSpec quant;
} MtpInputSpec;

typedef struct MtpInput {
    Embedding words;
    Norm token_norm, state_norm;
    Linear proj; /* [hidden, 2 hidden]: the columns for the token, followed by the columns for the state */
} MtpInput;

/* The module is an MtpInput, and the spec is an MtpInputSpec. The input reads Feed.encoded and the same fields
 * as words_input. */
extern const InputOps mtp_input;
