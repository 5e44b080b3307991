/* Chooses the next token as vLLM does (v1/sample/sampler.py). Its steps include Megatron-LM's
 * (core/inference/text_generation_controllers):
 *
 *  - sampling_adjust: exclude tokens that are not allowed, or that would end a bad word; add the biases; then apply the
 *   penalties for tokens that are already in the text;
 *  - divide the logits by the temperature;
 *  - keep the tokens whose probability is at least min_p times the highest;
 *  - keep the top k tokens and all tokens that tie with the k-th;
 *  - keep the nucleus: the first token, and each token for which the probabilities of all likelier tokens sum to at
 *    most p;
 *  - draw from the remaining tokens. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/choice.h"

typedef struct TokenBias {
    int32_t id;
    double bias;
} TokenBias;

typedef struct Sampling {
    double temperature;  /* 0: greedy */
    int64_t top_k;       /* 0: off; 1: greedy */
    double top_p, min_p; /* 0: off */
    double presence,
        frequency; /* subtracted from the logits of generated tokens: once per token, and once per occurrence; 0: off */
    /* for generated and prompt tokens: divides positive logits, and multiplies all others; 0: off */
    double repetition;
    const TokenBias *bias; /* [n_bias] */
    int64_t n_bias;
    const int32_t *allowed; /* [n_allowed] the only tokens that can be sampled; n_allowed 0: all tokens */
    int64_t n_allowed;
    /* [n_bad] token sequences that must not be generated: each sequence's length, followed by its tokens */
    const int32_t *bad;
    int64_t n_bad;
} Sampling;

/* Replaces the arrays with copies, which sampling_free frees. */
void sampling_copy(Sampling *);
void sampling_free(Sampling *);

/* Returns whether sampling_adjust can change logits. */
bool sampling_adjusts(const Sampling *);
/* Applies the adjustments that depend on the text's n tokens; the first n_prompt are the prompt. All token ids must be
 * in the vocabulary. */
void sampling_adjust(const Sampling *, const int32_t *tokens, int64_t n, int64_t n_prompt, double *logits,
                     int64_t vocab);
/* Returns op_choose's parameters for sampling without the adjustments. `uniform` in (0, 1) selects the
 * token. */
ChoiceRow sampling_row(const Sampling *, double uniform);
/* Chooses a token from logits [vocab] with the parameters that sampling_row returns. */
int64_t sampling_choose(const Sampling *, const double *logits, int64_t vocab, double uniform);
/* Returns log softmax(logits)[id]. */
double sampling_logprob(const double *logits, int64_t vocab, int64_t id);
typedef struct LikelyToken {
    int32_t id;
    double logprob; /* equal to sampling_logprob */
} LikelyToken;
/* Sets the elements of out[k] to the k most likely tokens, in descending order of probability. Among equally
 * likely tokens, the lowest id comes first. k <= vocab. */
void sampling_likeliest(const double *logits, int64_t vocab, int64_t k, LikelyToken *out);
