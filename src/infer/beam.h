/* Beam search: keeps the `width` most likely texts at each length, and returns the finished text with the
 * highest score. A score is the sum of the new tokens' log-probabilities, divided by (the number of new tokens)
 * ^ length_penalty, where the end token counts as a new token. As in Megatron-LM's former beam search and
 * transformers' generate(num_beams), an end token is considered only if it is among the `width` most likely
 * continuations. The search stops if the score of the best open text is not higher than the scores of `width`
 * finished texts. The search also stops once the open texts have max_new_tokens new tokens; these texts then
 * count as finished. */
#pragma once

#include "infer/generate.h"

typedef struct BeamOptions {
    int64_t width;
    double length_penalty;
} BeamOptions;

/* Like `generate`, but ignores `likeliest`, the watch, and the options for sampling, drafts, limits and
 * arrivals. The results contain no times. The prompts are processed one after another. */
Err beam_search(const Model *, const RunContext *, const Prompt *, int64_t n, const GenerateOptions *,
                const BeamOptions *, Generated *out);
