/* Generates for requests that come and go. Each pass of the model (engine_step) computes a stream of tokens: the next
 * token of each running request, and parts of prompts. Keys and values are in pages (models/cache.h), so that a request
 * takes memory only for the positions that it has. If pages run out, the request that was admitted last
 * releases its pages, and is computed again later.
 *
 * The draws of a request depend only on its seed, its stream and the position. With --batch-invariant-mode, so do its
 * logits, and its tokens and log-probabilities are bitwise equal whatever other requests there are. Data-parallel
 * ranks have separate engines with different requests. All other ranks must make the same calls in the same order. */
#pragma once

#include "base/err.h"
#include "infer/grammar.h"
#include "infer/sampling.h"
#include "models/cache.h"

/* Speculation: each pass also checks drafts of a request's next tokens. A draft is kept if it is the token that is
 * chosen at its position, so tokens and log-probabilities do not depend on drafts. */
typedef struct Speculation {
    int64_t tokens; /* maximum number of drafts of a request in a pass; 0: none */
    /* A model of the same vocabulary that computes drafts, and its context, which has the same device. NULL: the
     * model's layers that predict further tokens (--mtp-num-layers) compute them; there are at least `tokens`. */
    const Model *model;
    const RunContext *context;
} Speculation;

typedef struct EngineLimits {
    int64_t page;                 /* rows of a page, a multiple of PAGE_ROWS */
    int64_t pages, encoder_pages; /* number of pages of each pool */
    int64_t requests;             /* maximum number of requests that run at the same time */
    int64_t tokens;               /* maximum number of tokens of a pass; at least `requests` */
    bool shares_prefixes;         /* requests that begin with the same tokens share pages */
    bool no_graphs;               /* do not record CUDA graphs of passes */
    Speculation speculation;      /* the model must have no encoder */
    const Vocabulary *vocabulary; /* for requests with a grammar; may be NULL */
} EngineLimits;

typedef struct Request {
    int64_t id; /* chosen by the caller; different from those of all other requests of the engine */
    const int32_t *prompt; /* [n]; copied. It goes to the encoder if the model has one */
    int64_t n;             /* at least 1 */
    int32_t start;         /* the first token of the decoder of an encoder-decoder model */
    Sampling sampling;     /* copied */
    uint64_t seed, stream;
    int64_t min_new_tokens; /* no end token is chosen before this many new tokens */
    int64_t max_new_tokens; /* at least 0 */
    const int64_t *ends;    /* [n_ends] tokens that end a request and are not part of it; copied */
    int64_t n_ends;
    bool logprobs;        /* whether events report the log-probabilities of new tokens */
    bool prompt_logprobs; /* whether events report the log-probabilities of the prompt's tokens; then all are
                             computed */
    const char *salt;     /* [n_salt]; copied. Requests share pages only with requests of the same salt */
    int64_t n_salt;
    const GrammarNode *
        grammar; /* [n_grammar] the texts that may be generated (infer/grammar.h); copied. n_grammar 0: all */
    int64_t n_grammar; /* otherwise, the engine needs a vocabulary, and the request has no min_new_tokens */
    bool steered;      /* the caller chooses each new token, with engine_continue. It has no drafts */
    int64_t likeliest; /* events also report this many most likely tokens; at most the vocabulary */
} Request;

/* Replaces the arrays of a request by copies, which request_free frees. */
void request_copy(Request *);
void request_free(Request *);

typedef enum Finish {
    FINISH_STOP,   /* an end token, or the grammar allows no further one */
    FINISH_LENGTH, /* max_new_tokens */
    FINISH_NAN,    /* the model's logits are not finite */
    FINISH_NONE,   /* no token is allowed */
} Finish;

typedef enum EngineEventKind {
    EVENT_PROMPT, /* the log-probability of token `index` of the prompt */
    EVENT_TOKEN,  /* a new token, which has `index` among all tokens of the decoder */
    EVENT_CHOICE, /* a steered request waits for its token `index`; `likeliest` has the candidates */
    EVENT_END,    /* the request has ended; the engine has released it */
} EngineEventKind;

