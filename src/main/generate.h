/* The parts of the `generate` command: prompts, output and conversations. */
#pragma once

#include "chat/chat.h"
#include "infer/generate.h"
#include "main/command.h"
#include "run/model_run.h"
#include "server/text.h"

typedef struct GenerateJob {
    Setup setup, draft;
    Prompt *prompts;  /* [n] */
    char **texts;     /* [n] */
    int64_t *lengths; /* [n], the number of tokens to generate for each prompt */
    int64_t n;
    StopList stops;               /* the --stop texts */
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

/* A sample's new text, up to the first --stop text. Bytes that are not UTF-8 become U+FFFD. */
typedef struct GenerateText {
    TextStream text;
    int64_t pushed; /* number of the sample's tokens that `text` has received; 0 before the first call */
} GenerateText;
/* Appends the new text that can no longer change to `out`. If the sample has ended, appends all remaining text. */
void generate_text(const GenerateJob *, const Generated *, GenerateText *, Str *out);
void generate_text_free(GenerateText *);
/* Prints a sample: a header if there are several samples, the text up to the --stop text (which may end inside the
 * last token), and the log-probabilities. */
void generate_print(const GenerateJob *, int64_t sample, const Generated *);

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
