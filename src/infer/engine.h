/* Generates text for requests that arrive and end at any time. Each model pass (engine_step) processes a batch of
 * tokens: one token for each running request, and parts of prompts. Keys and values are stored in pages
 * (models/cache.h), so that a request needs memory only for the positions that it has reached. If pages run out, the
 * request that was admitted last releases its pages, and is recomputed later.
 *
 * A request's random draws depend only on its seed, its stream and the position. With --batch-invariant-mode, a
 * request's logits do not depend on other requests either, so its tokens and log-probabilities are bitwise equal in
 * any batch. Data-parallel ranks have separate engines with different requests. All ranks of a data-parallel replica
 * must make the same calls in the same order. */
#pragma once

#include "base/err.h"
#include "config/enums.h"
#include "infer/grammar.h"
#include "infer/sampling.h"
#include "models/cache.h"

/* Speculation: each pass also checks drafts of the requests' next tokens. A draft is kept only if it equals the token
 * chosen at its position, so tokens and log-probabilities do not depend on drafts. */
typedef struct Speculation {
    int64_t tokens; /* maximum number of drafts per request and pass; 0: none */
    /* A model that computes drafts, and its context. It must have the main model's vocabulary and device. If `model` is
     * NULL, the main model's MTP layers (--mtp-num-layers) compute the drafts. There must then be at least `tokens` of
     * them. */
    const Model *model;
    const RunContext *context;
} Speculation;

typedef struct EngineLimits {
    int64_t page;                 /* rows per page, a multiple of PAGE_ROWS */
    int64_t pages, encoder_pages; /* number of pages in each pool */
    int64_t requests;             /* maximum number of requests that run at the same time */
    int64_t tokens;               /* maximum number of tokens per pass; at least `requests` */
    bool shares_prefixes;         /* whether requests that begin with the same tokens share pages */
    bool no_graphs;               /* true if passes must not be captured as CUDA graphs */
    Speculation speculation;      /* requires a model without an encoder */
    KvCacheMode suspended;        /* what happens to stored rows while the engine is suspended */
    RoutePolicy route;            /* how a fleet chooses replicas (infer/placement.h) */
    double route_alpha;           /* weight of cached tokens in the choice of a replica, from 0 to 1 */
    const Vocabulary *vocabulary; /* for requests with a grammar; may be NULL */
} EngineLimits;

typedef struct Request {
    int64_t id;            /* chosen by the caller; unique among the engine's requests */
    const int32_t *prompt; /* [n]; copied; if the model has an encoder, the encoder reads the prompt */
    int64_t n;             /* at least 1 */
    int32_t start;         /* an encoder-decoder model's first decoder token */
    Sampling sampling;     /* copied */
    uint64_t seed, stream;
    int64_t min_new_tokens; /* no end token is chosen before this many new tokens */
    int64_t max_new_tokens; /* at least 0 */
    const int64_t *ends;    /* [n_ends] tokens that end a request and are not part of its text; copied */
    int64_t n_ends;
    bool logprobs; /* whether events report the log-probabilities of new tokens */
    /* whether events report the prompt's log-probabilities; if so, all prompt tokens are computed */
    bool prompt_logprobs;
    const char *salt; /* [n_salt]; copied; only requests with equal salts share pages */
    int64_t n_salt;
    const GrammarNode *
        grammar; /* [n_grammar] describes the allowed text (infer/grammar.h); copied; n_grammar 0: any text */
    int64_t n_grammar; /* if > 0, the engine needs a vocabulary, and min_new_tokens must be 0 */
    bool steered;      /* the caller chooses each new token, with engine_continue; there are no drafts */
    int64_t likeliest; /* number of most likely tokens that events also report; at most the vocabulary size */
} Request;

/* Replaces a request's arrays with copies, which request_free frees. */
void request_copy(Request *);
void request_free(Request *);

typedef enum Finish {
    FINISH_STOP,   /* an end token was chosen, or the grammar allows no further token */
    FINISH_LENGTH, /* max_new_tokens is reached */
    FINISH_NAN,    /* the model's logits are not finite */
    FINISH_NONE,   /* no token is allowed */
    FINISH_WIDE,   /* the grammar has more alternatives than GRAMMAR_WIDEST */
} Finish;

typedef enum EngineEventKind {
    EVENT_PROMPT, /* the log-probability of the prompt's token `index` */
    EVENT_TOKEN,  /* a new token; `index` is its position among all decoder tokens */
    EVENT_CHOICE, /* a steered request waits for token `index`; `likeliest` lists the candidates */
    EVENT_END,    /* the request has ended, and the engine has released it */
} EngineEventKind;