typedef struct EngineEvent {
    EngineEventKind kind;
    int64_t id, index;
    int32_t token;                /* for EVENT_END, the end token of FINISH_STOP, or -1 */
    double logprob;               /* under the unmodified distribution; 0 if it is not reported */
    const LikelyToken *likeliest; /* [n_likeliest] for the position of `token`, during the call; or NULL */
    int64_t n_likeliest;          /* 0 or Request.likeliest */
    Finish finish;                /* of EVENT_END */
    int64_t weights;              /* number of calls of engine_new_weights before the pass */
    int64_t cached;    /* tokens of the prompt that were in shared pages when the request was admitted */
    int64_t waited_ns; /* time from engine_add to the admission */
} EngineEvent;

/* Receives the events of a step, in the order of admission. It may call engine_abort. */
typedef void EngineSink(void *arg, const EngineEvent *);

typedef struct EngineCounts {
    int64_t waiting, running, free_pages, passes, preemptions;
    int64_t shared; /* tokens whose rows were in shared pages, so that they were not computed */
    int64_t pages;
    int64_t drafts, accepted; /* drafts of speculation, and those that were kept */
    int64_t prompt_tokens;    /* that were computed; those of a request that released its pages count again */
    int64_t model_ns;         /* time of the passes of models; the rest of a step is scheduling */
} EngineCounts;

typedef struct Engine Engine;

enum {
    /* number of tokens of a pass at which GEMMs reach full speed; more need more memory for activations */
    ENGINE_PASS_TOKENS = 4096,
    ENGINE_PAGE = 64, /* rows of a page by default */
};
/* Whether a token is one of the end tokens [n]. */
static inline bool engine_ends(const int64_t *ends, int64_t n, int64_t token) {
    for (int64_t i = 0; i < n; i++)
        if (ends[i] == token) return true;
    return false;
}

/* The memory that pools may take by default: half of what each rank has on the device that has least. All ranks must
 * call it and get the same result, because the number of pages decides which requests run. */
double engine_room(const RunContext *);
/* The number of pages for `rows` rows. */
static inline int64_t engine_pages(int64_t rows, int64_t page) { return (rows + page - 1) / page; }
/* The bytes of the pools on the rank that needs most. All ranks must call it and get the same result. It is a double,
 * because an integer could overflow. */
double engine_cache_bytes(const Model *, const RunContext *, const EngineLimits *);
/* Allocates pools. Too little memory is a user error, on all ranks. The model and the context must outlive
 * the engine. The model must not be a BERT model. */
Err engine_new(const Model *, const RunContext *, const EngineLimits *, Engine **out);
void engine_free(Engine *);
/* Adds a request to the queue. It is a user error if the request can never be computed: an empty prompt, a token
 * outside the vocabulary, more positions than the model or the pools have. */
Err engine_add(Engine *, const Request *);
/* Returns the error of engine_add. */
Err engine_check(const Engine *, const Request *);
/* Ends a request in any state, without an event. Returns false if there is no such request. */
bool engine_abort(Engine *, int64_t id);
/* Appends a token to a steered request after its EVENT_CHOICE, outside of a step. */
void engine_continue(Engine *, int64_t id, int32_t token);
/* Adds a copy of a running request, outside of a step. The copies share pages, except a last page that is not full.
 * Pages for all steered requests must be available. */
void engine_fork(Engine *, int64_t id, int64_t copy);
/* All requests release their pages, outside of a step, and are computed again later. None may be steered. */
void engine_forget(Engine *);
/* As engine_forget, and releases the memory of the pools, outside of a step. Until engine_wake, there is no step. */
void engine_suspend(Engine *);
/* Allocates the memory of the pools again. It is a fault if there is too little memory. */
void engine_wake(Engine *);
/* As engine_forget, because the parameters of the model have changed: no rows of the earlier parameters remain. */
void engine_new_weights(Engine *);
/* Runs one pass. Returns false if there was nothing to compute. If data-parallel ranks share experts, all must call it
 * equally often, and get the same result. */
bool engine_step(Engine *, EngineSink *, void *arg);
EngineCounts engine_counts(const Engine *);
