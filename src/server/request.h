/* Reads and checks a request body. fields.def contains the fields and their ranges. */
#pragma once

#include "chat/chat.h"
#include "infer/grammar.h"
#include "infer/sampling.h"
#include "server/fields.h"
#include "server/text.h"

/* The served model's properties, apart from its weights. The properties never change, so any number of threads can read
 * them. */
typedef struct Served {
    const char *name; /* the model's name */
    int64_t created;  /* seconds since 1970 */
    const Tokenizer *tokenizer;
    const Chat *chat;    /* NULL if the tokenizer has no chat template */
    const int64_t *ends; /* [n_ends]: tokens that end a text */
    int64_t n_ends;
    int64_t vocab, context; /* context: maximum number of tokens in a prompt and its continuation */
    int64_t choices;        /* maximum number of choices per request */
    uint64_t seed;          /* the seed for requests without a seed */
    bool stamps;            /* whether answers state the versions of the weights that computed them */
} Served;

typedef struct TokenList {
    int32_t *at; /* [n], owned */
    size_t n;
} TokenList;

/* A text-generation request. The answer contains, for each prompt, the `n` most likely of `best_of` choices. */
typedef struct Ask {
    Endpoint endpoint;
    TokenList *prompts;
    int64_t n_prompts, n, best_of;
    int64_t min_tokens, max_tokens; /* if max_tokens is -1, the context limits the number */
    Sampling sampling;              /* owned (sampling_free) */
    bool seeded;                    /* whether the request has a seed */
    uint64_t seed;
    StopList stop;
    int64_t *ends, n_ends;
    json_t *texts; /* the prompts, which only ENDPOINT_MEGATRON repeats in the answer */
    bool logprobs, echo, stream;
    /* whether the end of the stream (usage) or every part (usage_always) states the number of tokens */
    bool usage, usage_always;
    /* ids: whether the answer contains token ids; special: whether its text contains the names of special tokens */
    bool ids, special;
    char *salt;              /* as in Request, or NULL */
    const ToolFormat *tools; /* the format of calls in the text, or NULL */
    json_t *functions;       /* the request's tools if `tools` is not NULL (owned) */
    bool single;             /* whether a text without a grammar ends after its first call */
    GrammarNode *grammar;    /* [n_grammar] as in Request */
    int64_t n_grammar;
    int64_t likeliest; /* number of most likely tokens whose log-probabilities are reported */
    /* like `likeliest`, for the tokens of the prompt; -1 if the prompt's log-probabilities are not reported */
    int64_t prompt_likeliest;
} Ask;

/* Refuses a name that is not the model's. */
Refusal request_model(const Served *, const char *name);
/* Like fields_parse, but also checks the model's name. */
Refusal request_parse(const Served *, Endpoint, const char *body, size_t n, json_t **out);
/* Reads the request body for a text-generation endpoint. The caller must free *out with ask_free, even after a
 * refusal. */
Refusal request_ask(const Served *, Endpoint, const json_t *body, Ask *out);
/* Converts the prompts or messages in a request body to tokens, one list for each prompt. The caller must free *out,
 * even after a refusal. */
Refusal request_prompts(const Served *, const json_t *body, TokenList **out, int64_t *n);
/* Checks a list of token ids, and copies the list to *out. */
Refusal request_ids(const Served *, const char *field, const json_t *, TokenList *out);
int64_t ask_max_tokens(const Served *, const Ask *, int64_t prompt);
void ask_free(Ask *);
