/* The state of an engine, which the files of its implementation share. */
#pragma once

#include "base/min_max.h"
#include "infer/engine.h"
#include "infer/page_pool.h"
#include "nn/feed.h"

typedef struct PageList {
    int64_t *page; /* [n] */
    int64_t n;
} PageList;

/* The state of a request. The pool contains its rows of tokens [0, computed). */
typedef struct Live {
    Request request;
    int32_t *tokens; /* [n]: tokens of the decoder: its first tokens, followed by the new tokens */
    int64_t n, n_first, computed;
    int64_t known; /* number of the prompt's log-probabilities that have been reported */
    PageList pages, encoder_pages;
    int64_t named;          /* number of leading pages that have names */
    uint64_t before;        /* PageName.before of the next page */
    bool encoded;           /* the pool contains the encoder's rows */
    GrammarReader *grammar; /* NULL: the request has no grammar */
    bool ended;
    int64_t added_ns, waited_ns, cached; /* as in EngineEvent; waited_ns -1: it was never admitted */
    int64_t drafts;   /* number of drafts that the current pass checks, which follow the n tokens */
    int64_t drafted;  /* number of leading tokens that the caches of drafts contain */
    int64_t drafting; /* `drafted` after the drafts of the current pass */
} Live;

typedef struct LiveList {
    Live **at;
    int64_t n;
} LiveList;

/* The rows [first, first + n) of a request in a pass. The logits of the rows from `wanted` on are needed, and those
 * that prompt_logprobs requires. */
typedef struct Share {
    Live *live;
    int64_t first, n, wanted;
} Share;

/* A forward pass of a model, or of its stack of depth k (CacheShape), over some rows. */
typedef struct Pass {
    const Model *model;
    Tape *tape;
    int depth;
    Cache *cache;
    Tensor *before;     /* for depth k: the outputs of the previous stack */
    const Share *share; /* [n] */
    int64_t n;
} Pass;

/* The caches and passes of drafts. */
typedef struct Drafter {
    Tape *tape;
    Cache cache[MTP_LAYERS]; /* [caches]: caches of each depth >= 1, or of a separate model */
    int caches;
    Share *share;  /* [EngineLimits.requests] */
    bool *drafted; /* [EngineLimits.pages]: all rows of the page are in the caches */
} Drafter;

/* The CUDA graph of passes with one token per request. */
typedef struct PassGraph {
    int64_t tokens, width; /* number of tokens, and width of the page table */
    DeviceRecording work;
    Tensor logits, choice; /* the results of the graph */
} PassGraph;

struct Engine {
    const Model *model;
    const RunContext *context;
    EngineLimits limits;
    PagePool *pages, *encoder_pages;
    LiveList waiting, running; /* in the order of arrival, and in the order of admission */
    Share *share;              /* [n_shares]: the current pass */
    int64_t n_shares;
    Cache cache;
    Space *slot, *transient;
    Tape *tape;
    char *ids,
        /* [ids_bytes]: the integers of a pass in device memory, and in the host memory that is copied to it */
        *host_ids;
    size_t ids_bytes;
    const Chosen *choice; /* op_choose of the pass's logits, in host_ids */
    PassGraph *graph;     /* [n_graphs] */
    int n_graphs;
    double *row, *scratch; /* [vocab] */
    LikelyToken *likeliest;
    Drafter drafter;
    int64_t passes, preemptions, shared, drafts, accepted, prompt_tokens, model_ns, weights;
};

static inline bool has_encoder(const Engine *e) { return e->model->plan.sample.encoder > 0; }

/* Returns whether the pass must compute the logits of token i of a request, which is not the last token. */
static inline bool reports(const Engine *e, const Live *live, int64_t i) {
    return live->request.prompt_logprobs && !has_encoder(e) && i + 1 < live->n_first && i >= live->known;
}

/* Returns whether data-parallel ranks must run passes together, because they share experts. */
bool pass_joins(const Model *, const RunContext *);
/* Returns the number of pages that a cache needs, in addition to those of its pool, for tokens that only fill a
 * pass. */
int64_t pass_spare_pages(const Model *, const RunContext *, int64_t page);
/* Runs a pass (pass.c). Returns the logits that are needed, [number, 1, padded vocab], and sets Engine.choice. */
Tensor pass_run(Engine *, const Pass *);
void pass_close(Engine *);

/* choice.c. Converts row i of logits to e->row. */
void choice_read_row(const Engine *, const Tensor *logits, int64_t i);
/* How op_choose must choose token `at` of a request. A token of the prompt is known. */
ChoiceRow choice_row(const Live *, int64_t at);
/* Returns whether op_choose chooses token `at` of a request. Otherwise, the choice needs e->row. */
bool choice_is_made(const Live *, int64_t at);
/* Chooses token `at` of a request: the choice that was made, or from e->row. The choice depends only on the request,
 * its tokens before `at` and the logits. -1: no token is allowed. */
int32_t choice_token(Engine *, const Live *, int64_t at, const Chosen *made);
/* The log-probability of a token: from the choice if it is that token and has a sum, otherwise from e->row. */
double choice_logprob_of(const Engine *, const Chosen *, int32_t token);
/* Returns whether the text of a request with a grammar may end before its next token. */
bool choice_is_complete(const Live *);

/* Computes the drafts of the shares that have some (speculation.c). */
void speculation_draft(Engine *);
/* Returns the maximum number of drafts of a request in the next pass. */
int64_t speculation_most(const Engine *, const Live *);
/* Counts a shared page as drafted if all of its rows are. */
void speculation_share(const Engine *, Live *, int64_t page);
void speculation_check(const Model *, const RunContext *, const Speculation *);
void speculation_open(Engine *);
void speculation_close(Engine *);
/* Allocate and release the caches of drafts. */
void speculation_allocate(Engine *);
void speculation_release(Engine *);
/* Returns the bytes of the caches of drafts. */
double speculation_bytes(const Model *, const RunContext *, const EngineLimits *);
