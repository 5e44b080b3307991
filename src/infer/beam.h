/* Beam search: keeps the `width` most likely texts at each length, and returns the text with the highest
 * score among those that have ended. A score is the sum of the log-probabilities of the new tokens, including
 * the end token, divided by their number to the power of length_penalty. As in Megatron-LM's former beam
 * search and transformers' generate(num_beams), an end token is considered only if it is among the `width`
 * most likely continuations. The search stops if the score of the best open text is not higher than the
 * scores of `width` texts that ended. The search also stops once the open texts have max_new_tokens new
 * tokens; these texts then count as ended. */
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
