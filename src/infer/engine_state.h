/* The engine's state, shared by the files that implement it. */
#pragma once

#include "base/min_max.h"
#include "infer/engine.h"
#include "infer/page_pool.h"
#include "nn/feed.h"

typedef struct PageList {
    int64_t *page; /* [n] */
    int64_t n;
} PageList;

/* A request's state. The pool contains the request's rows for tokens [0, computed). */
typedef struct Live {
    Request request;
    int32_t *tokens; /* [n]: decoder tokens: the first tokens, followed by the new tokens */
    int64_t n, n_first, computed;
    int64_t known; /* number of the prompt's log-probabilities that have been reported */
    PageList pages, encoder_pages;
    PageList state;         /* one page: the request's row in pools that have a row for each request */
    int64_t named;          /* number of leading pages with names */
    uint64_t before;        /* PageName.before for the next page */
    bool encoded;           /* whether the pool contains the encoder's rows */
    GrammarReader *grammar; /* NULL: the request has no grammar */
    bool ended;
    int64_t added_ns, waited_ns, cached; /* as in EngineEvent; waited_ns is -1 before admission */
    int64_t drafts;   /* number of drafts after the n tokens; the current pass checks them */
    int64_t drafted;  /* number of leading tokens in the draft caches */
    int64_t drafting; /* value of `drafted` after the current pass's drafts */
} Live;

typedef struct LiveList {
    Live **at;
    int64_t n;
} LiveList;

/* A request's rows [first, first + n) in a pass. The pass must compute the logits of rows from `wanted` on, and of the
 * rows that prompt_logprobs requires. */
typedef struct Share {
    Live *live;
    int64_t first, n, wanted;
} Share;

/* A forward pass of some rows through a model or through its stack at depth k (CacheShape). */
typedef struct Pass {
    const Model *model;
    Tape *tape;
    int depth;
    Cache *cache;
    Tensor *before;     /* for depth k: the previous stack's outputs */
    const Share *share; /* [n] */
    int64_t n;
} Pass;

/* The caches and passes that compute drafts. */
typedef struct Drafter {
    Tape *tape;
    Cache cache[MTP_LAYERS]; /* [caches]: one for each depth >= 1, or one for a separate model */
    int caches;
    Share *share;  /* [EngineLimits.requests] */
    bool *drafted; /* [EngineLimits.pages]: whether the caches contain all rows of the page */
} Drafter;

/* The pages of requests while the engine is suspended (kept_pages.c). */
typedef struct KeptPages {
    CachePages pages;
    char *host; /* the pages of all caches, or NULL */
} KeptPages;

/* The CUDA graph for passes with one token per request. */
typedef struct PassGraph {
    int64_t tokens, width; /* number of tokens, and width of the page table */
    DeviceRecording work;
    Tensor logits, choice; /* the graph's results */
} PassGraph;

struct Engine {
    const Model *model;
    const RunContext *context;
    EngineLimits limits;
    PagePool *pages, *encoder_pages, *states; /* states: empty if the model has none */
    LiveList waiting, running;                /* waiting: sorted by arrival; running: sorted by admission */
    Share *share;                             /* [n_shares]: the rows of the current pass */
    int64_t n_shares;
    Cache cache;
    Space *slot, *transient;
    Tape *tape;
    char *ids,
        /* [ids_bytes]: a pass's integers in device memory, and in the host memory from which they are copied */
        *host_ids;
    size_t ids_bytes;
    const Chosen *choice; /* op_choose's results for the pass, in host_ids */
    PassGraph *graph;     /* [n_graphs] */
    int n_graphs;
    double *row, *scratch; /* [vocab] */
    LikelyToken *likeliest;
    Drafter drafter;
    KeptPages kept_pages;
    int64_t passes, preemptions, shared, drafts, accepted, prompt_tokens, model_ns, weights;
};

static inline bool has_encoder(const Engine *e) { return e->model->plan.sample.encoder > 0; }

/* Returns whether the pass must compute the logits at token i of a request because prompt_logprobs requires
 * them. */
static inline bool reports(const Engine *e, const Live *live, int64_t i) {
    return live->request.prompt_logprobs && !has_encoder(e) && i + 1 < live->n_first && i >= live->known;
}

/* Returns whether data-parallel ranks must run passes together, because they share experts. */
bool pass_joins(const Model *, const RunContext *);
/* Returns how many pages a cache needs for padding tokens beyond the pool's pages. */
int64_t pass_spare_pages(const Model *, const RunContext *, int64_t page);
/* Returns the name of page `i` of a request, computed from its tokens. `before` is the number of the preceding
 * page. Only the first page's name contains the salt; all later names depend on the first. */
static inline PageName page_name(const EngineLimits *l, const Request *r, const int32_t *tokens, int64_t i,
                                 uint64_t before) {
    return (PageName){.before = before,
                      .tokens = tokens + i * l->page,
                      .n = l->page,
                      .salt = r->salt,
                      .n_salt = i ? 0 : r->n_salt};
}
/* Copies the requests' pages to host memory, restores them, or only frees the copies (kept_pages.c). The
 * argument is the shape of Engine.cache. */
void kept_pages_save(Engine *, const CacheShape *);
void kept_pages_restore(Engine *, const CacheShape *);
void kept_pages_free(Engine *);

/* Runs a pass (pass.c). Returns the required logits, [number, 1, padded vocab], and sets Engine.choice. */
Tensor pass_run(Engine *, const Pass *);
void pass_close(Engine *);

/* In choice.c: converts row i of the logits to doubles in e->row. */
void choice_read_row(const Engine *, const Tensor *logits, int64_t i);
/* Returns op_choose's parameters for token `at` of a request. A prompt token is already known. */
ChoiceRow choice_row(const Live *, int64_t at);
/* Returns whether op_choose chooses token `at` of a request. The host chooses all other tokens from e->row. */
bool choice_is_made(const Live *, int64_t at);
/* Chooses token `at` of a request. Returns op_choose's choice `made`, or a choice from e->row. The choice depends only
 * on the request, its tokens before `at` and the logits. Returns -1 if no token is allowed. */
int32_t choice_token(Engine *, const Live *, int64_t at, const Chosen *made);
/* Returns a token's log-probability. Computes it from `Chosen` if that contains the token and a sum, and otherwise from
 * e->row. */
double choice_logprob_of(const Engine *, const Chosen *, int32_t token);
/* Returns why a request ends if choice_token allows no token. */
Finish choice_finish(const Live *);

/* Computes the drafts for all shares that have drafts (speculation.c). */
void speculation_draft(Engine *);
/* Returns the maximum number of drafts for a request in the next pass. */
int64_t speculation_most(const Engine *, const Live *);
/* Counts a shared page in `drafted` if the draft caches contain all of its rows. */
void speculation_share(const Engine *, Live *, int64_t page);
void speculation_check(const Model *, const RunContext *, const Speculation *);
void speculation_open(Engine *);
void speculation_close(Engine *);
/* Like cache_copy_pages, for the draft caches. */
size_t speculation_copy_pages(Engine *, const CachePages *, CacheCopy, char *host, size_t at);
/* Allocate and release the draft caches. */
void speculation_allocate(Engine *);
void speculation_release(Engine *);
/* Returns the size of the draft caches in bytes. */
double speculation_bytes(const Model *, const RunContext *, const EngineLimits *);
