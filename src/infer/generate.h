/* Generates text for a list of prompts, on all ranks (infer/fleet.h). A sample's random numbers depend only on the
 * seed, the sample's number and the position.
 *
 * A decoder-only model continues its prompts. In an encoder-decoder model, the encoder reads each prompt once, and
 * the decoder begins with GenerateOptions.start. */
#pragma once

#include "infer/fleet.h"

typedef struct Prompt {
    const int32_t *tokens;
    int64_t n; /* at least 1 */
} Prompt;

typedef struct Generated {
    /* Owned. The prompt (`start` in an encoder-decoder model), the new tokens and, if has_end is true, the end
     * token. */
    int32_t *tokens;
    /* Owned. log p(tokens[i+1] | tokens[..i]) under the unmodified distribution, for tokens[1..]. */
    double *logprobs;
    LikelyToken
        *likeliest; /* owned; [GenerateOptions.likeliest] for the position of each of tokens[1..], or NULL */
    int64_t n, n_prompt;        /* numbers of tokens; n does not include the end token */
    int64_t *at_ns;             /* owned; clock_ns() when tokens[1..] were chosen, or 0 for prompt tokens */
    int64_t added_ns, ended_ns; /* clock_ns() when the prompt was added, and when the sample ended */
    /* has_end: whether an end token ended the sample; stopped: whether an end token or the watch, not max_new_tokens,
     * ended it */
    bool stopped, has_end;
    bool ended;
} Generated;

/* This function is called after each new token of a sample, and once when the sample has ended (`ended` is true). The
 * function returns true to end the sample. */
typedef bool GenerateWatch(void *arg, int64_t sample, const Generated *);

typedef struct GenerateOptions {
    Sampling sampling;
    int64_t max_new_tokens;
    const int64_t
        *max_each; /* [n]: each prompt's max_new_tokens; NULL if max_new_tokens applies to all prompts */
    uint64_t seed;
    const int64_t *ends; /* [n_ends]: tokens that end a sample and are not part of its text */
    int64_t n_ends;
    int64_t start; /* an encoder-decoder model's first decoder token */
    /* true if the caller does not need Generated.logprobs of new tokens, or of prompt tokens */
    bool skip_logprobs, skip_prompt_logprobs;
    int64_t likeliest;              /* at most the vocabulary size */
    int64_t page, requests, tokens; /* maxima, as in EngineLimits; 0 means the default */
    double room;                    /* maximum size of the KV cache in bytes; 0 for engine_room */
    Speculation speculation;
    /* Number of prompts added before each pass (per_pass), or per second at random times (per_second). If per_pass and
     * per_second are 0, all prompts are added before the first pass. */
    int64_t per_pass;
    double per_second;
    /* After every `suspend_every` passes, as soon as a prompt has received a new token, the fleet is suspended for
     * suspend_s seconds and then resumed. If suspend_every is 0, the fleet is never suspended. */
    int64_t suspend_every;
    double suspend_s;
    KvCacheMode suspended; /* this member and the next two are as in EngineLimits */
    RoutePolicy route;
    double route_alpha;
    GenerateWatch *watch;
    void *watch_arg;
    EngineCounts *counts; /* set after the last pass; may be NULL */
} GenerateOptions;

static inline int64_t generate_most_new(const GenerateOptions *o, int64_t sample) {
    return o->max_each ? o->max_each[sample] : o->max_new_tokens;
}
/* All ranks of the context must call this function with the same sizes, room and speculation. The function
 * returns the same error on all ranks. Rank 0 provides the prompts and the other options, receives the generated text,
 * and calls the watch. A prompt that is empty or longer than the model's positions, an id outside the vocabulary, and
 * logits that are not finite are user errors. The model must predict each token from the tokens before it, so it must
 * not be a BERT model. The caller provides the array out[n], and frees its elements with generated_free. */
Err generate(const Model *, const RunContext *context, const Prompt *, int64_t n, const GenerateOptions *,
             Generated *out);
void generated_free(Generated *);
/* Returns the error for a prompt whose logits are not finite after `tokens` tokens. Prompts are counted from 1. */
Err generate_not_finite(int64_t tokens, int64_t prompt);
