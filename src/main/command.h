/* The program's commands. Each command has a file that only parses arguments and calls modules. */
#pragma once

#include "chat/chat.h"
#include "ckpt/ckpt.h"
#include "config/config.h"
#include "data/fim_dataset.h"
#include "data/masking.h"
#include "tokenizer/tokenizer.h"

/* COMMAND(name, whether it can run in several processes, "description");
 * NAMED_COMMAND(function, "name", ...) for a name that is not an identifier */
#define COMMANDS                                                                                             \
    COMMAND(pretrain, true, "train a model, from scratch or from a checkpoint")                              \
    COMMAND(finetune, true, "fine-tune a pretrained BERT on labelled texts or questions")                    \
    COMMAND(plan, false, "print the parameters, memory and schedule of a run without starting it")           \
    COMMAND(preprocess, false, "tokenize JSON Lines or plain text into .bin and .idx files")                 \
    COMMAND(tokenize, false, "print the tokens of texts and their positions in the text")                    \
    COMMAND(merge, false, "merge several .bin/.idx datasets into one")                                       \
    COMMAND(generate, true, "continue prompts with a trained model")                                         \
    COMMAND(serve, true, "answer HTTP requests of OpenAI's API with a trained model")                        \
    COMMAND(convert, false, "convert checkpoints from and to Hugging Face safetensors")                      \
    COMMAND(inspect, false, "print the content of a checkpoint or a dataset")                                \
    COMMAND(parity, true, "compare a run with a golden case of an independent implementation")               \
    COMMAND(                                                                                                 \
        validate, true,                                                                                      \
        "test the correctness and speed of a machine, a driver or an NCCL library, and name a faulty part")  \
    COMMAND(compare, false, "compare the logs or the checkpoints of two runs")                               \
    COMMAND(bench, true, "measure the speed of a training step or of individual ops")                        \
    COMMAND(version, false, "print the version, the commit, the compiler and the libraries of this build")   \
    NAMED_COMMAND(train_tokenizer, "train-tokenizer", false,                                                 \
                  "train a byte-level BPE or unigram tokenizer and write its tokenizer.json")                \
    COMMAND(docs, false, "print docs/reference/options.md: every option with its default, range and meaning")

/* A command receives the words after its name, prints usage errors, and returns the exit status. */
#define NAMED_COMMAND(function, name, on_ranks, what) int command_##function(int argc, char **argv);
#define COMMAND(name, on_ranks, what)                 NAMED_COMMAND(name, #name, on_ranks, what)
COMMANDS
#undef COMMAND
#undef NAMED_COMMAND

/* ---- shared by several commands (common.c) ---- */

/* The maximum measurement time, in seconds, that an option may set. */
enum { COMMAND_MOST_S = 1000000 };

/* Prints the help, notes or problems that parsing produced. If this function returns false, the command must return
 * *status. */
bool command_ready(const Args *, Err, int *status);
/* Runs a command after parsing: calls command_ready, then run(arg), and prints run's error. Frees the Args, and returns
 * the exit status. */
typedef Err CommandRun(void *arg);
int command_finish(Args *, Err, CommandRun *, void *arg);
/* Prints an error's message, and returns the exit status for the error. */
int command_fail(Err);

/* A file whose path an option sets. The path is NULL if the option is not given. */
typedef struct NamedFile {
    const char *option, *path;
} NamedFile;
/* Reports a problem for each output that is the same file as another output, an input, or a --config file. */
void command_refuse_same_files(Args *, const NamedFile *outputs, int num_outputs, const NamedFile *inputs,
                               int num_inputs);

/* Writes a report, or does nothing if the path is NULL. If the report cannot be written, returns ERR_INFRA, because the
 * results are still valid. */
Err command_write_report(const char *path, const Str *);

/* The option --input-encoding for commands that read text: its help text, and a check that reports an unknown
 * encoding. */
#define COMMAND_INPUT_ENCODING "Encoding of the input: latin1, cp1252, utf-16 or another that iconv knows."
void command_check_encoding(Args *, const char *encoding);

/* The option --input-format for commands that read text: its help text, and its values in the order of
 * PreprocessInput. */
#define COMMAND_INPUT_FORMAT                                                                                 \
    "jsonl: one object per line; text: one document per file; paragraphs: one per block of lines."
extern const char *const command_input_formats[];

/* A model's options and tokenizer. All memory except the tokenizer's belongs to the arena. */
typedef struct Setup {
    Arena *arena;
    Config config;
    Tokenizer *tokenizer; /* NULL if the options set no tokenizer */
} Setup;
/* Opens the tokenizer and computes `derived`. Returns a user error if the vocabulary is missing. */
Err setup_finish(Setup *);
/* Like setup_finish, for a command that needs a tokenizer. */
Err setup_finish_for_text(Setup *);
/* Opens the tokenizer's chat templates. Returns an error if there are none. */
Err setup_chat(const Config *, const Tokenizer *, Chat **out);
/* Returns an error if --hf-model-type is not compatible with the model. Call this function once the task's
 * classes are known. */
Err setup_check_type(const Setup *);
/* Sets the special tokens for masked language modelling. If the tokenizer has no mask token, mock data uses the last
 * ids in the vocabulary. */
Err setup_mask_tokens(const Setup *, MaskTokens *out);
/* Sets the special tokens that --fim-data needs. The error names those that the tokenizer lacks. */
Err setup_fim_tokens(const Setup *, FimTokens *out);
/* Implement PreprocessEncode and FimDecode with a Tokenizer. Datasets must not depend on tokenizers, so they call these
 * functions through pointers. */
Err setup_encode(void *tokenizer, const char *text, size_t n, int32_t **ids, size_t *count);
Err setup_decode(void *tokenizer, const int32_t *ids, size_t n, char **text, size_t *bytes);
void setup_free(Setup *);
/* Opens the tokenizer that the options describe. Sets *out to NULL if the options describe no tokenizer. */
Err setup_tokenizer(const Config *, Tokenizer **out);
/* Like setup_tokenizer, for exporting a model of type `model_type`. If transformers would read the tokenizer's files as
 * a different tokenizer, sets *json to the text of a tokenizer.json to export instead (TokenizerConfig.export_json).
 * The caller frees *json. */
Err setup_tokenizer_export(const Config *, const char *model_type, Tokenizer **out, char **json);
/* Functions for commands that only tokenize. setup_check_tokenizer reports missing tokenizer options.
 * setup_tokenizer_alone opens the tokenizer, and prints a note if --vocab-size has no effect. */
void setup_check_tokenizer(const Config *, Args *);
Err setup_tokenizer_alone(const Config *, Tokenizer **out);
/* Opens the checkpoint for step `ckpt_step` in the folder `path`, or the newest checkpoint if the step is not set.
 * `path` may also be a checkpoint's own folder. */
Err setup_checkpoint(const char *path, int64_t ckpt_step, Ckpt **out);
/* Sets *ends to the ids of the tokens that end a text. The caller frees *ends. The ids in an imported
 * checkpoint (ckpt/hf/tokens.h) take precedence over the tokenizer's ids. */
void setup_ends(const Setup *, const json_t *ids, int64_t **ends, int64_t *n);
/* Prints a note if transformers would add special tokens to a prompt for this imported model, but the options do not.
 * `ids` is the same as for setup_ends. */
void setup_note_special(const Setup *, const json_t *ids);
/* Makes the tokenizer's file paths absolute, so that a checkpoint can store them. */
void setup_absolute_paths(Config *, Arena *);