typedef struct EngineEvent {
    EngineEventKind kind;
    int64_t id, index;
    int32_t token;  /* for EVENT_END: the end token if FINISH_STOP, or -1 */
    double logprob; /* log-probability of `token` under the unmodified distribution; 0 if not reported */
    /* [n_likeliest] the most likely tokens at this position, or NULL; valid during the call */
    const LikelyToken *likeliest;
    int64_t n_likeliest; /* 0 or Request.likeliest */
    Finish finish;       /* for EVENT_END */
    int64_t weights;     /* number of calls to engine_new_weights before the pass */
    int64_t cached;      /* number of prompt tokens that were in shared pages at admission */
    int64_t waited_ns;   /* time from engine_add to admission */
} EngineEvent;

/* Receives a step's events, in the order in which requests were admitted. The sink may call engine_abort. */
typedef void EngineSink(void *arg, const EngineEvent *);

typedef struct EngineCounts {
    int64_t waiting, running, free_pages, passes, preemptions;
    int64_t shared; /* number of tokens that were not computed, because their rows were in shared pages */
    int64_t pages;
    int64_t drafts, accepted; /* number of drafts, and number of drafts that were kept */
    int64_t prompt_tokens;    /* number of computed prompt tokens; recomputed tokens count again */
    int64_t model_ns;         /* time in model passes; the rest of a step is scheduling */
    int64_t weights;          /* number of calls to engine_new_weights */
} EngineCounts;

typedef struct Engine Engine;

enum {
    /* number of tokens per pass at which GEMMs reach full speed; more tokens only need more activation memory */
    ENGINE_PASS_TOKENS = 4096,
    ENGINE_PAGE = 64, /* default number of rows per page */
};
/* Returns whether a token is one of the n end tokens. */
static inline bool engine_ends(const int64_t *ends, int64_t n, int64_t token) {
    for (int64_t i = 0; i < n; i++)
        if (ends[i] == token) return true;
    return false;
}

/* Returns the default limit of the pools' memory in bytes: half of the available memory on the rank that has the least.
 * All ranks must call this function. They get the same result, because the number of pages decides which requests
 * run. */
double engine_room(const RunContext *);
/* Returns how many pages `rows` rows need. */
static inline int64_t engine_pages(int64_t rows, int64_t page) { return (rows + page - 1) / page; }
/* Returns how many bytes the pools need on the rank that needs the most. All ranks must call this function, and all get
 * the same result. The result is a double, because an integer could overflow. */
double engine_cache_bytes(const Model *, const RunContext *, const EngineLimits *);
/* Returns how many bytes the states of `requests` requests need on the rank that needs the most. All ranks must call
 * this function. */
double engine_state_bytes(const Model *, const RunContext *, int64_t requests);
/* Allocates the pools. Returns a user error on all ranks if there is too little memory. The model and the context must
 * outlive the engine. The model must not be a BERT model. */
Err engine_new(const Model *, const RunContext *, const EngineLimits *, Engine **out);
void engine_free(Engine *);
/* Adds a request to the queue. Returns a user error if the request can never be computed. The prompt must not
 * be empty, its tokens must be in the vocabulary, and the model and the pools must have enough positions. */
Err engine_add(Engine *, const Request *);
/* Returns the error that engine_add would return. */
Err engine_check(const Engine *, const Request *);
/* Ends a request in any state, without an event. Returns false if there is no such request. */
bool engine_abort(Engine *, int64_t id);
/* Appends a token to a steered request after its EVENT_CHOICE. Call engine_continue between steps. */
void engine_continue(Engine *, int64_t id, int32_t token);
/* Adds a copy of a running request. Call engine_fork between steps. The two requests share all pages except a partly
 * filled last page. There must be enough pages for all steered requests. */
void engine_fork(Engine *, int64_t id, int64_t copy);
/* Makes all requests release their pages. The rows in these pages are recomputed later. Call engine_forget
 * between steps. No request may be steered during this call. */
void engine_forget(Engine *);
/* Releases the pools' memory, unless EngineLimits.suspended is KV_PERSIST. Call engine_suspend between steps.
 * With KV_OFFLOAD, the pages of requests are copied to host memory; too little memory is a fault. With
 * KV_RECOMPUTE, engine_suspend calls engine_forget. No step may run until engine_wake is called. */
void engine_suspend(Engine *);
/* Allocates the pools' memory again, and restores the pages that engine_suspend copied. Too little memory is
 * a fault. */
void engine_wake(Engine *);
/* Calls engine_forget. Call this function after the model's parameters have changed, so that no rows computed
 * with the earlier parameters remain. */
void engine_new_weights(Engine *);
/* Runs one pass. Returns false if there was nothing to compute. If data-parallel ranks share experts, all ranks must
 * call this function the same number of times, and all get the same result. */
bool engine_step(Engine *, EngineSink *, void *arg);
EngineCounts engine_counts(const Engine *);
