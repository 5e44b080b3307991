/* Generates text for a list of prompts, with the engine (infer/engine.h). The random draws of a sample depend only
 * on the seed, the number of the sample and the position.
 *
 * A decoder-only model continues its prompts. In an encoder-decoder model, the encoder reads each prompt once, and
 * the decoder begins with GenerateOptions.start. */
#pragma once

#include "base/err.h"
#include "infer/engine.h"
#include "models/model.h"

typedef struct Prompt {
    const int32_t *tokens;
    int64_t n; /* at least 1 */
} Prompt;

/* Called after each new token of a sample. Returns true to end the sample. tokens: the n tokens of
 * Generated.tokens. */
typedef bool GenerateStop(void *arg, int64_t sample, const int32_t *tokens, int64_t n);

typedef struct GenerateOptions {
    Sampling sampling;
    int64_t max_new_tokens;
    uint64_t seed;
    const int64_t *ends; /* [n_ends] tokens that end a sample and are not part of it */
    int64_t n_ends;
    int64_t start;      /* the first token of the decoder of an encoder-decoder model */
    bool skip_logprobs; /* Generated.logprobs is not needed */
    Speculation speculation;
    EngineCounts *counts; /* set after the last pass; may be NULL */
    GenerateStop *stop;
    void *stop_arg;
} GenerateOptions;

typedef struct Generated {
    int32_t *tokens; /* owned: the prompt (or, in an encoder-decoder model, `start`), then the new tokens */
    /* owned: log p(tokens[i+1] | tokens[..i]) under the unmodified distribution, for tokens[1..] */
    double *logprobs;
    int64_t n, n_prompt;
    bool stopped; /* true if an end token or `stop` ended the sample, false if max_new_tokens did */
} Generated;

/* All ranks of the context must call it with the same arguments, and all get the same texts. A prompt that is empty or
 * longer than the model's positions, an id outside the vocabulary, and logits that are not finite are user errors. The
 * model must predict each token from the tokens before it, so it must not be a BERT model. out[n] is the
 * caller's array. Free each element with generated_free. */
Err generate(const Model *, const RunContext *context, const Prompt *, int64_t n, const GenerateOptions *,
             Generated *out);
void generated_free(Generated *);
