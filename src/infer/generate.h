/* Text generation with a KV cache over a static batch of prompts. The draws of a sample depend only on seed, sample
 * number and position.
 *
 * A decoder continues its prompts; prompts of different lengths are padded on the left. The encoder of an
 * encoder-decoder reads each prompt once, and the decoder begins with GenerateOptions.start. */
#pragma once

#include "base/err.h"
#include "infer/sampling.h"
#include "models/model.h"

typedef struct Prompt {
    const int32_t *tokens;
    int64_t n; /* at least 1 */
} Prompt;

/* Called after each new token of a sample; true ends the sample. tokens: those of Generated. */
typedef bool GenerateStop(void *arg, int64_t sample, const int32_t *tokens, int64_t n);

typedef struct GenerateOptions {
    Sampling sampling;
    int64_t max_new_tokens;
    uint64_t seed;
    const int64_t *ends; /* [n_ends] tokens that end a sample and are not part of it */
    int64_t n_ends;
    int64_t start; /* the first token of the decoder of an encoder-decoder */
    GenerateStop *stop;
    void *stop_arg;
} GenerateOptions;

typedef struct Generated {
    int32_t *tokens; /* prompt (of an encoder-decoder: `start`), then generated; owned */
    double *
        /* log p(tokens[i+1] | tokens[..i]) under the unmodified distribution, for tokens[1..]; owned. */
        logprobs;
    int64_t n, n_prompt;
    bool stopped; /* by an end or the callback, else by the length */
} Generated;

/* Every rank of the context calls it, with the same arguments, and gets the same texts: tensor-parallel ranks share the
 * model. Prompts that are empty or longer than the model's positions, and ids outside the vocabulary, are user errors.
 * The model predicts tokens from those before (not a BERT). out [n] is the caller's array; free each element with
 * generated_free. */
Err generate(const Model *, const RunContext *context, const Prompt *, int64_t n, const GenerateOptions *,
             Generated *out);
void generated_free(Generated *);
