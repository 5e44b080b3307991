/* Beam search: keeps the `width` likeliest texts of each length, and returns the text with the highest score among
 * those that ended. A score is the sum of the log-probabilities of the new tokens, including the end token, divided by their
 * number to the power of length_penalty. As in Megatron-LM's former beam search and transformers' generate(num_beams),
 * an end token counts only among the `width` likeliest continuations. The search stops if the best open text has no
 * higher score than `width` texts that ended, or at max_new_tokens, where open texts count as ended. */
#pragma once

#include "infer/generate.h"

typedef struct BeamOptions {
    int64_t width;
    double length_penalty;
} BeamOptions;

/* Like `generate`, but reads neither the options of sampling and drafts, nor the limits, arrivals, likeliest tokens and
 * watch, and sets no times. The prompts are searched one after another. */
Err beam_search(const Model *, const RunContext *, const Prompt *, int64_t n, const GenerateOptions *,
                const BeamOptions *, Generated *out);
