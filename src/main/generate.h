/* The parts of the `generate` command: prompts, output and conversations. */
#pragma once

#include "chat/chat.h"
#include "infer/generate.h"
#include "main/command.h"
#include "run/model_run.h"

typedef struct GenerateJob {
    Setup setup, draft;
    Prompt *prompts;  /* [n] */
    char **texts;     /* [n] */
    int64_t *lengths; /* [n], the number of tokens to generate for each prompt */
    int64_t n;
    int64_t *ends, n_ends, start; /* GenerateOptions explains these members */
    Chat *chat;                   /* NULL without --interactive */
} GenerateJob;

/* The results of --inference-repeat-n runs. `out` and `counts` come from the last run. */
typedef struct GenerateResults {
    Generated *out; /* [n], the samples of the last run */
    double *rates;  /* [n_rates], each run's tokens per second */
    int64_t n_rates;
    EngineCounts counts;
    int64_t most_bytes; /* largest number of bytes that any rank has allocated on its device */
} GenerateResults;

/* T5's output does not contain the prompt, because the decoder generates only the answer. */
static inline bool generate_is_t5(const GenerateJob *j) { return j->setup.config.model == MODEL_t5; }
static inline bool generate_is_hf_t5(const GenerateJob *j) {
    const HfModelType type = j->setup.config.hf_model_type;
    return generate_is_t5(j) && (type == TYPE_t5 || type == TYPE_mt5);
}

static inline Sampling generate_sampling(const GenerateJob *j) {
    const Config *c = &j->setup.config;
    return (Sampling){.temperature = c->temperature, .top_k = c->top_k, .top_p = c->top_p};
}

/* ---- prompts (generate_prompts.c) ---- */

/* Reads and tokenizes the prompts given by --prompt, --prompts-file or --prompt-file. */
Err generate_read_prompts(GenerateJob *);

/* ---- output (generate_output.c) ---- */

/* Decodes tokens. The caller frees the text. A model with a padded vocabulary has more ids than its tokenizer. As in
 * transformers, the additional ids have no text. */
Err generate_decode(const GenerateJob *, const int32_t *tokens, int64_t n, char **text, size_t *bytes);
/* Decodes the new tokens. The caller frees the text. *before is the number of bytes before the first --stop text, or
 * -1 if there is none. */
Err generate_find_stop(const GenerateJob *, int64_t sample, const Generated *, char **text, size_t *bytes,
                       int64_t *before);
/* Prints a sample: a header if there are several samples, the text up to the --stop text (which may end inside the
 * last token), and the log-probabilities. */
Err generate_print(const GenerateJob *, int64_t sample, const Generated *);

/* Prints samples in order, and each token of a sample as soon as possible. */
typedef struct GenerateStream GenerateStream;
GenerateStream *generate_stream_new(const GenerateJob *, const Generated *out);
/* Prints all tokens that can be printed now. */
void generate_stream_print(GenerateStream *);
void generate_stream_free(GenerateStream *); /* NULL is fine */

/* Writes the --output-path file, with the same keys as Megatron-LM's inference scripts. */
Err generate_write_json(const GenerateJob *, const GenerateResults *);

/* ---- conversations (generate_chat.c) ---- */

/* Answers each line of standard input, using the chat template, until the input ends or a line is /exit. All ranks must
 * call this function. */
Err generate_chat(const GenerateJob *, const ModelRun *, Comm *);
