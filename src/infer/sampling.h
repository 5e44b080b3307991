/* Chooses the next token as Megatron-LM's core/inference/text_generation_controller.py does:
 *
 *  - divide the logits by the temperature;
 *  - keep the top k tokens and ties with the k-th, or the nucleus: the first token, and each token for which
 *    the probabilities of all likelier tokens sum to at most p;
 *  - draw from the remaining tokens. */
#pragma once

#include <stdint.h>

typedef struct Sampling {
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: off; 1: greedy */
    double top_p;       /* 0 means off; it must be 0 unless top_k is 0 */
} Sampling;

/* Overwrites logits [vocab]. `uniform` in (0, 1) selects the token. If a greedy choice has ties, it selects
 * the lowest id. */
int64_t sampling_choose(const Sampling *, double *logits, int64_t vocab, double uniform);
/* Returns log softmax(logits)[id], and does not change the logits. */
double sampling_logprob(const double *logits, int64_t vocab, int64_t id);
typedef struct LikelyToken {
    int32_t id;
    double logprob; /* equal to sampling_logprob */
} LikelyToken;
/* Sets out[k] to the k most likely tokens, in order. If several are equally likely, the lowest id comes first.
 * k <= vocab. */
void sampling_likeliest(const double *logits, int64_t vocab, int64_t k, LikelyToken *out);
